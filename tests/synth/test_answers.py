"""Answers to queries: what one unit moves, what noise is paid for, and whether intervals contain what they claim.

Exact answers are compared with DuckDB's to the same SQL, and sensitivities with brute force over neighbours.
"""

import contextlib
import itertools
import json
import math
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from audit_cases import claim_of, found_for_certain, gaussian_delta, proven_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from synth_cases import contract_with, grant_for, write_bounded

from dpsynth_platform.contracts.answers import Query
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.answers import measure_answers
from dpsynth_platform.synth.answers import generator as answering
from dpsynth_platform.synth.answers import layout, measuring
from dpsynth_platform.synth.answers.estimates import Noisy, answers
from dpsynth_platform.synth.answers.generator import exact_answers
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular import counting
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

COLUMNS = {
    "person_id": {"type": "identifier"},
    "city": {"type": "categorical", "values": ["Aix", "Bern", "Cork"]},
    "member": {"type": "boolean"},
    "age": {"type": "integer", "min": 10, "max": 90},
    "cost": {"type": "float", "min": -50.0, "max": 150.0, "bins": 40},
}
SCHEMA = pa.schema(
    {"person_id": pa.string(), "city": pa.string(), "member": pa.bool_(), "age": pa.int64(), "cost": pa.float64()}
)
ALL = {
    "whole": "SELECT COUNT(*), SUM(cost), AVG(age) FROM people",
    "cities": "SELECT city, COUNT(*), AVG(cost), SUM(age) FROM people WHERE age BETWEEN 20 AND 60 GROUP BY city",
    "both": "SELECT city, member, COUNT(*) FROM people WHERE member AND cost >= 3.5 GROUP BY city, member",
    "a_middle": "SELECT member, MEDIAN(age), PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY age) FROM t GROUP BY member",
}
ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")
WEIGHTINGS = ("rows", "owners")


def plan_of(queries, *, epsilon=1.0, b=1, adjacency="add-or-remove", weighting="rows", columns=COLUMNS):
    contract = contract_with(
        kind="answers",
        columns=columns,
        queries=queries,
        generate=None,
        privacy__max_contributions=b,
        privacy__adjacency=adjacency,
        privacy__weighting=weighting,
        privacy__guarantee={"epsilon": epsilon, "delta": 1e-5},
    )
    return generator("answers").plan(contract, SCHEMA, Guarantee.target(contract))


def people(rows, seed=3, owners=None):
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, rows)  # some outside of the declared range
    return pa.table(
        {
            "city": pa.array(rng.choice(["Aix", "Bern", "Cork", "Rom"], rows), mask=rng.random(rows) < 0.05),
            "member": pa.array(rng.random(rows) < 0.3, mask=rng.random(rows) < 0.05),
            "age": pa.array(age, mask=rng.random(rows) < 0.05),
            "cost": pa.array(rng.normal(40, 60, rows), mask=rng.random(rows) < 0.05),
            "_owner": pa.array([f"{number // (owners or 1):032x}" for number in range(rows)]),
        }
    )


def tables_and_guarantee(plan):
    promise = Guarantee.from_json(plan.guarantee)
    found = layout.tables_of(layout.queries_of(plan.parameters), Domain.from_json(plan.columns), promise.adjacency)
    return found, promise


def exact(plan, table, monkeypatch):
    monkeypatch.setattr(counting, "read_table", lambda path, columns: iter(table.select(columns).to_batches()))
    tables, promise = tables_and_guarantee(plan)
    return measuring.exact_tables(Records("in memory", Domain.from_json(plan.columns), promise.weighting), tables)


def released(plan, table, tmp_path):
    """The table of answers of the whole mechanism, as rows."""
    directory = tmp_path / "model"
    directory.mkdir()
    made = generator("answers")
    made.fit(plan, write_bounded(table, tmp_path / "bounded"), grant_for(plan), directory)
    return made.sample(directory, None).to_pylist()


# What is answered.


@pytest.mark.parametrize("weights", [None, 65536 // 3])
def test_rounding_moves_a_sum_of_many_equal_rows_by_less_than_its_noise(weights):
    rows, column = 1_000_000, tables_and_guarantee(plan_of({"a": {"sum": ["cost"]}}))[0][0].groups.column("cost")
    each = np.full(1, 40.7)
    added = measuring.amounts(column, each, None if weights is None else np.full(1, weights)) * rows
    middle, half = layout.middle_of(column)
    truth = rows * (40.7 - middle) / half * (1 if weights is None else weights / 65536)
    assert abs(int(added[0]) / layout.AMOUNT_UNIT - truth) < 0.1  # of records, whose noise is of some


def test_a_report_for_reviewers_compares_each_answer_with_its_own():
    plan, real = plan_of(ALL), people(3000)
    told = exact_answers(plan, real)
    report = measure_answers(plan, real, told.take(np.arange(told.num_rows)[::-1]))  # stored tables keep no order
    assert (report.contained, report.compared) == (1.0, told.num_rows - told["answer"].null_count)
    assert {share for _, share, _, _ in report.rows} == {"1.000"}
    assert report.rows[0][0] == "a_middle, quantile 0.9 of age: share of 3"


def clamped(table, weight=1.0):
    """The rows as the contract reads them: clamped to the declared ranges, without unlisted values."""
    return duckdb.sql(
        f"SELECT {weight}::DOUBLE AS weight, "
        "CASE WHEN city IN ('Aix', 'Bern', 'Cork') THEN city END AS city, member, "
        "CASE WHEN age IS NOT NULL THEN least(greatest(age, 10), 90) END AS age, "
        "CASE WHEN cost IS NOT NULL THEN least(greatest(cost, -50), 150) END AS cost FROM given",
        connection=_connected(given=table),
    ).to_arrow_table()


def _connected(**tables):
    connection = duckdb.connect()
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def test_without_noise_answers_are_those_of_a_database(tmp_path, monkeypatch):
    """Sums and means within the rounding of amounts to 2^-17 of a range; quantiles within their cell."""
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, sigma: values)
    monkeypatch.setattr("dpsynth_platform.synth.answers.estimates.rounded_gaussian_variance", lambda sigma: 1e-12)
    table = people(5000)
    rows = released(plan_of(ALL), table, tmp_path)
    found = {
        (row["query"], row["city"], row["member"], row["measure"], row["of_column"], row["at_share"]): row["answer"]
        for row in rows
    }
    database = _connected(people=clamped(table))

    def label(value):
        return "missing or unlisted" if value is None else {True: "true", False: "false"}.get(value, value)

    (count, cost, age), *_ = database.sql(ALL["whole"]).fetchall()
    assert found["whole", None, None, "count", None, None] == count == 5000
    assert found["whole", None, None, "sum", "cost", None] == pytest.approx(cost, abs=5000 * 100 / 2**17)
    assert found["whole", None, None, "mean", "age", None] == pytest.approx(age, abs=1e-3)
    for city, count, cost, age in database.sql(ALL["cities"]).fetchall():
        assert found["cities", label(city), None, "count", None, None] == count
        assert found["cities", label(city), None, "mean", "cost", None] == pytest.approx(cost, abs=1e-3)
        assert found["cities", label(city), None, "sum", "age", None] == pytest.approx(age, abs=1)
    for city, member, count in database.sql(ALL["both"]).fetchall():
        assert found["both", label(city), label(member), "count", None, None] == count
    assert found["both", "Aix", "false", "count", None, None] == 0
    for member, *quantiles in database.sql(
        "SELECT member, quantile_disc(age, 0.5), quantile_disc(age, 0.9) FROM people GROUP BY member"
    ).fetchall():
        got = [found["a_middle", None, label(member), "quantile", "age", share] for share in (0.5, 0.9)]
        assert got == quantiles
    assert len(rows) == 3 + 4 * 3 + 12 + 3 * 2


def test_clamped_floats_and_dates_are_grouped_by_their_bins(tmp_path, monkeypatch):
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, sigma: values)
    rows = released(plan_of({"bins": {"count": True, "by": ["cost"]}}), people(500), tmp_path)
    assert len(rows) == 41
    assert sum(row["answer"] for row in rows) == 500
    assert rows[0]["cost"] == "[-50, -45)"
    assert rows[0]["answer"] > 20  # clamped to the first bin


# What one unit moves.

RECORD = st.tuples(st.sampled_from(["Aix", "Bern", None]), st.booleans(), st.integers(5, 95), st.floats(-80, 180))
OWNER = st.lists(RECORD, min_size=0, max_size=3)


def owned(owners):
    rows = [(*record, f"{number:032x}") for number, mine in enumerate(owners, 1) for record in mine]
    names = ("city", "member", "age", "cost", "_owner")
    types = (pa.string(), pa.bool_(), pa.int64(), pa.float64(), pa.string())
    return pa.table(
        {
            name: pa.array([row[at] for row in rows], type_)
            for at, (name, type_) in enumerate(zip(names, types, strict=True))
        }
    )


def moves(plan, before, after, monkeypatch):
    """The squared L2 change of each table that the plan pays for, over that which it may have at most."""
    tables, promise = tables_and_guarantee(plan)
    pairs = zip(tables, exact(plan, before, monkeypatch), exact(plan, after, monkeypatch), strict=True)
    for table, one, other in pairs:
        moved = int(((one - other).astype(object) ** 2).sum())
        yield moved / (promise.sensitivity.l2_squared * (table.scale(promise.weighting) * table.stretch) ** 2)


PLANS = {
    (adjacency, weighting): plan_of(ALL, b=3, adjacency=adjacency, weighting=weighting)
    for adjacency, weighting in itertools.product(ADJACENCIES, WEIGHTINGS)
}


@settings(deadline=None, max_examples=40)
@given(others=st.lists(OWNER, max_size=5), mine=OWNER, instead=OWNER)
def test_one_owner_moves_every_table_by_no_more_than_planned(others, mine, instead):
    with pytest.MonkeyPatch.context() as patch:
        for weighting in WEIGHTINGS:
            without, with_mine, replaced = (owned([*others, some]) for some in ([], mine, instead))
            for adjacency, one, other in (
                ("add-or-remove", without, with_mine),
                ("zero-out", with_mine, without),
                ("replace-one", with_mine, replaced),
            ):
                assert max(moves(PLANS[adjacency, weighting], one, other, patch)) <= 1


LOW, HIGH = [("Aix", True, 10, -50.0)] * 3, [("Aix", True, 90, 150.0)] * 3


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_farthest_move_is_what_is_paid_for(weighting, monkeypatch):
    """Not less than nearly all of it: three records of one owner, added, and replaced by their opposites."""
    added = list(moves(PLANS["add-or-remove", weighting], owned([]), owned([HIGH]), monkeypatch))
    replaced = list(moves(PLANS["replace-one", weighting], owned([LOW]), owned([HIGH]), monkeypatch))
    assert max(added) > 0.999
    assert max(replaced) > 0.999


def test_a_sum_that_forgets_its_sign_is_found(monkeypatch):
    monkeypatch.setattr(layout, "SIGNED", 1.0)
    plan = plan_of(ALL, b=3, adjacency="replace-one")
    assert max(moves(plan, owned([LOW]), owned([HIGH]), monkeypatch)) > 1.9


def test_owners_whose_weights_are_forgotten_are_found(monkeypatch):
    monkeypatch.setattr(
        measuring, "amounts", lambda column, numbers, weights: np.full(numbers.size, layout.AMOUNT_UNIT)
    )
    assert max(moves(PLANS["add-or-remove", "owners"], owned([]), owned([HIGH]), monkeypatch)) > 8


# What is paid.


@contextlib.contextmanager
def draws(patch):
    """Every draw of noise: what it was for, and its deviation."""
    found = []

    def noisy(values, sigma):
        found.append((values, sigma))
        return sample_rounded_gaussian(values, sigma)

    patch.setattr(answering, "sample_rounded_gaussian", noisy)
    yield found


@pytest.mark.parametrize(("adjacency", "weighting"), itertools.product(ADJACENCIES, WEIGHTINGS))
def test_noise_stays_within_the_sealed_event(adjacency, weighting, tmp_path, monkeypatch):
    plan = PLANS[adjacency, weighting]
    with draws(monkeypatch) as found:
        released(plan, people(300, owners=2), tmp_path)
    tables, _ = tables_and_guarantee(plan)
    assert len(found) == len(tables)
    used = sum(
        1 / (Fraction(sigma) / Fraction(table.stretch) / table.scale(weighting)) ** 2
        for (_, sigma), table in zip(found, tables, strict=True)
    )
    assert 0.98 * claim_of(plan).precision < used <= claim_of(plan).precision
    assert claim_of(plan).choices == 0


def test_a_plan_whose_noise_was_lowered_is_refused(tmp_path):
    plan = plan_of(ALL)
    parameters = plan.parameters | {"sigma_total": plan.parameters["sigma_total"] / 2}
    lowered = SealedPlan.from_json(plan.to_json())
    lowered = SealedPlan(**{**lowered.__dict__, "parameters": parameters})
    with pytest.raises(GrantRefused, match="not those of its noise scales"):
        generator("answers").measure(lowered, tmp_path, tmp_path)


def test_noise_that_cannot_be_drawn_is_refused_before_a_spend():
    with pytest.raises(AccountingError, match="more than can be drawn"):
        light, heavy = {"quantiles": {"age": [0.5]}, "weight": 0.001}, {"count": True, "weight": 1000}
        plan_of({"light": light, "heavy": heavy}, epsilon=0.001, b=2, weighting="owners")


def test_measurements_are_durable_and_not_drawn_twice(tmp_path, monkeypatch):
    plan, table = plan_of(ALL), people(100)
    rows = released(plan, table, tmp_path)
    made, model = generator("answers"), tmp_path / "model"
    assert made.is_complete(model)
    assert made.sample(model, None).to_pylist() == rows
    with pytest.raises(MechanismFailed, match="not measured twice"):
        made.measure(plan, tmp_path / "bounded", model)
    log = model / "measurements.jsonl"
    log.write_text("\n".join(log.read_text().splitlines()[:-1]) + "\n")
    assert not made.is_complete(model)
    with pytest.raises(MechanismFailed, match="before its measurements were complete"):
        made.sample(model, None)


# Intervals.

TRIALS = 20_000
"""A share of right intervals of 95% has a deviation of .00154 then: 94 and 96% are 6.4 away, on both sides 1e-10."""


def covered(plan, exact_answers):
    """The shares of right intervals, by measure and column: one group's numbers are measured again and again."""
    tables, promise = tables_and_guarantee(plan)
    parameters = plan.parameters
    budget = answering.AnswerParameters(**parameters)
    noisy = []
    for table, numbers in zip(tables, exact_answers, strict=True):
        many = np.repeat(numbers, TRIALS, axis=0)
        sigma = budget.noise(table.share)
        drawn = sample_rounded_gaussian(many, sigma * table.stretch * table.scale(promise.weighting))
        noisy.append(Noisy.of(table, drawn, sigma, promise.weighting))
    return {(item.measure, item.column, item.share): item for item in answers(noisy)}


def share_within(item, truth):
    return float(np.mean((item.low <= truth) & (truth <= item.high)))


@pytest.mark.parametrize(("adjacency", "weighting"), [("add-or-remove", "rows"), ("replace-one", "owners")])
def test_intervals_contain_the_truth_as_often_as_they_claim(adjacency, weighting, monkeypatch):
    table = people(3000, owners=2)
    query = "SELECT COUNT(*), SUM(cost), AVG(cost), AVG(age) FROM people"
    plan = plan_of({"all": query}, b=2, adjacency=adjacency, weighting=weighting, epsilon=0.3)
    found = covered(plan, exact(plan, table, monkeypatch))
    rows = _connected(people=clamped(table, 0.5 if weighting == "owners" else 1.0))
    (count, total, mean, age), *_ = rows.sql(
        "SELECT SUM(weight), SUM(weight * cost), AVG(cost), AVG(age) FROM people"
    ).fetchall()
    for key, truth in (
        (("count", None, None), count),
        (("sum", "cost", None), total),
        (("mean", "cost", None), mean),
        (("mean", "age", None), age),
    ):
        assert 0.94 < share_within(found[key], truth) < 0.96, key
        error = found[key].error
        assert np.sqrt(np.mean((found[key].answer - truth) ** 2)) == pytest.approx(np.mean(error), rel=0.05)


def test_intervals_of_quantiles_contain_the_truth_at_least_as_often_as_they_claim(monkeypatch):
    columns = {"person_id": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 499}}
    ages = np.random.default_rng(2).integers(0, 500, 5000)
    table = pa.table({"age": ages, "_owner": [f"{at:032x}" for at in range(5000)]})
    plan = plan_of({"all": {"quantiles": {"age": [0.1, 0.5, 0.9]}}}, epsilon=0.1, columns=columns)
    found = covered(plan, exact(plan, table, monkeypatch))
    for share in (0.1, 0.5, 0.9):
        truth = np.sort(ages)[math.ceil(share * 5000) - 1]
        item = found["quantile", "age", share]
        assert share_within(item, truth) > 0.94
        assert np.mean(item.high - item.low) < 120  # of 500


def test_a_peak_and_an_empty_group_have_intervals_that_are_never_too_short(monkeypatch):
    columns = {"person_id": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 49}}
    for ages in (np.full(2000, 7), np.zeros(0, dtype=np.int64)):
        table = pa.table({"age": pa.array(ages, pa.int64()), "_owner": [f"{at:032x}" for at in range(len(ages))]})
        plan = plan_of({"all": {"quantiles": {"age": [0.5]}, "mean": ["age"], "count": True}}, columns=columns)
        found = covered(plan, exact(plan, table, monkeypatch))
        if len(ages):
            assert share_within(found["quantile", "age", 0.5], 7) > 0.94
            assert 0.94 < share_within(found["mean", "age", None], 7) < 0.96
        else:
            unknown = found["mean", "age", None]
            assert np.mean((unknown.low == 0) & (unknown.high == 49) & np.isnan(unknown.answer)) > 0.94
            assert share_within(found["count", None, None], 0) > 0.94


# Attacks.

RUNS, CLAIMED, THRESHOLD = 40_000, 1.0, 1.4
"""The threshold is in deviations of the noise, from the middle of the two sums."""


def proven(plan, monkeypatch):
    """What an attacker proves who tells LOW from HIGH by one sum of ages, at the delta of the claim; and mu of both."""
    tables, promise = tables_and_guarantee(plan)
    place = next(at for at, table in enumerate(tables) if table.what == "amount")
    table, sigma = tables[place], answering.AnswerParameters(**plan.parameters).noise(tables[place].share)
    low, high = (exact(plan, owned([mine]), monkeypatch)[place] for mine in (LOW, HIGH))
    included = np.arange(RUNS) % 2 == 0
    noise = sigma * table.stretch * table.scale(promise.weighting)
    seen = sample_rounded_gaussian(np.where(included[:, None], high, low), noise)[:, 0] / noise
    claimed, reached = promise.sensitivity.l2 / sigma, float((high - low).sum()) / noise
    return proven_epsilon(seen, included, threshold=THRESHOLD, delta=gaussian_delta(claimed, CLAIMED)), claimed, reached


def test_an_attack_proves_no_more_than_is_claimed_and_a_forgotten_sign_is_found(monkeypatch):
    """The right mechanism fails with a chance of 1e-7. The mistake moves sqrt(2) farther, and is missed with 2e-7."""
    query = {"one": {"sum": ["age"]}}
    options = {"b": 3, "adjacency": "replace-one", "epsilon": 6.0}
    found, claimed, reached = proven(plan_of(query, **options), monkeypatch)
    assert found <= CLAIMED
    assert reached == pytest.approx(claimed, rel=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SIGNED", 1.0)
        found, claimed, reached = proven(plan_of(query, **options), patch)
    assert found > CLAIMED
    rates = {"true_rate": stats.norm.sf(THRESHOLD - reached / 2), "false_rate": stats.norm.sf(THRESHOLD + reached / 2)}
    sizes = {"members": RUNS // 2, "others": RUNS // 2, "delta": gaussian_delta(claimed, CLAIMED)}
    assert found_for_certain(**rates, **sizes, claimed=CLAIMED, miss=1e-7)


# Faults.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT a FROM t", "stands outside of an aggregate"),
        ("SELECT COUNT(DISTINCT a) FROM t", "privacy.weighting: owners"),
        ("SELECT COUNT(*) FROM a JOIN b ON a.x = b.x", "JOINS cannot be answered"),
        ("SELECT COUNT(*) FROM t WHERE a > 3", "<= or >= with the next value"),
        ("SELECT COUNT(*) FROM t WHERE a = 1 OR b = 2", "a = 1 OR b = 2"),
        ("SELECT COUNT(*) FROM t WHERE a = b", "accepted: a number, a text in single quotes"),
        ("SELECT COUNT(*) FROM t WHERE a >= 1 AND a IN (1, 2)", "two conditions on column 'a'"),
        ("SELECT SUM(a + b) FROM t", "the name of one column"),
        ("SELECT COUNT(*) FROM t ORDER BY 1", "ORDER cannot be answered"),
        ("SELECT COUNT(*) FROM t LIMIT 3", "LIMIT cannot be answered"),
        ("SELECT COUNT(*) FROM (SELECT * FROM t)", "FROM names no table"),
        ("SELECT COUNT(*) FROM t GROUP BY ROLLUP (a)", "the name of one column"),
        ("SELECT STDDEV(a) FROM t", "STDDEV(a)"),
        ("SELECT COUNT(*) FROM t WHERE a IS NOT NULL", "NOT"),  # as IS NULL it would be answered the other way round
        ("SELECT COUNT(*) FROM t WHERE a NOTNULL", "NOT"),
        ("SELECT COUNT(*) FROM t WHERE a BETWEEN SYMMETRIC 5 AND 1", "SYMMETRIC"),
        ("SELECT COUNT(*) FROM t WHERE a >= -'5'", "a number"),
        ("SELECT COUNT(*) FROM t WHERE a >= CAST(3.9 AS INT)", "CAST(3.9"),
        ("SELECT COUNT(*) FROM t TABLESAMPLE BERNOULLI (10)", "TABLESAMPLE"),
        ("SELECT COUNT(*) FROM ONLY t", "ONLY"),
        ("SELECT COUNT(*) FROM t PIVOT (SUM(a) FOR b IN ('x'))", "PIVOT"),
        ("SELECT COUNT(*) FROM generate_series(1, 2)", "FROM names no table"),
        ("SELECT COUNT(*, a) FROM t", "COUNT(*, a)"),
        ("SELECT COUNT(*) FILTER (WHERE a = 1) FROM t", "FILTER"),
        ("SELECT SUM(a) OVER () FROM t", "OVER"),
        ("SELECT COUNT(*) FROM t HAVING COUNT(*) > 3", "HAVING cannot be answered"),
        ("WITH x AS (SELECT 1) SELECT COUNT(*) FROM x", "WITH cannot be answered"),
        ("SELECT COUNT(*) FROM t UNION SELECT COUNT(*) FROM u", "not one SELECT"),
        ("SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM t", "not one SELECT"),
        ("DROP TABLE t", "not one SELECT"),
        ("SELECT COUNT(*) FROM t WHERE (" * 300, "not one SELECT"),
        ("SELECT PERCENTILE_CONT(1.5) WITHIN GROUP (ORDER BY a) FROM t", "less than 1"),
        ("nonsense " * 2000, "18,000 characters"),
    ],
)
def test_sql_that_cannot_be_answered_says_why(text, said):
    with pytest.raises(ValueError, match=r"\S") as refused:
        Query.model_validate(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        ({}, "queries: missing"),
        ({"a": {}}, "nothing is asked"),
        ({"a": {"count": True, "by": ["person_id"]}}, "'person_id' is no column that can be counted"),
        ({"a": {"sum": ["city"]}}, "'city' is of type categorical; accepted: integer, float"),
        ({"a": {"count": True, "by": ["city", "city"]}}, "a column is listed twice"),
        ({"a": {"count": True, "where": {"city": []}}}, "an empty list"),
        ({"a": {"count": True, "where": {"city": "Rom"}}}, "queries.a.where: city: 'Rom' is not"),
        ({"a": {"count": True, "where": {"age": {"min": "x"}}}}, "queries.a.where"),
        ({"a": {"quantiles": {"age": [0.5, 0.5]}}}, "a share is listed twice"),
        ({"a": {"sql": "SELECT COUNT(*) FROM t", "by": ["city"]}}, "sql: with by"),
        (
            {
                "a": {"count": True, "by": ["age", "cost", "city", "member"]},
                "b": {"quantiles": {"age": [0.5]}, "by": ["age", "cost", "city", "member"]},
            },
            "numbers to measure",
        ),
    ],
)
def test_queries_that_do_not_fit_say_why(queries, said):
    with pytest.raises(ContractError) as refused:
        plan_of(queries, columns={**COLUMNS, "age": {"type": "integer", "min": 0, "max": 499}})
    assert said in str(refused.value)


def test_groups_by_learned_values_are_refused():
    columns = {**COLUMNS, "city": {"type": "categorical", "values": "learned"}}
    with pytest.raises(ContractError, match="the values of 'city' are learned"):
        plan_of({"a": {"count": True, "by": ["city"]}}, columns=columns)
    assert plan_of({"a": {"count": True, "by": ["member"]}}, columns=columns)  # learned values of others do not matter


def test_answers_and_rows_are_not_mixed():
    with pytest.raises(ContractError, match=r"queries: with kind: rows"):
        contract_with(queries=ALL)
    with pytest.raises(ContractError, match=r"generate.method: 'answers' with kind: rows"):
        contract_with(generate={"method": "answers"})
    with pytest.raises(ContractError, match=r"generate.method: 'mst' with kind: answers"):
        contract_with(kind="answers", queries={"a": {"count": True}}, generate={"method": "mst"})
    with pytest.raises(ContractError, match=r"generate.constraints: with kind: answers"):
        contract_with(
            kind="answers",
            queries={"a": {"count": True}},
            generate={"method": "answers", "constraints": [{"ascending": ["age", "score"]}]},
        )


def test_settings_that_only_rows_have_are_refused():
    for part, said in (
        ({"quality": {"target": "city"}}, "quality.target: with kind: answers"),
        ({"quality": {"findings": [{"correlate": ["age", "cost"]}]}}, "quality.findings: with kind: answers"),
        ({"release__max_missing": 0.5}, "release.max_missing: with kind: answers"),
    ):
        with pytest.raises(ContractError) as refused:
            contract_with(kind="answers", queries={"a": {"count": True}}, generate=None, columns=COLUMNS, **part)
        assert said in str(refused.value)


def test_a_plan_says_the_noise_that_the_answers_have(tmp_path):
    plan = plan_of({"all": "SELECT city, COUNT(*), SUM(age) FROM t GROUP BY city"})
    count, total = plan.describe()["queries_in_words"]
    rows = released(plan, people(200), tmp_path)
    for measure, words in (("count", count), ("sum", total)):
        (error,) = {row["standard_error"] for row in rows if row["measure"] == measure}
        assert f"a standard error of {error:.4g} in each of 4 groups" in words


def test_queries_are_part_of_what_a_run_is(monkeypatch):
    one, other = (
        contract_with(kind="answers", queries={"a": query}, generate=None, columns=COLUMNS)
        for query in ({"count": True}, {"count": True, "where": {"age": {"min": 20}}})
    )
    assert one.mechanism_snapshot() != other.mechanism_snapshot()
    assert "queries" not in contract_with().mechanism_snapshot()
    assert json.loads(json.dumps(one.snapshot()))["kind"] == "answers"
    assert MeasurementLog.table  # see `synth.answers.generator`
