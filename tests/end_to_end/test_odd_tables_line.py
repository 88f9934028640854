"""Must show: tables at the ends of what there is come through the whole line, from the source to a verified release."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, storage_of

from dpsynth_platform.foundation.storage import table_schema

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

ROWS = 300
DAYS = (dt.date(1, 1, 1), dt.date(9999, 12, 31), None)
MOMENTS = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59), None)


def table(rows: int = ROWS, **columns: Any) -> pa.Table:
    ids = {"person": [f"P{number:04d}" for number in range(rows)], "visit": list(range(rows))}
    return pa.table(ids | columns)


ODD: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "the ends of their types": (
        table(
            whole=pa.array([2**63 - 1, -(2**63), 0] * 100),
            real=[8e307, -8e307, float("nan")] * 100,
            day=pa.array([*DAYS] * 100),
            moment=pa.array([*MOMENTS] * 100, pa.timestamp("us", "UTC")),
            nothing=pa.nulls(ROWS, pa.string()),
            other=["\u202ezz\n", "\U0001f389", "x" * 500] * 100,
        ),
        {
            "whole": {"type": "integer", "min": -(2**63), "max": 2**63 - 1},
            "real": {"type": "float", "min": -8.9e307, "max": 8.9e307, "nullable": True},
            "day": {"type": "date", "min": DAYS[0], "max": DAYS[1], "nullable": True},
            "moment": {"type": "datetime", "min": MOMENTS[0], "max": MOMENTS[1], "nullable": True},
            "nothing": {"type": "categorical", "values": ["a", "b"], "nullable": True},
            "other": {"type": "categorical", "values": ["\U0001f389", "\u05de"]},
        },
    ),
    "columns that are ignored, and codes in floating point": (
        table(
            code=[1.0, 2.0, None] * 100,
            single=pa.array([3.0, 2.5, 4.0] * 100, pa.float32()),
            spelled=["1.0", " 2 ", None] * 100,
            tags=[["a"]] * ROWS,
            place=[{"street": "a"}] * ROWS,
            photo=pa.array([b"a"] * ROWS, pa.binary()),
            props=pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int32())),
        ),
        {
            "code": {"type": "categorical", "values": [1, 2], "nullable": True},
            "single": {"type": "categorical", "values": [3, 4], "nullable": True},
            "spelled": {"type": "categorical", "values": [1, 2], "nullable": True},
            **{name: {"ignore": True} for name in ("tags", "place", "photo", "props")},
        },
    ),
    "fields of structs, and types that are read as declared": (
        table(
            stay=[{"nights": night, "at": {"ward": "ab"[night % 2], "note": "x"}} for night in range(ROWS - 1)]
            + [None],
            sick=["TRUE", "0", None] * 100,
            beds=pa.array([Decimal(1), Decimal(-(10**17)), None] * 100, pa.decimal128(18, 0)),
            photo=[{"data": b"a"}] * ROWS,
        ),
        {
            "stay.nights": {"type": "integer", "min": 0, "max": ROWS},
            "stay.at.ward": {"type": "categorical", "values": ["a", "b"], "nullable": True},
            "stay.at.note": {"ignore": True},
            "sick": {"type": "boolean", "nullable": True},
            "beds": {"type": "integer", "min": 0, "max": 4, "nullable": True},
            "photo": {"ignore": True},
        },
    ),
    "one row": (table(1, word=["a"]), {"word": {"type": "categorical", "values": ["a", "b"]}}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_become_releases(tmp_path: Path, name: str) -> None:
    source, columns = ODD[name]
    ids = {name: SMALL["columns"][name] for name in ("person", "visit")}
    contract = {**SMALL, "columns": ids | columns, "generate": {"method": "auto", "rows": 50}}
    del contract["quality"]
    deployment = Deployment(tmp_path, contract=contract)
    ran = run_here(deployment.write().with_source(source))
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert ledger_of(deployment).verify(()).ok
    check_ignored(deployment, columns)


def check_ignored(deployment: Deployment, columns: dict[str, Any]) -> None:
    """What is ignored is in no table of the line; lineage and dossier say that it was left out."""
    ignored = {name for name, column in columns.items() if "ignore" in column}
    for step in ("scrubbed", "bounded", "synthetic"):
        names = set(table_schema(storage_of(deployment).require(PEOPLE, step).directory / "table").names)
        assert not ignored & names and set(columns) - ignored <= names
    dossier = json.loads((released(deployment) / "dossier.json").read_text())
    treated = {item["name"]: item["treatment"] for item in dossier["synthetic"]["columns"]}
    assert {name for name, treatment in treated.items() if treatment == "absent"} == ignored
    events = [json.loads(line) for line in deployment.settings.lineage_file.read_text().splitlines()]
    sources = [item for event in events for item in event["inputs"] if item["name"].endswith("/sources/people")]
    assert sources
    for item in sources:
        tags = item["facets"]["tags"]["tags"]
        assert {tag["field"] for tag in tags if tag["key"] == "ignored"} == ignored
