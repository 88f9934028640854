"""Exact inference against an independent implementation: `mbi`, the library of Private-PGM's authors.

Runs where the extra `oracle` is installed. `test_propagation` compares with brute force, which is independent, too, but
only for tables small enough to be written down; here the models are larger.
"""

import itertools

import numpy as np
import pytest
import torch

from dpsynth_platform.synth.tabular.junction import Attributes, junction_tree
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator, marginal, pair_marginals

pytestmark = [
    pytest.mark.filterwarnings("ignore:JAX:UserWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

TOLERANCE = 1e-6
MODELS = {
    "one attribute": ((4,), ((0,),)),
    "loose attributes": ((2, 3, 4), ((0,), (2,))),
    "chain": ((3, 4, 2, 5, 3), ((0, 1), (1, 2), (2, 3), (3, 4))),
    "star with one-way potentials": ((2, 7, 5, 3, 9), ((0,), (1,), (3,), (0, 1), (0, 2), (0, 3), (0, 4))),
    "cycle": ((3, 4, 5, 3, 2, 4), ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5))),
    "two components, triples": ((2, 3, 4, 5, 2, 3, 3), ((0, 1, 2), (1, 2), (2, 3), (4, 5), (5, 6), (4, 6))),
    "many cycles": (
        (2, 3, 2, 4, 3, 2, 5, 3, 2, 4, 3, 2),
        tuple((a, b) for a, b in itertools.combinations(range(12), 2) if b - a in (1, 4)),
    ),
}


@pytest.fixture(scope="module")
def mbi():
    found = pytest.importorskip("mbi", reason="the extra `oracle` is not installed", exc_type=ImportError)
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield found
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("name", MODELS)
def test_marginals_are_those_of_mbi(mbi, name, scale):
    sizes, cliques = MODELS[name]
    layout = Layout(sizes, cliques)
    potentials = torch.from_numpy(np.random.default_rng(len(cliques)).normal(0, scale, layout.cells))
    beliefs, marginals = Propagator(junction_tree(Attributes.of(sizes), cliques), layout).run(potentials)
    oracle = model_in(mbi, layout, potentials)

    def close(values, clique):
        expected = oracle.project(tuple(f"a{index}" for index in clique)).datavector(flatten=False)
        assert expected.shape == values.shape
        np.testing.assert_allclose(values.numpy(), expected, atol=TOLERANCE, rtol=0)

    for clique in cliques:
        close(layout.view(marginals, clique), clique)
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    found = pair_marginals(beliefs, pairs)
    assert set(found) == set(pairs)
    # mbi compiles a program for every set of attributes, which takes most of the time: not more than a few of each.
    for pair in spread(pairs):
        close(found[pair], pair)
        close(marginal(beliefs, pair), pair)
    for triple in spread(list(itertools.combinations(range(len(sizes)), 3))):
        close(marginal(beliefs, triple), triple)


def spread(cliques, number=6):
    """At most so many, from everywhere in the list."""
    return cliques[:: max(1, -(-len(cliques) // number))]


def model_in(mbi, layout, potentials):
    """The same potentials as mbi's model."""
    names = [f"a{index}" for index in range(len(layout.sizes))]
    domain = mbi.Domain(names, layout.sizes)
    arrays = {}
    for clique in layout.cliques:
        attributes = tuple(names[index] for index in clique)
        arrays[attributes] = mbi.Factor(domain.project(attributes), layout.view(potentials, clique).numpy())
    # An attribute without a potential is uniform; mbi wants one of zeros.
    for name in set(names) - {attribute for attributes in arrays for attribute in attributes}:
        arrays[(name,)] = mbi.Factor.zeros(domain.project((name,)))
    vector = mbi.CliqueVector(domain, tuple(arrays), arrays)
    marginals = mbi.marginal_oracles.message_passing_hugin(vector)
    return mbi.MarkovRandomField(potentials=vector, marginals=marginals)
