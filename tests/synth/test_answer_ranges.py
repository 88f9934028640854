"""Counts with ranges that are measured together: what is paid, what is measured, and how exact they are."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from test_answers import ADJACENCIES, WEIGHTINGS, exact, owned, people, plan_of, released

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.answers import measure_answers
from dpsynth_platform.synth.answers import generator as answering
from dpsynth_platform.synth.answers.estimates import DEVIATIONS, Noisy, answers
from dpsynth_platform.synth.answers.generator import exact_answers
from dpsynth_platform.synth.answers.products import ENOUGH, counts_of
from dpsynth_platform.synth.answers.ranges import CELLS, LARGEST, PREFIXES, RANGES, STRATEGIES, Axis, Ranges
from dpsynth_platform.synth.answers.sharing import combined
from dpsynth_platform.synth.answers.strategies import UNIT
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.domain import Domain

GRID = {
    f"to_{age}_{place}": {"count": True, "where": {"age": {"max": age}, "cost": {"max": cost}}}
    for age, (place, cost) in itertools.product((20, 35, 50, 65), enumerate((0.0, 33.5, 80.0)))
}
BOXES = {
    "young": "SELECT COUNT(*) FROM people WHERE age BETWEEN 18 AND 30 AND cost <= 40",
    "old": "SELECT COUNT(*) FROM people WHERE age >= 60 AND cost BETWEEN 10 AND 90",
    "any_age": {"count": True, "where": {"cost": {"max": 40.0}}, "weight": 0.5},
    "everyone": {"count": True, "weight": 0.1},
    "cities": "SELECT city, COUNT(*), SUM(age) FROM people GROUP BY city",
    "members": "SELECT COUNT(*) FROM people WHERE member AND age <= 40",
}
QUERIES = GRID | BOXES
TOGETHER = {*GRID, "young", "old", "any_age"}


def alone(patch):
    """Plans without products."""
    patch.setattr(answering, "products_of", lambda tables: [])


def errors_of(plan):
    """The standard error of each count, by query, from the plan alone."""
    noisy = noise_of(plan)
    return {item.groups.name: float(item.error[0]) for item in answers(combined(noisy)) if item.measure == "count"}


def noise_of(plan):
    weighting, parameters = Guarantee.from_json(plan.guarantee).weighting, answering._sealed(plan)
    return [
        Noisy.of(table, np.zeros(answering._shape(table), np.int64), parameters.noise(table.share), weighting)
        for table in answering._tables(plan)
    ]


# Strategies of a column.


def axis_of(*ranges, cells=20):
    columns = {"person_id": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": cells - 1}}
    domain = Domain.from_json(plan_of({"a": {"count": True, "by": ["age"]}}, columns=columns).columns)
    return Axis.of(domain, "age", [{"min": low, "max": high} for low, high in ranges])


PREFIXED = axis_of(*((0, end) for end in range(12)))
SOME = axis_of((0, 19), (3, 9), (5, 5), (8, 19), (3, 9), (17, 18))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("axis", [PREFIXED, SOME])
def test_no_entry_is_negative_no_column_is_too_long_and_every_range_follows_exactly(axis, strategy):
    matrix = axis.matrix(strategy)
    assert matrix.min() >= 0
    assert (matrix.astype(object) ** 2).sum(axis=0).max() <= UNIT**2
    counts = np.random.default_rng(0).integers(0, 1000, matrix.shape[1])
    assert axis.answers(strategy) @ (matrix @ counts / UNIT) == pytest.approx(axis.ranges @ counts)


def test_errors_are_those_of_closed_forms():
    """Of cells, a range of m cells has the variance m; of prefixes, McKenna et al. 2018 have the singular values."""
    assert PREFIXED.ranges.tolist() == np.tril(np.ones((12, 12), bool)).tolist()
    assert (PREFIXED.answers(CELLS) ** 2).sum(axis=1) == pytest.approx(np.arange(1, 13))
    assert (PREFIXED.answers(RANGES) ** 2).sum(axis=1) == pytest.approx(np.full(12, 12), rel=0.05)
    # The root of prefixes: with R R = W, and columns of length c, the error is c^2 |R|^2, but for rounding.
    root = np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, 12) - 1) / (2 * np.arange(1, 12))]))
    expected = [(root**2).sum() * (root[: end + 1] ** 2).sum() for end in range(12)]
    assert (PREFIXED.answers(PREFIXES) ** 2).sum(axis=1) == pytest.approx(expected, rel=0.03)
    singular = np.linalg.svd(PREFIXED.ranges, compute_uv=False)
    least = singular.sum() ** 2 / 12
    best = min((PREFIXED.answers(strategy) ** 2).sum() for strategy in STRATEGIES)
    assert least < best < 1.25 * least


def test_cells_that_the_same_ranges_contain_are_one_and_others_are_not_counted():
    axis = axis_of((3, 9), (5, 12))
    assert axis.ranges.tolist() == [[True, True, False], [False, True, True]]
    assert axis.cell_of[:-1].tolist() == [-1] * 3 + [0] * 2 + [1] * 5 + [2] * 3 + [-1] * 7
    assert axis.cell_of[-1] == -1  # missing values


# What is measured together.


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_every_count_is_more_exact_than_alone_for_the_same_event(adjacency, monkeypatch):
    plan = plan_of(QUERIES, adjacency=adjacency)
    ((names, columns, strategies),) = plan.parameters["products"]
    assert (set(names), columns) == (TOGETHER, ["age", "cost"])
    assert set(strategies) <= set(STRATEGIES)
    shorter = errors_of(plan)
    alone(monkeypatch)
    before = plan_of(QUERIES, adjacency=adjacency)
    assert before.event == plan.event
    assert "products" not in before.parameters  # as it was before there were any
    for name, error in errors_of(before).items():
        assert shorter[name] < error * (ENOUGH**0.5 if name in TOGETHER else 1 + 1e-9)


def test_the_best_matrices_are_taken():
    plan = plan_of(GRID)
    ((names, columns, chosen),) = plan.parameters["products"]
    tables = {table.groups.name: table for table in answering._tables(plan)}
    (table,) = tables.values()
    shares = np.full(len(names), 1 / len(names))
    worst = {}
    for strategies in itertools.product(STRATEGIES, repeat=2):
        ranges = Ranges(table.ranges.domain, tuple(columns), table.ranges.wanted, strategies)
        worst[strategies] = ((ranges.answers**2).sum(axis=1) * shares).max()
    assert worst[tuple(chosen)] == pytest.approx(min(worst.values()))


@pytest.mark.parametrize("names", [["young"], ["cities"], ["members", "cities"]])
def test_single_queries_and_those_of_other_rows_or_groups_are_measured_as_before(names):
    plan = plan_of({name: BOXES[name] for name in names})
    assert "products" not in plan.parameters
    assert not any(table.serves for table in answering._tables(plan))


def test_counts_by_groups_are_measured_together(tmp_path, monkeypatch):
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, noise: values)
    queries = {f"to_{age}": {"count": True, "by": ["city"], "where": {"age": {"max": age}}} for age in range(20, 90, 5)}
    plan, table = plan_of(queries), people(400)
    assert plan.parameters["products"]
    shown = released(plan, table, tmp_path)
    alone(monkeypatch)
    wanted = exact_answers(plan_of(queries), table).to_pylist()
    assert [row["answer"] for row in shown] == pytest.approx([row["answer"] for row in wanted])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_without_noise_answers_are_those_alone_in_the_same_order(weighting, tmp_path, monkeypatch):
    """Rows outside of declared ranges, missing values and ends between cells among them."""
    table, plan = people(500, owners=2), plan_of(QUERIES, weighting=weighting, b=2)
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, noise: values)
    shown = released(plan, table, tmp_path)
    alone(monkeypatch)
    wanted = exact_answers(plan_of(QUERIES, weighting=weighting, b=2), table).to_pylist()
    assert [row["query"] for row in shown] == [row["query"] for row in wanted]
    assert [row["answer"] for row in shown] == pytest.approx([row["answer"] for row in wanted], nan_ok=True, abs=1e-6)
    assert measure_answers(plan, table, pa.Table.from_pylist(shown)).contained == 1.0


def test_known_records_are_subtracted(tmp_path, monkeypatch):
    """As canaries are: the answers are those of the other rows alone."""
    real, known = people(300), people(40, seed=9)
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, noise: values)
    plan = plan_of(GRID)
    released(plan, pa.concat_tables([real, known]), tmp_path)
    shown = pa.Table.from_batches(answering.answered(tmp_path / "model", known).batches)
    assert shown["answer"].to_pylist() == pytest.approx(exact_answers(plan, real)["answer"].to_pylist(), abs=1e-6)


def test_standard_errors_are_those_of_the_pseudo_inverse_of_all_columns_together():
    """Of the whole Kronecker product and the whole workload at once, by brute force; and errors multiply."""
    (noisy,) = noise_of(plan_of(GRID))
    ranges = noisy.table.ranges
    whole = np.kron(*ranges.matrices) / UNIT**2
    workload = np.array([np.kron(*(axis.ranges[query] for axis in ranges.axes)) for query in range(len(GRID))])
    deviations = noisy.deviation * np.linalg.norm(workload @ np.linalg.pinv(whole), axis=1)
    assert [item.deviation for item in counts_of(noisy)] == pytest.approx(deviations)
    (one, other), (first, second) = ranges.axes, ranges.strategies
    product = (one.answers(first) ** 2).sum(axis=1) * (other.answers(second) ** 2).sum(axis=1)
    assert product == pytest.approx((ranges.answers**2).sum(axis=1))
    counts = np.arange(ranges.cells)[None] ** 2
    assert ranges.measured(counts)[0] / UNIT**2 == pytest.approx(whole @ counts[0])


# What one unit moves.

PEOPLE = [list(mine) for mine in itertools.product(["Aix"], [True], [15, 25, 40, 62, 80, None], [-9.0, 20.0, 60.0])]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_one_owner_moves_all_numbers_together_by_no_more_than_is_paid_for(adjacency, weighting, monkeypatch):
    """All pairs of an owner's records, in units of noise: the square of their L2 change, over what the event allows."""
    farthest, allowed = farthest_move(plan_of(GRID, b=2, adjacency=adjacency, weighting=weighting), monkeypatch)
    assert 0.9 * allowed * (0.6 if adjacency == "replace-one" else 1) < farthest <= allowed


def test_a_matrix_with_a_column_that_is_too_long_is_found(monkeypatch):
    honest = Axis.matrix
    monkeypatch.setattr(Axis, "matrix", lambda axis, strategy: honest(axis, strategy) * 11 // 10)
    farthest, allowed = farthest_move(plan_of(GRID, b=2), monkeypatch)
    assert farthest > 1.2 * allowed


def farthest_move(plan, patch):
    parameters, tables, promise = answering._sealed(plan), answering._tables(plan), Guarantee.from_json(plan.guarantee)
    patch.setattr("test_answers.tables_and_guarantee", lambda plan: (tables, promise))

    def in_noise(records):
        numbers = zip(tables, exact(plan, owned([records]), patch), strict=True)
        sigmas = [table.noise(parameters.noise(table.share), promise.weighting) for table in tables]
        return np.concatenate([values.ravel() / sigma for (_, values), sigma in zip(numbers, sigmas, strict=True)])

    of_one = np.array([in_noise(list(records)) for records in itertools.combinations_with_replacement(PEOPLE, 2)])
    of_one = np.vstack([of_one, in_noise([])])
    farthest = (
        max(float(((of_one - one) ** 2).sum(axis=1).max()) for one in of_one)
        if promise.adjacency == "replace-one"
        else float((of_one**2).sum(axis=1).max())
    )
    return farthest, promise.sensitivity.l2_squared / parameters.sigma_total**2


def test_cells_of_more_rows_than_whole_numbers_hold_are_clipped():
    ranges = noise_of(plan_of(GRID))[0].table.ranges
    full = ranges.measured(np.full((1, ranges.cells), 2**62))
    assert full.min() >= 0
    assert full.max() <= LARGEST


# Intervals.

TRIALS = 20_000
"""A share of right intervals of 95% has a deviation of .00154 then: 94 and 96% are 6.4 away."""


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_intervals_contain_the_truth_as_often_as_they_claim(weighting, monkeypatch):
    """All queries at once, with a fixed seed: each of 12 would fail with a chance of 1e-10 otherwise."""
    rng, table, plan = np.random.default_rng(7), people(3000, owners=2), plan_of(GRID, b=2, weighting=weighting)
    (noisy,) = noise_of(plan)
    patched = {"test_answers.tables_and_guarantee": (answering._tables(plan), Guarantee.from_json(plan.guarantee))}
    for name, value in patched.items():
        monkeypatch.setattr(name, lambda plan, value=value: value)
    (numbers,) = exact(plan, table, monkeypatch)
    scale = noisy.table.scale(weighting)
    noise = noisy.table.noise(answering._sealed(plan).noise(noisy.table.share), weighting)
    truth = noisy.table.ranges.answers @ (numbers[0] / scale)
    drawn = np.rint(numbers + rng.normal(size=(TRIALS, numbers.size)) * noise) / scale
    for place, item in enumerate(counts_of(Noisy(noisy.table, drawn, noisy.deviation))):
        off = item.values[:, 0] - truth[place]
        assert 0.94 < np.mean(np.abs(off) <= DEVIATIONS * item.deviation) < 0.96
        assert np.std(off) == pytest.approx(item.deviation, rel=0.03)


# Plans.


def test_a_plan_of_an_earlier_version_is_measured_and_read_as_it_was(tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        alone(patch)
        earlier = SealedPlan.from_json(plan_of(QUERIES).to_json())
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, noise: values)
    table = people(300)
    rows = released(earlier, table, tmp_path)
    assert len(answering._tables(earlier)) == len(QUERIES) + 2
    assert [row["answer"] for row in rows] == pytest.approx(
        [row["answer"] for row in exact_answers(earlier, table).to_pylist()], nan_ok=True
    )


def test_a_stored_plan_has_the_same_tables_whatever_the_order_of_its_keys():
    plan = plan_of(QUERIES)
    again = SealedPlan.from_json(json.dumps(json.loads(plan.to_json()), sort_keys=True))
    assert again.digest == plan.digest == plan_of(QUERIES).digest
    assert answering._tables(again) == answering._tables(plan)


def test_where_noise_of_products_cannot_be_drawn_queries_are_measured_alone():
    options = {"epsilon": 0.0015, "b": 2, "weighting": "owners"}
    plan = plan_of(GRID, **options)
    assert "products" not in plan.parameters
    assert plan_of(GRID, **options | {"epsilon": 1.0}).parameters["products"]
    with pytest.raises(AccountingError, match="more than can be drawn"):
        answering._check_noise(
            answering._sealed(plan),
            answering.with_products(answering._tables(plan), answering.products_of(answering._tables(plan))),
            Guarantee.from_json(plan.guarantee),
        )


def test_a_plan_says_the_noise_that_the_answers_have(tmp_path):
    plan = plan_of(GRID)
    words = plan.describe()["queries_in_words"]
    rows = released(plan, people(200), tmp_path)
    assert len(rows) == len(words) == len(GRID)
    for row, said in zip(rows, words, strict=True):
        assert f"{row['query']}, count: a standard error of {row['standard_error']:.4g}" in said
