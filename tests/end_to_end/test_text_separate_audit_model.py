"""Texts with a second model for the audit: trained apart with the canaries, killed on the way, and never released."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_line_cases import declare_base_public, text_deployment

from dpsynth_platform.audit.canaries import is_canary, read_canaries
from dpsynth_platform.foundation.storage import read_table, steps_of
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json, twice
from dpsynth_platform.reviewing import verification
from dpsynth_platform.synth.planning import audited_key
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_canaries

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("no_gate")]


class Killed(BaseException):
    """Stands for the end of the process."""


def test_texts_are_released_from_a_model_that_read_no_canary(tmp_path: Path, no_gate: None) -> None:
    deployment = text_deployment(tmp_path)
    deployment.contract["audit"] |= {"model": "separate", "shared_secrets": {"owners": [2], "each": 6}}
    deployment.family["cap"]["epsilon"] = 8.0
    deployment.write()
    declare_base_public(deployment)
    begin = StepJournal.begin_step

    def dies(journal: StepJournal) -> int:
        if (executed := begin(journal)) == 2:
            raise Killed
        return executed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepJournal, "begin_step", dies)
        assert run_here(deployment, accelerator=inside(deployment)).failures.keys() == {"audited"}
    ledger = ledger_of(deployment)
    assert sorted(entry.state for entry in ledger.entries()) == ["reserved", "started"]

    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert any("resuming the mechanism of ledger entry" in words for words in ran.said["audited"])
    assert set(ran.materializations) == set(steps_of(separate_audit_model=True)) - {"released"}
    storage = storage_of(deployment)
    audited, model, canaries, bounded = (
        storage.require(PEOPLE, step) for step in ("audited", "model", "canaries", "bounded")
    )
    paid = {"audited": ledger.entry_for_key(audited_key(model.run_key)), "model": ledger.entry_for_key(model.run_key)}
    assert {step: entry.state for step, entry in paid.items() if entry} == {"audited": "spent", "model": "spent"}
    assert len([entry for entry in ledger.entries() if entry.state != "void"]) == 2
    steps = [json.loads((item.directory / "trained.json").read_text())["executed_steps"] for item in (audited, model)]
    assert steps == [7, 6]
    assert claimed_canaries(audited.directory) == canaries.content_hash
    assert claimed_canaries(model.directory) == NO_CANARIES
    bait = {text for text in read_canaries(canaries.directory / "table").joining["letter"].to_pylist() if text}
    for table, with_canaries in (("audited", True), ("table", False)):
        rows = pa.Table.from_batches(read_table(bounded.directory / table))
        assert any(map(is_canary, rows["_owner"].to_pylist())) is with_canaries
        assert bait.isdisjoint(rows["letter"].to_pylist()) is not with_canaries

    folder = released(deployment)
    dossier = json.loads((folder / "dossier.json").read_text())
    assert paid["model"] is not None
    both = epsilon(twice(event_from_json(paid["model"].request.event)), 1e-6)
    assert dossier["guarantee"]["epsilon"] == both.epsilon > 2.0
    report = dossier["audit"]["report"]
    assert [item["name"] for item in report["attacks"]][-2:] == ["text likelihood", "text overlap"]
    assert report["reconstructed"] and report["shared"] and report["cost"] is None
    assert verification.verify(deployment.settings, str(folder), None).ok
    left = {path.name for path in model.directory.parent.iterdir()}
    assert left == {model.directory.name}
