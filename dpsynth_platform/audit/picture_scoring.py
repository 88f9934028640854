"""Every attack on a model that makes pictures: on its columns, on released pictures, on noisy sums, and on losses.

What belongs here: the canaries' pictures and the attacks on them. What does not: coins, real records, and drawing the
canaries' patterns (`canaries`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.audit.attacks import PICTURE_DISTANCE, PICTURE_LOSS, PICTURE_SUMS, Floats, Scored, equal_items
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.audit.scoring import score_canaries
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.sources.pictures import read_pictures
from dpsynth_platform.synth.counted import counts_columns
from dpsynth_platform.synth.images.generator import COLUMNS, ImageGenerator
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.interface import SealedPlan, generator

MOST_PICTURES = 20_000
"""Released pictures that the attack by distance looks at."""
DOUBTED = 0.01
_CHUNK = 256
_PRIOR = 4.0
"""One over the variance of a fair coin."""


def score_pictures(
    contract: DataContract, plan: SealedPlan, canaries: CanarySet, directory: Path, synthetic: pa.Table
) -> list[Scored]:
    """Scores of every attack of `policy.attacks_on`, in the order of `CanarySet.owners`.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no synthetic rows.
    """
    layout, values = ImageLayout.of(contract), canaries.values
    made = generator(plan.method)
    if not isinstance(made, ImageGenerator) or not synthetic.num_rows:
        raise AccountingError(f"audit: {synthetic.num_rows} rows by {plan.method}; accepted: rows with pictures")
    scored = []
    if counts_columns(contract):
        on_columns = CanarySet(canaries.table.drop_columns([layout.column]))
        scored += score_canaries(on_columns, directory / COLUMNS, synthetic)
    scored.append(score_distances(layout, canaries, synthetic))
    duplicates, pictures, classes = scored[-1].duplicates, _pictures(layout, canaries), layout.classes_of(values)
    sums = made.measured_sums(directory, pictures)
    if sums is not None:
        scored.append(Scored(PICTURE_SUMS, sum_scores(sums, classes, canaries.records_per_owner), duplicates))
    losses = made.picture_losses(directory, pictures, classes)
    if losses is not None:
        scored.append(Scored(PICTURE_LOSS, -losses, duplicates))
    return scored


def score_distances(layout: ImageLayout, canaries: CanarySet, synthetic: pa.Table) -> Scored:
    """The attack by distance on the first released pictures; at least one row has one."""
    some = synthetic.slice(0, MOST_PICTURES).column(layout.column)
    released, _, _ = read_pictures(some, layout.form, "refuse", raw=False)
    duplicates = equal_items(canaries.values.column(layout.column).to_pylist())
    return Scored(PICTURE_DISTANCE, distance_scores(_pictures(layout, canaries), released), duplicates)


def _pictures(layout: ImageLayout, canaries: CanarySet) -> npt.NDArray[np.uint8]:
    """One picture of each canary."""
    return layout.form.read(canaries.values.column(layout.column).combine_chunks())


def distance_scores(canaries: npt.NDArray[np.uint8], released: npt.NDArray[np.uint8]) -> Floats:
    """Minus the L2 distance of each canary's picture to the nearest released one; shape (canaries,).

    Args:
        canaries, released: pictures of one form; at least one is released.
    """
    found = np.full(len(canaries), -np.inf)
    own = canaries.reshape(len(canaries), -1).astype(np.float32)
    for start in range(0, len(released), _CHUNK):
        part = released[start : start + _CHUNK]
        others = part.reshape(len(part), -1).astype(np.float32)
        squares = (own**2).sum(axis=1)[:, None] - 2 * own @ others.T + (others**2).sum(axis=1)[None]
        found = np.maximum(found, -np.sqrt(np.maximum(squares, 0)).min(axis=1))
    return found


def sum_scores(sums: MeasuredSums, classes: npt.NDArray[np.int64], records: int) -> Floats:
    """The estimated coin of each canary, from the noisy sums of the classes.

    The sum of a class is that of real pictures, of the canaries that joined, and noise. What an entry exceeds the
    expected sum of canaries by, beyond their own variance, is put down to real pictures: entries count by one over its
    square and that of the noise. The coins are then the ridge regression of all canaries of the class together: the
    Bayes estimate for fair coins with normal errors. It supposes `DOUBTED` of the plan's noise, since the attack is to
    find noise that is too small; with the right noise, there is next to nothing to find either way.

    Args:
        classes: of the canaries; `NO_CLASS` scores one half.
        records: of each canary.
    """
    scores = np.full(len(classes), 0.5)
    for number, noisy in enumerate(sums.sums):
        mine = np.flatnonzero(classes == number)
        if not mine.size:
            continue
        vectors = records * sums.vectors[mine]
        away = noisy - vectors.sum(axis=0) / 2
        real = np.maximum(away**2 - (vectors**2).sum(axis=0) / 4, 0)
        weights = 1 / ((DOUBTED * sums.deviation) ** 2 + real)
        products = (vectors * weights) @ vectors.T + _PRIOR * np.eye(len(mine))
        scores[mine] = 0.5 + np.linalg.solve(products, (vectors * weights) @ away)
    return scores
