"""A mechanism's draws: paid from the sealed budget, durable before anything can depend on them.

What belongs here: the only way to a mechanism's noisy counts and choices. So none can draw what its plan does not
account for, or use what is not on disk. What does not: which draws a mechanism needs (`mst`, `aim` and the others), and
how they are drawn (`noise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpsynth_platform.foundation.errors import AccountingError, MechanismFailed
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.selection import PrecisionBudget, scale_of_distances
from dpsynth_platform.privacy.units import RECORD_PARTS, Sensitivity
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts, NoisyDistances
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian, select_by_exponential_mechanism
from dpsynth_platform.synth.tabular.residuals import contrasts, squared_lengths, stretch_squared
from dpsynth_platform.synth.tabular.resolution import View

ROUNDED = 2.0**-30
"""Noise of residuals is so much wider than it must be: far more than what roots and quotients are rounded by."""


@dataclass
class Draws:
    """The draws of one run, each of which is in the log before it is returned.

    Attributes:
        log: that of a single table. A run over several ones says into which log a draw goes.
        left: the remaining precision for measurements; `choices` is the remaining number of choices.
        epsilon: the range of each choice.
        sensitivity: the most that one unit moves a score.
        parts: exact counts are in units of 1/`parts` record (`counting`), noisy ones in records.
    """

    log: MeasurementLog
    left: PrecisionBudget
    choices: int
    epsilon: float
    sensitivity: int
    parts: int = 1

    def columns(
        self, records: Records, sigma: float, progress: Progress, log: MeasurementLog | None = None
    ) -> list[NoisyCounts]:
        """Noisy counts of every column's cells; reads records. Raises `AccountingError` beyond the plan's budget."""
        progress("counting columns", 0, 1)
        exact = records.one_way()
        progress("counting columns", 1, 1)
        noisy = []
        for index, counts in enumerate(exact):
            noisy.append(self._counts("one-way", NoisyCounts((index,), counts, sigma), log))
            progress("measuring columns", index + 1, len(exact))
        return noisy

    def joint(self, view: View, counts: Counts, sigma: float, log: MeasurementLog | None = None) -> NoisyCounts:
        """Noisy counts of a view, from its exact ones. Raises `AccountingError` beyond the plan's budget."""
        return self._counts("joint", NoisyCounts(view.clique, counts, sigma, view.levels), log)

    def distances(self, exact: Mapping[Clique, int], sigma: float, sensitivity: Sensitivity) -> NoisyDistances:
        """Noisy L1 distances of cliques' exact counts from numbers that were fixed beforehand.

        Args:
            exact: whole numbers of 1/RECORD_PARTS record, of which a unit moves each by `sensitivity.l1` records at
                most. Sensitive.
            sigma: noise of a table of counts that costs as much.
            sensitivity: how far a unit moves a table of counts.

        Raises:
            AccountingError: beyond the plan's budget, or no distance.
        """
        scale = scale_of_distances(len(exact), sigma, sensitivity)
        self.left = self.left.spend(sigma)
        noisy = sample_rounded_gaussian(np.array(list(exact.values()), dtype=np.int64), scale)
        records = (noisy + RECORD_PARTS // 2) // RECORD_PARTS
        found = NoisyDistances(tuple(exact), records, scale / RECORD_PARTS)
        self.log.distances(found)
        return found

    def residuals(
        self, exact: Mapping[Clique, Counts], shares: Mapping[Clique, float], sigma: float, adjacency: str
    ) -> list[NoisyCounts]:
        """Noisy contrasts of cliques' exact counts, in records (`residuals`), in the order of the shares.

        All of them are one vector. The coordinates of the one with the share q, divided by the root of s / q (s: its
        squared stretch), move by at most the root of q of what counts move by, and all together by no more than these.

        Args:
            exact: of each clique in `shares`, whole numbers of 1/`parts` record. Sensitive.
            shares: of the precision of this vector, each above 0; all together at most 1 but for rounding.
            sigma: noise of a table of counts that costs as much.

        Raises:
            AccountingError: beyond the plan's budget, shares of more than 1, or more noise than can be drawn.
        """
        if not shares or min(shares.values()) <= 0 or math.fsum(shares.values()) > 1 + ROUNDED / 2:
            raise AccountingError(
                f"{len(shares)} residuals with the share {math.fsum(shares.values())!r} of their precision; accepted: "
                "at least one, each with a share above 0, of at most 1 in all"
            )
        deviations = {
            clique: sigma * math.sqrt(stretch_squared(exact[clique].shape, adjacency) / share) * (1 + ROUNDED)
            for clique, share in shares.items()
        }
        values = [contrasts(exact[clique]) for clique in shares]
        noise = [
            deviation * self.parts * np.sqrt(squared_lengths(exact[clique].shape)).ravel()
            for clique, deviation in deviations.items()
        ]
        self.left = self.left.spend(sigma)
        noisy = sample_rounded_gaussian(np.concatenate([item.ravel() for item in values]), np.concatenate(noise))
        records = (noisy + self.parts // 2) // self.parts
        ends = np.cumsum([item.size for item in values])[:-1]
        found = [
            NoisyCounts(clique, part.reshape(item.shape), deviations[clique])
            for clique, item, part in zip(shares, values, np.split(records, ends), strict=True)
        ]
        self.log.residuals(found)
        return found

    def choice(self, scores: Mapping[View, int]) -> View:
        """One of the views by the exponential mechanism. Raises `AccountingError` beyond the plan's choices."""
        return self.choice_of([(self.log, scores)])[1]

    def choice_of(self, tables: Sequence[tuple[MeasurementLog, Mapping[View, int]]]) -> tuple[int, View]:
        """A table's place and one of its views, by one exponential mechanism over the views of all tables.

        Raises `AccountingError` as `choice`.
        """
        if not self.choices:
            raise AccountingError("a choice beyond the plan's number of choices; accepted: at most the plan's number")
        self.choices -= 1
        views = [(place, view) for place, (_, scores) in enumerate(tables) for view in scores]
        if (kept := tables[0][0].kept_choice()) is not None:
            found = [each for each in views if (each[1].clique, each[1].levels) == kept]
            if len(found) != 1:
                raise MechanismFailed("a choice of the last attempt is none of the candidates; accepted: a new run")
            return found[0]
        scored = [score for _, scores in tables for score in scores.values()]
        place, view = views[select_by_exponential_mechanism(scored, self.epsilon, self.sensitivity)]
        tables[place][0].choice(view.clique, view.levels)
        return place, view

    def _counts(self, kind: str, exact: NoisyCounts, log: MeasurementLog | None) -> NoisyCounts:
        """The counts with noise, in records: drawn, or of the mechanism's last attempt. `exact` is sensitive."""
        log = log or self.log
        self.left = self.left.spend(exact.sigma)
        if (kept := log.kept_counts(kind, exact)) is not None:
            return kept
        noisy = sample_rounded_gaussian(exact.counts, exact.sigma * self.parts)
        found = replace(exact, counts=(noisy + self.parts // 2) // self.parts)  # to the nearest record
        log.counts(kind, found)
        return found
