from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpsynth_platform.audit.cumulative import (
    MOST,
    PastAudit,
    bet,
    evidence_of,
    failure_before,
    past_audits,
    standing_of,
)
from dpsynth_platform.ledger.records import ChainEvent, Entry

SAFE = 1e-7
"""Probability with which a statistical test may fail without a cause."""


def past(key: str, p_value: float) -> PastAudit:
    return PastAudit(key=key, entry=key, failed=False, bound=0.0, p_value=p_value, terms={})


def test_a_bet_is_fair_at_most_and_falls_with_the_p_value() -> None:
    p_values = np.linspace(1e-9, 1.0, 200_001)
    bets = np.array([bet(float(p)) for p in p_values])
    assert (np.diff(bets) <= 1e-9).all()
    assert bets[-1] == 0.5
    # The mean of the calibrator under a uniform p-value is exactly one; much of it lies at very small p.
    grid = np.geomspace(1e-9, 1.0, 400_001)
    assert 0.9 < np.trapezoid([bet(float(p)) for p in grid], grid) <= 1.0 + 1e-3


def test_weak_evidence_of_one_mistake_adds_up() -> None:
    alone = standing_of("surveys", [], "a", 0.02, 0.95)
    assert not alone.refuted and "The only audit" in alone.words
    together = standing_of("surveys", [past(name, 0.02) for name in "abcd"], "e", 0.02, 0.95)
    assert together.refuted and together.audits == 5
    assert "refute with 0.95 confidence" in together.words


def test_years_of_good_audits_do_not_hide_a_new_mistake() -> None:
    good = [past(f"month-{number}", 1.0) for number in range(36)]
    assert standing_of("surveys", good, "now", 1.0, 0.95).evidence < 1
    assert standing_of("surveys", good, "now", 1e-8, 0.95).refuted


def test_only_the_first_audit_of_a_run_counts() -> None:
    before = [past("run", 1e-6), past("run", 1.0), past("other", 1.0)]
    again = standing_of("surveys", before, "run", 1.0, 0.95)
    assert again == standing_of("surveys", [past("run", 1e-6)], "other", 1.0, 0.95)
    assert again.audits == 2


def test_evidence_stays_finite() -> None:
    assert evidence_of([1e-300] * 100) == MOST
    assert evidence_of([]) == 1.0
    assert evidence_of([1.0] * 2000) < 1e-3


def test_a_family_that_keeps_its_claims_hardly_ever_fails_however_often_one_looks() -> None:
    rng, families = np.random.default_rng(), 400
    ever = 0
    for _ in range(families):
        p_values = [float(p) for p in rng.random(24)]
        ever += any(evidence_of(p_values[:number]) >= 20 for number in range(1, 25))
    assert ever <= stats.binom.isf(SAFE, families, 0.05)


def test_audits_of_other_families_are_left_out() -> None:
    payload = {"verdict": "pass", "failed": False, "p_value": 0.5, "epsilon_lower_bound": 0.0, "terms": {"delta": 1e-5}}
    events = [ChainEvent(number, "", "audited", entry, payload, "", "") for number, entry in enumerate("xy")]
    mine = Entry("x", "surveys", "run", 1, "spent", None, None, None, "", "")  # type: ignore[arg-type]
    assert past_audits(events, [mine]) == [PastAudit("run", "x", False, 0.0, 0.5, {"delta": 1e-5})]
    assert past_audits(events, []) == []


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_confidence_says_what_refutes(confidence: float) -> None:
    standing = standing_of("surveys", [], "a", 1e-4, confidence)
    assert standing.refuted == (standing.evidence >= 1 / (1 - confidence))


def test_a_refuted_claim_stays_refuted_whatever_the_terms_become_and_a_loosened_limit_is_told() -> None:
    """The contract is edited after a failure: a higher confidence, other gates, no limits."""
    old, new = {"confidence": 0.95, "threshold": 0.5}, {"confidence": 0.999999, "threshold": 1.0}

    def failed(bound: float) -> list[PastAudit]:
        return [PastAudit("run", "x", True, bound, 0.01, old), past("other", 1.0)]

    assert failure_before(failed(1.2), "x", 1.0, new) == "decides"
    assert failure_before(failed(0.7), "x", 1.0, new) == "told"
    assert failure_before(failed(0.7), "x", 1.0, old) == "decides"
    assert failure_before(failed(1.2), "other", 1.0, old) == "none"
