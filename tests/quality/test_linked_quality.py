"""Quality of linked tables: values by hand and by brute force, and what each measure finds or cannot find."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import BoundingError, ContractError
from dpsynth_platform.quality import linked_queries
from dpsynth_platform.quality.linked import measure_linked
from dpsynth_platform.quality.linked_queries import query_errors, read_queries
from dpsynth_platform.quality.linked_views import LinkedViews
from dpsynth_platform.quality.regression import Regression
from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.utility import Utility

TABLES = LinkedTables.model_validate(
    {
        "tables": {
            "people": {
                "key": ["id"],
                "columns": {
                    "sex": {"type": "categorical", "values": ["F", "M"]},
                    "age": {"type": "integer", "min": 0, "max": 99},
                },
            },
            "stays": {
                "key": ["stay"],
                "parent": {"table": "people", "columns": ["id"]},
                "max_children": 3,
                "order_by": ["day"],
                "lookups": {"ward": "wards"},
                "columns": {
                    "day": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"},
                    "kind": {"type": "categorical", "values": ["a", "b", "c"]},
                },
            },
            "codes": {
                "parent": {"table": "stays", "columns": ["stay"]},
                "max_children": 2,
                "columns": {"code": {"type": "categorical", "values": ["x", "y"]}},
            },
            "wards": {"key": ["ward"], "public": "The clinic lists them."},
        }
    }
)
WARDS = pa.table({"ward": ["A", "B"], "beds": [10, 20]})
Database = dict[str, pa.Table]


def database(
    people: list[tuple[int, str, int]],
    stays: list[tuple[int, int, int, str, str]],
    codes: list[tuple[int, str]],
) -> Database:
    """Rows: (id, sex, age), (stay, id, day of the year from 0, kind, ward), (stay, code)."""

    def columns(rows: list[Any], names: str, types: dict[str, pa.DataType]) -> pa.Table:
        found = zip(*rows, strict=True) if rows else [[] for _ in names.split()]
        return pa.table(
            {n: pa.array(list(v), types.get(n, pa.string())) for n, v in zip(names.split(), found, strict=True)}
        )

    whole = {"id": pa.int64(), "stay": pa.int64(), "age": pa.int64(), "day": pa.date32()}
    dated = [(stay, id_, dt.date(2024, 1, 1) + dt.timedelta(day), kind, ward) for stay, id_, day, kind, ward in stays]
    return {
        "people": columns(people, "id sex age", whole),
        "stays": columns(dated, "stay id day kind ward", whole),
        "codes": columns(codes, "stay code", whole),
        "wards": WARDS,
    }


def clinic(number: int, seed: int) -> Database:
    """Women have two stays and men one or three; a stay's kind follows from the one before, and codes from the sex."""
    rng = np.random.default_rng(seed)
    people, stays, codes = [], [], []
    for id_ in range(number):
        sex = "FM"[rng.integers(2)]
        kind, day = rng.integers(3), rng.integers(30)
        visits = 2 if sex == "F" else int(rng.choice([1, 3]))
        people.append((id_, sex, 20 + 20 * visits + int(rng.integers(5))))
        for _ in range(visits):
            stay = len(stays)
            stays.append((stay, id_, int(day), "abc"[kind], "AB"[rng.integers(2)]))
            codes.append((stay, "x" if sex == "F" else "y"))
            kind, day = (kind + 1) % 3, day + 7
    return database(people, stays, codes)


def changed(tables: Database, name: str, **columns: Any) -> Database:
    """The same tables with other values in some columns of one."""
    table = tables[name]
    for column, values in columns.items():
        at = table.column_names.index(column)
        table = table.set_column(at, column, pa.array(values, table.schema.field(column).type))
    return tables | {name: table}


SMALL = database(
    [(1, "F", 30), (2, "M", 40), (3, "M", 50), (4, "F", 60)],
    [(1, 1, 0, "a", "A"), (2, 1, 7, "b", "B"), (3, 2, 3, "a", "A"), (4, 2, 3, "c", "A"), (5, 2, 10, "b", "B")],
    [(1, "x"), (1, "x"), (3, "y")],
)


def test_the_same_tables_have_no_distance(tmp_path: Path) -> None:
    found = measure_linked(TABLES, SMALL, SMALL, tmp_path, queries=["SELECT kind, count(*) FROM stays GROUP BY ALL"])
    for table in found.tables.values():
        assert table.one_way == 0
        assert table.two_way in (0, None)
        assert table.keys_distinct in (1, None)
    for edge in found.edges.values():
        assert (edge.children, edge.children_by_parent, edge.references) == (0, 0, 1)
        assert set(edge.across.values()) == {0.0}
    assert (found.edges["stays"].in_sequence, found.edges["stays"].gaps, found.edges["stays"].out_of_order) == (0, 0, 0)
    assert found.edges["codes"].in_sequence is None  # without an order
    assert found.tables["codes"].two_way is None  # one column
    assert found.query_error == 0
    assert found.tables["stays"].lookups == {"ward": 1.0}


def test_measures_are_those_of_the_definition(tmp_path: Path) -> None:
    """Each by hand: of the four people, the real ones have 2, 3, 0 and 0 stays, the made ones 1, 1, 1 and 2."""
    made = database(
        [(1, "F", 30), (2, "M", 40), (3, "M", 50), (4, "F", 60)],
        [(1, 1, 0, "a", "A"), (2, 2, 5, "b", "B"), (3, 3, 3, "a", "A"), (4, 4, 9, "c", "A"), (5, 4, 8, "b", "B")],
        [(1, "x"), (1, "y"), (1, "y"), (9, "y")],
    )
    found = measure_linked(TABLES, SMALL, made, tmp_path)
    stays, codes = found.edges["stays"], found.edges["codes"]
    real, other = Counter([2, 3, 0, 0]), Counter([1, 1, 1, 2])
    assert stays.children == pytest.approx(sum(abs(real[k] - other[k]) / 4 for k in range(4)) / 2)
    assert stays.out_of_order == 1.0  # the second stay of person 4 is a day before the first one
    assert codes.references == 0.75
    # Stays with codes: two of 2 and 1; cut to the bound, one of 2.
    assert codes.children == pytest.approx((abs(3 - 4) + abs(1 - 0) + abs(1 - 1)) / 5 / 2)
    # Rows with a row before them. Kinds: a b, a c (or c a) and c b (or a b) of the real ones, b c of the made one;
    # wards: A B, A A and A B, and B A; days: the tenth is in the second of 32 cells, all others in the first.
    assert stays.in_sequence == pytest.approx((1 + 1 + 1 / 3) / 3)
    # Steps in days: 7, 0, 7 and 1, in cells that are fine near zero.
    assert stays.gaps == pytest.approx(1.0)


def test_one_and_two_way_errors_are_those_of_brute_force(tmp_path: Path) -> None:
    real, made = clinic(60, 1), clinic(60, 2)
    real, made = ({**side, "people": side["people"].drop(["age"])} for side in (real, made))
    tables = TABLES.model_copy(deep=True)
    del tables.tables["people"].columns["age"]
    found = measure_linked(tables, real, made, tmp_path)
    sex = {
        name: dict(zip(side["people"]["id"].to_pylist(), side["people"]["sex"].to_pylist(), strict=True))
        for name, side in (("real", real), ("made", made))
    }

    def distance(of: Any) -> float:
        sides = [Counter(of(name, side)) for name, side in (("real", real), ("made", made))]
        sizes = [side.total() for side in sides]
        return sum(abs(sides[0][c] / sizes[0] - sides[1][c] / sizes[1]) for c in {*sides[0], *sides[1]}) / 2

    assert found.tables["people"].one_way == pytest.approx(distance(lambda name, side: sex[name].values()))
    number = {name: Counter(side["stays"]["id"].to_pylist()) for name, side in (("real", real), ("made", made))}
    assert found.edges["stays"].children_by_parent == pytest.approx(
        distance(lambda name, side: [(value, number[name][id_]) for id_, value in sex[name].items()])
    )
    owner = {
        name: dict(zip(side["stays"]["stay"].to_pylist(), side["stays"]["id"].to_pylist(), strict=True))
        for name, side in (("real", real), ("made", made))
    }

    def codes(name: str, side: Database) -> list[tuple[str, str]]:
        rows = zip(side["codes"]["stay"].to_pylist(), side["codes"]["code"].to_pylist(), strict=True)
        return [(sex[name][owner[name][stay]], code) for stay, code in rows]

    assert found.edges["codes"].across["people"] == pytest.approx(distance(codes))


def test_children_of_other_parents_show_on_the_join_alone(tmp_path: Path) -> None:
    real = clinic(300, 3)
    rng = np.random.default_rng(4)
    stays = rng.permutation(real["stays"]["id"].to_numpy())
    made = changed(real, "stays", id=stays)
    found = measure_linked(TABLES, real, made, tmp_path)
    assert found.tables["stays"].one_way == found.tables["codes"].one_way == 0
    assert found.tables["stays"].two_way == 0
    edge = found.edges["stays"]
    assert edge.children == edge.children_by_parent == 0  # each person has as many rows as before
    assert edge.in_sequence is not None
    assert edge.in_sequence > 0.1
    assert edge.out_of_order is not None
    assert edge.out_of_order > 0.2
    # Codes follow from the sex of the person two levels above.
    assert found.edges["codes"].across["people"] == pytest.approx(0.5, abs=0.1)
    assert found.edges["codes"].across["stays"] == 0
    ids = changed(real, "people", id=rng.permutation(real["people"]["id"].to_numpy()))
    edge = measure_linked(TABLES, real, ids, tmp_path).edges["stays"]
    assert edge.children == 0
    assert edge.children_by_parent is not None
    assert edge.children_by_parent > 0.2  # men have two stays, and women one or three, as often as the other way


def test_real_rows_are_cut_to_the_bounds(tmp_path: Path) -> None:
    """Five stays of one person count as the first three, and so do their codes; queries see all."""
    stays = [(number, 1, number, "a" if number < 3 else "c", "A") for number in range(5)]
    real = database([(1, "F", 30)], stays, [(4, "y")])
    made = database([(1, "F", 30)], stays[:3], [])
    found = measure_linked(TABLES, real, made, tmp_path, queries=["SELECT count(*) FROM stays"])
    assert found.edges["stays"].children == 0
    assert found.tables["stays"].one_way == 0
    assert found.edges["codes"].children == 0
    assert found.tables["codes"].one_way is None  # no row is left on either side
    assert found.queries[0].mean == pytest.approx(2 / 5)


def test_the_next_row_is_predicted_by_tables_that_keep_the_order(tmp_path: Path) -> None:
    real, held = clinic(400, 5), clinic(400, 6)
    rng = np.random.default_rng(7)
    lost = changed(real, "stays", kind=rng.permutation(real["stays"]["kind"].to_numpy(zero_copy_only=False)))
    good, bad = (
        measure_linked(TABLES, real, made, tmp_path, holdout=held, next_row={"stays": "kind"}).edges["stays"].next_row
        for made in (clinic(400, 8), lost)
    )
    assert good is not None and bad is not None
    assert good.real.xgboost.accuracy == bad.real.xgboost.accuracy == 1.0  # type: ignore[union-attr]
    assert good.synthetic.xgboost.accuracy == 1.0  # type: ignore[union-attr]
    assert bad.synthetic.xgboost.accuracy < 0.7  # type: ignore[union-attr]


def test_a_column_of_the_root_is_predicted_from_its_children(tmp_path: Path) -> None:
    real, held, made = clinic(400, 9), clinic(400, 10), clinic(400, 11)
    kinds = measure_linked(TABLES, real, made, tmp_path, holdout=held, root_target="sex").root
    assert isinstance(kinds, Utility)
    assert kinds.synthetic.xgboost.accuracy == kinds.real.xgboost.accuracy == 1.0  # type: ignore[union-attr]
    ages = measure_linked(TABLES, real, made, tmp_path, holdout=held, root_target="age").root
    assert isinstance(ages, Regression)
    assert ages.synthetic.xgboost.r_squared > 0.9  # type: ignore[union-attr]
    without = measure_linked(TABLES, real, made, tmp_path, root_target="age")
    assert without.root is None


def test_features_are_means_counts_and_most_frequent_values(tmp_path: Path) -> None:
    views = LinkedViews.of(TABLES, SMALL, SMALL, tmp_path)
    ages = views.rows["people"]["age"].to_pylist()
    by_age = {
        name: dict(zip(ages, feature.values.tolist(), strict=True)) for name, feature in views.features("stays").items()
    }
    assert by_age["rows"] == {30: 2, 40: 3, 50: 0, 60: 0}
    kinds = views.domain("stays").columns[views.domain("stays").names.index("kind")]
    assert by_age["kind"][30] == 0  # a and b are equally frequent: the first one
    assert by_age["kind"][50] == kinds.size  # nothing
    wards = {30: 0, 40: 0}
    assert {age: by_age["ward"][age] for age in wards} == wards
    days = by_age["day"]
    assert days[40] - days[30] == pytest.approx((3 + 3 + 10) / 3 - (0 + 7) / 2)
    assert np.isnan(days[50])


def test_a_bootstrap_draws_owners_with_all_their_rows(tmp_path: Path) -> None:
    """Rows of an owner stand in all views as often as the owner was drawn; of many owners, each about once."""
    views = LinkedViews.of(TABLES, clinic(400, 14), SMALL, tmp_path)
    drawn = views.resampled(800)
    times = Counter(drawn.rows["people"]["_owner"].to_pylist())
    assert times.total() == 800
    for name in ("stays", "codes"):
        whole = Counter(views.rows[name]["_owner"].to_pylist())
        assert Counter(drawn.rows[name]["_owner"].to_pylist()) == Counter(
            {owner: number * times[owner] for owner, number in whole.items() if times[owner]}
        )
    assert 0.7 < len(times) / 400 < 0.95  # 1 - exp(-2) of them
    empty = database([], [], [])
    assert LinkedViews.of(TABLES, empty, SMALL, tmp_path).resampled(9).rows["people"].num_rows == 0


def test_the_bootstrap_is_as_far_as_a_fresh_sample(tmp_path: Path) -> None:
    """Both sides are fresh samples of one distribution, so that the second's distance is that of two samples."""
    found = measure_linked(TABLES, clinic(2000, 15), clinic(2000, 16), tmp_path)
    for name in ("people", "stays", "codes"):
        made, best = found.tables[name], found.resampled_tables[name]
        assert made.one_way is not None and best.one_way is not None
        assert 0 < best.one_way < 0.05 and made.one_way < 3 * best.one_way + 0.02
        assert best.keys_distinct is None
    edge = found.resampled_edges["stays"]
    assert edge.children is not None and 0 < edge.children < 0.05
    assert edge.in_sequence is not None and 0 < edge.in_sequence < 0.1
    assert edge.references is None


def test_values_that_were_learned_are_those_of_the_synthetic_rows(tmp_path: Path) -> None:
    """A value that they lack counts as missing; rows of the table are still compared with the one before."""
    document = TABLES.model_dump(mode="json")
    document["tables"]["stays"]["columns"]["kind"] = {"type": "categorical", "values": "learned"}
    tables = LinkedTables.model_validate(document)
    made = changed(SMALL, "stays", kind=["a", "b", "a", "b", "b"])
    found = measure_linked(tables, SMALL, made, tmp_path)
    assert found.tables["stays"].columns["kind"] == pytest.approx(1 / 5)
    assert found.edges["stays"].in_sequence is not None
    same = measure_linked(tables, SMALL, SMALL, tmp_path)
    assert same.tables["stays"].columns["kind"] == same.edges["stays"].in_sequence == 0


def test_queries_join_and_group(tmp_path: Path) -> None:
    made = changed(SMALL, "stays", kind=["a", "a", "a", "a", "b"])
    file = tmp_path / "queries.sql"
    file.write_text(
        "SELECT kind, count(*) FROM stays GROUP BY kind;\n"
        "SELECT sex, avg(age) FROM people JOIN stays USING (id) GROUP BY sex;\n"
        "SELECT sum(beds) FROM stays JOIN wards USING (ward);",
        encoding="utf-8",
    )
    queries = read_queries(file)
    assert len(queries) == 3
    kinds, ages, beds = query_errors(queries, SMALL, made)
    # a: 2 and 4, capped at 1; b: 2 and 1; c: 1 and none.
    assert (kinds.numbers, kinds.mean, kinds.median, kinds.largest) == (3, pytest.approx((1 + 0.5 + 1) / 3), 1.0, 1.0)
    assert (ages.mean, beds.mean) == (0.0, 0.0)
    one_more = query_errors(["SELECT kind, count(*) FROM stays GROUP BY kind"], made, SMALL)[0]
    assert one_more.largest == 1.0  # c is nothing in the first


def test_queries_leave_no_row_in_a_file_and_read_no_variable_of_python() -> None:
    answer = "SELECT CAST(current_setting('temp_directory') = '' AS INTEGER)"
    rows = SMALL["people"]
    assert linked_queries._numbers(answer, linked_queries._opened(SMALL)) == {(): 1.0}
    with linked_queries._opened({"people": rows}) as connection, pytest.raises(duckdb.Error):
        connection.execute("SELECT count(*) FROM rows")


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("DROP TABLE people", "no"),
        ("SELECT 1; SELECT 2", "is not one SELECT"),
        ("SELECT nothing FROM people", "nothing"),
        ("SELECT sex FROM people", "no number"),
        ("SELECT age > 1 FROM people", "no number"),
        ("SELECT [age], count(*) FROM people GROUP BY ALL", "holds lists"),
        ("SELECT age, 1 FROM people UNION ALL SELECT age, 1 FROM people", "several rows"),
        ("SELECT count(*) FROM read_csv('/etc/passwd')", "stopped"),
        ("SELECT CAST(sex AS INTEGER) FROM people", "stopped (ConversionException)"),
        ("SELEC", "SELEC"),
    ],
)
def test_queries_that_cannot_be_compared_are_refused(query: str, problem: str) -> None:
    with pytest.raises(ContractError, match=r"queries\.1: .*accepted: one SELECT") as refused:
        query_errors([query], SMALL, SMALL)
    if problem != "no":
        assert problem in str(refused.value)
    assert "'F'" not in str(refused.value)  # no value of a row


def test_targets_that_cannot_be_predicted_are_refused(tmp_path: Path) -> None:
    for targets, problem in (
        ({"next_row": {"codes": "code"}}, "next_row: 'codes' has no order_by; accepted: stays"),
        ({"next_row": {"stays": "day"}}, "next_row.stays: 'day' has no categories; accepted: kind, ward"),
        ({"root_target": "height"}, "root_target: 'height' is no modelled column of the root; accepted: sex, age"),
    ):
        with pytest.raises(ContractError) as refused:
            measure_linked(TABLES, SMALL, SMALL, tmp_path, holdout=SMALL, **targets)  # type: ignore[arg-type]
        assert str(refused.value) == problem
    with pytest.raises(BoundingError, match=r"tables\.codes: the table is missing"):
        measure_linked(TABLES, SMALL, {name: SMALL[name] for name in ("people", "stays")}, tmp_path)
    with pytest.raises(BoundingError, match=r"tables\.stays: column kind is missing"):
        measure_linked(TABLES, SMALL, SMALL | {"stays": SMALL["stays"].drop(["kind"])}, tmp_path)


def test_the_result_is_json_and_restricted(tmp_path: Path) -> None:
    real, held = clinic(100, 12), clinic(100, 13)
    found = measure_linked(
        TABLES, real, held, tmp_path, holdout=held, next_row={"stays": "ward"}, root_target="sex", queries=["SELECT 1"]
    )
    document = found.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["notice"] == NOTICE
    assert document["edges"]["stays"]["parent"] == "people"
    assert not list(tmp_path.iterdir())  # rows do not stay


def test_repeated_keys_of_children_and_lost_lookups_show(tmp_path: Path) -> None:
    made = changed(SMALL, "stays", ward=["A", "B", "?", "B", "A"])
    found = measure_linked(TABLES, SMALL, made, tmp_path)
    assert found.tables["stays"].lookups == {"ward": pytest.approx(4 / 5)}
    twice = changed(SMALL, "stays", stay=[1, 1, 3, 4, 5])
    with pytest.raises(BoundingError, match=r"tables\.stays\.key"):
        measure_linked(TABLES, SMALL, twice, tmp_path)
