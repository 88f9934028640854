"""Answers to queries through the whole line: paid, audited, approved, published and verified."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.reviewing import verification

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

QUERIES = {
    "regions": "SELECT region, COUNT(*), AVG(score) FROM people GROUP BY region",
    "high": {"count": True, "by": ["outcome"], "where": {"score": {"min": 5}}, "weight": 2},
    "middle": {"quantiles": {"score": [0.5]}},
}


def deployment_of(root: Path, queries: Any = None, **parts: Any) -> Deployment:
    contract = copy.deepcopy(SMALL) | {"kind": "answers", "queries": queries or QUERIES} | parts
    del contract["generate"]
    contract["quality"] = {"holdout": 0.1}
    return Deployment(root, contract=contract).write().with_source(small_table())


def answers_of(deployment: Deployment) -> list[dict[str, Any]]:
    table = storage_of(deployment).require(PEOPLE, "synthetic").directory / "table"
    return pa.Table.from_batches(read_table(table)).to_pylist()


def test_a_release_of_answers(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    rows = answers_of(deployment)
    assert len(rows) == 5 * 2 + 3 + 1
    # About as many as the bounded rows of owners who are not held out: canaries are subtracted.
    counts = {row["region"]: row["answer"] for row in rows if (row["query"], row["measure"]) == ("regions", "count")}
    assert 1000 < sum(counts.values()) < 1500
    assert json.loads((storage_of(deployment).require(PEOPLE, "quality").directory / "report.json").read_text())[
        "answers"
    ]["compared"] == len([row for row in rows if row["answer"] is not None])
    folder = released(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    dossier = json.loads((folder / "dossier.json").read_text())
    assert dossier["contract"]["kind"] == "answers"
    assert dossier["contract"]["queries"]["high"]["where"] == {"score": {"min": 5}}
    assert {column["treatment"] for column in dossier["synthetic"]["columns"]} == {"answered", "absent"}
    public = json.dumps(dossier)
    assert "interval contains the answer with a probability of 95%" in public
    assert "what they add to the answers is subtracted" in public
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    # Another query is another spend, which this cap has no room for a third time; the same ones cost nothing.
    assert run_here(deployment).success
    assert len(ledger_of(deployment).entries()) == 1
