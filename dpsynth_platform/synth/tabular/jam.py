"""JAM: rounds that measure a marginal, or take the public table's (Fuentes, Mullins, McKenna, Miklau & Sheldon 2024).

What belongs here: the scores of public marginals. What does not: the rounds (`aim`), and what the estimate makes of
public marginals (`public_prior`).

As in `aim`, but the candidates of each choice are the workload's marginals twice: to be measured with noise, and by the
counts q of public rows, which were fitted to the noisy columns. With exact counts a and the model's p, the score of a
measurement is |a - p| less what noise would hide, that of the public marginal is |a - p| - |a - q|: both are how much
nearer to a the marginal would come. A public marginal that is taken costs its choice only, and all precision stays for
later rounds; it enters the estimate as if it had been measured with the noise that it was preferred to.

**Sensitivity.** p and q follow from earlier results and public rows. Let one unit move the counts of a marginal by at
most L1 (`units.count_sensitivity`; add-or-remove, replacement and owners' weights differ in L1 only). By the triangle
inequality in each cell, |a - p| moves by at most L1, and so does |a - q|. Hence a score of a measurement moves by L1,
and that of a public marginal by at most 2 L1. The latter is reached: where all moved counts lie between p and q, |a -
p| rises while |a - q| falls. So one exponential mechanism over both kinds has sensitivity 2 L1. Weights scale a score
and its sensitivity alike.

What differs from the paper, and why:

- Public marginals are scaled to the noisy number of records, not to the true one, and to noisy columns: shares of the
  true number would move every cell of q with the data.
- Single columns are always measured, since cells are merged by their counts (`compression`).
- The event is that of `aim`, with the same number of choices (`privacy.selection`).
"""

from __future__ import annotations

from collections.abc import Mapping

from dpsynth_platform.synth.tabular.aim import Aim
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.public_prior import PublicView
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.rounds import misfit


class Jam(Aim):
    """The generator `jam`."""

    method = "jam"
    selection_share = 0.1
    score_factor = 2
    instead = "; or a choice takes the public table's counts instead, without a measurement"

    def public_scores(
        self,
        public: Mapping[Clique, Array],
        weights: Mapping[Clique, int],
        exact: Mapping[Clique, Counts],
        expected: Mapping[Clique, Array],
        parts: int,
    ) -> dict[View, int]:
        found: dict[View, int] = {}
        for clique, counts in public.items():
            off, left = (misfit(exact[clique], known, 0.0, parts) for known in (expected[clique], counts))
            found[PublicView.finest(clique)] = weights[clique] * (off - left)
        return found
