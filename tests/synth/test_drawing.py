from fractions import Fraction

import numpy as np
import pytest

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.selection import PrecisionBudget, scale_of_distances
from dpsynth_platform.privacy.units import RECORD_PARTS, Sensitivity
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, read_measurements
from dpsynth_platform.synth.tabular.resolution import View

VIEW = View.finest((0, 1))
COUNTS = np.zeros((2, 2), dtype=np.int64)


@pytest.fixture
def draws(tmp_path):
    """Two measurements with sigma 4, or one with sigma 2 sqrt(2); one choice."""
    with MeasurementLog.create(tmp_path, "plan") as log:
        yield Draws(log, PrecisionBudget(Fraction(1, 8)), 1, 1.0, 2)


def lines(tmp_path):
    return (tmp_path / "measurements.jsonl").read_text().splitlines()


def test_nothing_is_drawn_that_the_budget_does_not_pay_for(draws, tmp_path, monkeypatch):
    draws.joint(VIEW, COUNTS, 4.0)
    draws.joint(VIEW, COUNTS, 4.0)
    assert draws.left.left == 0
    draws.choice({VIEW: 1})
    written = lines(tmp_path)
    for draw in ("sample_rounded_gaussian", "select_by_exponential_mechanism"):
        monkeypatch.setattr(drawing, draw, lambda *_: pytest.fail("it was drawn"))
    with pytest.raises(AccountingError, match="nothing is left"):
        draws.joint(VIEW, COUNTS, 2.0**20)
    with pytest.raises(AccountingError, match="a choice beyond the plan"):
        draws.choice({VIEW: 1})
    assert lines(tmp_path) == written


def test_more_precision_than_is_left_is_refused(draws, tmp_path):
    with pytest.raises(AccountingError, match="accepted: more noise"):
        draws.joint(VIEW, COUNTS, 2.0)
    assert len(lines(tmp_path)) == 1


def test_distances_are_paid_and_durable_and_come_back(draws, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: asked.append(sigma) or counts)
    exact = {(0, 1): 7 * RECORD_PARTS + 3, (0, 2): -RECORD_PARTS}
    found = draws.distances(exact, 4.0, Sensitivity(6, 18))
    assert asked == [scale_of_distances(2, 4.0, Sensitivity(6, 18))] == [8 * RECORD_PARTS]  # 4 * sqrt(2) * 6 / sqrt(18)
    assert (found.cliques, found.records.tolist(), found.sigma) == (((0, 1), (0, 2)), [7, -1], 8.0)
    assert draws.left.left == Fraction(1, 16)
    draws.log.complete()
    (read,) = read_measurements(tmp_path, "plan").distances
    assert (read.cliques, read.records.tolist(), read.sigma) == (found.cliques, found.records.tolist(), found.sigma)
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda *_: pytest.fail("it was drawn"))
    with pytest.raises(AccountingError, match="accepted: more noise"):
        draws.distances(exact, 2.0, Sensitivity(6, 18))
    with pytest.raises(AccountingError, match="at least one"):
        draws.distances({}, 4.0, Sensitivity(6, 18))


def test_draws_use_the_budgets_noise_and_sensitivity(draws, monkeypatch):
    asked = []
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: asked.append(sigma) or counts + 1)
    monkeypatch.setattr(
        drawing, "select_by_exponential_mechanism", lambda scores, *how: asked.append((scores, *how)) or 1
    )
    other = View((0, 1), (1, 0))
    assert draws.choice({VIEW: 5, other: 7}) == other
    noisy = draws.joint(other, COUNTS, 4.0)
    assert asked == [([5, 7], 1.0, 2), 4.0]
    assert (noisy.clique, noisy.levels, noisy.sigma, noisy.counts.sum()) == ((0, 1), (1, 0), 4.0, 4)
