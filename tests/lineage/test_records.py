from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from event_cases import TEAM, dataset, event, model, name, own
from jsonschema import Draft202012Validator, ValidationError
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.errors import LedgerError, LineageRefused
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.records import SyntheticRecord, _checks
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.privacy.events import event_from_json, twice
from dpsynth_platform.privacy.statement import TWO_MODELS
from dpsynth_platform.synth.planning import audited_key

DIGEST = "ab" * 32
UNIT = {
    "unit": "user",
    "adjacency": "add-or-remove",
    "namespace": "person",
    "ownerColumns": ["person"],
    "maxContributions": 1,
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    opened.open_account(family("surveys", mode="per-owner"), KEYS)
    return opened


@pytest.fixture
def store(tmp_path: Path, ledger: Ledger) -> LineageStore:
    return LineageStore(f"sqlite:///{tmp_path / 'ledger.db'}")


def entry_for(ledger: Ledger, run: str, key: str = "") -> Entry:
    """A spent entry of ten owners."""
    asked, who = request(plan=run, dataset=run), people(*range(10))
    entry = ledger.reserve("surveys", key or run, asked, participants=who, policy="compose", key_ids=KEYS)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, DIGEST)


def released(store: LineageStore, ledger: Ledger, line: str, *bases: str) -> Entry:
    """The lineage of one dataset's line as the platform emits it, from its source to its release."""
    entry = entry_for(ledger, line)
    guarantee = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "method": "mst",
        "tier": "strong",
        "weighting": "rows",
        "accounting": "pld",
        "ledgerEntry": entry.entry_id,
    }
    release = {"releaseId": f"{line}-1", "candidateCommitment": DIGEST, "ledgerSequence": 3, "ledgerHash": DIGEST}
    claims = {"dpsynth_guarantee": guarantee, "dpsynth_privacyUnit": UNIT, "dpsynth_release": release}
    source = dataset(f"{line}/source", dpsynth_privacyUnit=UNIT)
    for item in (
        own(inputs=[source], outputs=[f"{line}/scrubbed"], job=f"{line}.scrubbed"),
        own(inputs=[f"{line}/scrubbed"], outputs=[f"{line}/clearance"], job=f"{line}.clearance"),
        own(inputs=[f"{line}/scrubbed", f"{line}/clearance"], outputs=[f"{line}/bounded"], job=f"{line}.bounded"),
        own(
            inputs=[f"{line}/bounded", *(model(base) for base in bases)],
            outputs=[model(f"{line}/model", dpsynth_guarantee=guarantee)],
            job=f"{line}.model",
        ),
        own(inputs=[f"{line}/model"], outputs=[f"{line}/synthetic"], job=f"{line}.synthetic"),
        own(
            inputs=[f"{line}/clearance", f"{line}/synthetic"],
            outputs=[dataset(f"{line}/public/{line}-1/data", f"{line}-1", **claims)],
            job=f"{line}.released",
        ),
    ):
        assert store.record(item).new
    return entry


def validator(version: str = "1-0-0") -> Draft202012Validator:
    place = files("dpsynth_platform.lineage").joinpath("schemas", f"records-{version}", "SyntheticRecord.json")
    schema = json.loads(place.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_five_records_of_a_release(store: LineageStore, ledger: Ledger) -> None:
    entry = released(store, ledger, "census")
    record = SyntheticRecord.of(store, ledger, "census-1")
    assert (record.release, record.release_id) == (name("census/public/census-1/data"), "census-1")
    assert (record.source.dataset, record.source.family, record.source.period) == ("census", "surveys", None)
    assert record.source.tables == (name("census/source"),)
    assert (record.privacy_unit.unit, record.privacy_unit.namespace) == ("user", "person")
    assert record.privacy_unit.owner_columns == ("person",)
    assert (record.dp.method, record.dp.epsilon, record.dp.plan_digest) == ("mst", 1.0, entry.plan_digest)
    assert event_from_json(record.dp.event) == event_from_json(entry.request.event)
    assert "tables of counts" in record.dp.covered[0]
    assert record.dp.dossier == name("census/public/census-1/dossier.json")
    checks = record.further_checks
    assert (checks.fingerprints, checks.ledger_entry, checks.state) == ("owners", entry.entry_id, "spent")
    assert (checks.commitment, checks.max_contributions) == (entry.commitment, 1)
    assert len(ledger.participants(checks.ledger_entry)) == 10
    assert SyntheticRecord.of(store, ledger, record.release) == record


def test_where_the_audit_had_a_model_of_its_own_both_mechanisms_are_on_record(
    store: LineageStore, ledger: Ledger
) -> None:
    audited = entry_for(ledger, "census", audited_key("census"))
    entry = released(store, ledger, "census")
    record = SyntheticRecord.of(store, ledger, "census-1")
    assert event_from_json(record.dp.event) == twice(event_from_json(entry.request.event))
    assert record.dp.covered[-1] == TWO_MODELS
    checks = record.further_checks
    assert (checks.ledger_entry, checks.commitment) == (entry.entry_id, entry.commitment)
    assert checks.audited is not None
    assert (checks.audited.ledger_entry, checks.audited.state) == (audited.entry_id, "spent")
    assert checks.audited.commitment == audited.commitment != entry.commitment
    document = record.to_json()
    validator("1-1-0").validate(document)
    with pytest.raises(ValidationError):
        validator().validate(document)


def test_checkpoints_two_trainings_deep_name_the_releases_and_entries_that_they_saw(
    store: LineageStore, ledger: Ledger
) -> None:
    first = released(store, ledger, "reviews")
    for item in (
        event(inputs=["reviews/public/reviews-1/data", "web"], outputs=[model("pretrained")]),
        event(inputs=[model("pretrained"), "other"], outputs=[model("tuned")]),
        event(outputs=[model("stranger")]),
    ):
        assert store.record(item, origin="ingested", source=TEAM).new
    second = released(store, ledger, "census", "tuned", "stranger")
    record = SyntheticRecord.of(store, ledger, "census-1")
    assert record.source.tables == (name("census/source"),)  # that of the checkpoint's release is not this one's
    found = {checkpoint.name.name: checkpoint for checkpoint in record.checkpoints}
    assert set(found) == {"census/model", "tuned", "pretrained", "stranger", "reviews/model"}
    assert record.checkpoints[0] is found["census/model"]
    own_model, tuned, pretrained = found["census/model"], found["tuned"], found["pretrained"]
    assert [step.name.name for step in pretrained.path] == ["census/synthetic", "census/model", "tuned", "pretrained"]
    assert [step.relation for step in pretrained.path] == ["derived", "derived", "base", "base"]
    assert {(origin.name.name, origin.relation) for origin in tuned.made_from} == {
        ("pretrained", "base"),
        ("other", "trained-on"),
    }
    for checkpoint in (tuned, pretrained):
        assert checkpoint.releases == (name("reviews/public/reviews-1/data"),)
        assert checkpoint.entries == (first.entry_id,)
        assert (checkpoint.kind, checkpoint.origin) == ("checkpoint", "known")
    assert set(own_model.entries) == {first.entry_id, second.entry_id}
    assert (own_model.kind, own_model.origin) == ("model", "known")
    assert found["stranger"].origin == "unknown"
    store.declare_public(name("stranger"), by="Ada", reason="trained on public text only")
    again = SyntheticRecord.of(store, ledger, "census-1")
    assert {item.origin for item in again.checkpoints if item.name == name("stranger")} == {"declared public"}


def test_it_is_json_by_its_schema(store: LineageStore, ledger: Ledger) -> None:
    released(store, ledger, "census")
    document = SyntheticRecord.of(store, ledger, "census-1").to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    validator().validate(document)
    validator("1-1-0").validate(document)
    for change in ({"owners": 10}, {"format": "other"}, {"checkpoints": [{}]}):
        with pytest.raises(ValidationError):
            validator().validate({**document, **change})


def test_it_holds_no_fingerprint_and_no_number_of_people(store: LineageStore, ledger: Ledger) -> None:
    entry = released(store, ledger, "census")
    text = json.dumps(SyntheticRecord.of(store, ledger, "census-1").to_json())
    for fingerprint in ledger.participants(entry.entry_id):
        assert bytes(fingerprint).hex() not in text
    assert '"participants"' not in text


def test_records_at_example_level_are_told_apart_from_owners(store: LineageStore, ledger: Ledger) -> None:
    entry = released(store, ledger, "census")

    alone = replace(entry.request, guarantee=replace(entry.request.guarantee, unit="example"), period="2026-03")
    found = _checks(replace(entry, request=alone), UNIT)
    assert (found.fingerprints, found.period) == ("records", "2026-03")


def test_what_is_no_release_is_refused(store: LineageStore, ledger: Ledger) -> None:
    with pytest.raises(LineageRefused, match="names no single release"):
        SyntheticRecord.of(store, ledger, "census-1")
    released(store, ledger, "census")
    with pytest.raises(LineageRefused):
        SyntheticRecord.of(store, ledger, name("census/model"))
    store.record(own(outputs=[dataset("bare", dpsynth_release={"releaseId": "bare-1"})], job="bare.released"))
    with pytest.raises(LineageRefused, match="dpsynth_guarantee, dpsynth_privacyUnit"):
        SyntheticRecord.of(store, ledger, name("bare"))


def test_a_forged_entry_is_refused(store: LineageStore, ledger: Ledger) -> None:
    claims: dict[str, Any] = {
        "dpsynth_guarantee": {"ledgerEntry": "0" * 32, "method": "mst"},
        "dpsynth_privacyUnit": UNIT,
        "dpsynth_release": {"releaseId": "x-1"},
    }
    store.record(own(outputs=[dataset("x", **claims)], job="x.released"))
    with pytest.raises(LedgerError):
        SyntheticRecord.of(store, ledger, name("x"))
