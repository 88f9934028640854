"""Ways around the claims that a careful attacker found, each closed: another audit, another budget, another content,
another plan."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from inside import inside
from ledger_cases import request
from line_cases import PEOPLE, ledger_of, run_here, small_deployment

from assets import released
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.storage import SCORES, Storage, read_table, write_table
from dpsynth_platform.ledger import rows
from dpsynth_platform.ledger.chain import AUDITED
from dpsynth_platform.ledger.store import RESERVATION_LIFETIME, Ledger
from dpsynth_platform.release.evidence import audit_report, candidate_of, check_evidence
from dpsynth_platform.reviewing.decisions import approve
from dpsynth_platform.scrub.fingerprints import fingerprint_hex, read_fingerprints

pytestmark = pytest.mark.end_to_end


def run(deployment: Deployment, job: str = "people_candidate", **how: object):
    return run_here(deployment, job, accelerator=inside(deployment), **how)


def states(deployment: Deployment) -> list[str]:
    return [entry.state for entry in Ledger(deployment.settings.ledger_url).entries()]


def sealed(storage: Storage) -> DataContract:
    return DataContract.model_validate(storage.require(PEOPLE, "raw").facts["contract"])


def test_a_model_is_audited_with_its_own_canaries_only(candidate: Deployment) -> None:
    assert states(candidate) == ["spent"]
    candidate.contract["audit"]["canaries"] += 1
    candidate.write()
    assert run(candidate, steps=["raw", "canaries"]).success  # new canaries, no spend
    candidate.contract["audit"]["canaries"] -= 1
    candidate.write()

    again = run(candidate)

    assert not again.success
    assert "the canaries of the model's training are deleted" in again.failures["canaries"]
    assert states(candidate) == ["spent"]


def test_an_audit_on_terms_that_changed_is_made_again(candidate: Deployment) -> None:
    assert states(candidate) == ["spent"]
    storage = Storage(candidate.settings.restricted)
    before = storage.require(PEOPLE, "audit")
    candidate.contract["audit"]["confidence"] = 0.9
    candidate.write()

    assert run(candidate).success

    after = storage.require(PEOPLE, "audit")
    assert after.content_hash != before.content_hash
    assert after.facts["terms"]["confidence"] == 0.9
    assert states(candidate) == ["spent"]
    audits = ledger_of(candidate).history(kinds=[AUDITED])
    assert [event.payload["terms"]["confidence"] for event in audits] == [0.999999, 0.9]
    scores = pq.read_table(storage.require(PEOPLE, SCORES).directory / "scores.parquet")
    assert scores.num_rows == 60 and scores.column_names[0] == "included"


def test_a_failed_audit_is_not_undone_by_another_one(candidate: Deployment) -> None:
    assert states(candidate) == ["spent"]
    ledger, storage = ledger_of(candidate), Storage(candidate.settings.restricted)
    (audited,) = ledger.history(kinds=[AUDITED])
    ledger.record(AUDITED, audited.subject, audited.payload | {"failed": True, "verdict": "fail"})
    shutil.rmtree(storage.location(PEOPLE, "audit"))

    assert run(candidate).success

    report = audit_report(PEOPLE, storage.require(PEOPLE, "audit"))
    assert report["verdict"] == "fail"
    assert "cannot undo" in report["summary"]
    assert report["family"]["audits"] == 1


def test_a_refuted_claim_is_not_talked_past_by_other_terms(candidate: Deployment) -> None:
    assert states(candidate) == ["spent"]
    ledger, storage = ledger_of(candidate), Storage(candidate.settings.restricted)
    (audited,) = ledger.history(kinds=[AUDITED])
    ledger.record(AUDITED, audited.subject, audited.payload | {"failed": True, "epsilon_lower_bound": 99.0})
    candidate.contract["audit"] |= {"gates": ["nearest rows"], "confidence": 0.9999999}
    candidate.write()

    assert run(candidate).success

    assert audit_report(PEOPLE, storage.require(PEOPLE, "audit"))["verdict"] == "fail"


@pytest.mark.parametrize("change", ["family", "owner", "normalization"])
def test_no_contract_renews_the_budget_of_its_people(tmp_path: Path, change: str) -> None:
    deployment = small_deployment(tmp_path)
    assert run(deployment, steps=["raw"]).success
    if change == "family":
        deployment.family = copy.deepcopy(deployment.family) | {"family": "fresh"}
        deployment.contract["family"] = "fresh"
        words = "belongs to family 'tests'"
    elif change == "owner":
        deployment.contract["privacy"]["owner_columns"] = ["visit"]
        words = "owner columns"
    else:
        deployment.contract["privacy"]["owner_normalization"] = ["casefold"]
        words = "owner_normalization"
    deployment.write()

    again = run(deployment, steps=["raw"])

    assert not again.success
    assert words in again.failures["raw"]


def test_the_same_table_under_another_name_stays_in_its_family(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    assert run(deployment, steps=["raw"]).success
    deployment.family = copy.deepcopy(deployment.family) | {"family": "fresh"}
    deployment.contract |= {"dataset": "others", "family": "fresh"}
    deployment.write()

    again = run(deployment, "others_candidate", steps=["raw"])

    assert not again.success
    assert again.failures["raw"].startswith("source ")
    assert "belongs to family 'tests'" in again.failures["raw"]


def test_what_is_published_is_what_was_approved(candidate: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another synthetic table is recorded between the evidence check and the publication."""
    assert states(candidate) == ["spent"]
    settings, storage = candidate.settings, Storage(candidate.settings.restricted)
    approved = candidate_of(storage, PEOPLE, sealed(storage), ledger_of(candidate)).digest
    approve(settings, PEOPLE, "ann", "")
    mine = storage.require(PEOPLE, "synthetic")
    rows = pa.Table.from_batches(read_table(mine.directory / "table"))

    def exchange_then_check(*args: object, **kwargs: object):
        checked = check_evidence(*args, **kwargs)
        with storage.new_output(PEOPLE, "synthetic") as directory:
            other = rows.slice(0, 7)
            write_table(directory / "table", other.schema, other.to_batches())
            model = storage.require(PEOPLE, "model")
            storage.record(PEOPLE, "synthetic", run_key=mine.run_key, directory=directory, inputs=[model])
        return checked

    monkeypatch.setattr(released, "check_evidence", exchange_then_check)
    published = run(candidate, "people_release")

    assert published.success
    record = storage.require(PEOPLE, "released")
    assert record.facts["candidate"] == approved
    table = pa.Table.from_batches(read_table(Path(record.facts["path"]) / "data"))
    assert table.num_rows == rows.num_rows


@pytest.mark.parametrize("other", ["plan", "clearance"])
def test_the_model_starts_nothing_that_its_entry_does_not_pay_for(tmp_path: Path, other: str) -> None:
    deployment = small_deployment(tmp_path)
    assert run(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    storage, ledger = Storage(deployment.settings.restricted), Ledger(deployment.settings.ledger_url)
    clearance = storage.require(PEOPLE, "clearance")
    entry = ledger.entry(clearance.facts["entry_id"])
    if other == "plan":  # an entry of another, cheaper run
        request = replace(entry.request, plan_digest="0" * 64)
        who, key_ids = ledger.participants(entry.entry_id), ledger.account("tests").key_ids
        cheap = ledger.reserve("tests", "another-run", request, who, "compose", key_ids=key_ids)
        facts, words = clearance.facts | {"entry_id": cheap.entry_id}, "another plan"
    else:  # the same entry, cleared anew: bounded was made for the clearance before
        facts, words = clearance.facts | {"attempt": 2}, "another clearance"
    storage.record(PEOPLE, "clearance", run_key=clearance.run_key, facts=facts)

    tried = run(deployment, steps=["model"])

    assert not tried.success
    assert words in tried.failures["model"]
    assert set(states(deployment)) == {"reserved"}


def test_the_number_left_out_shows_in_no_log_no_event_and_no_export(tmp_path: Path) -> None:
    """Neither who was exhausted before nor how many, where there were some."""
    deployment = small_deployment(tmp_path)
    deployment.family |= {"mode": "per-owner", "cap": {"epsilon": 1.2, "delta": 1.0e-5}}
    deployment.write()
    before = run(deployment, steps=["raw", "scrubbed"])
    assert before.success
    ledger, storage = ledger_of(deployment), Storage(deployment.settings.restricted)
    owners = read_fingerprints(storage.require(PEOPLE, "scrubbed").directory / "participants")
    exhausted = np.sort(np.random.default_rng().choice(owners, 337, replace=False))
    key_ids = ledger.account("tests").key_ids
    ledger.start(ledger.reserve("tests", "earlier", request(0.02), exhausted, "compose", key_ids=key_ids).entry_id)

    ran = run(deployment, steps=["canaries", "clearance", "bounded"])

    assert ran.success, ran.failures
    taking_part = ledger.participants(ledger.entries()[-1].entry_id)
    assert len(taking_part) > 300 and not np.isin(exhausted, taking_part).any()
    shown = ran.materializations["bounded"]
    assert "dagster/row_count" not in shown
    assert "owners" not in shown
    assert shown["row count"] == "restricted"
    # Dagster's events name their process in two ways, whose number may be any.
    process = re.compile(rf"pid={os.getpid()}\b|text='{os.getpid()}'")
    logs = [process.sub("", str(event)) for done in (before, ran) for event in done.result.all_events]
    told = "\n".join([*logs, json.dumps(ledger.export()), deployment.settings.lineage_file.read_text()])
    numbers = set(re.findall(r"(?<![\w.-])\d+(?![\w.])", told))
    assert {"1500", "2"} <= numbers, "the search sees numbers"
    assert str(len(exhausted)) not in numbers
    assert not [item for item in fingerprint_hex(exhausted) if item in told]


def test_no_run_points_the_line_elsewhere(tmp_path: Path) -> None:
    """What somebody may write in the Launchpad: the places of a deployment are no run config, and nothing reads it."""
    deployment = small_deployment(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    job = build_definitions(deployment.settings).resolve_job_def("people_candidate")
    offered = {
        "ledger": {"url": f"sqlite:///{elsewhere}/other.db"},
        "vault": {"directory": str(elsewhere)},
        "storage": {"restricted": str(elsewhere)},
        "lineage": {"directory": str(elsewhere), "url": f"sqlite:///{elsewhere}/other.db"},
        "accelerator": {"logs": str(elsewhere), "device": "cpu"},
    }
    result = job.execute_in_process(
        run_config={"resources": {name: {"config": config} for name, config in offered.items()}},
        asset_selection=[dg.AssetKey(["people", step]) for step in ("raw", "scrubbed", "clearance")],
        raise_on_error=False,
    )
    assert result.success
    assert not elsewhere.exists()
    assert states(deployment) == ["reserved"]


def test_a_reservation_past_its_deadline_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = small_deployment(tmp_path)
    assert run(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    assert run(deployment, steps=["clearance"]).success  # within the deadline it is the same one
    assert states(deployment) == ["reserved"]
    later = rows.now() + 2 * RESERVATION_LIFETIME
    monkeypatch.setattr(rows, "now", lambda: later)

    assert run(deployment).success

    assert states(deployment) == ["void", "spent"]
