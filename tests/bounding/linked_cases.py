"""A declaration of linked tables, databases of random people, and a plain reference for the tests of their bounding."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from dpsynth_platform.bounding.linked import root_ids
from dpsynth_platform.contracts.tables import LinkedTables

KEY = b"k" * 32
Row = dict[str, Any]
Database = dict[str, list[Row]]

STAY = ["of region", "of number", "of stay"]
TABLES = LinkedTables.model_validate(
    {
        "owner": "who",
        "tables": {
            "people": {
                "max_children": 2,
                "key": ["region", "number"],
                "columns": {
                    "age": {"type": "integer", "min": 0, "max": 110},
                    "sex": {"type": "categorical", "values": ["F", "M"]},
                },
            },
            "stays": {
                "key": ["region", "number", "stay"],
                "parent": {"table": "people", "columns": ["region", "number"]},
                "max_children": 3,
                "order_by": ["day"],
                "lags": 2,
                "lookups": {"ward": "wards"},
                "columns": {
                    "day": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"},
                    "urgent": {"type": "boolean"},
                },
            },
            "codes": {
                "key": ["code"],
                "parent": {"table": "stays", "columns": STAY},
                "max_children": 2,
                "context": ["people.age", "stays.ward"],
                "columns": {'ki"nd': {"type": "categorical", "values": ["x", "y"]}},
            },
            "fees": {  # without a key
                "parent": {"table": "stays", "columns": STAY},
                "max_children": 2,
                "columns": {
                    "price": {"type": "float", "min": 0, "max": 10},
                    "at": {"type": "datetime", "min": "2024-01-01T00:00:00", "max": "2024-12-31T00:00:00"},
                },
            },
            "notes": {
                "key": ["note"],
                "parent": {"table": "people", "columns": ["region", "number"]},
                "max_children": 2,
                "lags": 0,
                "context": [],
                "columns": {"length": {"type": "integer", "min": 0, "max": 100}},
            },
            "details": {
                "parent": {"table": "codes", "columns": ["code"]},
                "max_children": 1,
                "columns": {"size": {"type": "integer", "min": 0, "max": 100}},
            },
            "wards": {"public": "The clinic lists them.", "key": ["ward"]},
        },
    }
)
TEXTS = ("who", "region", "number", "stay", "code", "note", *STAY)
TYPES = {
    "age": pa.int32(),
    "day": pa.date32(),
    "urgent": pa.bool_(),
    "price": pa.float64(),
    "at": pa.timestamp("us"),
    "length": pa.int64(),
    "size": pa.int64(),
}
COLUMNS = {
    "people": ["age", "sex", "region", "number", "who"],
    "stays": ["day", "urgent", "ward", "region", "number", "stay"],
    "codes": ['ki"nd', "code", *STAY],
    "fees": ["price", "at", *STAY],
    "notes": ["length", "note", "region", "number"],
    "details": ["size", "code"],
}


def person(seed: str, who: str | None = None) -> Database:
    """One person with all their rows: more than the bounds now and then, copies, nulls, ties and lost rows."""
    chance = random.Random(seed)
    found: Database = {name: [] for name in COLUMNS}
    for number in range(chance.randint(1, 3)):
        key = {"region": chance.choice(["", "1", "12", "ä"]), "number": f"{seed}-{number}"}
        if chance.random() < 0.1:
            key["region"] = None  # no child can refer to it
        age = chance.choice([None, 30, 31])
        found["people"].append({"age": age, "sex": chance.choice("FM"), **key, "who": who or seed})
        for stay in range(chance.randint(0, 6)):
            stay_key = {**key, "stay": str(stay) if chance.random() < 0.9 else None}
            found["stays"].append(
                {
                    "day": chance.choice([None, dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 3, 1)]),
                    "urgent": chance.choice([True, False, None]),
                    "ward": chance.choice(["A", "B", None]),
                    **stay_key,
                }
            )
            link = dict(zip(STAY, stay_key.values(), strict=True))
            for code in range(chance.randint(0, 4)):
                name = f"{seed}-{number}-{stay}-{code}" if chance.random() < 0.9 else None
                found["codes"].append({'ki"nd': chance.choice("xy"), "code": name, **link})
                found["details"] += [{"size": chance.randint(0, 3), "code": name} for _ in range(chance.randint(0, 2))]
            for _ in range(chance.randint(0, 4)):
                price = chance.choice([None, 0.0, -0.0, 1.5, 2.5])
                at = chance.choice([None, dt.datetime(2024, 1, 1, 1, 2, 3, 456), dt.datetime(2024, 5, 5)])
                found["fees"].append({"price": price, "at": at, **link})
        for _ in range(chance.randint(0, 4)):
            length = chance.randint(0, 3)
            found["notes"].append({"length": length, "note": chance.choice(["a", "b", None]), **key})  # repeated
    if chance.random() < 0.3:
        lost = {"region": "nowhere", "number": seed}
        found["stays"].append({"day": None, "urgent": None, "ward": None, **lost, "stay": "1"})
        found["fees"].append({"price": 1.0, "at": None, **dict(zip(STAY, [*lost.values(), "1"], strict=True))})
    return found


def joined(people: Iterable[Database]) -> Database:
    """The rows of several people in one database."""
    found: Database = {name: [] for name in COLUMNS}
    for each in people:
        for name, rows in each.items():
            found[name] += rows
    return found


def shuffled(database: Database, seed: int) -> Database:
    chance = random.Random(seed)
    return {name: chance.sample(rows, len(rows)) for name, rows in database.items()}


def arrow(database: Database) -> dict[str, pa.Table]:
    """The database as it is read."""
    return {
        name: pa.table(
            {
                column: pa.array([row[column] for row in database[name]], TYPES.get(column, pa.string()))
                for column in columns
            }
        )
        for name, columns in COLUMNS.items()
    }


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def all_owners(tables: LinkedTables, root: pa.Table, without: Iterable[str] = ()) -> pa.Table:
    """Each owner in the root takes part, except for some ids."""
    ids = sorted({text for part in root_ids(tables, root) for text in part.to_pylist()} - {None, *without})
    return pa.table({"_id": pa.array(ids, pa.string()), "_owner": pa.array(map(fingerprint, ids), pa.string())})


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return str((value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1))
    return None if value is None else str(value)


def _texts(row: Row, columns: Iterable[str]) -> str:
    texts = [_text(row[column]) for column in columns if TYPES.get(column) != pa.float64()]
    return "|".join("-" if text is None else f"{len(text)}:{text}" for text in texts)


def _low_null(value: Any) -> tuple[bool, Any]:
    return (value is not None, 0 if value is None else value)


def views(tables: LinkedTables, database: Database, owners: Mapping[str, str], key: bytes) -> Database:
    """The views by the definition, row by row, for tables whose root has an owner column."""
    found: Database = {}
    kept: dict[str, list[Row]] = {}  # of each table, rows with `_owner`, `_up` (the parent's row) and `_place`
    for name in tables.private:
        table, own = tables.tables[name], tables.own_columns(name)
        parent = table.parent
        link = [tables.owner or ""] if parent is None else list(parent.columns)
        groups: dict[Any, list[Row]] = defaultdict(list)
        if parent is None:
            parents = {(text,): {"_owner": owner, "_group": owner} for text, owner in owners.items()}
        else:
            above = tables.tables[parent.table].key
            parents = {tuple(row[column] for column in above): row for row in kept[parent.table]}
        for row in database[name]:
            values = tuple(row[column] for column in link)
            if None not in values and values in parents:
                up = parents[values]
                groups[up["_group"]].append({**row, "_owner": up["_owner"], "_up": up})
        kept[name] = []
        bound = tables.most(name)
        for group, rows in groups.items():
            copies: dict[str, list[Row]] = defaultdict(list)
            columns = list(dict.fromkeys([*own, *table.key]))
            for row in rows:
                record = _texts(row, dict.fromkeys([*link, *columns]))
                copies[hashlib.sha256((key.hex() + record).encode()).hexdigest()[:32]].append(row)
            alone = bool(table.key) and all(TYPES.get(column) != pa.float64() for column in columns)
            for record, same in copies.items():
                same.sort(key=lambda row: [_low_null(row[column]) for column in columns])
                for copy, row in enumerate(same, 1):
                    again = hashlib.sha256(f"{record}:{copy}".encode()).hexdigest()[:32]
                    row["_record"] = record if copy == 1 or alone else again
            rows.sort(key=lambda row: ([_high_null(row[column]) for column in table.order_by], row["_record"]))
            for place, row in enumerate(rows[:bound], 1):
                row |= {"_group": (group, place), "_place": place, "_siblings": rows[:bound]}
                kept[name].append(row)
    for name in tables.private:
        found[name] = [_view(tables, name, row, kept) for row in kept[name]]
    return found


def _gap(before: Any, value: Any) -> int:
    """In ones, days or seconds."""
    step = value - before
    if isinstance(step, dt.timedelta):
        return step // dt.timedelta(seconds=1) if isinstance(value, dt.datetime) else step.days
    return int(step)


def _high_null(value: Any) -> tuple[bool, Any]:
    return (value is None, 0 if value is None else value)


def _view(tables: LinkedTables, name: str, row: Row, kept: Mapping[str, list[Row]]) -> Row:
    own = tables.own_columns(name)
    view = {column: row[column] for column in own}
    for child in tables.children(name):
        view[f"{child}__rows"] = sum(each["_up"] is row for each in kept[child])
    if (ordered := tables.gap(name)) is not None:
        last = row["_siblings"][row["_place"] - 2][ordered] if row["_place"] > 1 else None
        view[f"{ordered}__gap"] = None if None in (last, row[ordered]) else _gap(last, row[ordered])
    up = {}
    ancestor = row
    for other in tables.ancestors(name):
        ancestor = up[other] = ancestor["_up"]
    for other, column in tables.context(name):
        view[f"{other}__{column}"] = up[other][column]
    evidence = tables.evidence(name)
    if "row__number" in evidence:
        view["row__number"] = row["_place"]
    for other, each in {name: row, **up}.items():
        if f"{other}__rows" in evidence:
            view[f"{other}__rows"] = len(each["_siblings"])
    for lag in range(1, tables.lags(name) + 1):
        before = row["_siblings"][row["_place"] - 1 - lag] if row["_place"] > lag else {}
        for column in own:
            view[f"previous{lag if lag > 1 else ''}__{column}"] = before.get(column)
    view["_owner"] = row["_owner"]
    return view
