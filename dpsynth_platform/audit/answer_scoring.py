"""The attack on answers to queries: which groups of the canary's record seem to be empty.

What belongs here: one score a canary from the mechanism's noisy tables. What does not: coins, and any real record.

A canary that took part adds its records to one group of each table. Other records may fill a group, but an empty one
proves absence: so the attack guesses "out" only, of canaries with the least noisy number of rows, in deviations of its
noise, among all groups that they would be in.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpsynth_platform.audit.attacks import ANSWERED, Floats, Scored, equal_cells
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.synth.answers.estimates import Noisy
from dpsynth_platform.synth.answers.generator import noisy_tables
from dpsynth_platform.synth.answers.measuring import groups_of
from dpsynth_platform.synth.answers.sharing import combined
from dpsynth_platform.synth.answers.strategies import prefix_answers
from dpsynth_platform.synth.interface import SealedPlan


def score_answers(canaries: CanarySet, plan: SealedPlan, model: Path) -> Scored:
    """The attack's scores, in the order of `CanarySet.owners`. Raises `MechanismFailed` if the model is incomplete."""
    record = canaries.values.combine_chunks().to_batches()[0]
    found, cells = np.full(record.num_rows, np.inf), []
    for noisy in combined(noisy_tables(plan, model)):
        if noisy.table.what == "amount":
            continue
        inside, groups = groups_of(noisy.table.groups, record)
        counts, place = _counts(noisy), groups
        if noisy.table.column is not None:
            column = noisy.table.groups.column(noisy.table.column)
            codes = column.encode(record.column(column.name)).astype(np.int64)
            inside = inside & (codes < column.missing)
            place = groups * noisy.table.width + codes if noisy.table.what == "prefixes" else groups
        place = np.where(inside, place, 0)
        found = np.where(inside, np.minimum(found, counts[place]), found)
        cells.append(np.where(inside, place, -1))
    return Scored(ANSWERED, found, equal_cells(np.stack(cells, axis=1)))


def _counts(noisy: Noisy) -> Floats:
    """The noisy number of rows in every cell, in deviations of its noise; flat."""
    if noisy.table.what != "prefixes":
        return np.asarray(noisy.values.ravel() / noisy.deviation)
    of_prefixes = prefix_answers(noisy.table.width)
    of_cells = np.diff(of_prefixes, axis=0, prepend=0.0)
    return np.asarray((noisy.values @ of_cells.T / (noisy.deviation * np.linalg.norm(of_cells, axis=1))).ravel())
