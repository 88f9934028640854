"""Junction trees in which groups of an attribute's states are attributes: sizes, marginals, rows, against all rows."""

import itertools

import numpy as np
import pytest
import torch

from dpsynth_platform.synth.tabular.junction import Attributes, JunctionTree, covering, junction_tree
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator, marginal, pair_marginals
from dpsynth_platform.synth.tabular.sampling import draw_states

ROWS = 20_000


class Case:
    """Random attributes, cliques of which some have groups only, and potentials."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.columns = int(rng.integers(2, 7))
        states = rng.integers(2, 6, self.columns).tolist()
        self.groups = [self._grouped(size) if rng.random() < 0.7 else None for size in states]
        self.attributes = Attributes.of(states, self.groups)
        self.sizes = self.attributes.sizes
        self.cliques = [(index,) for index in range(self.columns)]
        self.trees = [junction_tree(self.attributes, self.cliques)]
        for _ in range(rng.integers(0, 10)):
            pair = sorted(rng.choice(self.columns, 2, replace=False).tolist())
            coarse = [self.groups[index] is not None and rng.random() < 0.6 for index in pair]
            clique = tuple(index + self.columns * level for index, level in zip(pair, coarse, strict=True))
            if clique not in self.cliques:
                extended = self.trees[-1].extended(clique)
                assert extended.cells == self.trees[-1].extended_cells(clique)
                self.trees.append(extended if rng.random() < 0.5 else covering(self.trees[-1], self.cliques, clique))
                self.cliques.append(clique)
        self.layout = Layout(self.sizes, tuple(self.cliques))
        self.potentials = torch.as_tensor(rng.normal(size=self.layout.cells) * 2)
        if rng.random() < 0.3:
            self.potentials[rng.integers(0, self.layout.cells)] = -torch.inf

    def _grouped(self, size: int) -> np.ndarray:
        number = min(2 + int(self.rng.integers(0, 2)), size)
        return np.concatenate([np.arange(number), self.rng.integers(0, number, size - number)])

    @property
    def tree(self) -> JunctionTree:
        return self.trees[-1]

    def brute(self) -> tuple[np.ndarray, np.ndarray, float]:
        """All rows with their groups, shape (2 * columns, rows), their probabilities, and the log partition."""
        rows = np.indices(self.sizes[: self.columns]).reshape(self.columns, -1)
        coarse = [row if group is None else group[row] for row, group in zip(rows, self.groups, strict=True)]
        every = np.concatenate([rows, coarse])
        scores = np.zeros(rows.shape[1])
        for clique in self.cliques:
            scores += self.layout.view(self.potentials, clique).numpy()[tuple(every[list(clique)])]
        log_partition = float(np.logaddexp.reduce(scores))
        return every, np.exp(scores - log_partition), log_partition

    def marginal(self, every: np.ndarray, weights: np.ndarray, clique: tuple[int, ...]) -> np.ndarray:
        found = np.zeros([self.sizes[index] for index in clique])
        np.add.at(found, tuple(every[list(clique)]), weights)
        return found


@pytest.mark.parametrize("seed", range(60))
def test_inference_is_exact(seed):
    case = Case(seed)
    every, weights, log_partition = case.brute()
    beliefs, marginals = Propagator(case.tree, case.layout).run(case.potentials)
    assert float(beliefs.log_partition) == pytest.approx(log_partition)
    for clique in case.cliques:
        found = case.layout.view(marginals, clique).numpy()
        np.testing.assert_allclose(found, case.marginal(every, weights, clique), atol=1e-10)
    pairs = list(itertools.combinations(range(case.columns), 2))
    for pair, found in pair_marginals(beliefs, pairs).items():
        np.testing.assert_allclose(found.numpy(), case.marginal(every, weights, pair), atol=1e-10)
    for clique in (*pairs, *itertools.combinations(range(case.columns), 3)):
        found = marginal(beliefs, clique).numpy()
        np.testing.assert_allclose(found, case.marginal(every, weights, clique), atol=1e-10)


@pytest.mark.parametrize("seed", range(60))
def test_each_attribute_stands_in_one_connected_part_of_the_tree(seed):
    tree = Case(seed).tree
    columns = tree.attributes.columns
    cliques = [{*clique, *(index + columns for index in clique if index < columns)} for clique in tree.cliques]
    for attribute, size in enumerate(tree.sizes):
        held = [index for index, clique in enumerate(cliques) if attribute in clique]
        tops = [index for index in held if tree.parents[index] < 0 or attribute not in cliques[tree.parents[index]]]
        assert not size or len(tops) == 1


@pytest.mark.parametrize("seed", range(8))
def test_rows_follow_the_distribution(seed):
    """Each cell's frequency is off by less than 6 standard deviations of independent draws."""
    case = Case(seed)
    every, weights, _ = case.brute()
    beliefs, _ = Propagator(case.tree, case.layout).run(case.potentials)
    states = draw_states(beliefs, ROWS, case.rng)
    assert states.shape == (ROWS, case.columns)
    for pair in itertools.combinations(range(case.columns), 2):
        expected = case.marginal(every, weights, pair)
        found = np.zeros(expected.shape)
        np.add.at(found, tuple(states[:, list(pair)].T), 1 / ROWS)
        assert (np.abs(found - expected) < 6 * np.sqrt(expected / ROWS) + 2 / ROWS).all()
        assert (found[expected == 0] == 0).all()


def test_a_pair_in_groups_takes_the_cells_of_its_groups():
    groups = [np.arange(20) // 5, np.arange(30) // 6]
    tree = junction_tree(Attributes.of([20, 30], groups), [(0,), (1,)])
    assert tree.cells == 50
    assert tree.extended_cells((2, 3)) == 50 + 4 * 5
    assert tree.extended_cells((0, 3)) == 20 * 5 + 30
    assert tree.extended_cells((0, 1)) == 600
    assert tree.extended((0, 1)).home((2, 3)) == 0
