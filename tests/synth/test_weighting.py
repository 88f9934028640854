"""Owners counted in place of rows: what one owner changes, what it costs, and the mistakes that would show.

Beside hand-made numbers: brute force over all neighbours of a small table, runs of every mechanism repeated on
neighbouring tables with the same answers (`audit_cases`), and an attack on the noise.
"""

import dataclasses
import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from audit_cases import (
    METHODS,
    assert_distances_move_as_planned,
    assert_residuals_move_as_planned,
    categories,
    claim_of,
    found_for_certain,
    gaussian_delta,
    plan_for,
    precision_used,
    proven_epsilon,
    run,
    run_again,
    table_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.audit import scoring
from dpsynth_platform.audit.canaries import make_canaries
from dpsynth_platform.audit.tables import marginal_aware
from dpsynth_platform.foundation.errors import AccountingError, BoundingError, ContractError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    GaussianCountsEvent,
    counts_owners,
    event_from_json,
    event_to_json,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst, mst_event
from dpsynth_platform.privacy.selection import calibrate_selection, selection_event
from dpsynth_platform.privacy.units import RECORD_PARTS, count_sensitivity, row_weight
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import counting
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain, domain_of
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

EPSILON, B = 8.0, 4
ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")
SMALL = categories(a=3, b=2, c=12)
RECORD = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 11))
OWNER = st.lists(RECORD, min_size=1, max_size=B)


def owned(owners, names=tuple(SMALL)):
    """A bounded table in memory from each owner's records."""
    records = np.array([record for mine in owners for record in mine], dtype=np.int64).reshape(-1, len(names))
    ids = [f"{number:032x}" for number, mine in enumerate(owners, start=1) for _ in mine]
    return table_of(names, records).append_column("_owner", pa.array(ids, pa.string()))


def weighted_plan(method, columns=SMALL, adjacency="add-or-remove", b=B, epsilon=EPSILON):
    return plan_for(method, columns, epsilon=epsilon, b=b, adjacency=adjacency, weighting="owners")


# What one owner weighs and changes.


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100, 4097, 10_000, RECORD_PARTS, RECORD_PARTS + 1])
def test_an_owner_weighs_one_record_at_most_and_nearly_that(rows):
    assert rows * row_weight(rows) <= RECORD_PARTS
    assert rows * row_weight(rows) > RECORD_PARTS - rows


def test_the_sensitivity_is_that_of_one_record_whatever_the_bound():
    for adjacency, b in itertools.product(ADJACENCIES, (1, 2, 50)):
        assert count_sensitivity(adjacency, b, "owners") == count_sensitivity(adjacency, 1)
    with pytest.raises(AccountingError, match="several owners"):
        count_sensitivity("fixed-graph", 2, "owners")
    with pytest.raises(AccountingError, match="accepted: rows, owners"):
        count_sensitivity("add-or-remove", 2, "halves")


def counted(monkeypatch, owners, weighting="owners"):
    """Every pair's exact counts, as one vector in parts of a record."""
    table = owned(owners, ("a", "b"))
    monkeypatch.setattr(counting, "read_table", lambda path, columns: iter(table.select(columns).to_batches()))
    domain = Domain.from_json(weighted_plan("mst", categories(a=2, b=2)).columns)
    states = [dataclasses.replace(IDENTITY, state_of=np.arange(3, dtype=np.int32)) for _ in range(2)]
    return Records("in memory", domain, weighting).cliques(states, [(0, 1)])[0, 1].ravel()


IDENTITY = counting.ColumnStates(np.arange(3, dtype=np.int32), np.ones(3))


def moved_at_most(monkeypatch, adjacency, b, weighting="owners"):
    """The largest L1 and squared L2 change, in records, over all that one owner's records can be."""
    others = [[(0, 0)], [(0, 1), (1, 1), (1, 1)]]
    cells = list(itertools.product(range(2), repeat=2))
    all_mine = [list(mine) for rows in range(b + 1) for mine in itertools.combinations_with_replacement(cells, rows)]
    vectors = [counted(monkeypatch, [*others, mine], weighting) for mine in all_mine]
    pairs = itertools.product(vectors, vectors) if adjacency == "replace-one" else ((vectors[0], v) for v in vectors)
    scale = RECORD_PARTS if weighting == "owners" else 1
    moved = [np.abs(one - other) for one, other in pairs]
    return max(m.sum() for m in moved) / scale, max((m**2).sum() for m in moved) / scale**2


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_brute_force_over_all_neighbours_finds_the_claimed_sensitivity(monkeypatch, adjacency):
    bound = count_sensitivity(adjacency, 3, "owners")
    assert moved_at_most(monkeypatch, adjacency, 3) == (bound.l1, bound.l2_squared)


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(lambda rows: np.full_like(rows, RECORD_PARTS), id="forgotten"),
        pytest.param(lambda rows: -(-RECORD_PARTS // rows), id="rounded up"),
        pytest.param(lambda rows: RECORD_PARTS // np.maximum(rows - 1, 1), id="one row not counted"),
    ],
)
def test_brute_force_finds_weights_that_are_above_one_together(monkeypatch, weight):
    monkeypatch.setattr(counting, "row_weight", weight)
    l1, _ = moved_at_most(monkeypatch, "add-or-remove", 3)
    assert l1 > count_sensitivity("add-or-remove", 3, "owners").l1


def assert_moves_by_no_more_than_planned(plan, before, after):
    bound = Guarantee.from_json(plan.guarantee).sensitivity
    assert len(before.draws) == len(after.draws)
    for one, other in zip(before.draws, after.draws, strict=True):
        assert (one.kind, one.sensitivity) == (other.kind, other.sensitivity)
        assert np.array_equal(one.scale, other.scale)
        moved = np.abs(one.exact - other.exact)
        if one.kind == "choice":
            assert moved.max() <= one.sensitivity
        elif one.kind == "distances":
            assert_distances_move_as_planned(plan, one, other)
        elif one.kind == "residuals":
            assert_residuals_move_as_planned(plan, one, other)
        else:
            assert moved.sum() <= bound.l1 * RECORD_PARTS
            assert (moved**2).sum() <= bound.l2_squared * RECORD_PARTS**2


@pytest.fixture(scope="module")
def small_plans():
    return {
        (method, adjacency): weighted_plan(method, adjacency=adjacency)
        for method, adjacency in itertools.product(METHODS, ADJACENCIES)
    }


MANY = [[(value % 3, value % 2, value)] * B for value in range(12)] * 15


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=15)
@given(most=st.sampled_from([[], MANY]), some=st.lists(OWNER, max_size=20), mine=OWNER, instead=OWNER)
def test_one_owner_moves_every_draw_by_no_more_than_planned(small_plans, method, most, some, mine, instead):
    others = most + some
    for adjacency, left, right in (
        ("add-or-remove", others, [*others, mine]),
        ("zero-out", [*others, mine], others),
        ("replace-one", [*others, mine], [*others, instead]),
    ):
        plan = small_plans[method, adjacency]
        before = run(plan, owned(left))
        assert_moves_by_no_more_than_planned(plan, before, run_again(plan, owned(right), before))


@pytest.mark.parametrize("method", METHODS)
def test_a_mechanism_that_forgets_the_weights_is_found(method, small_plans, monkeypatch):
    plan = small_plans[method, "add-or-remove"]
    monkeypatch.setattr(counting, "row_weight", lambda rows: np.full_like(rows, RECORD_PARTS))
    others, mine = MANY, [(2, 1, 3)] * B
    before = run(plan, owned(others))
    with pytest.raises(AssertionError):
        assert_moves_by_no_more_than_planned(plan, before, run_again(plan, owned([*others, mine]), before))


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_as_if_each_owner_had_one_row(method, small_plans):
    """Owners whose rows are all alike count as one row each, exactly where their number divides the parts."""
    ones = plan_for(method, SMALL, epsilon=EPSILON, b=1)
    single = [[mine[0]] for mine in MANY]
    plan = small_plans[method, "add-or-remove"]
    before = run(ones, owned(single))
    assert plan.parameters == ones.parameters  # the same noise as with one row each
    answers = iter(before.draws)

    def answered(exact, scale, *sensitivity):
        draw = next(answers)
        if draw.kind in ("noise", "residuals"):
            assert np.array_equal(exact, draw.exact * RECORD_PARTS)
            assert scale == pytest.approx(draw.scale * RECORD_PARTS, rel=1e-12)
            return draw.answer * RECORD_PARTS
        assert np.array_equal(exact, draw.exact)
        return draw.answer

    after = run(plan, owned(MANY), noise=answered, choose=answered)
    assert len(after.draws) == len(before.draws)


# Counts.


def test_weighted_counts_of_a_real_table_are_the_sums_by_hand(tmp_path):
    rng = np.random.default_rng(5)
    owners = [rng.integers(0, (3, 2, 12), (int(rows), 3)).tolist() for rows in rng.integers(1, 8, 400)]
    table = owned(owners).take(pa.array(rng.permutation(sum(map(len, owners)))))  # in no order of owners
    write_table(tmp_path / "bounded", table.schema, table.to_batches(max_chunksize=100))
    domain = Domain.from_json(weighted_plan("mst", b=7).columns)
    expected = np.zeros(13, dtype=np.int64)
    for mine in owners:
        for record in mine:
            expected[record[2]] += RECORD_PARTS // len(mine)
    assert np.array_equal(Records(tmp_path / "bounded", domain, "owners").one_way()[2], expected)


def test_a_table_that_changes_while_it_is_counted_is_refused(monkeypatch):
    tables = iter([owned([[(0, 0, 0)]]), owned([[(0, 0, 0)]] * 2), owned([[(0, 0, 0)]] * 2)])
    monkeypatch.setattr(counting, "read_table", lambda path, columns: iter(next(tables).select(columns).to_batches()))
    with pytest.raises(BoundingError, match="changed while it was counted"):
        Records("in memory", Domain.from_json(weighted_plan("mst").columns), "owners").one_way()


@pytest.mark.parametrize("method", METHODS)
def test_noisy_counts_are_whole_records(method, small_plans):
    found = run(small_plans[method, "add-or-remove"], owned(MANY))
    for draw, item in zip(found.of("noise"), found.measured, strict=True):
        assert draw.scale == item.sigma * RECORD_PARTS
        assert np.abs(item.counts - draw.answer / RECORD_PARTS).max() <= 0.5


@pytest.mark.parametrize("method", METHODS)
def test_noise_and_choices_stay_within_the_sealed_event(method, small_plans):
    plan = small_plans[method, "add-or-remove"]
    claim, found = claim_of(plan), run(plan, owned(MANY))
    assert 0.99 * claim.precision < precision_used(plan, found) <= claim.precision
    assert len(found.of("choice")) <= claim.choices


@pytest.mark.parametrize("sigma", [2.0**-10, 3.7, 2.0**20, 2.0**24, 2.0**30])
def test_noise_in_parts_of_a_record_has_its_distribution(sigma):
    """Also where it is so wide that double precision decides no draw. Kolmogorov's test; false alarm below 1e-7."""
    number = 400 if sigma > 2**20 else 4000
    drawn = sample_rounded_gaussian(np.zeros(number, dtype=np.int64), sigma * RECORD_PARTS)
    jitter = np.random.default_rng(1).uniform(-0.5, 0.5, number)  # of rounding: it is there at sigma 2^-10
    deviation = math.sqrt((sigma * RECORD_PARTS) ** 2 + 1 / 12)
    assert stats.kstest((drawn + jitter) / deviation, "norm").pvalue > 1e-7


# Audit.

PEOPLE, RUNS, THRESHOLD, SHOWN = 40, 40, 0.8, 1.0


def trials(plan):
    """Coins, and likelihood ratios of people with a cell of their own in the first table, by who knows all else."""
    others = [[(person, 0)] for person in range(PEOPLE)] * 30
    rng, found = np.random.default_rng(), []
    for _ in range(RUNS):
        coins = rng.random(PEOPLE) < 0.5
        joined = [[(person, 0)] * B for person in np.flatnonzero(coins)]
        draw = run(plan, owned([*others, *joined], ("a", "b"))).of("noise")[0]
        sigma = draw.scale / RECORD_PARTS
        seen = draw.answer[:PEOPLE] / RECORD_PARTS - 30
        found.append((coins, (seen - 1 / 2) / sigma**2))
    coins, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return coins, scores, 1 / sigma


@pytest.mark.parametrize("method", METHODS)
def test_no_attack_proves_more_than_is_claimed_and_forgotten_weights_are_found(method, monkeypatch):
    """Of the first table, whose noise alone gives away SHOWN at the delta that is compared.

    Trials are at least 680 on each side (six deviations fewer than half of the coins, 2e-9); forgotten weights make mu
    four times as large, and are missed with a chance of at most 2e-7. The right mechanism fails with one of 1e-7.
    """
    plan = weighted_plan(method, categories(a=PEOPLE, b=2), epsilon=10.0)
    coins, scores, mu = trials(plan)
    delta = gaussian_delta(mu, SHOWN)
    assert proven_epsilon(scores, coins, threshold=THRESHOLD, delta=delta) <= SHOWN
    monkeypatch.setattr(counting, "row_weight", lambda rows: np.full_like(rows, RECORD_PARTS))
    coins, scores, _ = trials(plan)
    assert proven_epsilon(scores, coins, threshold=THRESHOLD, delta=delta) > SHOWN
    n = RUNS * PEOPLE // 2 - 120
    rate = stats.norm.sf((THRESHOLD - mu**2 * (B - 0.5)) / mu)
    false = stats.norm.sf((THRESHOLD + mu**2 / 2) / mu)
    rates = {"true_rate": rate, "false_rate": false}
    assert found_for_certain(members=n, others=n, **rates, delta=delta, claimed=SHOWN, miss=1e-7)


# Plans, events, claims.


def guarantee(weighting="owners", b=B, adjacency="add-or-remove"):
    return Guarantee(1.0, 1e-6, "user", adjacency, b, weighting)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_noise_is_that_of_one_row_each(adjacency):
    mine, one = guarantee(adjacency=adjacency), guarantee("rows", 1, adjacency)
    assert calibrate_mst(5, mine) == calibrate_mst(5, one)
    assert calibrate_selection(mine, 12, 0.1) == calibrate_selection(one, 12, 0.1)


def test_events_name_the_weighting_and_read_back():
    budget = calibrate_mst(3, guarantee())
    event = mst_event(3, budget, "add-or-remove", B, "owners")
    document = event_to_json(event)
    assert {part["event"]["weighting"] for part in document["events"]} == {"owners"}
    assert event_from_json(document) == event
    assert counts_owners(event)
    plain = mst_event(3, budget, "add-or-remove", B)
    assert "weighting" not in str(event_to_json(plain))
    assert not counts_owners(event_from_json(event_to_json(plain)))
    for kind in (GaussianCountsEvent, BoundedRangeSelectionEvent):
        with pytest.raises(AccountingError, match="accepted: rows, owners"):
            kind(1.0, "add-or-remove", 2, "people")


def test_a_guarantee_names_the_weighting_only_where_it_is_not_of_rows():
    assert Guarantee.from_json(guarantee().to_json()) == guarantee()
    assert "weighting" not in guarantee("rows").to_json()
    assert "counted as one together" in str(guarantee())


@pytest.mark.parametrize(("claimed", "paid"), [("rows", "owners"), ("owners", "rows")])
def test_a_ledger_takes_no_event_of_another_weighting(claimed, paid):
    budget = calibrate_selection(guarantee("rows"), 4, 0.1)
    event = selection_event(budget, "add-or-remove", B, paid)
    with pytest.raises(AccountingError, match="weighting"):
        CostRequest.of(event, dataset="d", period=None, guarantee=guarantee(claimed), plan_digest="0" * 64, runner="me")


def test_contracts_refuse_what_weights_cannot_mean():
    with pytest.raises(ContractError, match="has no effect where each unit has one record"):
        contract_with(privacy__weighting="owners", privacy__max_contributions=1)
    with pytest.raises(ContractError, match="weighting"):
        contract_with(privacy__weighting="halves")
    with pytest.raises(ContractError, match="several owners"):
        contract_with(privacy__weighting="owners", privacy__max_contributions=2, privacy__adjacency="fixed-graph")


def test_a_contract_without_the_word_is_the_same_run_as_before():
    contract = contract_with()
    assert "weighting" not in contract.mechanism_snapshot()["privacy"]
    weighted = contract_with(privacy__weighting="owners", privacy__max_contributions=2)
    assert weighted.mechanism_snapshot()["privacy"]["weighting"] == "owners"
    assert domain_of(weighted).sizes == domain_of(contract).sizes


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_says_what_it_counts_and_the_errors_by_either_weighting(method):
    rows, owners = (plan_for(method, SMALL, epsilon=1.0, b=B, weighting=name).describe() for name in ("rows", "owners"))
    assert "owners are counted" in owners["event"]
    assert "owners are counted" not in rows["event"]
    assert (rows["weighting"], owners["weighting"]) == ("rows", "owners")
    for plan in (rows, owners):
        errors = plan["expected_error_by_weighting"]
        assert errors[plan["weighting"]]["expected_error_per_one_way_cell"] == plan["expected_error_per_one_way_cell"]
    for key, value in rows["expected_error_by_weighting"]["owners"].items():
        assert value == pytest.approx(owners[key], rel=0.01)


def test_an_audit_looks_for_one_record_of_each_canary(tmp_path, monkeypatch):
    """A canary's b records weigh one together; looking for b would miss them."""
    contract = contract_with(privacy__weighting="owners", privacy__max_contributions=3)
    plan = generator("mst").plan(contract, SCHEMA, Guarantee.target(contract))
    table = people(600)
    canaries = make_canaries(contract, table.schema, 40, 3, None)
    joining = canaries.joining.select(table.column_names).cast(table.schema)
    bounded = write_bounded(pa.concat_tables([table, joining]), tmp_path / "bounded")
    generator("mst").fit(plan, bounded, grant_for(plan), tmp_path)
    looked_for = []
    monkeypatch.setattr(marginal_aware, "decoded_scores", lambda *given: looked_for.append(given[-1]) or np.zeros(40))
    scoring.score_canaries(canaries, tmp_path, generator("mst").sample(tmp_path, 50))
    assert looked_for == [1]
    # What they weigh: three rows of 21845 parts.
    alone = write_bounded(joining, tmp_path / "canaries")
    counts = Records(alone, Domain.from_json(plan.columns), "owners").one_way()[0]
    assert counts.sum() == int(canaries.included.sum()) * (RECORD_PARTS - 1)
