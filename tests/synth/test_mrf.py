import itertools
import math

import numpy as np
import pytest
from audit_cases import categories, plan_for, precision_used, run, table_of

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import zcdp_limit
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import mrf
from dpsynth_platform.synth.tabular.junction import Attributes, junction_tree
from dpsynth_platform.synth.tabular.mrf import attribute_graph, first_views, useful_views
from dpsynth_platform.synth.tabular.resolution import View

COLUMNS = categories(a=3, b=3, c=3, d=2, e=4)


def table(rows=3000):
    """b follows a, c follows both, d and e are alone."""
    rng = np.random.default_rng(2)
    a, d, e = (rng.integers(0, size, rows) for size in (3, 2, 4))
    b = np.where(rng.random(rows) < 0.5, a, rng.integers(0, 3, rows))
    c = np.where(rng.random(rows) < 0.5, np.maximum(a, b), rng.integers(0, 3, rows))
    return table_of(COLUMNS, np.stack([a, b, c, d, e], axis=1))


def exact(counts, sigma):
    return counts


def best(scores, *_):
    return int(np.argmax(scores))


def groups_of(*sizes, coarse=()):
    return [
        [np.arange(size), *([np.arange(size) // (size // 2)] if index in coarse else [])]
        for index, size in enumerate(sizes)
    ]


# The graph.


def test_edges_are_the_largest_distances_as_long_as_the_tree_stays_within_its_cells():
    sizes = (10, 10, 10, 10)
    distances = {(0, 1): 90.0, (1, 2): 80.0, (0, 2): 70.0, (2, 3): 60.0, (0, 3): 50.0, (1, 3): 5.0}
    assert set(attribute_graph(distances, sizes, 10**4, 9.0).cliques) == {(0, 1, 2), (0, 2, 3)}
    assert set(attribute_graph(distances, sizes, 10**4, 0.0).cliques) == {(0, 1, 2, 3)}
    assert set(attribute_graph(distances, sizes, 1200, 9.0).cliques) == {(0, 1, 2), (2, 3)}
    assert set(attribute_graph(distances, sizes, 300, 9.0).cliques) == {(0, 1), (1, 2), (2, 3)}
    assert set(attribute_graph(distances, sizes, 300, 99.0).cliques) == {(0,), (1,), (2,), (3,)}
    # The pair of the largest distance would take all cells: nine times as many as two others.
    assert set(attribute_graph({(0, 1): 9.0, (1, 2): 8.0, (2, 3): 8.0}, (90, 10, 10, 10), 999, 0.0).cliques) == {
        (0,),
        (1, 2),
        (2, 3),
    }


def test_the_tree_never_exceeds_its_cells_and_is_a_junction_tree_of_its_edges():
    rng = np.random.default_rng(4)
    for _ in range(30):
        sizes = rng.integers(2, 9, 7).tolist()
        distances = {pair: float(rng.normal()) for pair in itertools.combinations(range(7), 2)}
        tree = attribute_graph(distances, sizes, 400, 0.0)
        assert tree.cells <= 400
        edges = {pair for clique in tree.cliques for pair in itertools.combinations(clique, 2)}
        again = junction_tree(Attributes.of(sizes), edges)  # a triangulated graph's cliques are found again
        assert set(again.cliques) == set(tree.cliques)


# Which sets are measured.


def test_useful_sets_lie_in_one_clique_and_have_few_enough_cells():
    groups = groups_of(4, 4, 4, 4, coarse=(0, 2))
    found = useful_views([(0, 1, 2), (2, 3)], groups, 32)
    triples = {view.levels for view in found if view.clique == (0, 1, 2)}
    assert triples == {(1, 0, 0), (0, 0, 1), (1, 0, 1)}
    assert {view.clique for view in found} == {(0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2)}
    assert {view.clique for view in useful_views([(0, 1, 2)], groups_of(4, 4, 4), 15)} == set()
    assert max(len(view.clique) for view in useful_views([(0, 1, 2, 3)], groups_of(2, 2, 2, 2), 99)) == 3


def test_first_sets_cover_the_distances_of_pairs_greedily():
    distances = {(0, 1): 9.0, (0, 2): 8.0, (1, 2): 7.0, (2, 3): 20.0, (0, 3): -5.0, (1, 3): 1.0}
    useful = [View.finest(members) for members in [(0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2), (0, 3), (1, 3)]]
    wanted = [(0, 1, 2), (2, 3), (1, 3)]
    assert [view.clique for view in first_views(useful, distances, 9)] == wanted
    assert [view.clique for view in first_views(useful, distances, 2)] == wanted[:2]
    coarse = [View((0, 1), levels) for levels in [(1, 1), (0, 1), (1, 0)]]
    assert [sum(view.levels) for view in first_views(coarse, distances, 9)] == [1]


def test_columns_that_go_together_are_measured_together():
    found = run(plan_for("mrf", COLUMNS, epsilon=4.0, b=1), table(), noise=exact, choose=best)
    joint = [item.clique for item in found.measured[len(COLUMNS) :]]
    assert joint[0] == (0, 1, 2)
    assert max(map(len, joint)) == 3


def test_where_no_set_is_useful_columns_are_measured_once_more_alone():
    found = run(plan_for("mrf", COLUMNS, epsilon=0.1, b=1), table(20), noise=exact)
    alone = [(index,) for index in range(len(COLUMNS))]
    assert [item.clique for item in found.measured] == 2 * alone
    assert not found.of("choice")


def test_without_first_sets_all_precision_is_left_to_the_rounds(monkeypatch):
    """Useful sets may all be without a distance: then nothing is measured alone once more."""
    monkeypatch.setattr(mrf, "first_views", lambda *_: [])
    plan = plan_for("mrf", COLUMNS, epsilon=4.0, b=1)
    found = run(plan, table(), noise=exact, choose=best)
    noise = [draw.scale for draw in found.of("noise")[len(COLUMNS) :]]
    assert len(noise) == len(found.of("choice")) == plan.parameters["rounds"]
    assert max(noise) < 1.01 * min(noise)


# The cost of a whole run.


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 2), ("replace-one", 1)])
def test_all_draws_of_a_run_together_meet_the_guarantee(adjacency, b):
    """In zCDP, from the noise of each draw and what one person can move it by, with a choice's epsilon^2 / 8."""
    plan = plan_for("mrf", COLUMNS, epsilon=2.0, b=b, adjacency=adjacency)
    found = run(plan, table())
    squared = Guarantee.from_json(plan.guarantee).sensitivity.l2_squared
    choices = found.of("choice")
    assert len(choices) == plan.parameters["rounds"] == len(COLUMNS)
    used = float(precision_used(plan, found)) * squared / 2 + sum(draw.scale**2 for draw in choices) / 8
    assert used <= plan.parameters["rho"]
    assert used > 0.99 * plan.parameters["rho"]
    # More than zCDP alone would allow, and by no more than privacy loss distributions gain.
    assert 1 < plan.parameters["rho"] / zcdp_limit(2.0, 1e-5) < 1.4


def test_a_plan_whose_distances_need_more_noise_than_there_is_is_refused():
    with pytest.raises(AccountingError, match="accepted: a larger epsilon"):
        plan_for("mrf", COLUMNS, epsilon=1e-9, b=1)


def test_the_plan_says_what_is_measured_and_its_memory_grows_with_the_table():
    plan = plan_for("mrf", COLUMNS, epsilon=1.0, b=1)
    described = generator("mrf").describe(plan)
    assert "the distances of all 10 pairs of columns from independence" in described["event"]
    assert "then up to 5 rounds" in described["event"]
    assert described["sigma_two"] > described["sigma_total"]
    wide = plan_for("mrf", categories(**dict.fromkeys("abcde", 60)), epsilon=1.0, b=1).describe()
    assert described["predicted_memory_bytes"] < wide["predicted_memory_bytes"]
    assert math.isfinite(wide["expected_error_per_two_way_cell"])
