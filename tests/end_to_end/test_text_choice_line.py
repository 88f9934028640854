"""`method: auto` for texts and what is paid for: another choice for the same data is no second spend without a word."""

from __future__ import annotations

import pytest
from line_cases import ledger_of, run_here
from text_cases import save_model, tiny_llama
from text_line_cases import declare_base_public, text_deployment

from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth.automatic import Choice

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("no_gate")]
TO_CLEARANCE = ["raw", "scrubbed", "canaries", "clearance"]


def test_another_choice_after_payment_wants_a_word(tmp_path, monkeypatch, no_gate):
    text = {"given": ["region"], "max_tokens": 200}  # room for a topic's words, too
    deployment = text_deployment(tmp_path, generate={"method": "auto", "text": text})
    save_model(tmp_path / "base", tiny_llama(positions=200))
    declare_base_public(deployment)

    def stands_for(method):
        chosen = Choice(method, "auto: a test of choices")
        monkeypatch.setattr("dpsynth_platform.synth.text.choice.text_method_for", lambda *_: chosen)

    stands_for("dp_finetune")
    ran = run_here(deployment, steps=TO_CLEARANCE)
    assert ran.success, ran.failures
    paid = ledger_of(deployment).entries()
    assert len(paid) == 1

    stands_for("ctcl")
    before = forecast(deployment.settings, "people", None)
    assert (before.fits, before.standing) == (False, None)
    verdict = dict(before.rows())["a run now"]
    refused = run_here(deployment, steps=["raw"]).failures["raw"]
    assert (
        "auto selects 'ctcl' here (auto: a test of choices), but 'dp_finetune' is paid for with this version" in refused
    )
    assert (
        "accepted: method: dp_finetune to continue with what is paid for, or method: ctcl for another spend" in refused
    )
    assert verdict.removeprefix("would be blocked: ") in refused, "what is forecast is what is refused"
    assert ledger_of(deployment).entries() == paid

    deployment.contract["generate"]["method"] = "dp_finetune"
    deployment.write()
    assert "is paid for" not in str(forecast(deployment.settings, "people", None).refusal)
    ran = run_here(deployment, steps=TO_CLEARANCE)
    assert ran.success, ran.failures
    assert ledger_of(deployment).entries() == paid
