import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.selection import PrecisionBudget
from dpsynth_platform.privacy.units import RECORD_PARTS, count_sensitivity
from dpsynth_platform.synth.tabular import drawing, noise
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, read_measurements
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian
from dpsynth_platform.synth.tabular.residuals import (
    best_shares,
    cell_variance,
    contrasts,
    marginal,
    residual,
    squared_lengths,
    stretch_squared,
    subsets,
    weights_of,
)

SHAPES = [(2,), (5,), (3, 4), (2, 2), (2, 3, 2), (3, 1)]


def projection(shape):
    """P_A as a matrix, by its definition."""
    found = np.ones((1, 1))
    for size in shape:
        found = np.kron(found, np.eye(size) - 1 / size)
    return found


def contrast_matrix(shape):
    """What is measured of each cell alone, shape (contrasts, cells)."""
    cells = math.prod(shape)
    return np.stack([contrasts(cell.reshape(shape)).ravel() for cell in np.eye(cells, dtype=np.int64)], axis=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_contrasts_are_orthogonal_whole_numbers_that_hold_the_residual(shape):
    matrix, lengths = contrast_matrix(shape), squared_lengths(shape)
    assert matrix.dtype == np.int64
    assert lengths.shape == tuple(size - 1 for size in shape)
    assert (matrix @ matrix.T == np.diag(lengths.ravel())).all()
    assert np.allclose(matrix.T @ np.diag(1 / lengths.ravel()) @ matrix, projection(shape), atol=1e-12)
    counts = np.random.default_rng(1).integers(0, 99, shape)
    kept = residual(contrasts(counts).astype(float))
    assert np.allclose(kept.ravel(), projection(shape) @ counts.ravel())


def test_a_marginal_is_the_sum_of_its_residuals():
    sizes = (4, 1, 3, 2)
    counts = np.random.default_rng(2).integers(0, 50, sizes)
    sums = {part: np.asarray(counts.sum(axis=without(part, 4))) for part in subsets((0, 1, 2, 3))}
    parts = {part: residual(contrasts(values).astype(float)) for part, values in sums.items()}
    for clique, values in sums.items():
        assert np.allclose(marginal(clique, sizes, parts), values)


def without(clique, columns):
    return tuple(index for index in range(columns) if index not in clique)


# Sensitivity, by brute force: all that b = 2 records of a person can be.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out", "replace-one"])
def test_over_all_neighbours_a_residual_moves_as_far_as_is_claimed_and_no_farther(shape, adjacency):
    matrix = contrast_matrix(shape) / np.sqrt(squared_lengths(shape)).reshape(-1, 1)
    cells = np.eye(math.prod(shape))
    people = [
        cells[list(mine)].sum(axis=0)
        for number in range(3)
        for mine in itertools.combinations_with_replacement(range(len(cells)), number)
    ]
    moves = people if adjacency != "replace-one" else [a - b for a, b in itertools.product(people, people)]
    farthest = max(float(((matrix @ move) ** 2).sum()) for move in moves)
    claimed = stretch_squared(shape, adjacency) * count_sensitivity(adjacency, 2).l2_squared
    assert isinstance(claimed, Fraction)
    assert farthest == pytest.approx(float(claimed), abs=1e-9)


# The spread of precision.

SIZES = (3, 4, 2)
WORKLOADS = [
    {(0, 1, 2): 1.0},
    {(0,): 1.0, (1,): 1.0},
    {(): 1.0, (0,): 1.0, (1,): 2.0, (0, 1): 1.0},
    {(0, 1): 1.0, (1, 2): 3.0, (0, 2): 0.5},
]


def planned(workload, adjacency="add-or-remove"):
    """Weights, squared stretches, and variances of coordinates at the best shares of a precision of 1."""
    weights = weights_of(workload, SIZES)
    stretches = {part: float(stretch_squared([SIZES[i] for i in part], adjacency)) for part in weights}
    shares = best_shares(weights, stretches)
    assert math.fsum(shares.values()) == pytest.approx(1)
    return weights, stretches, {part: stretches[part] / share for part, share in shares.items()}


def total_variance(workload, variances):
    return sum(
        weight * math.prod(SIZES[i] for i in clique) * cell_variance(clique, SIZES, variances)
        for clique, weight in workload.items()
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_spread_has_the_least_sum_of_variances(workload):
    weights, stretches, variances = planned(workload)
    found = total_variance(workload, variances)
    assert found == pytest.approx(sum(math.sqrt(weights[part] * stretches[part]) for part in weights) ** 2)

    def at(logs):
        shares = np.exp(logs) / np.exp(logs).sum()
        return total_variance(
            workload, {part: stretches[part] / share for part, share in zip(weights, shares, strict=True)}
        )

    by_hand = minimize(at, np.zeros(len(weights)), tol=1e-12)
    assert found == pytest.approx(by_hand.fun, rel=1e-6)


@pytest.mark.parametrize("sizes", [(5,), (3, 4), (2, 3, 2)])
def test_of_one_marginal_alone_residuals_are_as_exact_as_its_counts(sizes):
    clique = tuple(range(len(sizes)))
    weights = weights_of({clique: 1.0}, sizes)
    stretches = {part: float(stretch_squared([sizes[i] for i in part], "add-or-remove")) for part in weights}
    shares = best_shares(weights, stretches)
    variances = {part: stretches[part] / shares[part] for part in weights}
    assert cell_variance(clique, sizes, variances) == pytest.approx(1.0)  # as of the counts with sigma 1


def test_the_total_and_a_column_of_two_cells_by_hand():
    """Of the total and both cells: v = 1 + 1/2 * 1 of the total, 1 of the difference, whose stretch is 1/2."""
    weights = weights_of({(): 1.0, (0,): 1.0}, (2,))
    assert weights == {(): 1.5, (0,): 1.0}
    least = (math.sqrt(1.5) + math.sqrt(0.5)) ** 2
    shares = best_shares(weights, {(): 1.0, (0,): 0.5})
    variances = {(): 1 / shares[()], (0,): 0.5 / shares[(0,)]}
    assert variances[()] + 2 * cell_variance((0,), (2,), variances) == pytest.approx(least)
    assert least < (1 + math.sqrt(2)) ** 2  # counted one by one, at their best shares


def test_marginals_of_noisy_residuals_are_the_least_squares_estimate():
    """Brute force: all contrasts as one linear system over the whole table's cells, weighted by their noise."""
    _, _, variances = planned({(0, 1): 1.0, (1, 2): 3.0, (0, 2): 0.5})
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 50, SIZES)
    rows, seen, parts = [], [], {}
    for part, variance in variances.items():
        sums = np.asarray(counts.sum(axis=without(part, 3)))
        deviations = np.sqrt(variance * squared_lengths(sums.shape))
        measured = contrasts(sums) + deviations * rng.standard_normal(deviations.shape)
        parts[part] = residual(measured)
        cells = np.eye(counts.size, dtype=np.int64).reshape(-1, *SIZES)
        design = [contrasts(np.asarray(cell.sum(axis=without(part, 3)))).ravel() for cell in cells]
        rows.append(np.stack(design, axis=1) / deviations.reshape(-1, 1))
        seen.append(measured.ravel() / deviations.ravel())
    estimate = (np.linalg.pinv(np.concatenate(rows)) @ np.concatenate(seen)).reshape(SIZES)
    for clique in ((0, 1), (1, 2), (0, 2), (1,), ()):
        assert np.allclose(marginal(clique, SIZES, parts), estimate.sum(axis=without(clique, 3)))


@pytest.mark.parametrize("adjacency", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_all_residuals_together_move_by_no_more_than_counts(adjacency, workload):
    """And with add-or-remove by just as much, wherever the record is: nothing is lost.

    A replacement that moves one residual farthest moves others less: up to 45% of the precision is lost.
    """
    _, _, variances = planned(workload, adjacency)
    cells = np.eye(math.prod(SIZES), dtype=np.int64).reshape(-1, *SIZES)
    coordinates = np.array(
        [
            np.concatenate(
                [
                    (contrasts(sums) / np.sqrt(variance * squared_lengths(sums.shape))).ravel()
                    for part, variance in variances.items()
                    for sums in [np.asarray(cell.sum(axis=without(part, 3)))]
                ]
            )
            for cell in cells
        ]
    )
    bound = count_sensitivity(adjacency, 1).l2_squared
    if adjacency == "add-or-remove":
        assert np.allclose((coordinates**2).sum(axis=1), bound)
    else:
        apart = ((coordinates[:, None] - coordinates) ** 2).sum(axis=2).max()
        assert 0.55 * bound < apart <= bound * (1 + 1e-12)


# Draws.

EXACT = {(0, 1): np.array([[70, 3, 0], [10, 20, 30]]), (1, 2): np.array([[5, 5], [5, 5], [5, 9]])}


@pytest.fixture
def draws(tmp_path):
    """What one measurement with sigma 4 costs."""
    with MeasurementLog.create(tmp_path, "plan") as log:
        yield Draws(log, PrecisionBudget(Fraction(1, 16)), 0, 0.0, 1, RECORD_PARTS)


@pytest.mark.parametrize("adjacency", ["add-or-remove", "replace-one"])
def test_residuals_are_paid_and_durable_and_come_back(draws, tmp_path, monkeypatch, adjacency):
    asked = []
    monkeypatch.setattr(
        drawing, "sample_rounded_gaussian", lambda counts, sigma: asked.append((counts, sigma)) or counts
    )
    shares = {(1, 2): 0.75, (0, 1): 0.25}
    found = draws.residuals({pair: RECORD_PARTS * counts for pair, counts in EXACT.items()}, shares, 4.0, adjacency)
    assert draws.left.left == 0
    ((counts, sigma),) = asked
    wanted = [
        4 * RECORD_PARTS * np.sqrt(float(stretch_squared(EXACT[pair].shape, adjacency)) / share * lengths)
        for pair, share in shares.items()
        for lengths in [squared_lengths(EXACT[pair].shape).ravel()]
    ]
    assert np.allclose(sigma, np.concatenate(wanted), rtol=1e-8)
    assert (sigma >= np.concatenate(wanted)).all()
    assert (counts == RECORD_PARTS * np.concatenate([contrasts(EXACT[pair]).ravel() for pair in shares])).all()
    assert [item.clique for item in found] == list(shares)
    assert all((item.counts == contrasts(EXACT[item.clique])).all() for item in found)
    draws.log.complete()
    read = read_measurements(tmp_path, "plan").residuals
    assert [(item.clique, item.sigma) for item in read] == [(item.clique, item.sigma) for item in found]
    assert all((one.counts == other.counts).all() for one, other in zip(read, found, strict=True))


@pytest.mark.parametrize(
    ("shares", "sigma", "message"),
    [
        ({(0, 1): 0.5, (1, 2): 0.5}, 2.0, "accepted: more noise"),
        ({(0, 1): 0.5, (1, 2): 0.6}, 4.0, "at most 1 in all"),
        ({(0, 1): 1.0, (1, 2): 0.0}, 4.0, "a share above 0"),
        ({}, 4.0, "at least one"),
    ],
)
def test_residuals_beyond_their_budget_are_refused_before_a_draw(draws, monkeypatch, shares, sigma, message):
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda *_: pytest.fail("it was drawn"))
    with pytest.raises(AccountingError, match=message):
        draws.residuals(EXACT, shares, sigma, "add-or-remove")


def test_counts_with_noise_of_their_own_each_have_the_draw_that_they_would_have_alone(monkeypatch):
    words = np.random.default_rng(4).integers(0, 2**64, 70_000, dtype=np.uint64) | np.uint64(2**55)
    sigmas = np.tile([0.3, 5.0, 1e4], 70_000)[: words.size]
    drawn = {}
    for sigma in (sigmas, 0.3, 5.0, 1e4):
        stream = iter(np.split(words, [noise.CHUNK, 2 * noise.CHUNK]))
        monkeypatch.setattr(noise, "_words", lambda number, stream=stream: next(stream))
        drawn[np.size(sigma), float(np.max(sigma))] = sample_rounded_gaussian(
            np.zeros(words.size, dtype=np.int64), sigma
        )
    mixed = drawn.pop((words.size, 1e4))
    for (_, sigma), alone in drawn.items():
        assert (mixed[sigmas == sigma] == alone[sigmas == sigma]).all()
    with pytest.raises(AccountingError, match="accepted"):
        sample_rounded_gaussian(np.zeros(2, dtype=np.int64), np.array([1.0, 0.0]))
