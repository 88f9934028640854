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

from assets import quality
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.lineage import columns
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.contract_words import contract_words
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.planning import load_dataset

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

QUERIES = {
    "regions": "SELECT region, COUNT(*), AVG(score) FROM people GROUP BY region",
    "high": {"count": True, "by": ["outcome"], "where": {"score": {"min": 5}}, "weight": 2},
    "middle": {"quantiles": {"score": [0.5]}},
}


def deployment_of(root: Path, queries: Any = None, **parts: Any) -> Deployment:
    contract = copy.deepcopy(SMALL) | {"kind": "answers", "queries": copy.deepcopy(queries or QUERIES)} | parts
    del contract["generate"]
    contract["quality"] = {"holdout": 0.1}
    return Deployment(root, contract=contract).write().with_source(small_table())


def answers_of(deployment: Deployment) -> list[dict[str, Any]]:
    table = storage_of(deployment).require(PEOPLE, "synthetic").directory / "table"
    return pa.Table.from_batches(read_table(table)).to_pylist()


def test_a_release_of_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment, show = deployment_of(tmp_path), quality._shown
    shown: list[Any] = []

    def seen(*given: Any) -> Any:
        shown.append(show(*given))
        return shown[-1]

    monkeypatch.setattr(quality, "_shown", seen)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    rows = answers_of(deployment)
    assert len(rows) == 5 * 2 + 3 + 1
    # About as many as the bounded rows of owners who are not held out: canaries are subtracted. Some 1,350 of 1,500,
    # with a standard deviation of 15; that of the noise of five counts is 54. 400 is more than seven of both together.
    counts = {row["region"]: row["answer"] for row in rows if (row["query"], row["measure"]) == ("regions", "count")}
    assert abs(sum(counts.values()) - 1350) < 400
    report = json.loads((storage_of(deployment).require(PEOPLE, "quality").directory / "report.json").read_text())
    # All but the mean of the region without rows: there is no exact one, whether noise gives one or not.
    assert report["answers"]["compared"] == len(rows) - 1
    (on_page,) = shown  # Dagster's event log keeps it, and every engineer reads it
    assert "intervals that contain" in str(on_page)
    assert "regions, count: share of 5" in str(on_page)
    folder = released(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    dossier = json.loads((folder / "dossier.json").read_text())
    assert dossier["contract"]["kind"] == "answers"
    assert dossier["contract"]["queries"]["high"]["where"] == {"score": {"min": 5}}
    assert {column["treatment"] for column in dossier["synthetic"]["columns"]} == {"answered", "absent"}
    public = json.dumps(dossier)
    assert "interval (low, high) contains the answer with a probability of 95%" in public
    assert "what they add to the answers is subtracted" in public
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert run_here(deployment).success  # the same queries cost nothing
    assert len(ledger_of(deployment).entries()) == 1
    answer = columns_of(deployment)["answer"]
    assert {origin.column for origin in answer} >= {"region", "score", "outcome"}


def test_a_release_of_ranges_that_are_measured_together(tmp_path: Path) -> None:
    up_to = {f"to_{limit}": {"score": {"max": limit}} for limit in (2, 4, 6, 8)}
    ranges = {name: {"count": True, "by": ["outcome"], "where": where} for name, where in up_to.items()}
    deployment = deployment_of(tmp_path, {**QUERIES, **ranges})
    ran = run_here(deployment)
    assert ran.success, ran.failures
    plan = SealedPlan.from_json((storage_of(deployment).require(PEOPLE, "raw").directory / "plan.json").read_text())
    ((names, columns, _),) = plan.parameters["products"]
    assert (set(names), columns) == ({*ranges, "high"}, ["score"])
    assert len(answers_of(deployment)) == 5 * 2 + 5 * 3 + 1
    assert verification.verify(deployment.settings, str(released(deployment)), None).ok


def columns_of(deployment: Deployment) -> Any:
    contract = DataContract.model_validate(storage_of(deployment).require(PEOPLE, "raw").facts["contract"])
    return columns.synthetic(contract, DatasetName("file", "/bounded"), small_table().schema).origins


def test_another_query_is_another_spend_until_the_cap_is_reached(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path)
    deployment.family["cap"]["epsilon"] = 1.3
    assert run_here(deployment.write()).success
    deployment.contract["queries"]["high"]["where"]["score"]["min"] = 6
    ran = run_here(deployment.write())
    assert set(ran.failures) == {"raw"}  # before a record is read
    assert len([entry for entry in ledger_of(deployment).entries() if entry.state == "spent"]) == 1


def test_answers_of_owners_with_an_audit_model_of_their_own(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, audit=SMALL["audit"] | {"model": "separate"})
    deployment.contract["privacy"] |= {"weighting": "owners", "guarantee": {"epsilon": 0.5, "delta": 1e-6}}
    ran = run_here(deployment.write())
    assert ran.success, ran.failures
    counts = [row["answer"] for row in answers_of(deployment) if row["query"] == "high"]
    # A thousand owners, a tenth of them held out; each weighs one row at most, and some half of their rows are high.
    # Some 420 of them; the noise of three counts has a standard deviation of 20.
    assert 100 < sum(counts) < 900
    assert verification.verify(deployment.settings, str(released(deployment)), None).ok


def test_bad_queries_are_named_by_contract_check(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, {"a": {"sum": ["region"]}, "b": "SELECT COUNT(*) FROM t LIMIT 3"})
    found = deployment.here("contract", "check", "people")
    said = found.stdout + found.stderr
    assert found.returncode == 1
    assert "queries.a.sum: 'region' is of type categorical" in said
    assert "queries.b: LIMIT cannot be answered" in said


def test_a_plan_says_what_is_measured_for_queries(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path)
    found = deployment.here("plan", "people")
    assert found.returncode == 0, found.stderr
    assert "for 3 queries" in found.stdout
    said = " ".join(found.stdout.split())
    assert "regions, count: a standard error of" in said
    assert "in each of 5 groups" in said
    assert "regions, mean of score: at least" in said
    assert "middle, quantiles of score: rows up to a value are off by up to" in said
    assert "Rows are drawn like those" not in said
    contract, _ = load_dataset(deployment.settings, "people")
    words = "the number of rows; where score from 5 to its largest; by outcome"
    assert ("query high", words) in list(contract_words(contract))
