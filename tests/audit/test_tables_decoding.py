from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from dpsynth_platform.audit.tables.decoding import decoded_scores, exponential_people, shown_noise
from dpsynth_platform.audit.tables.marginal_aware import known_people, share_ratio_scores
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.measurements import NoisyCounts


def alone(counts: np.ndarray, expected: float, sigma: float, b: int, steps: int = 1) -> np.ndarray:
    """Scores of targets that share no cell."""
    cells = np.tile(np.arange(len(counts))[:, None], counts.shape[1])
    people = exponential_people(np.full(counts.shape, expected))
    return decoded_scores(counts, cells, np.full(counts.shape[1], sigma), people, b, steps=steps)


@pytest.mark.parametrize("count", [-3.0, 0.0, 2.0, 7.5, 40.0])
@pytest.mark.parametrize(("expected", "sigma", "b"), [(2.0, 1.0, 2), (7.0, 3.0, 2), (24.0, 2.0, 4)])
def test_who_is_alone_scores_the_ratio_of_the_two_densities(
    count: float, expected: float, sigma: float, b: int
) -> None:
    """Other people's records exponential, Gaussian noise; integrated numerically."""

    def density(at: float) -> float:
        def joint(others: float) -> float:
            return float(np.exp(-others / expected) / expected * stats.norm.pdf(at - others, 0, sigma))

        nodes = sorted({0.0, max(0.0, at), max(0.0, at) + 12 * sigma})
        return sum(integrate.quad(joint, low, high)[0] for low, high in pairwise(nodes))

    ratio = np.log(density(count - b) / density(count))
    assert alone(np.array([[count]]), expected, sigma, b)[0] == pytest.approx(ratio, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("sigma", [0.25, 3.0])
@pytest.mark.parametrize("count", [-1.0, 0.0, 3.0, 30.0])
def test_people_who_are_known_are_a_poisson_number_of_a_known_rate(count: float, sigma: float) -> None:
    """Summed over the rate, which the reference gives a gamma law, and over the number; many people by a normal law."""
    others, scale, number = 3, 0.7, np.arange(80)
    rates = np.linspace(1e-6, 40, 4_000)
    weight = stats.gamma.pdf(rates, others + 0.5, scale=1)
    poisson = integrate.simpson(weight * stats.poisson.pmf(number[:, None], rates * scale), x=rates, axis=1)
    law = known_people(np.array([[others]]), scale)

    def exact(at: float) -> float:
        return float(np.log((poisson * stats.norm.pdf(at - number, 0, sigma)).sum()))

    def found(at: float) -> float:
        return float(law(np.array([[at]]), np.array([[sigma]]))[0, 0])

    assert found(count - 1) - found(count) == pytest.approx(exact(count - 1) - exact(count), abs=1e-3)
    many = known_people(np.array([[900]]), 1.0)(np.array([[910.0, 900.5]]).T, np.full((2, 1), sigma))
    assert many[0, 0] - many[1, 0] == pytest.approx(-(9.5**2) / (2 * (1801 + sigma**2)), rel=1e-2)


def test_an_empty_cell_proves_absence_once_the_noise_is_gone() -> None:
    counts = np.random.default_rng(1).integers(2, 50, size=(300, 12)).astype(float)
    absent = np.arange(300) < 120
    counts[np.flatnonzero(absent), np.flatnonzero(absent) % 12] = 0.0
    scores = alone(counts, 7.0, 0.25, 2)
    assert scores[absent].max() < -20 < scores[~absent].min()


def test_targets_that_share_their_cells_are_told_by_the_others() -> None:
    """Rows and columns of a grid count two diagonals each; one target that is known settles its neighbours, and on."""
    coins = np.random.default_rng(2).random(40) < 0.5
    cells = np.stack([np.arange(40) // 2, (np.arange(40) + 1) // 2], axis=1)
    counts = np.stack([np.bincount(column, 2 * coins, 21)[column] for column in cells.T], axis=1)
    people = exponential_people(np.full(counts.shape, 0.1))
    together = decoded_scores(counts, cells, np.full(2, 0.25), people, 2, steps=120)
    assert ((together > 0) == coins).all()


def test_noise_is_what_lies_below_zero_and_no_more_than_planned() -> None:
    noise = np.random.default_rng(3).normal(0, 5, size=(20_000,)).round().astype(np.int64)
    full = np.full(4, 900)
    planned = [NoisyCounts((0,), noise, 50.0), NoisyCounts((1,), noise * 20, 50.0), NoisyCounts((2,), full, 30.0)]
    first, second, third = shown_noise(planned)
    assert first == pytest.approx(5, rel=0.2)
    assert second == 50.0, "a count far below zero is no reason to assume more noise than was planned"
    assert third == 30.0
    assert shown_noise([planned[0], planned[2]])[1] == pytest.approx(3.0, rel=0.2), "as noisy as the others by its plan"


def test_true_noise_leaves_little_to_learn() -> None:
    counts = np.random.default_rng(4).normal(0, 55.0, size=(500, 10))
    assert np.abs(alone(counts, 2.0, 55.0, 2, steps=20)).max() < 2.0


def test_shares_are_those_of_the_cells() -> None:
    made, known = np.array([[0], [0], [1], [1]]), np.array([[0], [1], [1], [1]])
    rare, common, unseen = share_ratio_scores(np.array([[0], [1], [2]]), made, known)
    assert rare == pytest.approx(2.5 / 1.5)
    assert common == pytest.approx(2.5 / 3.5)
    assert unseen == pytest.approx(1.0)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AccountingError, match="one deviation above 0"):
        alone(np.zeros((3, 2)), 1.0, 0.0, 2)
