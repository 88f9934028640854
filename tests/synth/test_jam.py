"""JAM: a choice takes public counts or measures; what a score may move by, and what public choices cost."""

from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest
from audit_cases import categories, claim_of, plan_for, precision_used, run, run_again, table_of
from synth_cases import grant_for, write_bounded
from test_mechanism_audit import assert_moves_by_no_more_than_planned, linked

from dpsynth_platform.contracts.methods import PUBLIC_METHODS
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import aim, drawing
from dpsynth_platform.synth.tabular.jam import Jam
from dpsynth_platform.synth.tabular.marginals import score_sensitivity
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.noise import select_by_exponential_mechanism
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE

B = 4
WIDE = categories(a=3, b=2, c=12, d=4, e=9, f=10)
PAIRS = 15


@pytest.fixture
def public(tmp_path):
    """A public table whose columns go together as the private ones do."""
    place = tmp_path / "public.parquet"
    pq.write_table(table_of(WIDE, linked(np.random.default_rng(9), 3000)), place)
    return {"public": {"uri": str(place), "why": "made up for tests"}}


def best(scores, *_):
    return int(np.argmax(scores))


@pytest.mark.parametrize("method", PUBLIC_METHODS)
@pytest.mark.parametrize("adjacency", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("weighting", ["rows", "owners"])
def test_one_person_moves_every_draw_by_no_more_than_planned(public, method, adjacency, weighting):
    plan = plan_for(method, WIDE, epsilon=8.0, b=B, adjacency=adjacency, weighting=weighting, **public)
    rng = np.random.default_rng(1)
    others, mine, instead = linked(rng, 600), linked(rng, 1).repeat(B, axis=0), linked(rng, B)
    left = others if adjacency == "add-or-remove" else np.concatenate([others, instead])
    before = run(plan, owned(left, 600))
    after = run_again(plan, owned(np.concatenate([others, mine]), 600), before)
    if weighting == "rows":
        assert_moves_by_no_more_than_planned(plan, before, after)
    for one, other in zip(before.of("choice"), after.of("choice"), strict=True):
        moved = np.abs(one.exact - other.exact)
        assert moved.max() <= one.sensitivity
        if method == "jam" and weighting == "rows":
            assert moved[: len(moved) - PAIRS].max() <= one.sensitivity // 2, "measurements: half of public ones"


def owned(codes, single):
    """A table whose rows beyond the first `single` are of one owner."""
    owners = [f"{min(index, single):032x}" for index in range(len(codes))]
    return table_of(WIDE, codes).append_column("_owner", [owners])


@pytest.mark.parametrize(("adjacency", "factor"), [("add-or-remove", 1), ("zero-out", 1), ("replace-one", 2)])
def test_the_score_of_a_public_marginal_moves_by_twice_a_distance(adjacency, factor):
    """Brute force over all neighbours of one record in 2 x 2 cells: the bound holds, and is reached."""
    expected, public = np.array([[0.0, 9.0], [9.0, 0.0]]), np.array([[9.0, 0.0], [0.0, 9.0]])
    counts = np.array([[4, 4], [4, 4]])
    cells = np.eye(4, dtype=np.int64).reshape(4, 2, 2)
    added = [(counts, counts + cell) for cell in cells]
    replaced = [(counts + one, counts + other) for one in cells for other in cells]
    moves = [
        abs(score(right, expected, public) - score(left, expected, public))
        for left, right in (replaced if adjacency == "replace-one" else added)
    ]
    plan = plan_for("jam", WIDE, epsilon=8.0, b=1, adjacency=adjacency)
    bound = Guarantee.from_json(plan.guarantee).sensitivity.l1 * Jam.score_factor
    assert bound == 2 * factor
    assert max(moves) == bound * WEIGHT_SCALE * score_sensitivity(plan) // (bound // 2)


def score(counts, expected, public):
    (found,) = (
        Jam().public_scores({(0, 1): public}, {(0, 1): WEIGHT_SCALE}, {(0, 1): counts}, {(0, 1): expected}, 1).values()
    )
    return found


def test_a_plan_that_forgets_that_public_scores_move_twice_is_found(public, monkeypatch):
    monkeypatch.setattr(Jam, "score_factor", 1)
    plan = plan_for("jam", WIDE, epsilon=8.0, b=B, **public)
    rng = np.random.default_rng(1)
    others, mine = linked(rng, 600), np.array([[2, 0, 0, 0, 0, 9]] * B)
    before = run(plan, table_of(WIDE, others), choose=best)
    after = run_again(plan, table_of(WIDE, np.concatenate([others, mine])), before)
    reached = max(
        np.abs(one.exact - other.exact).max() / one.sensitivity
        for one, other in zip(before.of("choice"), after.of("choice"), strict=True)
    )
    assert 1 < reached <= 2


def test_public_choices_draw_no_noise_and_leave_their_precision_to_others(public):
    plan = plan_for("jam", WIDE, epsilon=1.0, b=1, **public)
    rng = np.random.default_rng(2)
    table = table_of(WIDE, linked(rng, 3000))
    claim, rounds = claim_of(plan), plan.parameters["rounds"]
    for choose in (best, lambda scores, *_: len(scores) - 1, select_by_exponential_mechanism):
        found = run(plan, table, choose=choose)
        choices, noise = found.of("choice"), found.of("noise")
        taken = len(choices) - (len(noise) - len(WIDE))
        assert taken >= 0 and len(choices) <= claim.choices == rounds
        assert 0.99 * claim.precision < precision_used(plan, found) <= claim.precision
        if len(choices) == rounds:
            assert len(choices[-1].exact) < len(choices[0].exact), "the last round measures"
    every = run(plan, table, choose=lambda scores, *_: len(scores) - 1)
    assert len(every.of("choice")) == rounds and len(every.of("noise")) == len(WIDE) + 1
    share = Fraction(1) - Fraction(plan.parameters["one_way_share"])
    assert 1 / Fraction(every.of("noise")[-1].scale) ** 2 > Fraction(99, 100) * share * claim.precision


@pytest.mark.parametrize("turn", [0, 1])
def test_several_choices_before_a_fit_use_the_whole_budget_after_public_ones(public, monkeypatch, turn):
    """Whichever of two choices takes a public marginal: the mechanism ends, and its last round measures."""
    monkeypatch.setattr(aim, "COLUMNS_PER_CHOICE", 3)
    plan = plan_for("jam", WIDE, epsilon=1.0, b=1, **public)
    assert plan.parameters["choices_per_fit"] == 2
    done = 0

    def in_turns(scores, *_):
        nonlocal done
        done += 1
        return len(scores) - 1 if done % 2 == turn else 0

    found = run(plan, table_of(WIDE, linked(np.random.default_rng(2), 3000)), choose=in_turns)
    assert len(found.of("choice")) - (len(found.of("noise")) - len(WIDE)) > 0, "some were taken"
    assert 0.99 * claim_of(plan).precision < precision_used(plan, found) <= claim_of(plan).precision


def test_what_was_taken_is_in_the_estimate(public, tmp_path, monkeypatch):
    plan = plan_for("jam", WIDE, epsilon=1.0, b=1, **public)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, *_: len(scores) - PAIRS)
    bounded = write_bounded(owned(linked(np.random.default_rng(2), 2000), 2000), tmp_path / "bounded")
    (tmp_path / "model").mkdir()
    generator("jam").fit(plan, bounded, grant_for(plan), tmp_path / "model")
    stored = read_measurements(tmp_path / "model", plan.digest)
    assert stored.taken and {clique for clique, _ in stored.taken} <= stored.public.keys()
    assert len(stored.chosen) == len(stored.taken) + len(stored.joint)
    assert {clique for clique, _ in stored.taken} == {(0, 1)}, "the smallest"
    sample = generator("jam").sample(tmp_path / "model", 2000)
    a, b = (sample[name].to_numpy(zero_copy_only=False) for name in "ab")
    assert ((a != "0") == (b == "1")).mean() > 0.9
