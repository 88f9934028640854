"""The moments of pictures: which sums are asked for, each by what the noisy ones before it have shown.

What belongs here: a record's vector for each query, and the estimates that follow. What does not: noise and files
(`noisy_results`), and classifiers (`moments_measuring`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images import moments_plan as names
from dpsynth_platform.synth.images.exact_sums import (
    UNIT,
    Batch,
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
    whole_means,
)
from dpsynth_platform.synth.images.moments_model import Model
from dpsynth_platform.synth.images.moments_plan import STYLES, MomentsPlan
from dpsynth_platform.synth.images.noisy_results import Results

MomentsResults = Results[MomentsPlan]

BASIS_STEPS = 2**10
"""Entries of a basis are whole numbers of 1 / BASIS_STEPS."""
CLUSTER_NORM = 0.8
"""The clipping norm of differences from a cluster's centre, over that of differences from the class's mean."""
BRIGHT_QUANTILE, SPREAD_QUANTILE = 0.95, 0.9
"""Of the records' norms, where they are clipped."""


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
        chosen = STYLES[style]
        return Model.of_moments(
            self.form,
            self.counts,
            self.means,
            self.basis,
            self.weights,
            self.centres,
            self.covariances,
            self.rest if chosen.with_rest else np.zeros_like(self.rest),
            matched=chosen.matched,
            moved=chosen.moved,
        )


@dataclass(frozen=True)
class Coordinates:
    """From a record's pixels to whole numbers, by noisy results alone.

    Attributes:
        means: of classes, in `STEPS` of a grey level; shape (classes, values).
        wide: low frequencies, as orthonormal columns; None where the covariance is of all pixels.
    """

    means: Floats
    wide: Floats | None

    @cached_property
    def _whole(self) -> Whole | None:
        return None if self.wide is None else np.rint(self.wide * BASIS_STEPS)

    def residuals(self, batch: Batch) -> Whole:
        """Differences from the class's mean, in the numbers that the covariance is of."""
        found = STEPS * _flat(batch) - self.means[batch.classes]
        return found if self._whole is None else np.rint(found @ self._whole / BASIS_STEPS)

    def between(self, counts: Floats) -> Floats:
        """The covariance of the classes' means."""
        away = self.means - counts @ self.means / counts.sum()
        away = away if self.wide is None else away @ self.wide
        return np.asarray((away.T * counts) @ away / counts.sum())


def measured_moments(results: MomentsResults) -> Moments:
    """The moments, measured where that has not been done."""
    plan = results.plan
    counts = counts_from(
        results.query(names.COUNTS, lambda batch: cells(batch.classes, batch, plan.classes), RECORD_PARTS)
    )
    coordinates = _coordinates(results, counts)
    norm = _norm(results, names.SPREAD, coordinates.residuals, STEPS * _largest(plan), SPREAD_QUANTILE)
    own = _basis(results, counts, coordinates, norm)

    def components(batch: Batch) -> Whole:
        found: Whole = np.rint(coordinates.residuals(batch) @ own / BASIS_STEPS)
        return found

    found = _normal(results, counts, components, norm)
    if plan.clusters > 1:
        found = _clusters(results, counts, components, found, norm * CLUSTER_NORM)
    centre = np.einsum("cj,cji->ci", found.weights, found.centres)
    # From steps of a grey level to the unit interval, and from the basis to pixels.
    unit = 255.0 * STEPS
    columns = own / BASIS_STEPS if coordinates.wide is None else coordinates.wide @ (own / BASIS_STEPS)
    return Moments(
        plan.form,
        counts,
        np.clip((coordinates.means + centre @ columns.T) / unit, 0, 1),
        columns,
        found.weights,
        (found.centres - centre[:, None]) / unit,
        found.covariances / unit**2,
        _outside(results, counts, coordinates, own, norm) / unit**2,
    )


def _largest(plan: MomentsPlan) -> float:
    """The norm of a white picture, in grey levels."""
    return 255 * math.sqrt(plan.form.values)


def _norm(
    results: MomentsResults, name: str, vectors: Callable[[Batch], Whole], largest: float, quantile: float
) -> float:
    """A clipping norm by a noisy histogram of the vectors' norms."""

    def histogram(batch: Batch) -> Sums:
        found = norms(vectors(batch))[:, 0]
        return cells(np.minimum((found * (BINS / largest)).astype(np.int64), BINS - 1), batch, BINS)

    return norm_from(results.query(name, histogram, RECORD_PARTS), results.deviation(name), largest, quantile)


def sums_with(results: MomentsResults, pictures: Pixels) -> MeasuredSums:
    """The noisy sums of each class's pictures, and what some pictures would add to them."""
    found, norm = _class_sums(results)
    mine = Batch(pictures, np.zeros(len(pictures), dtype=np.int64))
    return MeasuredSums(found, clipped(_flat(mine), norm, mine.shares) / UNIT, results.deviation(names.MEANS))


def _class_sums(results: MomentsResults) -> tuple[Floats, float]:
    """The noisy sums of each class's pictures, clipped to a norm, and that norm."""
    plan = results.plan
    norm = _norm(results, names.BRIGHTNESS, _flat, _largest(plan), BRIGHT_QUANTILE)

    def sums(batch: Batch) -> Sums:
        return class_sums(clipped(_flat(batch), norm, batch.shares), batch.classes, plan.classes)

    return results.query(names.MEANS, sums, UNIT), norm


def _coordinates(results: MomentsResults, counts: Floats) -> Coordinates:
    plan = results.plan
    found, norm = _class_sums(results)
    found = found * norm
    deviation = results.deviation(names.MEANS) * norm
    if not plan.frequencies:
        return Coordinates(whole_means(found, counts, deviation, plan.form.values), None)
    wide = low_frequencies(*plan.shape, plan.frequencies)
    return Coordinates(whole_means(found @ wide @ wide.T, counts, deviation, wide.shape[1]), wide)


def _basis(results: MomentsResults, counts: Floats, coordinates: Coordinates, norm: float) -> Whole:
    """Principal components, as columns of whole numbers of 1 / `BASIS_STEPS`."""
    records = counts.sum()
    covariance = _scatter(results, counts, coordinates, norm)

    def made() -> dict[str, npt.NDArray[Any]]:
        deviation = results.deviation(names.SCATTER) * norm**2 / records
        found = components_of(covariance, coordinates.between(counts), deviation, results.plan.components)
        return {"basis": np.rint(found * BASIS_STEPS)}

    return results.kept("basis", made)["basis"]


def _scatter(results: MomentsResults, counts: Floats, coordinates: Coordinates, norm: float) -> Floats:
    """The noisy covariance within classes."""

    def scatter(batch: Batch) -> Sums:
        return second_moments(clipped(coordinates.residuals(batch), norm, np.sqrt(batch.shares)))

    found: Floats = results.query(names.SCATTER, scatter, UNIT**2, matrix=True) * norm**2 / counts.sum()
    return found


def _outside(results: MomentsResults, counts: Floats, coordinates: Coordinates, own: Whole, norm: float) -> Floats:
    """The variance of each pixel outside of the components, less the noise's deviation; a mean over 3 x 3 pixels."""
    from scipy.ndimage import uniform_filter

    covariance, columns = _scatter(results, counts, coordinates, norm), own / BASIS_STEPS
    rest = covariance - columns @ (columns.T @ covariance @ columns) @ columns.T
    wide = coordinates.wide
    found = np.diag(rest) if wide is None else np.einsum("pi,ij,pj->p", wide, rest, wide, optimize=True)
    smooth = uniform_filter(found.reshape(results.plan.shape), size=(3, 3, 1), mode="nearest").ravel()
    deviation = results.deviation(names.SCATTER) * norm**2 / counts.sum()
    return np.asarray(np.maximum(smooth - deviation / 3, 0), dtype=np.float64)


@dataclass(frozen=True)
class Clusters:
    """A mixture of each class: weights (classes, J), centres (classes, J, size), covariances (classes, size, size)."""

    weights: Floats
    centres: Floats
    covariances: Floats


def _normal(results: MomentsResults, counts: Floats, components: Callable[[Batch], Whole], norm: float) -> Clusters:
    """One cluster of each class: its mean and covariance."""
    classes = results.plan.classes

    def firsts(batch: Batch) -> Sums:
        return class_sums(clipped(components(batch), norm, batch.shares), batch.classes, classes)

    def seconds(batch: Batch) -> Sums:
        return class_second_moments(clipped(components(batch), norm, np.sqrt(batch.shares)), batch.classes, classes)

    sums = results.query(names.CENTRES, firsts, UNIT) * norm
    size = sums.shape[1]
    centres = shrunk_means(
        sums / counts[:, None], np.zeros(size), results.deviation(names.CENTRES) * norm / counts, size
    )
    squares = results.query(names.COVARIANCES, seconds, UNIT**2, matrix=True) * norm**2 / counts[:, None, None]
    around = squares - centres[:, :, None] * centres[:, None, :]
    covariances = shrunk_covariances(around, counts, results.deviation(names.COVARIANCES) * norm**2, norm**2)
    return Clusters(np.ones((classes, 1)), centres[:, None], covariances)


def _clusters(
    results: MomentsResults, counts: Floats, components: Callable[[Batch], Whole], before: Clusters, norm: float
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


def _flat(batch: Batch) -> Whole:
    flat: Whole = batch.pixels.reshape(len(batch.pixels), math.prod(batch.pixels.shape[1:])).astype(np.float64)
    return flat
