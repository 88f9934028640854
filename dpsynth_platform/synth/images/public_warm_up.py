"""Public pictures that a network learns from first, and the paid count of which of them the private ones look like.

What belongs here: the declared table in the sealed plan, the count, and the choice that follows from it. What does not:
reading a table (`declared_foundations`), and what is learned from it (`diffusion_training`).

The count is the semantic query of Li et al., "PrivImage", 2024, section 4.2: a classifier that is trained on the public
table alone names the public label that each private picture looks like. Each record is in one cell, of its class and
that label, so that an owner's b pictures move the counts as they move any counts over disjoint cells. Noisy counts are
a durable file before anything follows from them, and are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.contracts.image_generation import MOST_CLASSES, WarmUpPictures
from dpsynth_platform.foundation.errors import AccountingError, ConfigurationError, MechanismFailed
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import remove_unfinished
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images.declared_foundations import DeclaredFoundation
from dpsynth_platform.synth.images.encoders import AveragedPixels
from dpsynth_platform.synth.images.exact_sums import Batch, Batches, Sums, cells
from dpsynth_platform.synth.images.layout import Classes, ImageLayout
from dpsynth_platform.synth.images.moments_model import read_arrays, write_arrays
from dpsynth_platform.synth.images.picture_classifier import PictureClassifier, trained
from dpsynth_platform.synth.images.simulators_table import PublicTable
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

Places = npt.NDArray[np.int64]
COUNTS = "nearest-classes.npz"
"""The noisy counts, with the digest of the plan that they belong to."""
STAGE = "counting nearest public classes"
CLASSIFIER_PICTURES, MOST_EPOCHS = 80_000, 30
"""The classifier sees about so many pictures, each of them so often at most."""


@dataclass(frozen=True)
class PublicWarmUp:
    """A public table of pictures. Public, as all that the sealed plan holds of it.

    Attributes:
        table: where it is, and which labels a class has.
        digest: of its content.
        pictures: their number.
        nearest: labels of each class, chosen by noisy counts; 0: those that `table` declares.
        noise: deviation of the counts' noise, in records; 0 without counts.

    Raises:
        AccountingError: there is a choice without noise, or noise without a choice.
    """

    table: DeclaredFoundation
    digest: str
    pictures: int
    nearest: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        if (self.nearest > 0) != (self.noise > 0) or min(self.nearest, self.noise) < 0:
            raise AccountingError(
                f"nearest {self.nearest} with noise {self.noise:g}; accepted: both above 0, or both 0"
            )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PublicWarmUp:
        """Raises `TypeError` if a key is missing or unknown."""
        return cls(**{**document, "table": DeclaredFoundation.from_json(document["table"])})


def planned(declared: WarmUpPictures, layout: ImageLayout, part: Guarantee) -> PublicWarmUp:
    """The plan of a declared table.

    Args:
        part: of the guarantee, for the counts.

    Raises:
        ConfigurationError: the table is not there, or cannot be chosen from.
        AccountingError: no noise meets the part.
    """
    table = DeclaredFoundation("table", declared.directory, dict(declared.labels), declared.label)
    public = _opened(table, layout)
    if declared.nearest_classes is None:
        return PublicWarmUp(table, public.digest, len(public.pictures))
    labels = len(public.of)
    if not declared.nearest_classes < labels <= MOST_CLASSES:
        raise ConfigurationError(
            f"generate.image.diffusion.table.nearest_classes: {declared.nearest_classes} of the "
            f"{labels} labels in {declared.directory}; accepted: fewer than the table has, and {MOST_CLASSES} labels "
            "at most; declare a column of labels, or leave nearest_classes out"
        )
    noise = noise_for(lambda sigma: counts_event(sigma, part), part.epsilon, part.delta).value
    return PublicWarmUp(table, public.digest, len(public.pictures), declared.nearest_classes, noise)


def counts_event(noise: float, guarantee: Guarantee) -> DpEvent:
    """The cost of counts with noise of a deviation in records."""
    return GaussianCountsEvent(noise, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)


def chosen_pictures(
    plan: PublicWarmUp,
    layout: ImageLayout,
    batches: Batches,
    directory: Path,
    digest: str,
    most: int,
    progress: Progress = silent,
) -> tuple[Pixels, Classes]:
    """Pictures of the table with the classes that they have for the network; `layout.number` for none.

    Args:
        batches: begins a pass over the records; used only if counts are to be made that are not there yet.
        directory: where counts are kept.
        digest: of the sealed plan.
        most: pictures; of more, others are left out at random.

    Raises:
        ConfigurationError: the table is not that of the plan.
        MechanismFailed: the kept counts belong to another plan, or are damaged.
    """
    public = opened(plan, layout)
    if plan.nearest:
        of = _nearest(plan, layout, public, batches, directory / COUNTS, digest, progress)
    else:
        of = _declared(layout, public)
    places = np.concatenate(of)
    classes = np.repeat(np.arange(len(of)), [len(own) for own in of])
    kept = np.random.default_rng().permutation(len(places))[:most]
    return public.pictures[places[kept]], classes[kept]


def opened(plan: PublicWarmUp, layout: ImageLayout) -> PublicTable:
    """The plan's table. Raises `ConfigurationError` if it is not there, or another."""
    public = _opened(plan.table, layout)
    if public.digest != plan.digest:
        raise ConfigurationError(
            f"generate.image.diffusion.table: the public pictures in {plan.table.directory} are not those of the "
            "sealed plan; accepted: the earlier ones; or materialize raw again, and spend "
            "again if the mechanism had started"
        )
    return public


def label_counts(classifier: PictureClassifier, labels: int, classes: int, batch: Batch) -> Sums:
    """Records of each class that look like each label, in `RECORD_PARTS`; exact, shape (classes * labels,)."""
    places = batch.classes * labels + classifier.predict(batch.pixels)
    return cells(places, batch, classes * labels)


def _declared(layout: ImageLayout, public: PublicTable) -> list[Places]:
    """For each class, the pictures of the labels that it has; then those of no class. A single class has all."""
    if not layout.conditions:
        return [np.arange(len(public.pictures))]
    named = public.of if public.labels is not None else {}
    of = [public.sources(name) if name in named else np.zeros(0, np.int64) for name in layout.names]
    return [*of, np.setdiff1d(np.arange(len(public.pictures)), np.concatenate(of))]


def _nearest(
    plan: PublicWarmUp,
    layout: ImageLayout,
    public: PublicTable,
    batches: Batches,
    path: Path,
    digest: str,
    progress: Progress,
) -> list[Places]:
    """For each class, the pictures of the labels with the largest noisy counts."""
    of_labels = [public.sources(label) for label in sorted(public.of)]
    if not path.exists():
        remove_unfinished(path)
        progress(STAGE, 0, 1)
        write_arrays(path, {"counts": _counted(plan, layout, public, of_labels, batches), "plan": np.array(digest)})
        progress(STAGE, 1, 1)
    found = read_arrays(path)
    if str(found["plan"]) != digest:
        raise MechanismFailed("the stored counts of nearest public classes belong to another plan")
    best = np.argsort(-found["counts"].reshape(layout.number, len(of_labels)), axis=1)[:, : plan.nearest]
    return [np.concatenate([of_labels[label] for label in own]) for own in best]


def _counted(
    plan: PublicWarmUp, layout: ImageLayout, public: PublicTable, of_labels: list[Places], batches: Batches
) -> Sums:
    """The noisy counts, in `RECORD_PARTS`: the mechanism of `counts_event`."""
    numbers = np.zeros(len(public.pictures), dtype=np.int64)
    for number, places in enumerate(of_labels):
        numbers[places] = number
    epochs = min(MOST_EPOCHS, -(-CLASSIFIER_PICTURES // len(numbers)))
    classifier = trained(public.pictures, numbers, len(of_labels), np.random.default_rng(), epochs)
    total = np.zeros(layout.number * len(of_labels), dtype=np.int64)
    for batch in batches():
        for chunk in batch.chunks():
            total += label_counts(classifier, len(of_labels), layout.number, chunk)
    return sample_rounded_gaussian(total, plan.noise * RECORD_PARTS)


def _opened(table: DeclaredFoundation, layout: ImageLayout) -> PublicTable:
    found = table.opened(layout.form, AveragedPixels())
    assert isinstance(found, PublicTable)  # noqa: S101  (it is of kind table)
    return found
