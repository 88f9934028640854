"""Private evolution of texts, from the table to a verified release, with an endpoint that fails on its way."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from endpoint_cases import TEXTS as WRITTEN
from endpoint_cases import serving
from inside import inside
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_line_cases import letters_table, text_deployment

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent, GaussianVotesEvent, event_from_json, leaves, twice
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth import endpoint_calls
from dpsynth_platform.synth.evolution.journal import FILE_NAME
from dpsynth_platform.synth.text import resampling
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_canaries

pytestmark = pytest.mark.end_to_end
SECRET = "zanzibar"
KEY = "sk-nobody-may-see-this"


def secret_letters() -> pa.Table:
    """Every letter holds a word that no prompt may hold."""
    table = letters_table(240)
    letters = [f"{text} {SECRET}" for text in table.column("letter").to_pylist()]
    return table.set_column(table.column_names.index("letter"), "letter", pa.array(letters))


def is_vote(leaf: DpEvent) -> bool:
    return isinstance(leaf, GaussianVotesEvent)


def test_a_release_by_private_evolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_calls, "FIRST_WAIT", 0.01)
    key = tmp_path / "text.key"
    key.write_text(KEY)
    key.chmod(0o600)
    monkeypatch.setenv("DPSYNTH_TEXT_KEY", str(key))
    with serving() as server:
        monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", server.url.removesuffix("/v1"))
        evolution = {"about": "short letters", "population": 8, "variations": 1, "rounds": 2}
        declared = {"endpoint": {"url": server.url, "attempts": 1}}
        deployment = text_deployment(
            tmp_path,
            table=secret_letters(),
            expected_units=160,
            generate={
                "method": "aug_pe",
                "base_model": "some-model",
                "rows": 20,
                "text": {"given": ["region"], "max_tokens": 48, "evolution": evolution | declared},
                "training": None,
            },
        )
        ledger = LineageStore(deployment.settings.ledger_url)
        refused = run_here(deployment)
        assert "some-model" in refused.failures["raw"]
        assert not server.asked
        ledger.declare_public(model_name("some-model"), by="Bo", reason="its makers list what it was trained on")

        server.breaks = lambda document: True
        failed = run_here(deployment, accelerator=inside(deployment))
        assert "wrote no text on trial" in failed.failures["model"]
        assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
        server.breaks = lambda document: "<text>" in json.dumps(document)  # no variations: after the first vote
        assert "model" in run_here(deployment, accelerator=inside(deployment)).failures
        server.breaks = lambda document: False
        deployment.contract["generate"]["text"]["evolution"]["endpoint"]["attempts"] = 2
        deployment.write()
        ran = run_here(deployment)
        assert ran.success, ran.failures
        assert any("which has paid" in words for words in ran.said["model"])
        (entry,) = ledger_of(deployment).entries()
        assert entry.state == "spent"
        asked = json.dumps([document for *_, document in server.asked])
        assert SECRET not in asked
        assert {sent for _, sent, _ in server.asked} == {f"Bearer {KEY}"}
        folder = released(deployment)

    model = storage_of(deployment).require(PEOPLE, "model").directory
    lines = [json.loads(line) for line in (model / FILE_NAME).read_text().splitlines()]
    assert [line["kind"] for line in lines].count("votes") == 2
    public = json.loads((folder / "dossier.json").read_text())
    event = event_from_json(public["statement"]["event"])
    assert epsilon(event, 1e-6).epsilon <= 2.0
    assert public["mechanism"]["method"] == "aug_pe"
    declared = public["contract"]["generate"]["text"]["evolution"]["endpoint"]
    assert declared["url"] == "127.0.0.1"
    assert any("histograms of votes" in words for words in public["statement"]["covered"])
    assert any("reached the endpoint 127.0.0.1" in words for words in public["statement"]["not_covered"])
    assert any("shown which of its texts noisy votes chose" in words for words in public["statement"]["not_covered"])
    attacks = {attack["name"] for attack in public["audit"]["report"]["attacks"]}
    assert "text overlap" in attacks
    assert "text likelihood" not in attacks
    written = {text for texts in WRITTEN.values() for text in texts}
    letters = pa.Table.from_batches(read_table(folder / "data")).column("letter").to_pylist()
    assert all(letter.split(", number")[0] in written for letter in letters)
    assert verification.verify(deployment.settings, str(folder), None).ok
    for place in (Path(deployment.settings.restricted), folder, deployment.settings.home / "lineage"):
        assert not [file for file in place.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


@pytest.mark.usefixtures("worker_here")
def test_with_a_second_evolution_for_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cost; canaries vote in the first one alone, and texts are released from the other, chosen by a last vote.

    By `auto`, besides.
    """
    with serving() as server:
        monkeypatch.setenv("DPSYNTH_TEXT_ENDPOINTS", server.url.removesuffix("/v1"))
        evolution = {"about": "short letters", "population": 8, "variations": 1, "rounds": 2}
        deployment = text_deployment(
            tmp_path,
            expected_units=160,
            generate={
                "method": "auto",
                "base_model": "some-model",
                "rows": 20,
                "text": {
                    "given": ["region"],
                    "max_tokens": 48,
                    "evolution": evolution | {"endpoint": {"url": server.url}},
                    "resample": {"clusters": 3, "noise": 8.0, "pool": 2.0},
                },
                "training": None,
            },
        )
        deployment.contract["audit"]["model"] = "separate"
        deployment.family["cap"]["epsilon"] = 8.0
        deployment.write()
        LineageStore(deployment.settings.ledger_url).declare_public(
            model_name("some-model"), by="Bo", reason="its makers list what it was trained on"
        )
        plan_rows = dict(forecast(deployment.settings, "people", None).rows())
        assert any("auto: an endpoint has the language model" in str(words) for words in plan_rows.values()), plan_rows
        ran = run_here(deployment)
        assert ran.success, ran.failures
        folder = released(deployment)
    first, second = ledger_of(deployment).entries()
    assert (first.state, second.state) == ("spent", "spent")
    public = json.loads((folder / "dossier.json").read_text())
    assert public["mechanism"]["method"] == public["contract"]["generate"]["method"] == "aug_pe"
    assert public["mechanism"]["why"].startswith("auto: an endpoint has the language model")
    both = epsilon(twice(event_from_json(second.request.event)), 1e-6)
    assert public["guarantee"]["epsilon"] == both.epsilon > 2.0
    storage = storage_of(deployment)
    audited, model = (storage.require(PEOPLE, step).directory for step in ("audited", "model"))
    assert claimed_canaries(model) == NO_CANARIES != claimed_canaries(audited)
    for name in (FILE_NAME, resampling.FILE_NAME):
        assert (audited / name).read_bytes() != (model / name).read_bytes()
    votes = [leaf.sigma for leaf, _ in leaves(event_from_json(second.request.event)) if is_vote(leaf)]
    assert len(votes) == 2 and votes[1] == 8.0
    assert any(
        "the last one of a mechanism, for a cluster of texts" in words for words in public["statement"]["covered"]
    )
    assert "text overlap" in {attack["name"] for attack in public["audit"]["report"]["attacks"]}
    assert verification.verify(deployment.settings, str(folder), None).ok
