"""Canaries of linked tables: families within the bounds, whose rows join, made without data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from linked_cases import KEY, TABLES, TYPES, all_owners, arrow, joined, person
from scipy import stats

from dpsynth_platform.audit.canaries import RESERVED_PREFIX
from dpsynth_platform.audit.linked_canaries import (
    MOST_ROWS,
    FamilySet,
    family_sizes,
    joining_fingerprints,
    make_families,
    read_families,
    trial_families,
    write_families,
)
from dpsynth_platform.bounding.linked import ID_COLUMN, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN

LOOKUPS = {"wards": ["A", "B"]}
WHOLE = {"type": "integer", "min": 0, "max": 9}


def schemas(tables: LinkedTables = TABLES) -> dict[str, pa.Schema]:
    found = {}
    for name in tables.private:
        owner = [tables.owner] if tables.owner and name == tables.root else []
        columns = dict.fromkeys([*owner, *tables.tables[name].keys, *tables.own_columns(name)])
        found[name] = pa.schema([(each, TYPES.get(each, pa.string())) for each in columns])
    return found


def families(count: int = 60, tables: LinkedTables = TABLES) -> FamilySet:
    return make_families(tables, LOOKUPS, schemas(tables), count)


def views_of(made: FamilySet, place: Path) -> dict[str, pa.Table]:
    with DuckDBChoice(threads=1).open(place / "spill") as engine:
        return made.views(engine, KEY, place / "views")


def plain(most: int, children: int, **others: object) -> LinkedTables:
    """Owners with rows, which have children."""
    return LinkedTables.model_validate(
        {
            "owner": "who",
            "tables": {
                "people": {"max_children": most, "key": ["number"], "columns": {"a": WHOLE}},
                "visits": {
                    "parent": {"table": "people", "columns": ["number"]},
                    "max_children": children,
                    "columns": {"b": WHOLE},
                    **others,
                },
            },
        }
    )


def test_families_keep_all_bounds_and_lose_no_row(tmp_path: Path) -> None:
    made = families()
    owners = made.owners.select([ID_COLUMN, OWNER_COLUMN])
    with DuckDBChoice(threads=1).open(tmp_path / "spill") as engine:
        report = write_linked(TABLES, made.tables, tmp_path / "views", engine=engine, owners=owners, key=KEY)
    assert report.owners == 60
    for name, rows in report.tables.items():
        assert rows.kept == rows.read == made.tables[name].num_rows, name
        found = pa.Table.from_batches(read_table(tmp_path / "views" / name))
        numbers = Counter(found[OWNER_COLUMN].to_pylist())
        assert len(numbers) == 60, "each view has every family"
        assert max(numbers.values()) <= TABLES.bound(name)
    assert made.most_rows <= MOST_ROWS


def test_a_familys_rows_have_equal_values_in_any_order(tmp_path: Path) -> None:
    for name, rows in views_of(families(), tmp_path).items():
        own = TABLES.own_columns(name)
        different = {tuple(map(str, row.values())) for row in rows.select([*own, OWNER_COLUMN]).to_pylist()}
        assert len(different) == 60, name
        if (gap := TABLES.gap(name)) is not None:
            assert set(rows[f"{gap}__gap"].to_pylist()) == {0, None}


def test_values_and_numbers_of_children_are_balanced(tmp_path: Path) -> None:
    views = views_of(families(), tmp_path)
    sizes = family_sizes(TABLES)
    one_each = {row[OWNER_COLUMN]: row for row in views["people"].to_pylist()}.values()
    assert Counter(row["sex"] for row in one_each) == {"F": 30, "M": 30}
    assert Counter(row["stays__rows"] for row in one_each) == dict.fromkeys(
        range(1, sizes["stays"] + 1), 60 // sizes["stays"]
    )
    assert len({row["age"] for row in one_each}) == 60
    assert set(views["stays"]["ward"].to_pylist()) == {"A", "B"}


def test_an_owner_has_as_many_rows_of_the_root_as_may_be() -> None:
    made = make_families(plain(3, 2), {}, _of(plain(3, 2)), 10)
    assert made.tables["people"].num_rows == 30
    assert set(Counter(made.tables["people"]["who"].to_pylist()).values()) == {3}
    per_parent = Counter(made.tables["visits"]["number"].to_pylist())
    assert len(per_parent) == 30 and set(per_parent.values()) == {1, 2}


def test_large_bounds_make_no_large_families() -> None:
    assert family_sizes(plain(1000, 100)) == {"people": 7, "visits": 6}
    assert family_sizes(plain(2, 1000)) == {"people": 2, "visits": 24}
    assert family_sizes(plain(2, 3)) == {"people": 2, "visits": 3}


def test_the_included_ones_join_the_data_and_have_the_same_view_rows_there(tmp_path: Path) -> None:
    made = families()
    real = arrow(joined(person(f"p{number}", who=f"w{number}") for number in range(12)))
    tables, owners = made.joining
    assert owners.num_rows == made.included.sum()
    whole = {name: pa.concat_tables([real[name].select(table.column_names), table]) for name, table in tables.items()}
    everyone = pa.concat_tables([all_owners(TABLES, real["people"]).select(owners.column_names), owners])
    with DuckDBChoice(threads=1).open(tmp_path / "spill") as engine:
        write_linked(TABLES, whole, tmp_path / "bounded", engine=engine, owners=everyone, key=KEY)
    (tmp_path / "all").mkdir()
    alone = views_of(made, tmp_path / "all")
    included = set(owners[OWNER_COLUMN].to_pylist())

    def of(rows: pa.Table) -> Counter[str]:
        return Counter(str(row) for row in rows.to_pylist() if row[OWNER_COLUMN] in included)

    for name in TABLES.private:
        found = pa.Table.from_batches(read_table(tmp_path / "bounded" / name))
        assert of(found) == of(alone[name]) and of(found), name


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    made = families()
    rows = write_families(made, tmp_path)
    again = read_families(tmp_path, TABLES)
    assert rows == sum(table.num_rows for table in made.tables.values())
    assert again.owners.equals(made.owners) and (again.included == made.included).all()
    fingerprints = [RESERVED_PREFIX in text for text in again.owners[OWNER_COLUMN].to_pylist()]
    assert all(fingerprints) and sorted(again.owners.column_names) == [ID_COLUMN, OWNER_COLUMN, "included"]
    assert (joining_fingerprints(tmp_path) == made.fingerprints).all() and made.fingerprints.size == made.included.sum()
    for name, schema in schemas().items():
        assert again.tables[name].schema.equals(schema)
    tables, _ = again.joining
    assert {name: table.num_rows for name, table in tables.items()} == {
        name: table.num_rows for name, table in made.joining[0].items()
    }


def test_coins_are_fair_and_keys_are_new() -> None:
    """Of fair coins, the first assertion fails once in ten million times."""
    tables = plain(1, 1)
    one, other = (make_families(tables, {}, _of(tables), 2000) for _ in range(2))
    heads = int(one.included.sum() + other.included.sum())
    assert stats.binomtest(heads, 4000).pvalue > 1e-7
    assert not set(one.owners[ID_COLUMN].to_pylist()) & set(other.owners[ID_COLUMN].to_pylist())
    assert len(set(one.tables["people"]["number"].to_pylist())) == 2000
    # Owners are sorted by fingerprint, rows are not: no order shows a coin.
    assert one.owners[OWNER_COLUMN].to_pylist() == sorted(one.owners[OWNER_COLUMN].to_pylist())


def test_learned_values_are_missing() -> None:
    columns = {"b": {"type": "categorical", "values": "learned"}, "c": WHOLE}
    tables = plain(1, 2, columns=columns)
    made = make_families(tables, {}, _of(tables), 20)
    assert made.tables["visits"]["b"].null_count == made.tables["visits"].num_rows
    assert made.tables["visits"]["c"].null_count == 0


def test_another_schema_than_the_declaration_is_refused() -> None:
    tables = plain(1, 2)
    wrong = _of(tables)
    for changed in (wrong["visits"].append(pa.field("d", pa.string())), pa.schema([("number", pa.string())])):
        with pytest.raises(SourceError, match=r"tables\.visits: the scrubbed table has"):
            make_families(tables, {}, wrong | {"visits": changed}, 3)
    with pytest.raises(SourceError, match=r"tables\.people: column 'a' has the Arrow type"):
        make_families(tables, {}, wrong | {"people": wrong["people"].set(2, pa.field("a", pa.date32()))}, 3)


def test_types_are_those_of_the_rows_that_are_read() -> None:
    from clinic import TABLES as CLINIC
    from clinic import clinic

    from dpsynth_platform.linked_rows.rows import stored_schema
    from dpsynth_platform.linked_tables.task import TablesOptions, linked_task

    task = linked_task(clinic(30), TablesOptions(epsilon=1, delta=1e-6, schema=CLINIC, method="independent"))
    found = {name: stored_schema(task.contracts[name], task.sources[name]) for name in task.tables.private}
    assert {item.name: item.type for item in found["stays"]} == {
        "admitted": pa.date32(),
        "left": pa.date32(),
        "ward": pa.string(),
        "stay": pa.string(),
        "patient_id": pa.string(),
    }
    made = make_families(task.tables, {"codes": ["x", "y", "z"]}, found, 9)
    assert Counter(Counter(made.tables["diagnoses"]["code"].to_pylist()).keys()) == Counter("xyz")


def test_a_trial_differs_as_families_do() -> None:
    cells = trial_families(TABLES, 200)
    assert len(cells) == 200 and len(np.unique(cells, axis=0)) == 200


def _of(tables: LinkedTables) -> dict[str, pa.Schema]:
    types = {"a": pa.int64(), "b": pa.int64(), "c": pa.int64()}
    learned = tables.tables["visits"].columns["b"].type == "categorical"
    found = {}
    for name in tables.private:
        owner = ["who"] if name == "people" else []
        columns = [*owner, *tables.tables[name].keys, *tables.own_columns(name)]
        found[name] = pa.schema(
            [(each, pa.string() if each == "b" and learned else types.get(each, pa.string())) for each in columns]
        )
    return found
