"""Measuring moments of pictures: *draw, append durably, use*.

What belongs here: the passes over records, noise, and the files of noisy results. What does not: the plan
(`moments_plan`), the arithmetic of exact sums (`exact_sums`), and estimates (`moments_fitting`).

Each query is one pass. Its noisy sums are a durable file before anything depends on them; a file that exists is used
and never drawn again. So a run that stopped continues with what it has, and a query lost in a crash was not used. What
follows from noisy results alone (the basis, networks) is a file, too, so that every later pass has the same numbers.
Nothing without noise outlives its pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images import moments_plan as names
from dpsynth_platform.synth.images.exact_sums import (
    DIAGONAL_SHARE,
    UNIT,
    Batch,
    Batches,
    Sums,
    Whole,
    cells,
    class_second_moments,
    class_sums,
    clipped,
    norms,
    second_moments,
)
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.images.moments_fitting import (
    BINS,
    STEPS,
    Floats,
    clusters_of_draws,
    components_of,
    counts_from,
    low_frequencies,
    norm_from,
    shrunk_covariances,
    shrunk_means,
    symmetric,
    whole_means,
)
from dpsynth_platform.synth.images.moments_model import Model, read_arrays, write_arrays
from dpsynth_platform.synth.images.moments_plan import STYLES, MomentsPlan, gradient_name, style_name
from dpsynth_platform.synth.images.picture_classifier import GRADIENT_UNIT, PictureClassifier, trained
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

PLAN_FILE, COMPLETE_FILE = "plan.digest", "complete"
BASIS_STEPS = 2**10
"""Entries of a basis are whole numbers of 1 / BASIS_STEPS."""
CLUSTER_NORM = 0.8
"""The clipping norm of differences from a cluster's centre, over that of differences from the class's mean."""
BRIGHT_QUANTILE, SPREAD_QUANTILE = 0.95, 0.9
"""Of the records' norms, where they are clipped."""
DRAWN, FEW_DRAWN = 20_000, 10_000
"""Pictures that a network is trained on; fewer for the comparison of styles, whose best is the first network."""
DEFAULT_STYLE = "components-and-rest"
"""Of one class, where no classifier compares styles."""


@dataclass
class Results:
    """A directory's noisy results, each measured at most once.

    Attributes:
        batches: None where nothing may be measured any more, only read.
    """

    plan: MomentsPlan
    directory: Path
    batches: Batches | None = None
    progress: Progress = silent
    _read: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)

    def query(self, name: str, sums: Callable[[Batch], Sums], unit: int, *, matrix: bool = False) -> Floats:
        """A noisy sum over all records, in units of a record.

        Args:
            sums: of a batch, exact; a unit moves their total by b * `unit` at most (`exact_sums`).
            unit: the norm of a record of weight 1.
            matrix: the last two axes are symmetric matrices; only their upper triangles are measured.
        """

        def measured() -> dict[str, npt.NDArray[Any]]:
            self.progress(f"measuring {name}", 0, 1)
            total: Sums | None = None
            for batch in self._passes():
                for chunk in batch.chunks():
                    part = sums(chunk)
                    total = part if total is None else total + part
            if total is None:
                total = sums(self._nothing())
            noisy = with_noise(total, self.plan.noise[name], unit, matrix=matrix)
            self.progress(f"measuring {name}", 1, 1)
            return {"sums": noisy}

        found = self.kept(name, measured)["sums"].astype(np.float64) / unit
        return symmetric(found) if matrix else found

    def deviation(self, name: str) -> float:
        """Of the noise of a query, in units of a record."""
        return self.plan.noise[name]

    def kept(self, name: str, make: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        """Arrays of the directory; made, and durable before they are returned, if they are not there yet.

        Raises:
            MechanismFailed: they are missing, and nothing may be measured any more.
        """
        if name not in self._read:
            path = self.directory / f"{name}.npz"
            if not path.exists():
                if self.batches is None:
                    raise MechanismFailed(
                        f"the measurements lack {name}; what they cost stays spent, and a new attempt is a new spend"
                    )
                write_arrays(path, make())
            self._read[name] = read_arrays(path)
        return self._read[name]

    def _passes(self) -> Iterator[Batch]:
        return iter(()) if self.batches is None else self.batches()

    def _nothing(self) -> Batch:
        return Batch(np.zeros((0, *self.plan.shape), dtype=np.uint8), np.zeros(0, dtype=np.int64))


def with_noise(exact: Sums, multiplier: float, unit: int, *, matrix: bool = False) -> Sums:
    """Exact sums with noise of `multiplier` * `unit`; of matrices the upper triangles, zeros below.

    A matrix's off-diagonal entries have 1 / sqrt(2) of that (`DIAGONAL_SHARE`).
    """
    if not matrix:
        return sample_rounded_gaussian(exact, multiplier * unit)
    size = exact.shape[-1]
    noisy = np.zeros_like(exact)
    diagonal, above = np.arange(size), np.triu_indices(size, 1)
    noisy[..., diagonal, diagonal] = sample_rounded_gaussian(exact[..., diagonal, diagonal], multiplier * unit)
    if size > 1:
        cells_above = np.ascontiguousarray(exact[..., above[0], above[1]])
        noisy[..., above[0], above[1]] = sample_rounded_gaussian(cells_above, multiplier * unit * DIAGONAL_SHARE)
    return noisy


def measure(plan: MomentsPlan, batches: Batches, directory: Path, progress: Progress = silent) -> None:
    """Measures everything of a plan, or what a stopped run has not measured.

    Args:
        batches: begins a pass; every pass gives the same records, of the plan's form and classes.
        directory: the results' own, private.

    Raises:
        MechanismFailed: the directory holds results of another plan, or damaged ones.
    """
    private_directory(directory)
    path = directory / PLAN_FILE
    if not path.exists():
        write_durably(path, plan.digest)
    _check(plan, directory)
    _estimated(Results(plan, directory, batches, progress))
    write_durably(directory / COMPLETE_FILE, plan.digest)


def is_complete(directory: Path) -> bool:
    """Whether a directory has all measurements of its plan."""
    return (directory / COMPLETE_FILE).exists()


def fit(directory: Path, plan: MomentsPlan) -> Model:
    """The model of complete measurements, at no cost.

    Raises:
        MechanismFailed: the measurements are missing, incomplete, damaged, or of another plan.
    """
    if not is_complete(directory):
        raise MechanismFailed(
            "the mechanism stopped before its measurements were complete; what it cost stays spent, and a new attempt "
            "is a new spend"
        )
    _check(plan, directory)
    return _estimated(Results(plan, directory))


def class_sums_of(directory: Path, plan: MomentsPlan, pictures: Pixels) -> MeasuredSums:
    """The noisy class sums of complete measurements, with what some pictures would add to them.

    Raises:
        MechanismFailed: the measurements are missing, incomplete, damaged, or of another plan.
    """
    _check(plan, directory)
    results = Results(plan, directory)
    norm = _bright_norm(results)
    found = results.query(names.MEANS, lambda batch: _class_sums(batch, norm, plan.classes), UNIT)
    mine = Batch(pictures, np.zeros(len(pictures), dtype=np.int64))
    return MeasuredSums(found, clipped(_flat(mine), norm, mine.shares) / UNIT, results.deviation(names.MEANS))


def _bright_norm(results: Results) -> float:
    """Where the norms of pictures are clipped."""
    largest = 255 * float(np.sqrt(results.plan.form.values))
    bright = results.query(
        names.BRIGHTNESS, lambda batch: cells(_bins(norms(_flat(batch)), largest), batch, BINS), RECORD_PARTS
    )
    return norm_from(bright, results.deviation(names.BRIGHTNESS), largest, BRIGHT_QUANTILE)


def _class_sums(batch: Batch, norm: float, classes: int) -> Sums:
    return class_sums(clipped(_flat(batch), norm, batch.shares), batch.classes, classes)


def _check(plan: MomentsPlan, directory: Path) -> None:
    try:
        digest = (directory / PLAN_FILE).read_text()
    except OSError:
        digest = ""
    if digest != plan.digest:
        raise MechanismFailed("the stored measurements belong to another plan")


def _estimated(results: Results) -> Model:
    """The model; each result is measured where it is first needed and not there yet."""
    moments = _moments(results)
    if not results.plan.networks:
        return moments.model(DEFAULT_STYLE)
    generator = np.random.default_rng()
    correct: dict[str, float] = {}
    for style in STYLES:
        classifier = _network(results, moments.model(style), style, FEW_DRAWN, generator)
        correct[style] = float(results.query(style_name(style), classifier.correct, RECORD_PARTS)[0])
    best = max(correct, key=lambda style: correct[style])
    model = moments.model(best)
    for network in range(results.plan.networks):
        name = best if network == 0 else f"relabelled-{network}"
        classifier = _network(results, model, name, DRAWN, generator)
        model = _classified(results, model, classifier, network, generator)
    return model


def _classified(
    results: Results, model: Model, classifier: PictureClassifier, network: int, generator: np.random.Generator
) -> Model:
    """The model with a classifier whose last layer follows noisy gradients."""
    drawn: list[Whole] = []
    for round_ in range(results.plan.rounds):
        name = gradient_name(network, round_)
        gradient = results.query(name, classifier.gradient, GRADIENT_UNIT)

        def stepped(
            before: PictureClassifier = classifier, gradient: Floats = gradient, name: str = name
        ) -> dict[str, npt.NDArray[Any]]:
            if not drawn:
                drawn.append(before.features(model.pool(DRAWN // 4, generator)[0]))
            records = float(model.class_counts.sum())
            return before.stepped(gradient, drawn[0], records, results.deviation(name)).arrays()

        classifier = PictureClassifier.from_arrays(results.kept(f"after-{name}", stepped))

    def labels() -> dict[str, npt.NDArray[Any]]:
        return {"labels": model.with_classifier(classifier, generator).labels}

    return model.labelled(classifier, results.kept(f"labels-{network}", labels)["labels"])


def _network(
    results: Results, model: Model, name: str, number: int, generator: np.random.Generator
) -> PictureClassifier:
    """A classifier trained on a number of draws."""

    def made() -> dict[str, npt.NDArray[Any]]:
        stage = f"training on draws: {name}"
        results.progress(stage, 0, 1)
        pixels, labels = model.pool(number, generator)
        found = trained(pixels, labels, model.classes, generator).arrays()
        results.progress(stage, 1, 1)
        return found

    return PictureClassifier.from_arrays(results.kept(f"network-{name}", made))


@dataclass(frozen=True)
class Moments:
    """What all styles of drawing have in common; see `Model.of_moments`."""

    form: ImageForm
    counts: Floats
    means: Floats
    basis: Floats
    weights: Floats
    centres: Floats
    covariances: Floats
    rest: Floats

    def model(self, style: str) -> Model:
        matched, with_rest = STYLES[style]
        rest = self.rest if with_rest else np.zeros_like(self.rest)
        return Model.of_moments(
            self.form,
            self.counts,
            self.means,
            self.basis,
            self.weights,
            self.centres,
            self.covariances,
            rest,
            matched=matched,
        )


def _moments(results: Results) -> Moments:
    plan = results.plan
    classes, form = plan.classes, plan.form
    largest = 255 * float(np.sqrt(form.values))

    counts = counts_from(results.query(names.COUNTS, lambda batch: cells(batch.classes, batch, classes), RECORD_PARTS))
    records = float(counts.sum())

    norm = _bright_norm(results)
    sums = results.query(names.MEANS, lambda batch: _class_sums(batch, norm, classes), UNIT)
    wide = low_frequencies(*plan.shape, plan.frequencies) if plan.frequencies else None
    sums = sums * norm if wide is None else (sums * norm) @ wide @ wide.T
    dimensions = form.values if wide is None else wide.shape[1]
    means = whole_means(sums, counts, results.deviation(names.MEANS) * norm, dimensions)

    whole_wide = None if wide is None else np.rint(wide * BASIS_STEPS)

    def residuals(batch: Batch) -> Whole:
        """In quarters of a grey level, in the basis that the covariance is of."""
        found = STEPS * _flat(batch) - means[batch.classes]
        return found if whole_wide is None else np.rint(found @ whole_wide / BASIS_STEPS)

    spread = results.query(
        names.SPREAD,
        lambda batch: cells(_bins(norms(residuals(batch)), STEPS * largest), batch, BINS),
        RECORD_PARTS,
    )
    norm = norm_from(spread, results.deviation(names.SPREAD), STEPS * largest, SPREAD_QUANTILE)

    scatter = results.query(
        names.SCATTER,
        lambda batch: second_moments(clipped(residuals(batch), norm, np.sqrt(batch.shares))),
        UNIT**2,
        matrix=True,
    )
    covariance = scatter * norm**2 / records

    def basis() -> dict[str, npt.NDArray[Any]]:
        away = means - (means * counts[:, None]).sum(axis=0) / records
        away = away if wide is None else away @ wide
        between = (away.T * counts) @ away / records
        found = components_of(
            covariance, between, results.deviation(names.SCATTER) * norm**2 / records, plan.components
        )
        return {"basis": np.rint(found * BASIS_STEPS)}

    own = results.kept("basis", basis)["basis"]

    def components(batch: Batch) -> Whole:
        found: Whole = np.rint(residuals(batch) @ own / BASIS_STEPS)
        return found

    centres = results.query(
        names.CENTRES,
        lambda batch: class_sums(clipped(components(batch), norm, batch.shares), batch.classes, classes),
        UNIT,
    )
    centres = shrunk_means(
        centres * norm / counts[:, None],
        np.zeros(centres.shape[1]),
        results.deviation(names.CENTRES) * norm / counts,
        centres.shape[1],
    )
    seconds = results.query(
        names.COVARIANCES,
        lambda batch: class_second_moments(
            clipped(components(batch), norm, np.sqrt(batch.shares)), batch.classes, classes
        ),
        UNIT**2,
        matrix=True,
    )
    seconds = seconds * norm**2 / counts[:, None, None] - centres[:, :, None] * centres[:, None, :]
    covariances = shrunk_covariances(seconds, counts, results.deviation(names.COVARIANCES) * norm**2, norm**2)
    found = Clusters(np.ones((classes, 1)), centres[:, None], covariances)
    if plan.clusters > 1:
        found = _clusters(results, counts, components, found, norm * CLUSTER_NORM)
    mean_centres = np.einsum("cj,cji->ci", found.weights, found.centres)

    # From quarters of a grey level to the unit interval, and from the basis to pixels.
    unit = 255.0 * STEPS
    columns = own / BASIS_STEPS if wide is None else wide @ (own / BASIS_STEPS)
    outside = _outside(
        covariance, own / BASIS_STEPS, wide, results.deviation(names.SCATTER) * norm**2 / records, plan.shape
    )
    return Moments(
        form,
        counts,
        np.clip((means + mean_centres @ columns.T) / unit, 0, 1),
        columns,
        found.weights,
        (found.centres - mean_centres[:, None]) / unit,
        found.covariances / unit**2,
        outside / unit**2,
    )


@dataclass(frozen=True)
class Clusters:
    """A mixture of each class: weights (classes, J), centres (classes, J, size), covariances (classes, size, size)."""

    weights: Floats
    centres: Floats
    covariances: Floats


def _clusters(
    results: Results, counts: Floats, components: Callable[[Batch], Whole], before: Clusters, norm: float
) -> Clusters:
    """Clusters of each class by rounds of noisy means (Lloyd), from those of draws of its normal distribution."""
    plan = results.plan
    classes, number = plan.classes, plan.clusters

    def start() -> dict[str, npt.NDArray[Any]]:
        results.progress("clusters of draws", 0, 1)
        found = [
            clusters_of_draws(before.centres[index, 0], before.covariances[index], number, np.random.default_rng())
            for index in range(classes)
        ]
        results.progress("clusters of draws", 1, 1)
        return {"centres": np.rint(np.stack(found))}

    centres = results.kept("clusters-of-draws", start)["centres"]
    found = np.ones((classes, number))

    def nearest(batch: Batch) -> tuple[npt.NDArray[np.int64], Whole]:
        """Each record's cluster, among all classes' clusters, and its difference from the centre."""
        held = components(batch)
        own = np.zeros(len(held), dtype=np.int64)
        for index in np.unique(batch.classes).tolist():
            places = batch.classes == index
            near = 2 * held[places] @ centres[index].T - (centres[index] ** 2).sum(axis=1)
            own[places] = near.argmax(axis=1)
        return batch.classes * number + own, held - centres[batch.classes, own]

    def cluster_counts(batch: Batch) -> Sums:
        return cells(nearest(batch)[0], batch, classes * number)

    def cluster_sums(batch: Batch) -> Sums:
        own, away = nearest(batch)
        return class_sums(clipped(away, norm, batch.shares), own, classes * number)

    def within(batch: Batch) -> Sums:
        return class_second_moments(clipped(nearest(batch)[1], norm, np.sqrt(batch.shares)), batch.classes, classes)

    for round_ in range(names.CLUSTER_ROUNDS):
        of_counts, of_sums = names.cluster_names(round_)
        noisy = results.query(of_counts, cluster_counts, RECORD_PARTS)
        found = np.maximum(noisy, max(1.0, results.deviation(of_counts))).reshape(classes, number)
        sums = results.query(of_sums, cluster_sums, UNIT)
        sizes = found.reshape(-1, 1)
        moved = shrunk_means(
            sums * norm / sizes,
            np.zeros(sums.shape[1]),
            results.deviation(of_sums) * norm / sizes[:, 0],
            sums.shape[1],
        )
        # Never further than a clipped record is, so that all products stay exact.
        moved *= np.minimum(1, norm / np.maximum(norms(moved), 1))
        centres = np.rint(centres + moved.reshape(centres.shape))
    seconds = results.query(names.WITHIN, within, UNIT**2, matrix=True) * norm**2 / counts[:, None, None]
    covariances = shrunk_covariances(seconds, counts, results.deviation(names.WITHIN) * norm**2, norm**2)
    return Clusters(found / found.sum(axis=1, keepdims=True), centres, covariances)


def _outside(
    covariance: Floats, own: Floats, wide: Floats | None, deviation: float, shape: tuple[int, int, int]
) -> Floats:
    """The variance of each pixel outside of the components, less the noise's deviation; a mean over 3 x 3 pixels.

    Args:
        deviation: of the noise of the covariance's diagonal.
    """
    from scipy.ndimage import uniform_filter

    rest = covariance - own @ (own.T @ covariance @ own) @ own.T
    found = np.diag(rest) if wide is None else np.einsum("pi,ij,pj->p", wide, rest, wide, optimize=True)
    smooth = uniform_filter(found.reshape(shape), size=(3, 3, 1), mode="nearest").ravel()
    return np.asarray(np.maximum(smooth - deviation / 3, 0), dtype=np.float64)


def _flat(batch: Batch) -> Whole:
    flat: Whole = batch.pixels.reshape(len(batch.pixels), math.prod(batch.pixels.shape[1:])).astype(np.float64)
    return flat


def _bins(found: npt.NDArray[np.float64], largest: float) -> npt.NDArray[np.int64]:
    return np.minimum((found[:, 0] * (BINS / largest)).astype(np.int64), BINS - 1)
