"""Must show: tables at the ends of what there is come through the whole line, from the source to a verified release."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deployment import Deployment
from line_cases import SMALL, ledger_of, released, run_here

pytestmark = pytest.mark.end_to_end

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
    assert (released(deployment) / "dossier.json").is_file()
