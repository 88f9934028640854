"""Mechanisms with a delta of their own: what is stored of their cost, and what the account takes for them."""

import dataclasses
import hashlib
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.errors import AccountingError, BudgetExceeded
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.export import verify_export
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.privacy import accounting
from dpsynth_platform.privacy.accounting import cost, epsilon, threshold_slack
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent, SampledGaussianEvent, ThresholdedCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import Partitions
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve, stored_number, stores_number
from dpsynth_platform.privacy.selection import calibrate_selection, selection_event

CAP_DELTA = 1e-5
SHARE = 0.1 * CAP_DELTA


def threshold_for(slack, sigma=30.0):
    """Whole thresholds: the lowest whose slack is at most this."""
    threshold = 2
    while threshold_slack(ThresholdedCountsEvent(sigma, float(threshold), "add-or-remove", 1)) > slack:
        threshold += 1
    return float(threshold)


def thresholded(slack, *, plan="plan", delta=5e-6, sigma=30.0):
    """Thresholded counts whose slack is just below a number."""
    return asked(ThresholdedCountsEvent(sigma, threshold_for(slack, sigma), "add-or-remove", 1), plan=plan, delta=delta)


def asked(event, *, plan="plan", delta=5e-6, b=1):
    return CostRequest.of(
        event,
        dataset="census",
        period=None,
        guarantee=Guarantee(1.0, delta, "user", "add-or-remove", b),
        plan_digest=hashlib.sha256(plan.encode()).hexdigest(),
        runner="runner",
    )


# What a request holds


def test_a_request_holds_both_parts_of_its_cost_rounded_up():
    event = ThresholdedCountsEvent(30.0, 200.0, "add-or-remove", 1)
    made, computed = asked(event), cost(event)
    assert computed.delta_slack < made.delta_slack < computed.delta_slack * (1 + 3e-9)
    assert all(mine > value for mine, value in zip(made.curve.values, computed.curve.values, strict=True))
    assert made.curve.stores(computed.curve) and not computed.curve.stores(made.curve)
    assert CostRequest.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert request().delta_slack == 0


def test_a_guarantee_claims_at_least_the_slack():
    event = ThresholdedCountsEvent(30.0, 160.0, "add-or-remove", 1)
    slack = cost(event).delta_slack
    with pytest.raises(AccountingError, match="higher thresholds, or a larger delta"):
        asked(event, delta=slack)
    made = asked(event, delta=slack * 1.01)
    assert made.delta_slack < made.guarantee.delta
    counts = DiscreteGaussianCountsEvent(30.0, "add-or-remove", 1)
    assert epsilon(event, slack * 1.01).epsilon > epsilon(counts, slack * 1.01).epsilon


def test_slack_beyond_the_claimed_delta_is_refused_however_the_request_was_made(ledger):
    made = dataclasses.replace(thresholded(4e-7), guarantee=Guarantee(1.0, 1e-7, "user", "add-or-remove", 1))
    with pytest.raises(AccountingError, match="below the guarantee's delta 1e-07"):
        ledger.admit("everyone", made)


@settings(max_examples=300)
@given(value=st.floats(0, 1e6), drift=st.floats(-1e-10, 1e-10))
def test_stored_numbers_cover_other_machines_and_nothing_else(value, drift):
    stored = stored_number(value, 1e-9)
    assert value < stored and len(f"{stored!r}".replace(".", "").lstrip("0").split("e")[0]) <= 11
    assert stores_number(stored, value * (1 + drift) + abs(drift), 1e-9)
    assert not stores_number(value * (1 - 1e-13) - 1e-300, value, 1e-9) or value == 0
    assert not stores_number(stored * (1 + 1e-8) + 1e-8, value, 1e-9)


# Verification on another machine


def drifted(monkeypatch, by):
    """Makes this machine compute every curve and slack a little differently."""
    honest = accounting.cost

    def other(event):
        found = honest(event)
        return accounting.Cost(RenyiCurve(tuple(value * by for value in found.curve.values)), found.delta_slack * by)

    monkeypatch.setattr(accounting, "cost", other)


TRAINING = SampledGaussianEvent(4.0, 0.01, "record", "add-or-remove", 3)


@pytest.mark.parametrize("by", [1 - 1e-10, 1 - 1e-15, 1 + 1e-15, 1 + 1e-10])
def test_a_machine_that_computes_the_last_digits_otherwise_verifies(ledger, monkeypatch, by):
    ledger.reserve("everyone", "k", asked(TRAINING, b=3), None, "compose")
    ledger.reserve("everyone", "l", thresholded(1e-7, plan="l"), None, "compose")
    drifted(monkeypatch, by)
    assert ledger.verify().problems == ()
    assert verify_export(json.dumps(ledger.export())).problems == ()


@pytest.mark.parametrize("by", [1 - 1e-6, 1 - 1e-8, 1 + 1e-7])
@pytest.mark.parametrize("part", ["curve", "slack"])
def test_costs_that_are_not_their_events_are_found(ledger, by, part):
    made = thresholded(1e-7, sigma=5.0)
    honest = cost(ThresholdedCountsEvent(5.0, threshold_for(1e-7, 5.0), "add-or-remove", 1))
    if part == "curve":
        forged = dataclasses.replace(made, curve=RenyiCurve(tuple(value * by for value in honest.curve.values)))
    else:
        forged = dataclasses.replace(made, delta_slack=honest.delta_slack * by)
    ledger.reserve("everyone", "k", forged, None, "compose")
    told = {"curve": "its Renyi curve", "slack": "its slack on delta"}[part]
    (problem,) = ledger.verify().problems
    assert problem.endswith(f"{told} is not its event's")
    assert verify_export(json.dumps(ledger.export())).problems == (problem,)


def test_one_understated_order_is_enough():
    computed = cost(TRAINING).curve
    stored = list(computed.stored().values)
    assert RenyiCurve(tuple(stored)).stores(computed)
    stored[40] = computed.values[40] * (1 - 1e-12)
    assert not RenyiCurve(tuple(stored)).stores(computed)
    assert len(stored) == len(ORDERS)


# What the account takes


def test_a_refusal_for_slack_says_so(ledger):
    made = thresholded(6e-7, plan="0")
    ledger.start(ledger.reserve("everyone", "k", made, None, "compose").entry_id)
    left = SHARE - made.delta_slack
    with pytest.raises(BudgetExceeded, match=rf"{left:.3g} is left\. Raise the thresholds") as refused:
        ledger.admit("everyone", thresholded(6e-7, plan="1"))
    assert f"its thresholds take {made.delta_slack:.3g} of delta" in str(refused.value)
    assert ledger.history(kinds=["blocked"])[-1].payload["reason"] == "slack"
    assert ledger.left("everyone", 1e-6) > 3
    ledger.admit("everyone", request(0.01))
    ledger.admit("everyone", thresholded(3e-7, plan="2"))
    assert ledger.verify().ok


def test_an_account_pays_for_ten_releases_whose_values_are_learned(ledger):
    """Of the account's own delta, each; at another epsilon the account would pay for as many of them as of others."""
    target = Guarantee(0.1, CAP_DELTA, "user", "add-or-remove", 1)
    budget = calibrate_selection(target, 0, 0.0, Partitions(2))
    event = Partitions(2).beside(selection_event(budget, "add-or-remove", 1), target, budget.rho)
    made = [asked(event, plan=str(number), delta=CAP_DELTA) for number in range(11)]
    for number in range(10):
        ledger.start(ledger.reserve("everyone", str(number), made[number], None, "compose").entry_id)
    with pytest.raises(BudgetExceeded, match="declare the values"):
        ledger.admit("everyone", made[10])
    assert ledger.verify().ok


def test_owners_without_slack_left_are_left_out_silently(ledger):
    ledger.start(
        ledger.reserve("each", "k", thresholded(6e-7, plan="0"), people(1, 2), "compose", key_ids=KEYS).entry_id
    )
    entry = ledger.reserve("each", "l", thresholded(6e-7, plan="1"), people(1, 2, 3), "compose", key_ids=KEYS)
    assert ledger.participants(entry.entry_id).tolist() == people(3).tolist()
    counts = ledger.reserve("each", "m", request(0.01), people(1, 2, 3), "compose", key_ids=KEYS)
    assert ledger.participants(counts.entry_id).tolist() == people(1, 2, 3).tolist()
    with pytest.raises(BudgetExceeded, match="thresholds"):
        ledger.admit("each", thresholded(2e-6))
    assert ledger.verify().ok


STEP = st.tuples(
    st.sampled_from([0.0, 5e-8, 2e-7, 4e-7]),
    st.sets(st.integers(0, 4), min_size=1),
    st.sampled_from(["keep", "start", "void"]),
)


@pytest.mark.parametrize("mode", ["family", "per-owner"])
@settings(max_examples=12, deadline=None)
@given(steps=st.lists(STEP, min_size=4, max_size=14))
def test_no_sequence_takes_more_than_the_share(tmp_path_factory, mode, steps):
    """Exact sums of what is charged, whatever was asked for after what: nobody's slack exceeds the account's share."""
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('slack') / 'ledger.db'}")
    ledger.open_account(family("f", mode=mode, delta=CAP_DELTA), KEYS)
    charged, everybody = {owner: Fraction(0) for owner in range(5)}, frozenset(range(5))
    for number, (slack, who, then) in enumerate(steps):
        name = f"{number}"
        made = request(0.001, plan=name, delta=5e-6) if slack == 0 else thresholded(slack, plan=name)
        exact = Fraction(made.delta_slack)
        concerned = who if mode == "per-owner" else everybody
        afford = {owner for owner in concerned if charged[owner] + exact <= Fraction(SHARE)}
        try:
            entry = ledger.reserve("f", name, made, people(*who), "compose", key_ids=KEYS)
        except BudgetExceeded:
            assert mode == "family" and afford == set()
            continue
        if mode == "per-owner":
            assert ledger.participants(entry.entry_id).tolist() == people(*afford).tolist()
        else:
            assert afford == everybody
        if then == "void":
            ledger.void(entry.entry_id)
            continue
        if then == "start":
            ledger.start(entry.entry_id)
        for owner in afford:
            charged[owner] += exact
    assert all(total <= Fraction(SHARE) for total in charged.values())
    assert ledger.verify().problems == ()
    assert verify_export(json.dumps(ledger.export())).problems == ()


def test_an_adversary_that_shows_somebody_stays_within_the_share():
    """Slack alone, chosen by what was seen: each mechanism shows the unit with chance s and else tells nothing.

    Whatever the next s depends on, the chance that the unit was ever shown is at most the largest sum of a path.
    """

    def shown(left, depth):
        """The largest chance, over what may be asked for with `left` of the share, of showing the unit."""
        if depth == 0 or left <= 0:
            return 0.0
        return max(s + (1 - s) * shown(left - s, depth - 1) for s in (left, left / 2, left / 7))

    assert 0.99 * SHARE < shown(SHARE, 4) <= SHARE
    assert math.isclose(shown(0.5, 1), 0.5)
