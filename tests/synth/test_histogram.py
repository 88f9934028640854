import itertools
import math

import numpy as np
import pytest
from audit_cases import categories, plan_for, run, table_of
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import histogram
from dpsynth_platform.synth.tabular.measurements import Measurements
from dpsynth_platform.synth.tabular.propagation import marginal

COLUMNS = categories(a=2, b=3, c=2)
CELLS = 3 * 4 * 3
"""With missing values."""


def table(rows=2000):
    """c says whether a and b are both odd, or both even: no two columns are related."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2, rows), rng.integers(0, 2, rows)
    return table_of(COLUMNS, np.stack([a, b, a ^ b], axis=1))


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 3), ("zero-out", 3), ("replace-one", 2)])
def test_all_draws_of_a_run_together_meet_the_guarantee(adjacency, b):
    """By dp_accounting alone, from the noise of each table and all that one person's records in one cell can move."""
    plan = plan_for("histogram", COLUMNS, epsilon=2.0, b=b, adjacency=adjacency)
    found = run(plan, table())
    assert [item.clique for item in found.measured] == [(0,), (1,), (2,), (0, 1, 2)]
    shapes = [item.counts.shape for item in found.measured]
    moved = []
    for cell in itertools.product(*(range(size) for (size,) in shapes[:3])):
        parts = []
        for item, draw in zip(found.measured, found.draws, strict=True):
            counts = np.zeros(item.counts.shape)
            counts[tuple(min(cell[i], size - 1) for i, size in zip(item.clique, counts.shape, strict=True))] = b
            parts.append(counts.ravel() / draw.scale)
        moved.append(np.concatenate(parts))
    moved = np.array(moved)
    farthest = (
        max(float(np.linalg.norm(moved - one, axis=1).max()) for one in moved)
        if adjacency == "replace-one"
        else math.sqrt(max((moved**2).sum(axis=1)))
    )
    exact = PLDAccountant(value_discretization_interval=1e-3).compose(dp_event.GaussianDpEvent(1 / farthest))
    assert 1.97 < exact.get_epsilon(1e-5) <= 2.005  # rounded up by some intervals


@pytest.fixture
def fitted():
    """What the model says of each cell, by counts without noise but with its variance."""
    plan = plan_for("histogram", COLUMNS, epsilon=8.0, b=1)
    found = run(plan, table(), noise=lambda counts, sigma: counts)
    stored = Measurements(tuple(found.measured[:3]), (), tuple(found.measured[3:]))
    model = generator("histogram").model(plan, stored, "cpu", silent)
    return marginal(model.beliefs(releasable=True), (0, 1, 2)).numpy()


def test_what_three_columns_say_together_is_kept(fitted):
    """A model of all pairs has half of the rows here. Values that nobody has share a state, the last of a column."""
    kept = sum(fitted[a, b, a ^ b] for a, b in itertools.product(range(2), repeat=2))
    assert fitted.sum() == pytest.approx(1)
    assert 0.97 < kept <= 1


def test_too_many_cells_are_refused_with_their_number_and_the_way_out(monkeypatch):
    monkeypatch.setattr(histogram, "HISTOGRAM_CELLS", CELLS)
    described = generator("histogram").describe(plan_for("histogram", COLUMNS, epsilon=1.0, b=1))
    assert f"in up to {CELLS} cells" in described["event"]
    monkeypatch.setattr(histogram, "HISTOGRAM_CELLS", CELLS - 1)
    with pytest.raises(ContractError) as caught:
        plan_for("histogram", COLUMNS, epsilon=1.0, b=1)
    assert str(caught.value).endswith(
        "generate.method: 'histogram' counts all columns together, which have 36 cells, most of them by b (4), a (3), "
        "c (3); accepted: up to 35; keep fewer "
        "columns, declare fewer bins or shorter lists of values, learn fewer of them (most), or take aim"
    )
