"""Must show: a text method takes columns of any names, also such as cannot begin a line of its prompts."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from line_cases import released, run_here
from text_line_cases import declare_base_public, letters_table, text_deployment

from dpsynth_platform.reviewing import verification

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here", "no_gate")]

NAMES = {"region": "region:", "letter": "\\letter ", "outcome": "a, b"}


def test_texts_of_a_table_with_any_names(tmp_path: Path) -> None:
    table = letters_table()
    names = [NAMES.get(name, name) for name in table.column_names]
    deployment = text_deployment(tmp_path, table=table.rename_columns(names))
    contract = deployment.contract
    contract["columns"] = {NAMES.get(name, name): column for name, column in contract["columns"].items()}
    contract["generate"]["text"] |= {
        "column": NAMES["letter"],
        "given": [NAMES["region"]],
        "counts": {NAMES["region"]: {"east": 20, "north": 20}},
        "keep": {"duplicates": "kept"},
    }
    contract["quality"] = {"target": NAMES["outcome"]}
    deployment.write()
    declare_base_public(deployment)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    folder = released(deployment)
    rows = pq.read_table(next((folder / "data").glob("*.parquet")))
    assert rows.column_names == names
    assert rows.num_rows > 0 and set(rows[NAMES["region"]].to_pylist()) <= {"east", "north"}
    assert rows[NAMES["letter"]].null_count == 0
    assert verification.verify(deployment.settings, str(folder), None).ok
