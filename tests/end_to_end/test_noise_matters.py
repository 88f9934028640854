"""Must show: the same line with its noise patched out fails the audit and is never released; with noise it is.

The verdict of the line with noise is a random one. Its error probability is far below 1e-6: a bound above 1 needs, of
100 guesses, 83 right ones, where the mechanism at epsilon 1 gives an attacker at most 73 by expectation if all of the
guarantee were spent on one canary, and about 55 here, where it is spread over eleven columns and ten pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from deployment import Deployment
from inside import inside
from line_cases import ledger_of, released, run_here, storage_of

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations.operating import publish_if_approved
from dpsynth_platform.release.evidence import audit_report
from dpsynth_platform.reviewing.decisions import approve, review
from dpsynth_platform.reviewing.verification import verify
from dpsynth_platform.synth.tabular import drawing

pytestmark = pytest.mark.end_to_end
PLACE = Place("people")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path).write().with_source()


def exact_counts(counts: np.ndarray, sigma: float) -> np.ndarray:
    assert sigma > 0
    return counts.copy()


def best_choice(scores: Sequence[int], epsilon: float, sensitivity: int) -> int:
    assert epsilon > 0
    return int(np.argmax(scores))


def test_without_noise_the_audit_fails_and_nothing_is_released(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", exact_counts)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", best_choice)
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    report = audit_report(PLACE, storage_of(deployment).require(PLACE, "audit"))
    # 83 of 100 guesses must be right; in trials all of 200 were. Were one in 50 wrong, 18 would be in 2e-12 of runs.
    assert report["verdict"] == "fail"
    assert report["epsilon_lower_bound"] > report["claimed_epsilon"] == 1.0
    check = next(item for item in ran.result.get_asset_check_evaluations() if item.check_name == "audit_verdict")
    assert not check.passed

    with pytest.raises(ReleaseRefused, match="the verdict is 'fail', not 'pass'"):
        approve(deployment.settings, PLACE, "reviewer", "in spite of the audit")
    candidate, (entry,) = review(deployment.settings, PLACE).candidate, ledger_of(deployment).entries()
    assert not ledger_of(deployment).history(kinds=["candidate", "approved"])
    ledger_of(deployment).approve(candidate, by="reviewer", entry_id=entry.entry_id)  # as if it had been let through
    outcome = publish_if_approved(deployment.settings, PLACE, lambda _: None)
    assert outcome.release is None
    assert "the verdict is 'fail', not 'pass'" in outcome.next_steps[0]
    forced = run_here(deployment, "people_release", user="runner")
    assert not forced.success
    assert "the verdict is 'fail'" in forced.failures["released"]
    assert "not releasable now" in review(deployment.settings, PLACE).standing
    assert not list((deployment.settings.home / "public").rglob("*"))
    assert not [event for event in ledger_of(deployment).history() if event.kind == "released"]


def test_with_noise_it_passes_and_is_released(deployment: Deployment) -> None:
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    report = audit_report(PLACE, storage_of(deployment).require(PLACE, "audit"))
    assert report["verdict"] == "pass"
    assert report["highest_bound"] > 1.0, "an audit without power would pass anything"
    verify(deployment.settings, str(released(deployment)), None).raise_for_problems()
    assert ledger_of(deployment).history()[-1].kind == "released"
