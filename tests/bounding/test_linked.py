"""Bounding of linked tables: what the definition says, nothing of other people's, and planted mistakes are found."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from linked_cases import KEY, TABLES, Database, Row, all_owners, arrow, fingerprint, joined, person, shuffled, views

from dpsynth_platform.bounding import linked
from dpsynth_platform.bounding.linked import LinkedReport, TableRows, root_ids, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import read_table, table_schema, write_table

Bounding = linked._Bounding


def bound(
    directory: Path,
    read: dict[str, Any],
    *,
    engine: Engine | None = None,
    tables: LinkedTables = TABLES,
    owners: pa.Table | None = None,
    key: bytes = KEY,
) -> tuple[Database, LinkedReport]:
    """The views, and the report."""
    place = Path(tempfile.mkdtemp(dir=directory))
    if owners is None:
        owners = all_owners(tables, read[tables.root])
    if engine is None:
        with DuckDBChoice(threads=1).open(place / "spill") as opened:
            report = write_linked(tables, read, place / "views", engine=opened, owners=owners, key=key)
    else:
        report = write_linked(tables, read, place / "views", engine=engine, owners=owners, key=key)
    assert sorted(path.name for path in (place / "views").iterdir()) == sorted(tables.private)
    found = {}
    for name in tables.private:
        declared = tables.view(name, {public: ["A", "B"] for public in tables.lookups})
        assert table_schema(place / "views" / name).names == [*declared, "_owner"]
        found[name] = [row for batch in read_table(place / "views" / name) for row in batch.to_pylist()]
        assert report.tables[name].kept == len(found[name])
    return found, report


def counted(rows: Iterable[Row]) -> Counter[str]:
    return Counter(str(row) for row in rows)


def people(seed: int, number: int) -> list[Database]:
    return [person(f"s{seed}p{place}") for place in range(number)]


def check_neighbours(directory: Path, seed: int, **others: Any) -> int:
    """A database with and without one person; gives the number of that person's rows in all views."""
    family = people(seed, 6)
    leaving = fingerprint(f"s{seed}p2")
    with_all, _ = bound(directory, arrow(shuffled(joined(family), seed)), **others)
    without, _ = bound(directory, arrow(joined(family[:2] + family[3:])), **others)
    theirs = 0
    for name in TABLES.private:
        left = counted(with_all[name]) - counted(without[name])
        assert not counted(without[name]) - counted(with_all[name]), "another person's row changed"
        assert all(leaving in row for row in left), "another person's row changed"
        assert left.total() <= TABLES.bound(name), "more rows than the bound"
        theirs += left.total()
    return theirs


@pytest.mark.parametrize("seed", range(6))
def test_views_are_those_of_the_definition(tmp_path: Path, seed: int) -> None:
    database = joined(people(seed, 12))
    read = arrow(shuffled(database, seed))
    owners = all_owners(TABLES, read["people"], without=[f"s{seed}p3", f"s{seed}p4"])
    found, _ = bound(tmp_path, read, owners=owners)
    expected = views(TABLES, database, by_id(owners), KEY)
    for name in TABLES.private:
        assert counted(found[name]) == counted(plus(expected[name])), name
        assert [row["_owner"] for row in found[name]] == sorted(row["_owner"] for row in found[name])
    assert {row["stays__rows"] for row in found["people"]} >= {0, 3}, "the bounds are met"


def by_id(owners: pa.Table) -> dict[str, str]:
    return dict(zip(owners["_id"].to_pylist(), owners["_owner"].to_pylist(), strict=True))


def plus(rows: list[Row]) -> list[Row]:
    """The same rows with 0.0 for -0.0."""
    return [{name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()} for row in rows]


def test_both_engines_give_the_rows_of_the_definition(engine: Engine, tmp_path: Path) -> None:
    database = joined(people(7, 15))
    read = arrow(database)
    owners = all_owners(TABLES, read["people"], without=["s7p3"])
    found, report = bound(tmp_path, read, engine=engine, owners=owners)
    expected = views(TABLES, database, by_id(owners), KEY)
    for name in TABLES.private:
        assert found[name], name
        assert counted(found[name]) == counted(plus(expected[name])), name
        rows = report.tables[name]
        assert rows.read == len(database[name])
        assert rows.read == (
            rows.orphans + rows.not_taking_part + rows.without_kept_parent + rows.over_bound + rows.kept
        )
    assert report.tables["stays"].orphans and report.tables["stays"].over_bound and report.tables["codes"].over_bound
    assert report.tables["codes"].without_kept_parent and report.tables["people"].not_taking_part
    assert report.owners == len({row["_owner"] for row in found["people"]})


@pytest.mark.parametrize("seed", range(10, 18))
def test_one_person_more_changes_that_persons_rows_only(tmp_path: Path, seed: int) -> None:
    assert check_neighbours(tmp_path, seed) > 0


def test_tables_in_files_and_in_another_order_give_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    database = joined(people(20, 10))
    found, report = bound(tmp_path, arrow(database))
    paths = {}
    for name, table in arrow(shuffled(database, 1)).items():
        paths[name] = tmp_path / "read" / name
        write_table(paths[name], table.schema, table.to_batches(max_chunksize=7))
    owners = all_owners(TABLES, arrow(database)["people"])
    assert bound(tmp_path, paths, owners=owners) == (found, report)
    assert bound(tmp_path, paths, owners=owners, key=b"x" * 32)[0] != found


# Planted mistakes: the tests above would find them.


def test_a_bound_forgotten_at_the_second_level_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound_of = Bounding._bound
    monkeypatch.setattr(Bounding, "_bound", lambda self, name: 1000 if name == "codes" else bound_of(self, name))
    crowd = joined(people(21, 5))
    first = next(row for row in crowd["stays"] if None not in row.values())
    link = {"of region": first["region"], "of number": first["number"], "of stay": first["stay"]}
    crowd["stays"] = [row for row in crowd["stays"] if row is first or row["number"] != first["number"]]
    crowd["codes"] += [{'ki"nd': "x", "code": f"more {number}", **link} for number in range(20)]
    with pytest.raises(BoundingError, match=r"more than 12 records after bounding"):
        bound(tmp_path, arrow(crowd))


def test_a_child_joined_to_two_parents_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = people(22, 6)
    mine, theirs = (next(row for row in family[place]["people"] if row["region"] is not None) for place in (2, 3))
    key = {name: mine[name] for name in ("region", "number")}
    family[3]["people"].append({**theirs, **key})
    family[3]["people"] = family[3]["people"][-1:]  # kept in any case
    family[2]["people"] = [mine]
    family[2]["stays"].append({"day": None, "urgent": True, "ward": "A", **key, "stay": "last"})
    monkeypatch.setattr(f"{__name__}.people", lambda seed, number: family)
    with pytest.raises(BoundingError) as refused:
        check_neighbours(tmp_path, 22)
    message = str(refused.value)
    assert message.startswith("tables.people.key: the same region, number stands in several rows")
    assert mine["number"] not in message
    monkeypatch.setattr(Bounding, "_refuse_repeated_keys", lambda self, name: None)
    with pytest.raises(AssertionError, match="another person's row changed"):
        check_neighbours(tmp_path, 22)


def test_a_choice_over_all_owners_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked, "_CHOICE_SQL", linked._CHOICE_SQL.replace("PARTITION BY {path} ORDER", "ORDER"))
    with pytest.raises(AssertionError, match="another person's row changed"):
        for seed in range(10, 18):
            check_neighbours(tmp_path, seed)


def test_previous_rows_of_other_owners_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    format_ = str.format

    class Planted(str):
        def format(self, **parts: str) -> str:
            parts["previous"] = parts["previous"].replace("PARTITION BY number__", "PARTITION BY 1")
            return format_(self, **parts)

    monkeypatch.setattr(linked, "_CHOICE_SQL", Planted(linked._CHOICE_SQL))
    with pytest.raises(AssertionError, match="another person's row changed"):
        for seed in range(10, 18):
            check_neighbours(tmp_path, seed)


def test_a_number_of_children_that_counts_those_left_out_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bounding, "_siblings", lambda self, name: f"{self._kept(name)}.siblings__")
    with pytest.raises(AssertionError):
        test_views_are_those_of_the_definition(tmp_path, 0)


def test_owners_who_do_not_take_part_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = linked._participants

    def with_one_less(engine: Engine, owners: pa.Table) -> Any:
        return registered(engine, owners)[1:]

    monkeypatch.setattr(linked, "_participants", with_one_less)
    with pytest.raises(BoundingError, match="no participant"):
        bound(tmp_path, arrow(joined(people(23, 4))))


# Single rules.

FAMILY = {
    "parents": {"key": ["id"], "columns": {"age": {"type": "integer", "min": 0, "max": 110}}},
    "children": {
        "parent": {"table": "parents", "columns": ["of"]},
        "max_children": 2,
        "order_by": ["day"],
        "lags": 1,
        "columns": {"day": {"type": "integer", "min": 0, "max": 99}},
    },
}


def family(**children: Any) -> LinkedTables:
    return LinkedTables.model_validate({"tables": FAMILY | {"children": FAMILY["children"] | children}})


def pair(parents: list[tuple[str | None, int]], children: list[tuple[str | None, int | None]]) -> dict[str, pa.Table]:
    ids, ages = zip(*parents, strict=True) if parents else ((), ())
    of, days = zip(*children, strict=True) if children else ((), ())
    return {
        "parents": pa.table({"id": pa.array(ids, pa.string()), "age": pa.array(ages, pa.int64())}),
        "children": pa.table({"of": pa.array(of, pa.string()), "day": pa.array(days, pa.int64())}),
    }


def test_each_row_of_the_root_is_an_owner_and_null_keys_and_orphans_are_counted(tmp_path: Path) -> None:
    read = pair(
        [("a", 1), ("b", 2), (None, 3), (None, 4), ("c", 5)],
        [("a", 7), ("a", None), ("a", 5), (None, 1), ("z", 1), ("c", 1), ("c", 1)],
    )
    owners = all_owners(family(), read["parents"], without=["b"])
    found, report = bound(tmp_path, read, tables=family(), owners=owners)
    assert report.tables == {
        "parents": TableRows(read=5, orphans=2, not_taking_part=1, without_kept_parent=0, over_bound=0, kept=2),
        "children": TableRows(read=7, orphans=2, not_taking_part=0, without_kept_parent=0, over_bound=1, kept=4),
    }
    assert sorted(found["parents"], key=str) == sorted(
        [
            {"age": 1, "children__rows": 2, "_owner": fingerprint("a")},
            {"age": 5, "children__rows": 2, "_owner": fingerprint("c")},
        ],
        key=str,
    )
    expected = [
        (5, None, 1, 1, 2, None, "a"),  # the first days; null would be the last
        (7, 2, 1, 2, 2, 5, "a"),
        (1, None, 5, 1, 2, None, "c"),  # copies are two rows
        (1, 0, 5, 2, 2, 1, "c"),
    ]
    names = ["day", "day__gap", "parents__age", "row__number", "children__rows", "previous__day", "_owner"]
    assert sorted(found["children"], key=str) == sorted(
        [dict(zip(names, [*values, fingerprint(who)], strict=True)) for *values, who in expected], key=str
    )


def test_children_of_a_parent_that_is_left_out_are_left_out(tmp_path: Path) -> None:
    read = pair([("a", 1), ("b", 2)], [("a", 1), ("b", 1), ("b", 2)])
    found, report = bound(tmp_path, read, tables=family(), owners=all_owners(family(), read["parents"], without=["b"]))
    left = TableRows(read=3, orphans=0, not_taking_part=0, without_kept_parent=2, over_bound=0, kept=1)
    assert report.tables["children"] == left
    assert (report.tables["parents"].not_taking_part, report.tables["parents"].without_kept_parent) == (1, 0)
    assert len(found["children"]) == 1


def test_empty_tables_have_empty_views_and_parents_without_children_have_none(tmp_path: Path) -> None:
    found, report = bound(tmp_path, pair([("a", 1)], []), tables=family())
    assert found == {"parents": [{"age": 1, "children__rows": 0, "_owner": fingerprint("a")}], "children": []}
    found, report = bound(tmp_path, pair([], [("a", 1)]), tables=family())
    assert found == {"parents": [], "children": []}
    assert report.tables["children"].orphans == 1


def test_a_null_in_a_childs_key_leaves_a_row_without_children(tmp_path: Path) -> None:
    third = {
        "parent": {"table": "children", "columns": ["child"]},
        "max_children": 3,
        "columns": {"size": {"type": "integer", "min": 0, "max": 9}},
    }
    tables = LinkedTables.model_validate(
        {"tables": FAMILY | {"children": FAMILY["children"] | {"key": ["child"]}, "toys": third}}
    )
    read = pair([("a", 1)], [("a", 1), ("a", 2)])
    read["children"] = read["children"].append_column("child", pa.array(["x", None], pa.string()))
    read["toys"] = pa.table({"child": pa.array([None, None, "x"], pa.string()), "size": [1, 2, 3]})
    found, report = bound(tmp_path, read, tables=tables)
    assert [(row["day"], row["toys__rows"]) for row in found["children"]] == [(1, 1), (2, 0)]
    assert [row["size"] for row in found["toys"]] == [3]
    assert report.tables["toys"].orphans == 2


@pytest.mark.parametrize("lags", [0, 1, 2])
@pytest.mark.parametrize("order_by", [[], ["day"]])
def test_previous_rows_are_those_before_in_the_order(tmp_path: Path, lags: int, order_by: list[str]) -> None:
    tables = family(lags=lags, order_by=order_by, max_children=20)
    days = [(17 * number) % 23 for number in range(20)]
    read = pair([("a", 1)], [("a", day) for day in days])
    found, _ = bound(tmp_path, read, tables=tables)
    rows = found["children"]
    order = [row["day"] for row in rows]
    assert sorted(order) == sorted(days) and (order == sorted(days)) == bool(order_by)
    assert [row.get("row__number") for row in rows] == (list(range(1, 21)) if order_by else [None] * 20)
    for lag in (1, 2):
        name = "previous__day" if lag == 1 else "previous2__day"
        if lag <= lags:
            assert [row[name] for row in rows] == [*[None] * lag, *order[:-lag]]
        else:
            assert name not in rows[0]


def test_the_random_choice_is_even(tmp_path: Path) -> None:
    read = pair([(f"p{number}", 1) for number in range(600)], [(f"p{n}", day) for n in range(600) for day in range(3)])
    found, _ = bound(tmp_path, read, tables=family(order_by=[], max_children=1, lags=None))
    kept = Counter(row["day"] for row in found["children"])
    # Binomial(600, 1/3): five and a half standard deviations are 64, an error probability below 1e-6 for all three.
    assert all(abs(kept[day] - 200) < 64 for day in range(3))


def test_rows_that_are_alike_are_no_neighbours_for_that(tmp_path: Path) -> None:
    read = pair(
        [(f"p{number}", 1) for number in range(600)], [(f"p{n}", row % 2) for n in range(600) for row in range(4)]
    )
    found, _ = bound(tmp_path, read, tables=family(order_by=[], max_children=4, lags=1))
    like_before = sum(row["day"] == row["previous__day"] for row in found["children"])
    # Of two pairs in random order, one row is like the one before, with variance 2/3: 110 is five and a half standard
    # deviations, an error probability below 1e-6. With copies side by side, it would be two rows.
    assert abs(like_before - 600) < 110


def test_one_owner_with_two_ids_is_bounded_as_one(tmp_path: Path) -> None:
    texts = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    read = pair([(text, number) for number, text in enumerate(texts)], [(text, 1) for text in texts])
    owners = pa.table({"_id": texts, "_owner": [fingerprint("é")] * 2})
    found, report = bound(tmp_path, read, tables=family(), owners=owners)
    assert [len(rows) for rows in found.values()] == [1, 1]
    assert report.owners == 1 and report.tables["parents"].over_bound == 1


@pytest.mark.parametrize("owner", [None, "id 1"])
def test_ids_of_the_root_are_those_of_the_sql(engine: Engine, tmp_path: Path, owner: str | None) -> None:
    columns = {"age": {"type": "integer", "min": 0, "max": 110}}
    tables = LinkedTables.model_validate(
        {
            "tables": {"all": {"key": ["id 1", "id2"], "columns": columns, "max_children": owner and 1}},
            "owner": owner,
        }
    )
    ones = ["ab", "a", "", "日本", "\U0001f600", "a|1:", None, "x"]
    twos = ["c", "bc", "", "語", "é", "b", "y", None]
    root = pa.table({"id 1": ones, "id2": twos, "age": list(range(8))})
    ids = [text for part in root_ids(tables, root) for text in part.to_pylist()]
    assert ids[:2] == (["2:ab|1:c", "1:a|2:bc"] if owner is None else ["ab", "a"])
    assert len(set(ids)) == (7 if owner is None else 8) and ids.count(None) == (2 if owner is None else 1)
    found, _ = bound(tmp_path, {"all": root}, tables=tables, engine=engine)
    assert {row["age"]: row["_owner"] for row in found["all"]} == {
        age: fingerprint(text) for age, text in enumerate(ids) if text is not None
    }


def test_the_choice_among_equal_keys_without_an_owner_column_keeps_one(tmp_path: Path) -> None:
    tables = LinkedTables.model_validate({"tables": {"parents": FAMILY["parents"]}})
    read = pair([("a", 1), ("a", 2), ("b", 3)], [])
    found, _ = bound(tmp_path, {"parents": read["parents"]}, tables=tables)
    assert sorted(row["_owner"] for row in found["parents"]) == sorted(map(fingerprint, "ab"))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    read = pair([("a", 1), ("b", 2)], [("a", 1)])
    tables = family()

    def refused(match: str, owners: pa.Table | None = None, **others: Any) -> None:
        with pytest.raises(BoundingError, match=match):
            bound(tmp_path, read | others, tables=tables, owners=owners or all_owners(tables, read["parents"]))

    refused("children: there is no column day", children=read["children"].select(["of"]))
    refused("key column 'of' is of type int64", children=pa.table({"of": [1], "day": [1]}))
    refused("column 'day' is of type", children=pa.table({"of": ["a"], "day": pa.array([[1]])}))
    refused("stands there twice", pa.table({"_id": ["a", "a"], "_owner": [fingerprint("a"), fingerprint("b")]}))
    refused("no fingerprint", pa.table({"_id": ["a"], "_owner": ["a"]}))
    with pytest.raises(BoundingError, match="tables: children: not among"):
        bound(tmp_path, {"parents": read["parents"]}, tables=tables)
    (tmp_path / "taken").mkdir()
    with DuckDBChoice().open(tmp_path / "spill") as engine, pytest.raises(BoundingError, match="accepted: a new"):
        owners = all_owners(tables, read["parents"])
        write_linked(tables, read, tmp_path / "taken", engine=engine, owners=owners, key=KEY)


def test_nothing_stays_of_what_is_refused(tmp_path: Path) -> None:
    read = pair([("a", 1), ("a", 2)], [("a", 1)])
    with pytest.raises(BoundingError, match=r"parents\.key"):
        bound(tmp_path, read, tables=family())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_types_of_columns_stay_or_are_those_of_delta_tables(engine: Engine, tmp_path: Path) -> None:
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 678)
    columns = {
        "float": pa.array([1.5, None, float("nan"), -0.25], pa.float32()),
        "money": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-0.01"), None], pa.decimal128(9, 2)),
        "zoned": pa.array([moment, None, moment, None], pa.timestamp("us", "UTC")),
        "short": pa.array([1, None, -3, 4], pa.int16()),
        "time": pa.array([dt.time(1, 2, 3), None, dt.time(4), None], pa.time64("us")),
        "text": pa.array(["a", None, "ü", ""]).dictionary_encode(),
        "large": pa.array(["a", None, "ü", ""], pa.large_string()),
        "unsigned": pa.array([1, None, 200, 4], pa.uint8()),
    }
    tables = family(
        order_by=[], max_children=4, columns={name: {"type": "categorical", "values": ["a", "b"]} for name in columns}
    )
    read = pair([("a", 1)], []) | {"children": pa.table({"of": ["a"] * 4} | columns)}
    found, _ = bound(tmp_path, read, tables=tables, engine=engine)
    expected = [
        row | {"time": row["time"] and row["time"].isoformat("microseconds")} for row in pa.table(columns).to_pylist()
    ]
    assert counted({name: row[name] for name in columns} for row in found["children"]) == counted(expected)
    (written,) = tmp_path.glob("*/views/children")
    schema = table_schema(written)
    for name in ("float", "money", "zoned", "short"):
        assert schema.field(name).type == schema.field(f"previous__{name}").type == columns[name].type


@pytest.mark.parametrize(
    ("declared", "values", "gaps"),
    [
        ({"type": "integer", "min": 0, "max": 99}, [3, 3, 40], [None, 0, 37]),
        (
            {"type": "datetime", "min": "2024-01-01T00:00:00", "max": "2024-12-31T00:00:00"},
            [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 1, 900_000), dt.datetime(2024, 1, 3)],
            [None, 1, 172_798],
        ),
        (
            {"type": "date", "min": "1960-01-01", "max": "2024-12-31"},
            [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 1, 1)],
            [None, 1, 19_723],
        ),
        (  # declared by the day: midnights count, and not hours
            {"type": "date", "min": "1960-01-01", "max": "2024-12-31"},
            [dt.datetime(1969, 12, 31, 23), dt.datetime(1970, 1, 1, 1), dt.datetime(1970, 1, 2, 23)],
            [None, 1, 1],
        ),
        ({"type": "float", "min": 0, "max": 99}, [0.5, 1.5, 2.5], None),
        # One person's values must not stop a run, however far outside of the declared ones they are.
        ({"type": "integer", "min": 0, "max": 99}, [-(2**63), 3, 2**63 - 1], [None, 2**61 + 3, 2**61 - 3]),
        ({"type": "integer", "min": 0, "max": 99}, [-math.inf, 3.0, 1e300], [None, 2**61 + 3, 2**61 - 3]),
        ({"type": "integer", "min": 0, "max": 99}, [-math.inf, 1e300, math.inf], [None, 2**62, 0]),
        ({"type": "integer", "min": 0, "max": 99}, [3.0, 4.0, math.nan], [None, 1, None]),
    ],
)
def test_gaps_are_in_ones_days_and_seconds_and_not_of_fractions(
    tmp_path: Path, declared: dict[str, Any], values: list[Any], gaps: list[int | None] | None
) -> None:
    tables = LinkedTables.model_validate(
        {
            "tables": {
                "people": {"key": ["id"], "columns": {"x": {"type": "boolean"}}},
                "visits": {
                    "parent": {"table": "people", "columns": ["of"]},
                    "max_children": 3,
                    "order_by": ["at"],
                    "columns": {"at": declared},
                },
            }
        }
    )
    read = {"people": pa.table({"id": ["a"], "x": [True]}), "visits": pa.table({"of": ["a"] * 3, "at": values})}
    owners = all_owners(tables, read["people"])
    found, _ = bound(tmp_path, read, tables=tables, owners=owners)
    rows = sorted(found["visits"], key=lambda row: row["row__number"])
    assert [row.get("at__gap") for row in rows] == (gaps or [None] * 3)
    assert ("at__gap" in rows[0]) == (gaps is not None)
