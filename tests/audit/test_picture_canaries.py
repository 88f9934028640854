"""Trainings on pictures watched from inside: the right one keeps its claim, and mistakes of its sums are found.

Settings are fixed before any run. Bounds hold at 1 - 1e-7, so that the right training fails with a chance of 1e-7; a
mistake is missed with one of 2e-7, as `test_the_laboratory_has_the_power` computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from planted_mistakes import CONFIDENCE, MISS, ONE_STEP, gaussian_rates, no_clipping, noise_times

from dpsynth_platform.audit.laboratory import epsilon_to_expect
from dpsynth_platform.audit.picture_canaries import PictureTrainingAudit
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.interface import Part
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.rows import RowDivision

Patch = pytest.MonkeyPatch


def each_row_is_a_unit(patch: Patch) -> None:
    parts = RowDivision.parts

    def by_row(self: RowDivision, *others: Any) -> Any:
        for found in parts(self, *others):
            yield [Part(part.batch, part.weights.reshape(-1, 1)) for part in found]

    patch.setattr(RowDivision, "parts", by_row)


def norms_without_convolutions(patch: Patch) -> None:
    norms = GridSums._norms

    def others(self: GridSums, uses: dict[str, Any]) -> Any:
        return norms(self, {name: uses[name] for name in uses if name != "parts.0.weight"})

    patch.setattr(GridSums, "_norms", others)


@dataclass(frozen=True)
class Planted:
    """A mistake, and the rates of an attack that guesses "in" above a threshold."""

    plant: Callable[[Patch], None]
    rates: tuple[float, float]
    delta: float = 0.5
    records: int = 1
    plan: TrainingPlan = ONE_STEP

    @property
    def claimed(self) -> float:
        return epsilon(self.plan.event, self.delta).epsilon


PLANTED = {
    "no clipping": Planted(no_clipping, gaussian_rates(5, adds=10)),
    "clipping of rows": Planted(each_row_is_a_unit, gaussian_rates(1.4, adds=2)),
    # Half of the canaries have a convolution's weight, and count ten times; of others hardly one is above 5.
    "norms without convolutions": Planted(
        norms_without_convolutions, (0.5 * (1 - 1e-6), 1e-6), delta=0.2, plan=replace(ONE_STEP, noise_multiplier=1.0)
    ),
    "noise at half": Planted(noise_times(0.5), gaussian_rates(0.7, factor=0.5)),
    "owners accounted as records": Planted(lambda patch: None, gaussian_rates(2, adds=4), records=4),
}
each_planted = pytest.mark.parametrize("planted", PLANTED.values(), ids=list(PLANTED))


def proven(plan: TrainingPlan, delta: float, records: int = 1, vectors: bool = False) -> float:
    return PictureTrainingAudit(plan, plan.units, records, vectors).prove(delta=delta, confidence=CONFIDENCE).epsilon


@each_planted
def test_the_laboratory_has_the_power(planted: Planted) -> None:
    """With 45% of the canaries in each world, where half are expected: six deviations less."""
    runs, (true, false) = int(0.45 * planted.plan.units), planted.rates
    expected = epsilon_to_expect(
        true_rate=true, false_rate=false, runs=runs, delta=planted.delta, confidence=CONFIDENCE, miss=MISS
    )
    assert expected > planted.claimed


@each_planted
def test_it_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    assert proven(planted.plan, planted.delta, planted.records) > planted.claimed


@pytest.mark.parametrize("delta", [0.3, 0.5])
@pytest.mark.parametrize("vectors", [False, True])
def test_the_right_training_keeps_its_claim(delta: float, vectors: bool) -> None:
    assert proven(ONE_STEP, delta, vectors=vectors) <= epsilon(ONE_STEP.event, delta).epsilon


def test_half_the_noise_is_found_in_networks_over_columns(monkeypatch: Patch) -> None:
    planted = PLANTED["noise at half"]
    planted.plant(monkeypatch)
    assert proven(planted.plan, planted.delta, vectors=True) > planted.claimed


@pytest.mark.parametrize("vectors", [False, True])
def test_each_canary_moves_one_coordinate_by_the_clipping_norm(monkeypatch: Patch, vectors: bool) -> None:
    monkeypatch.setattr("dpsynth_platform.training.loop.GaussianNoise.add_", lambda *_: None)
    plan = replace(ONE_STEP, units=31, batch_size=31, clipping_norm=0.3)
    for records in (1, 40):  # so many that a unit takes several passes
        watched = PictureTrainingAudit(plan, 31, records, vectors).watch()
        assert watched.sums == pytest.approx(records * watched.included[None].astype(float), rel=1e-4)


def test_a_noised_step_looks_like_the_plan_says() -> None:
    """Means of 4,000 canaries' sums are within 6.5 of their deviations."""
    watched = PictureTrainingAudit(ONE_STEP, ONE_STEP.units).watch()
    inside = watched.sums[:, watched.included]
    assert abs(inside.mean() - 1) < 6.5 * 0.5 / np.sqrt(inside.size)
