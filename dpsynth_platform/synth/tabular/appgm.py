"""APPGM: the rounds of `aim`, without a junction tree's limit on pairs (McKenna, Pradhan, Sheldon & Miklau 2021).

What belongs here: which model `aim`'s rounds use, and rows from it. What does not: the mechanism (`aim`), the model
(`local_consistency`), and the table of rows (`gum`).

The mechanism is that of `aim`, with its event: all columns, then choices of pairs by the exponential mechanism and
their counts. What follows from the noisy counts is pseudo-marginals, which agree in columns only: so every pair may be
chosen, whatever pairs were chosen before. Pairs are measured at all states. There is no workload: all pairs are one.

Rows are a table whose counts come close to the pseudo-marginals of measured pairs (`gum`), since no distribution need
have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.aim import Aim
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Measurement
from dpsynth_platform.synth.tabular.gum import ROWS, TABLE_CELLS, Target, model_of_table
from dpsynth_platform.synth.tabular.local_consistency import LocalEstimator
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.model import save_model
from dpsynth_platform.synth.tabular.public_prior import PublicPrior
from dpsynth_platform.synth.tabular.resolution import Groups, View

STEPS, TURNS = 40, 4


class Appgm(Aim):
    """The generator `appgm`; its sealed `model_cells` are those of the table of rows."""

    method = "appgm"

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        states = sum(domain.most_states)
        table = {"model_cells": states * max(1, min(ROWS, TABLE_CELLS // states))}
        return super().parameters(contract, domain, guarantee) | table

    def started(self, groups: Groups, one_way: Sequence[Measurement], prior: PublicPrior | None) -> LocalEstimator:
        return LocalEstimator(groups, one_way)

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        stored, domain = read_measurements(directory, plan.digest), Domain.from_json(plan.columns)
        rows = self.sealed(plan.parameters).model_cells // sum(domain.most_states)
        save_model(directory, model_of_table(plan, stored, rows, progress, locally_consistent))


def locally_consistent(one_way: Sequence[Measurement], joint: Sequence[Measurement], groups: Groups) -> list[Target]:
    """All columns' counts, then those of the measured pairs, as of `gum.consistent`."""
    model = LocalEstimator(groups, one_way)
    model.add(joint)
    model.fit(STEPS, turns=TURNS)
    found = {(index,): shares for index, shares in enumerate(model.shares)} | model.tables
    return [Target(View.finest(clique), model.total * shares) for clique, shares in found.items()]
