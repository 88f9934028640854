import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.junction import junction_cells, junction_tree
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator, marginal, pair_marginals


@st.composite
def models(draw):
    """Sizes of one to six attributes and some cliques over them, cycles and loose attributes included."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    possible = [clique for ways in (1, 2, 3) for clique in itertools.combinations(range(len(sizes)), ways)]
    cliques = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=8, unique=True))
    return sizes, tuple(sorted(cliques))


def potentials_of(layout, seed, scale=2.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, layout.cells))


def brute_force(layout, potentials):
    """The joint distribution as one array, and the logarithm of its sum."""
    log_joint = np.zeros(layout.sizes)
    for clique in layout.cliques:
        shape = [size if index in clique else 1 for index, size in enumerate(layout.sizes)]
        log_joint = log_joint + layout.view(potentials, clique).numpy().reshape(shape)
    peak = log_joint.max()
    total = np.exp(log_joint - peak).sum()
    return np.exp(log_joint - peak) / total, peak + math.log(total)


def summed(joint, clique):
    return joint.sum(axis=tuple(axis for axis in range(joint.ndim) if axis not in clique))


@settings(deadline=None, max_examples=80)
@given(models(), st.integers(0, 2**32 - 1))
def test_every_marginal_equals_brute_force(model, seed):
    sizes, cliques = model
    layout = Layout(sizes, cliques)
    potentials = potentials_of(layout, seed)
    joint, log_sum = brute_force(layout, potentials)
    beliefs, marginals = Propagator(junction_tree(sizes, cliques), layout).run(potentials)
    assert float(beliefs.log_partition) == pytest.approx(log_sum, abs=1e-9)
    for clique in cliques:
        np.testing.assert_allclose(layout.view(marginals, clique).numpy(), summed(joint, clique), atol=1e-12)
    for ways in range(1, len(sizes) + 1):
        for clique in itertools.combinations(range(len(sizes)), ways):
            np.testing.assert_allclose(marginal(beliefs, clique).numpy(), summed(joint, clique), atol=1e-12)
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    found = pair_marginals(beliefs, pairs)
    assert set(found) == set(pairs)
    for pair, values in found.items():
        np.testing.assert_allclose(values.numpy(), summed(joint, pair), atol=1e-12)


@settings(deadline=None, max_examples=80)
@given(models())
def test_junction_trees_are_valid(model):
    sizes, cliques = model
    tree = junction_tree(sizes, cliques)
    assert all(tree.home(clique) is not None for clique in cliques)
    assert all(tree.home((index,)) is not None for index in range(len(sizes)))
    assert tree.cells == junction_cells(sizes, cliques)
    for index, (clique, parent, separator) in enumerate(zip(tree.cliques, tree.parents, tree.separators, strict=True)):
        assert parent < index
        assert set(separator) == (set(clique) & set(tree.cliques[parent]) if parent >= 0 else set())
        assert sorted(tree.axes[index]) == list(clique)
    # Running intersection: the cliques that hold an attribute are connected, so one of them alone has it as new.
    for attribute in range(len(sizes)):
        new = [
            axes[len(separator) :].count(attribute) for axes, separator in zip(tree.axes, tree.separators, strict=True)
        ]
        assert sum(new) == 1


@settings(deadline=None, max_examples=80)
@given(models(), st.data())
def test_the_quick_bound_on_a_trees_size_holds(model, data):
    sizes, cliques = model
    tree = junction_tree(sizes, cliques)
    more = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3))
    clique = tuple(sorted(more))
    bound = tree.extended_cells(clique)
    # The bound is of one valid tree; the greedy one may by chance be larger, but never need be: both are covers.
    assert bound >= tree.cells
    if tree.home(clique) is not None:
        assert bound == tree.cells
    else:
        assert bound >= tree.shape_cells(clique)


def test_a_star_is_as_small_as_its_pairs():
    tree = junction_tree((2, 10, 20, 30), [(0, 1), (0, 2), (0, 3)])
    assert tree.cells == 2 * (10 + 20 + 30)
    assert junction_tree((5,) * 4, [(0, 1), (1, 2), (2, 3), (0, 3)]).cells == 2 * 125


def test_impossible_cells_and_extreme_potentials():
    layout = Layout((2, 3, 2), ((0,), (1,), (0, 1), (1, 2)))
    potentials = torch.zeros(layout.cells, dtype=torch.float64)
    layout.view(potentials, (0,)).copy_(torch.tensor([900.0, -900.0]))
    layout.view(potentials, (1,)).copy_(torch.tensor([0.0, -torch.inf, 0.0]))
    layout.view(potentials, (1, 2))[0] = -torch.inf
    _, marginals = Propagator(junction_tree(layout.sizes, layout.cliques), layout).run(potentials)
    np.testing.assert_allclose(layout.view(marginals, (1,)).numpy(), [0, 0, 1])
    np.testing.assert_allclose(layout.view(marginals, (1, 2)).numpy(), [[0, 0], [0, 0], [0.5, 0.5]])
    assert torch.isfinite(marginals).all()


def test_pairs_among_many_attributes():
    """More attributes than an einsum has names for."""
    sizes = (2,) * 60
    cliques = tuple((index, index + 1) for index in range(59))
    layout = Layout(sizes, cliques)
    beliefs, _ = Propagator(junction_tree(sizes, cliques), layout).run(torch.zeros(layout.cells, dtype=torch.float64))
    for values in pair_marginals(beliefs, [(0, 59), (10, 55)]).values():
        np.testing.assert_allclose(values.numpy(), 0.25)


def test_what_does_not_fit_is_refused():
    layout = Layout((2, 2, 2), ((0, 1), (1, 2), (0, 2)))
    with pytest.raises(ValueError, match="not covered"):
        Propagator(junction_tree((2, 2, 2), [(0, 1)]), layout)
    with pytest.raises(ValueError, match="does not exist"):
        junction_tree((2, 2), [(0, 2)])
