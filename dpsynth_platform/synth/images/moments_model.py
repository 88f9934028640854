"""The model of `image_moments`: normal draws of each class in principal components, labelled by a DP classifier.

What belongs here: the fitted numbers, drawing, saving and loading. What does not: how they are measured or estimated.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.synth.images.moments_fitting import Floats, before_clipping
from dpsynth_platform.synth.images.picture_classifier import PictureClassifier

AT_ONCE = 2048
"""Pictures drawn at once."""
MOST_TRIES = 40
"""Rounds of candidates for pictures with a wanted label."""
_ARRAYS = (
    "class_counts",
    "means",
    "basis",
    "weights",
    "centres",
    "factors",
    "rest",
    "location",
    "scale",
    "spread",
    "moves",
    "labels",
)
TURN, SHEAR, SCALE, SHIFT = 0.12, 0.1, 0.08, 0.05
"""Deviations of the small changes of draws: radians, a share of the height, a factor, a share of half the width."""
TRIED = 400
"""Pictures of each class from which it is estimated which labels they get."""


@dataclass(frozen=True)
class Model:
    """A generative model of pictures by class.

    Attributes:
        form: of the pictures.
        class_counts: noisy; shape (classes,).
        means: in grey levels from 0 to 1; shape (classes, values).
        basis: orthonormal columns; shape (values, components).
        weights: of each class's clusters; shape (classes, clusters).
        centres: of clusters in components, around the class's mean; shape (classes, clusters, components).
        factors: of the covariance within clusters, lower triangular; shape (classes, components, components).
        rest: deviation outside of the components; shape (values,).
        location, scale: of the normal variables that are clipped to [0, 1]; shape (classes, values).
        spread: deviation of what is drawn before that; shape (classes, values).
        moves: 1 where draws are moved a little, else 0; shape (1,).
        labels: the share of each class's draws that get each label; shape (classes, labels).
        classifier: gives draws their labels; None without one.
    """

    form: ImageForm
    class_counts: Floats
    means: Floats
    basis: Floats
    weights: Floats
    centres: Floats
    factors: Floats
    rest: Floats
    location: Floats
    scale: Floats
    spread: Floats
    moves: Floats
    labels: Floats
    classifier: PictureClassifier | None = None

    @classmethod
    def of_moments(
        cls,
        form: ImageForm,
        counts: Floats,
        means: Floats,
        basis: Floats,
        weights: Floats,
        centres: Floats,
        covariances: Floats,
        rest: Floats,
        *,
        matched: bool,
        moved: bool = False,
    ) -> Model:
        """A model without a classifier.

        Args:
            matched: whether pixels have these means and variances after they are clipped, instead of before.
            means: grey levels from 0 to 1; shape (classes, values).
            weights: positive, of sum 1 for each class.
            covariances: positive, within clusters, in components.
            rest: variance outside of the components; shape (values,).
            moved: whether draws are moved a little (`moved`).
        """
        between = np.einsum("cj,cji,cjk->cik", weights, centres, centres)
        explained = np.einsum("pi,cij,pj->cp", basis, covariances + between, basis, optimize=True)
        variances = np.maximum(explained + rest, 1e-9)
        location, scale = before_clipping(means, variances) if matched else (means, np.sqrt(variances))
        return cls(
            form,
            counts,
            means,
            basis,
            weights,
            centres,
            np.asarray(np.linalg.cholesky(covariances), dtype=np.float64),
            np.sqrt(rest),
            location,
            scale,
            np.sqrt(variances),
            np.array([float(moved)]),
            np.eye(len(counts)),
        )

    @property
    def classes(self) -> int:
        return len(self.class_counts)

    def unlabelled(self, source: int, number: int, generator: np.random.Generator) -> Pixels:
        """Pictures from one class's moments, whatever the classifier says of them."""
        found = [self._some(source, min(AT_ONCE, number - at), generator) for at in range(0, number, AT_ONCE)]
        return np.concatenate([np.zeros((0, *self.form.shape), dtype=np.uint8), *found])

    def _some(self, source: int, number: int, generator: np.random.Generator) -> Pixels:
        clusters = generator.choice(self.weights.shape[1], number, p=self.weights[source])
        components = generator.standard_normal((number, self.factors.shape[1])) @ self.factors[source].T
        away = (components + self.centres[source, clusters]) @ self.basis.T
        if self.rest.any():
            away += self.rest * generator.standard_normal(away.shape)
        drawn = self.location[source] + away * (self.scale[source] / self.spread[source])
        grey = np.clip(drawn, 0, 1).reshape(number, *self.form.shape)
        if self.moves.any():
            grey = moved(grey, generator)
        pixels: Pixels = np.rint(grey * 255).astype(np.uint8)
        return pixels

    def pool(self, number: int, generator: np.random.Generator) -> tuple[Pixels, npt.NDArray[np.int64]]:
        """Pictures of all classes in proportion to their counts, in random order, with their labels."""
        sources = generator.choice(self.classes, number, p=self.class_counts / self.class_counts.sum())
        pixels = np.zeros((number, *self.form.shape), dtype=np.uint8)
        for source in range(self.classes):
            places = np.flatnonzero(sources == source)
            pixels[places] = self.unlabelled(source, len(places), generator)
        return pixels, sources if self.classifier is None else self.classifier.predict(pixels)

    def with_classifier(self, classifier: PictureClassifier, generator: np.random.Generator) -> Model:
        """The model whose draws are labelled by a classifier."""
        found = [
            np.bincount(classifier.predict(self.unlabelled(source, TRIED, generator)), minlength=self.classes)
            for source in range(self.classes)
        ]
        return self.labelled(classifier, np.stack(found) / TRIED)

    def labelled(self, classifier: PictureClassifier, labels: Floats) -> Model:
        """The same, where the shares of labels are known."""
        return replace(self, classifier=classifier, labels=labels)

    def draw(self, label: int, number: int, generator: np.random.Generator) -> Pixels:
        """`number` pictures with a label, from the classes whose draws get it, in proportion.

        Where draws hardly ever get the label, pictures of the class's own moments are added.
        """
        if self.classifier is None:
            return self.unlabelled(label, number, generator)
        odds = self.class_counts * self.labels[:, label]
        found: list[Pixels] = [np.zeros((0, *self.form.shape), dtype=np.uint8)]
        missing = number
        for _ in range(MOST_TRIES):
            if not missing or not odds.sum():
                break
            # Each source is tried as often as its counts say, given that its draws often enough get the label.
            tried = min(AT_ONCE, int(missing / self._rate(label)) + 16)
            sources = generator.choice(self.classes, tried, p=self._tried(label))
            candidates = np.concatenate(
                [self.unlabelled(int(source), int(count), generator) for source, count in _counted(sources)]
            )
            kept = candidates[self.classifier.predict(candidates) == label]
            kept = kept[generator.permutation(len(kept))[:missing]]
            found.append(kept)
            missing -= len(kept)
        if missing:
            found.append(self.unlabelled(label, missing, generator))
        return np.concatenate(found)

    def _tried(self, label: int) -> Floats:
        """The chances of each class to be tried for a label: its counts, where its draws ever get the label."""
        odds = np.where(self.labels[:, label] > 0, self.class_counts, 0.0)
        tried: Floats = odds / odds.sum()
        return tried

    def _rate(self, label: int) -> float:
        """The share of tried draws that get the label."""
        return max(float((self._tried(label) * self.labels[:, label]).sum()), 1e-3)

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        arrays["form"] = np.array(self.form.shape)
        if self.classifier is not None:
            arrays |= {f"classifier.{name}": array for name, array in self.classifier.arrays().items()}
        write_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path) -> Model:
        """Raises `MechanismFailed` if the file is missing or damaged."""
        arrays = read_arrays(path)
        prefix = "classifier."
        own = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
        try:
            form = ImageForm(*(int(number) for number in arrays.pop("form")))
            moments = {name: array for name, array in arrays.items() if not name.startswith(prefix)}
            return cls(form, **moments, classifier=PictureClassifier.from_arrays(own) if own else None)
        except (KeyError, TypeError):
            raise MechanismFailed(f"{path.name}: the model's file is damaged; fit the measurements again") from None


def moved(pictures: Floats, generator: np.random.Generator) -> Floats:
    """Pictures each turned, scaled, sheared and shifted a little; nothing changes where they are too small.

    Beyond the border a picture continues with its border. The size of the changes is public (`TURN` and others).
    """
    import torch

    number, height, width, _ = pictures.shape
    turn, shear, scale = (
        generator.normal(middle, size, number) for middle, size in ((0, TURN), (0, SHEAR), (1, SCALE))
    )
    matrices = np.empty((number, 2, 3))
    matrices[:, 0, 0], matrices[:, 0, 1] = np.cos(turn), -np.sin(turn) + shear
    matrices[:, 1, 0], matrices[:, 1, 1] = np.sin(turn), np.cos(turn)
    matrices[:, :, :2] /= np.clip(scale, 0.5, 2)[:, None, None]
    matrices[:, :, 2] = generator.normal(0, SHIFT, (number, 2))
    with torch.no_grad():
        held = torch.from_numpy(pictures.transpose(0, 3, 1, 2).astype(np.float32))
        places = torch.nn.functional.affine_grid(
            torch.from_numpy(matrices.astype(np.float32)), [number, 1, height, width], align_corners=False
        )
        found = torch.nn.functional.grid_sample(held, places, padding_mode="border", align_corners=False)
    return np.asarray(found.numpy().transpose(0, 2, 3, 1), dtype=np.float64)


def _counted(sources: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    values, counts = np.unique(sources, return_counts=True)
    return [(int(value), int(count)) for value, count in zip(values, counts, strict=True)]


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes arrays as one durable file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_durably(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Raises `MechanismFailed` if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    except Exception:  # whatever a damaged file makes the loader raise
        raise MechanismFailed(f"{path.name}: the file is missing or damaged; what it cost stays spent") from None
