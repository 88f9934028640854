import itertools
import math

import numpy as np
import pytest
from audit_cases import categories, plan_for, run, table_of
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import grem, mixtures
from dpsynth_platform.synth.tabular.grem import first_shares, paired, shares_of
from dpsynth_platform.synth.tabular.measurements import Measurements, NoisyCounts
from dpsynth_platform.synth.tabular.reconstruction import pair_shares, widths
from dpsynth_platform.synth.tabular.residuals import contrasts, residual, squared_lengths

COLUMNS = categories(a=3, b=3, c=2, d=2, e=4)


def table(rows=3000):
    """b follows a, d follows c, e is alone."""
    rng = np.random.default_rng(2)
    a, c, e = (rng.integers(0, size, rows) for size in (3, 2, 4))
    return table_of(COLUMNS, np.stack([a, a, c, c, e], axis=1))


# The cost of a whole run.


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 2), ("replace-one", 1)])
def test_all_draws_of_a_run_together_meet_the_guarantee(adjacency, b):
    """By dp_accounting alone, from the noise of each number and all that one person's records in one cell can move."""
    plan = plan_for("grem", COLUMNS, epsilon=2.0, b=b, adjacency=adjacency)
    found = run(plan, table())
    assert [item.clique for item in found.residuals] == list(itertools.combinations(range(5), 2))
    scales = [draw.scale for draw in found.of("noise")]
    sizes = [item.counts.size for item in found.measured]
    (drawn,) = found.of("residuals")
    moved = []
    for cells in itertools.product(*(range(size) for size in sizes)):
        one_way = [np.eye(size)[cell] / scale for size, cell, scale in zip(sizes, cells, scales, strict=True)]
        pairs = []
        for item in found.residuals:
            counts = np.zeros([size + 1 for size in item.counts.shape], dtype=np.int64)
            counts[tuple(min(cells[index], counts.shape[axis] - 1) for axis, index in enumerate(item.clique))] = b
            pairs.append(contrasts(counts).ravel())
        moved.append(np.concatenate([b * part for part in one_way] + [np.concatenate(pairs) / drawn.scale]))
    moved = np.array(moved)
    farthest = (
        math.sqrt(max((moved**2).sum(axis=1)))
        if adjacency == "add-or-remove"
        else max(float(np.linalg.norm(moved - one, axis=1).max()) for one in moved)
    )
    event = dp_event.GaussianDpEvent(1 / farthest)
    exact = PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(1e-5)
    assert (1.97 if adjacency == "add-or-remove" else 1.6) < exact <= 2.005  # rounded up by some intervals


def test_pairs_have_deviations_in_proportion_to_their_widths():
    found = run(plan_for("grem", categories(a=2, b=9, c=30), epsilon=8.0, b=1), wide_table())
    sizes = [item.counts.size for item in found.measured]
    width = widths(sizes)
    constants = [item.sigma / (width[item.clique[0]] * width[item.clique[1]]) for item in found.residuals]
    assert np.ptp(constants) < 1e-9 * constants[0]
    by_hand = min(
        sum(
            a * b / math.sqrt(share)
            for (a, b), share in zip(itertools.combinations(sizes, 2), np.diff([0, x, y, 1]), strict=True)
        )
        for x, y in itertools.combinations(np.linspace(0, 1, 61)[1:-1], 2)
    )
    pairs = list(itertools.combinations(range(3), 2))
    spread = shares_of(pairs, sizes, "add-or-remove")
    # Relative to stretches, which hardly differ here: coordinates' noise times cells.
    mine = sum(sizes[a] * sizes[b] / math.sqrt(spread[a, b]) for a, b in pairs)
    assert mine < 1.02 * by_hand


def wide_table(rows=4000):
    rng = np.random.default_rng(5)
    return table_of("abc", np.stack([rng.integers(0, size, rows) for size in (2, 9, 30)], axis=1))


# What is common to pairs, and what is noise.

SIZES = [4] * 24
TOTAL = 50_000.0


def noisy_residuals(exact, alone, deviation, rng):
    """Residuals of pairs with these shares, in records, with noise; equal sizes have equal widths."""
    found = []
    for (a, b), shares in exact.items():
        shape = (alone[a].size, alone[b].size)
        matrix = np.stack(
            [contrasts(cell.reshape(shape)).ravel() for cell in np.eye(math.prod(shape), dtype=np.int64)], axis=1
        )
        lengths = np.sqrt(squared_lengths(shape)).ravel()
        values = TOTAL * matrix @ shares.ravel() + deviation * lengths * rng.standard_normal(lengths.size)
        found.append(NoisyCounts((a, b), values.reshape([size - 1 for size in shape]), deviation))
    return found


def related(rng, hidden):
    """Shares of all pairs of columns that follow from a hidden value, or each second one from the first before it."""
    alone = [np.full(size, 1 / size) for size in SIZES]
    pairs = list(itertools.combinations(range(len(SIZES)), 2))
    exact = {pair: np.outer(alone[pair[0]], alone[pair[1]]) for pair in pairs}
    if hidden:
        given = [np.linalg.qr(rng.standard_normal((4, 4)))[0][:, :2] for _ in SIZES]
        given = [part - part.mean(axis=0) for part in given]
        exact = {(a, b): exact[a, b] + 0.008 * given[a] @ given[b].T for a, b in pairs}
    else:
        for index in range(0, len(SIZES), 2):
            exact[index, index + 1] = 0.5 * exact[index, index + 1] + 0.5 * np.eye(4) / 4
    return alone, exact


def distance(shares, exact):
    ends = np.cumsum([0, *SIZES])
    return np.mean(
        [
            0.5 * np.abs(shares[ends[a] : ends[a + 1], ends[b] : ends[b + 1]] - truth).sum()
            for (a, b), truth in exact.items()
        ]
    )


@pytest.mark.parametrize("hidden", [True, False])
def test_noise_is_told_from_what_columns_share(hidden):
    """Far closer than the unbiased estimate, and than independent columns; by a fixed seed."""
    rng = np.random.default_rng(8)
    alone, exact = related(rng, hidden)
    residuals = noisy_residuals(exact, alone, 300.0, rng)
    found = pair_shares(alone, residuals, TOTAL)
    single = np.concatenate(alone)
    independent = np.outer(single, single)
    unbiased = independent.copy()
    ends = np.cumsum([0, *SIZES])
    for item in residuals:
        a, b = item.clique
        unbiased[ends[a] : ends[a + 1], ends[b] : ends[b + 1]] += residual(item.counts) / TOTAL
    off = distance(found.shares, exact)
    assert off < 0.6 * distance(independent, exact)
    assert off < 0.5 * distance(unbiased, exact)
    assert np.allclose(found.shares, found.shares.T)


def test_without_noise_to_speak_of_all_pairs_are_kept():
    rng = np.random.default_rng(9)
    alone, exact = related(rng, True)
    found = pair_shares(alone, noisy_residuals(exact, alone, 0.1, rng), TOTAL)
    assert distance(found.shares, exact) < 1e-4


def test_of_noise_alone_hardly_anything_is_kept():
    """Of 276 pairs, each of which stands out once in 1000 (chi-squared with 9 degrees of freedom); a fixed seed."""
    rng = np.random.default_rng(10)
    alone, exact = related(rng, True)
    exact = {(a, b): np.outer(alone[a], alone[b]) for a, b in exact}
    found = pair_shares(alone, noisy_residuals(exact, alone, 300.0, rng), TOTAL)
    assert distance(found.shares, exact) < 0.002


def test_no_residual_leaves_independent_columns():
    alone = [np.array([0.2, 0.8]), np.array([1.0])]
    found = pair_shares(alone, [], TOTAL)
    assert np.allclose(found.shares[:2, 2], [0.2, 0.8])
    assert np.isinf(found.variance).all()
    assert found.factors.shape == (3, 0)


# The mixture.


def test_first_components_have_the_covariance_of_the_factors():
    rng = np.random.default_rng(11)
    alone, factors = np.full(8, 0.25), 0.03 * rng.standard_normal((8, 2))
    found = first_shares(alone, factors, 200, rng)
    assert np.allclose(found.mean(axis=1), alone)
    assert np.allclose(found @ found.T / 200 - np.outer(alone, alone), factors @ factors.T)
    few = first_shares(alone, 10 * rng.standard_normal((8, 5)), 3, rng)
    assert few.shape == (8, 3)
    assert few.min() >= grem.FLOOR * 0.25


def test_the_mixture_fits_single_columns_and_all_pairs(monkeypatch):
    monkeypatch.setattr(mixtures, "fresh", lambda: np.random.default_rng(0))
    plan = plan_for("grem", COLUMNS, epsilon=1.0, b=1)
    plan.parameters["components"] = 100
    found = run(plan, table(), noise=lambda counts, sigma: counts)
    stored = Measurements(tuple(found.measured), (), (), residuals=tuple(found.residuals))
    model = generator("grem").model(plan, stored, "cpu", silent)
    sizes = [column.size for column in model.states]
    shares = [np.exp(model.potentials[index, len(sizes)]) for index in range(len(sizes))]
    rows = np.stack([[int(value) for value in table()[name].to_pylist()] for name in COLUMNS], axis=1)
    for a, b in itertools.combinations(range(5), 2):
        exact = np.zeros((sizes[a], sizes[b]))
        np.add.at(exact, (model.states[a].state_of[rows[:, a]], model.states[b].state_of[rows[:, b]]), 1 / len(rows))
        made = shares[a] @ shares[b].T / shares[a].shape[1]
        # Independent columns are .67 off for (a, b), .5 for (c, d).
        assert 0.5 * np.abs(exact - made).sum() < 0.05
    assert model.components == 100


def test_columns_with_too_many_states_are_measured_alone():
    assert paired([3, 4000, 1, 90, 7]) == [0, 3, 4]
    assert paired([3, 4000, 1, 90]) == [0, 1, 3]
    columns = categories(a=2, b=3, c=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grem, "MOST_STATES", 8)
        patch.setattr(mixtures, "fresh", lambda: np.random.default_rng(0))
        plan = plan_for("grem", columns, epsilon=8.0, b=1)
        assert "the residuals of up to 3" in generator("grem").describe(plan)["event"]
        rng = np.random.default_rng(4)
        codes = rng.integers(0, 2, (3000, 1)).repeat(3, axis=1)
        codes[:, 2] = 2 * codes[:, 2] + rng.integers(0, 2, 3000)
        found = run(plan, table_of(columns, codes), noise=lambda counts, sigma: counts)
        assert [item.clique for item in found.residuals] == [(0, 1)]
        stored = Measurements(tuple(found.measured), (), (), residuals=tuple(found.residuals))
        model = generator("grem").model(plan, stored, "cpu", silent)
    shares = [np.exp(model.potentials[index, 3]) for index in range(3)]
    together, apart = (shares[0] @ other.T / shares[0].shape[1] for other in shares[1:])
    assert together[0, 0] == pytest.approx(0.5, abs=0.05)
    assert apart[:2, :4] == pytest.approx(0.125 * np.ones((2, 4)), abs=0.05)


def test_the_plan_says_what_is_measured():
    described = generator("grem").describe(plan_for("grem", COLUMNS, epsilon=1.0, b=1))
    assert "the residuals of all 10 two-way marginals" in described["event"]


# Private multiplicative weights, on a domain small enough for them.


def multiplicative_weights(exact, sigma, rounds, rng):
    """PMW (Hardt & Rothblum 2010; offline: Hardt, Ligett & McSherry 2012) of all pairs' cells; shares of all cells.

    It is told which pair is worst, and pays for answers alone: an oracle that no mechanism can be.
    """
    shares, total = np.full(exact.shape, 1 / exact.size), exact.sum()
    axes = [tuple(set(range(exact.ndim)) - set(pair)) for pair in itertools.combinations(range(exact.ndim), 2)]
    for _ in range(rounds):
        others = max(axes, key=lambda axis: np.abs((shares - exact / total).sum(axis=axis)).sum())
        true = exact.sum(axis=others, keepdims=True)
        answer = (true + sigma * math.sqrt(rounds) * rng.standard_normal(true.shape)) / total
        for _ in range(20):
            shares = shares * np.exp(0.5 * (answer - shares.sum(axis=others, keepdims=True)))
            shares /= shares.sum()
    return shares


def test_on_a_small_domain_pairs_are_as_close_as_those_of_multiplicative_weights(monkeypatch):
    """By fixed seeds, at the noise of the same guarantee."""
    monkeypatch.setattr(mixtures, "fresh", lambda: np.random.default_rng(0))
    rng = np.random.default_rng(12)
    plan = plan_for("grem", COLUMNS, epsilon=1.0, b=1)
    plan.parameters["components"] = 100

    def noisy(counts, sigma):
        return counts + np.rint(sigma * rng.standard_normal(counts.shape)).astype(np.int64)

    found = run(plan, table(), noise=noisy)
    stored = Measurements(tuple(found.measured), (), (), residuals=tuple(found.residuals))
    model = generator("grem").model(plan, stored, "cpu", silent)
    rows = np.stack([[int(value) for value in table()[name].to_pylist()] for name in COLUMNS], axis=1)
    codes = np.stack([model.states[index].state_of[rows[:, index]] for index in range(5)], axis=1)
    sizes = [column.size for column in model.states]
    exact = np.zeros(sizes)
    np.add.at(exact, tuple(codes.T), 1)
    weights = multiplicative_weights(exact, plan.parameters["sigma_total"], 10, rng)
    mixture = np.zeros(sizes)
    shares = [np.exp(model.potentials[index, 5]) for index in range(5)]
    mixture = np.einsum("ak,bk,ck,dk,ek->abcde", *shares) / 100

    def off(made):
        return np.mean(
            [
                0.5 * np.abs((made - exact / exact.sum()).sum(axis=tuple(set(range(5)) - set(pair)))).sum()
                for pair in itertools.combinations(range(5), 2)
            ]
        )

    assert off(mixture) < off(weights) < off(np.full(sizes, 1 / exact.size))
