"""Columns given all others: exact inference for rows whose evidence differs."""

import itertools
import math

import numpy as np
import pytest

from dpsynth_platform.synth.relational import evidence
from dpsynth_platform.synth.relational.evidence import GivenEvidence

ROWS = 200_000
# Hoeffding: a share of `ROWS` rows is farther than this from its probability with a chance below 2 exp(-2 n t^2) =
# 2e-9; with at most 288 shares in a test, a false alarm has less than 1e-6.
FAR = math.sqrt(math.log(1e9) / (2 * ROWS))
SIZES = (3, 2, 4, 2, 3)
GROUPS = (None, None, np.array([0, 0, 1, 1]), None, None)


def potentials(rng, cliques):
    columns, groups = len(SIZES), {7: 2}
    sizes = [*SIZES, *(groups.get(columns + index, 0) for index in range(columns))]
    return {clique: rng.normal(size=[sizes[index] for index in clique]) for clique in cliques}


def joint(found):
    """Probabilities of all combinations of states, by the definition."""
    whole = np.zeros(SIZES)
    for states in itertools.product(*map(range, SIZES)):
        for clique, values in found.items():
            cell = tuple(
                states[index] if index < len(SIZES) else GROUPS[index - len(SIZES)][states[index - len(SIZES)]]
                for index in clique
            )
            whole[states] += values[cell]
    whole = np.exp(whole)
    return whole / whole.sum()


CLIQUES = [
    [(0,), (1,), (2,), (3,), (4,), (0, 1), (1, 2), (2, 3), (3, 4)],  # a chain
    [(0, 1), (1, 2), (2, 3), (0, 3), (1, 4)],  # a loop
    [(0, 1, 2), (2, 3, 4), (4,)],
    [(0, 7), (1, 7), (3, 4)],  # groups of column 2
    [(2, 7), (0, 7), (1, 2)],  # a column beside its own groups
    [(0,), (1,), (2,), (3,), (4,)],
]


@pytest.mark.parametrize("cliques", CLIQUES)
@pytest.mark.parametrize("known", [(), (0,), (2,), (1, 3), (0, 2, 4), (0, 1, 2, 3)])
def test_states_are_drawn_from_the_conditional_distribution(cliques, known):
    rng = np.random.default_rng(5)
    found = potentials(rng, cliques)
    given = GivenEvidence.of(SIZES, GROUPS, found, known)
    whole = joint(found)
    every = list(itertools.product(*(range(SIZES[index]) for index in known)))[:2]
    states = np.zeros((ROWS * len(every), len(SIZES)), dtype=np.int32)
    for number, values in enumerate(every):
        states[number * ROWS : (number + 1) * ROWS, list(known)] = values
    states = states[rng.permutation(len(states))]
    before = states.copy()
    given.draw(states, rng)
    assert np.array_equal(states[:, list(known)], before[:, list(known)])
    drawn = [index for index in range(len(SIZES)) if index not in known]
    for values in every:
        mine = states[np.all(states[:, list(known)] == values, axis=1)]
        at = tuple(values[known.index(index)] if index in known else slice(None) for index in range(len(SIZES)))
        expected = whole[at] / whole[at].sum()
        counts = np.zeros(expected.shape)
        np.add.at(counts, tuple(mine[:, index] for index in drawn), 1)
        assert np.abs(counts / ROWS - expected).max() < FAR


def test_batches_and_evidence_of_too_many_values_change_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    found = potentials(rng, CLIQUES[1])
    given = GivenEvidence.of(SIZES, GROUPS, found, (0, 2))
    states = np.zeros((50, len(SIZES)), dtype=np.int32)
    states[:, 0], states[:, 2] = rng.integers(0, 3, 50), rng.integers(0, 4, 50)
    whole = joint(found)
    monkeypatch.setattr(evidence, "BATCH_CELLS", 1)  # a row at a time
    one = states.copy()
    given.draw(one, np.random.default_rng(1))
    monkeypatch.undo()
    monkeypatch.setattr(evidence, "MOST_CODES", 1)  # no two rows are compared
    other = states.copy()
    given.draw(other, np.random.default_rng(2))
    for made in (one, other):
        assert np.array_equal(made[:, [0, 2]], states[:, [0, 2]])
        assert (whole[tuple(made.T)] > 0).all()


def test_impossible_states_are_not_drawn():
    found = {(0, 1): np.array([[0.0, -np.inf], [-np.inf, 0.0], [0.0, 0.0]]), (1, 2): np.zeros((2, 4))}
    found[(1, 2)][1, :3] = -np.inf
    given = GivenEvidence.of(SIZES, GROUPS, found, (0, 3, 4))
    states = np.zeros((3000, len(SIZES)), dtype=np.int32)
    states[:, 0] = np.arange(3000) % 3
    given.draw(states, np.random.default_rng(0))
    assert (states[states[:, 0] == 0, 1] == 0).all() and (states[states[:, 0] == 1, 1] == 1).all()
    assert (states[states[:, 1] == 1, 2] == 3).all()


def test_no_row_and_no_drawn_column():
    found = potentials(np.random.default_rng(0), CLIQUES[0])
    empty = np.zeros((0, len(SIZES)), dtype=np.int32)
    GivenEvidence.of(SIZES, GROUPS, found, (0,)).draw(empty, np.random.default_rng(0))
    states = np.zeros((3, len(SIZES)), dtype=np.int32)
    GivenEvidence.of(SIZES, GROUPS, found, range(len(SIZES))).draw(states, np.random.default_rng(0))
    assert not states.any()
