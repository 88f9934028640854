import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.synth.tabular.junction import Attributes, covering, junction_tree
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator, marginal, pair_marginals


@st.composite
def models(draw, most=6):
    """Sizes of some attributes and some cliques over them, cycles and loose attributes included."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=most)))
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
    beliefs, marginals = Propagator(junction_tree(Attributes.of(sizes), cliques), layout).run(potentials)
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
    assert_valid(junction_tree(Attributes.of(sizes), cliques), cliques)


def assert_valid(tree, cliques):
    """A junction tree of maximal cliques, which covers the given ones and every attribute."""
    assert all(tree.home(clique) is not None for clique in cliques)
    assert all(tree.home((index,)) is not None for index in range(tree.attributes.columns))
    assert not any(set(one) < set(other) for one in tree.cliques for other in tree.cliques)
    assert tree.cells == sum(tree.shape_cells(clique) for clique in tree.cliques)
    for index, (clique, parent, separator) in enumerate(zip(tree.cliques, tree.parents, tree.separators, strict=True)):
        assert parent < index
        assert set(separator) == (set(clique) & set(tree.cliques[parent]) if parent >= 0 else set())
        assert sorted(tree.axes[index]) == list(clique)
    # Running intersection: the cliques that hold an attribute are connected, so one of them alone has it as new.
    for attribute in range(tree.attributes.columns):
        new = [
            axes[len(separator) :].count(attribute) for axes, separator in zip(tree.axes, tree.separators, strict=True)
        ]
        assert sum(new) == 1


@settings(deadline=None, max_examples=200)
@given(models(most=9), st.data())
def test_a_tree_grows_by_what_was_said(model, data):
    """Candidates are admitted by `extended_cells`: what is then measured must not take more."""
    sizes, cliques = model
    tree = junction_tree(Attributes.of(sizes), cliques)
    for _ in range(4):
        clique = tuple(sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=4))))
        extended = tree.extended(clique)
        assert_valid(extended, [*tree.cliques, clique])
        assert extended.cells == tree.extended_cells(clique)
        assert (extended is tree) == (tree.home(clique) is not None)
        covering_tree = covering(tree, cliques, clique)
        assert_valid(covering_tree, [*cliques, clique])
        assert covering_tree.cells <= extended.cells
        # As it is stored: made anew of its own cliques, a tree is no larger.
        assert junction_tree(Attributes.of(sizes), covering_tree.cliques).cells <= covering_tree.cells
        tree, cliques = covering_tree, (*cliques, clique)


def test_the_size_of_wide_trees_with_one_clique_more():
    """Long ways, many at once: two hundred attributes in a chain with loops."""
    rng = np.random.default_rng(5)
    sizes = tuple(rng.integers(2, 9, 200).tolist())
    loops = [tuple(sorted(rng.choice(np.arange(at, at + 8), 2, replace=False).tolist())) for at in range(0, 192, 3)]
    tree = junction_tree(Attributes.of(sizes), [*((index, index + 1) for index in range(199) if index % 70), *loops])
    pairs = list(itertools.combinations(range(200), 2))
    for place in rng.choice(len(pairs), 40, replace=False):
        assert tree.extended(pairs[place]).cells == tree.extended_cells(pairs[place])


def test_a_star_is_as_small_as_its_pairs():
    tree = junction_tree(Attributes.of((2, 10, 20, 30)), [(0, 1), (0, 2), (0, 3)])
    assert tree.cells == 2 * (10 + 20 + 30)
    assert junction_tree(Attributes.of((5,) * 4), [(0, 1), (1, 2), (2, 3), (0, 3)]).cells == 2 * 125


def test_impossible_cells_and_extreme_potentials():
    layout = Layout((2, 3, 2), ((0,), (1,), (0, 1), (1, 2)))
    potentials = torch.zeros(layout.cells, dtype=torch.float64)
    layout.view(potentials, (0,)).copy_(torch.tensor([900.0, -900.0]))
    layout.view(potentials, (1,)).copy_(torch.tensor([0.0, -torch.inf, 0.0]))
    layout.view(potentials, (1, 2))[0] = -torch.inf
    _, marginals = Propagator(junction_tree(Attributes.of(layout.sizes), layout.cliques), layout).run(potentials)
    np.testing.assert_allclose(layout.view(marginals, (1,)).numpy(), [0, 0, 1])
    np.testing.assert_allclose(layout.view(marginals, (1, 2)).numpy(), [[0, 0], [0, 0], [0.5, 0.5]])
    assert torch.isfinite(marginals).all()


def test_pairs_among_many_attributes():
    """More attributes than an einsum has names for."""
    sizes = (2,) * 60
    cliques = tuple((index, index + 1) for index in range(59))
    layout = Layout(sizes, cliques)
    beliefs, _ = Propagator(junction_tree(Attributes.of(sizes), cliques), layout).run(
        torch.zeros(layout.cells, dtype=torch.float64)
    )
    for values in pair_marginals(beliefs, [(0, 59), (10, 55)]).values():
        np.testing.assert_allclose(values.numpy(), 0.25)


def test_what_does_not_fit_is_refused():
    layout = Layout((2, 2, 2), ((0, 1), (1, 2), (0, 2)))
    with pytest.raises(ValueError, match="not covered"):
        Propagator(junction_tree(Attributes.of((2, 2, 2)), [(0, 1)]), layout)
    with pytest.raises(ValueError, match="does not exist"):
        junction_tree(Attributes.of((2, 2)), [(0, 2)])
