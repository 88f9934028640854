"""What no request may be: each refused with a clear word, and nothing recorded."""

import dataclasses
import math
import sys

import pytest
from ledger_cases import family, request
from pydantic import ValidationError

from dpsynth_platform.foundation.errors import AccountingError, BudgetExceeded, DpsynthError, LedgerError
from dpsynth_platform.ledger import Ledger, verdicts
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve

IMPOSSIBLE = [0.0, 1.0, 1.5, -1e-6, math.nan, math.inf]


@pytest.mark.parametrize("delta", IMPOSSIBLE)
def test_an_impossible_delta_is_refused(ledger, delta):
    before = ledger.head()
    with pytest.raises(DpsynthError):
        ledger.admit("everyone", request(delta=delta))
    with pytest.raises(ValidationError):
        family("f", mode="family", delta=delta)
    assert ledger.head() == before


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_cap_is_refused(epsilon):
    with pytest.raises(ValidationError):
        family("f", mode="family", epsilon=epsilon)


@pytest.mark.parametrize("adjacency", ["", "remove", "add-or-remove ", None])
def test_an_unknown_adjacency_is_refused(adjacency):
    with pytest.raises(AccountingError):
        request(adjacency=adjacency)
    with pytest.raises(ValidationError):
        family("f", mode="family", adjacency=adjacency)


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, math.nan])
def test_an_impossible_contribution_bound_is_refused(bound):
    with pytest.raises(AccountingError):
        DiscreteGaussianCountsEvent(5.0, "add-or-remove", bound)
    with pytest.raises(AccountingError):
        Guarantee(1.0, 1e-6, "user", "add-or-remove", bound)


@pytest.mark.parametrize("value", [-1e-300, -1.0, math.nan, math.inf, -math.inf, True, "0"])
def test_an_impossible_curve_is_refused(value):
    with pytest.raises(AccountingError):
        RenyiCurve((value,) + (0.1,) * (len(ORDERS) - 1))


@pytest.mark.parametrize("slack", [-1e-300, 5e-324, 2.2e-308, 1.0, math.nan, math.inf])
def test_an_impossible_slack_is_refused(ledger, slack):
    before = ledger.head()
    with pytest.raises(AccountingError, match="delta_slack"):
        ledger.reserve("everyone", "k", dataclasses.replace(request(), delta_slack=slack), None, "compose")
    assert ledger.head() == before


def test_the_smallest_slack_counts(ledger):
    """It adds up, and is never rounded down to nothing. Smaller ones, which have fewer digits, are refused."""
    cost = dataclasses.replace(request(), delta_slack=sys.float_info.min)
    entry = ledger.start(ledger.reserve("everyone", "k", cost, None, "compose").entry_id)
    assert ledger.verify().problems == (f"entry {entry.entry_id}: its slack on delta is not its event's",)
    with pytest.raises(BudgetExceeded, match="thresholds"):
        beyond = dataclasses.replace(request(plan="l", delta=5e-6), delta_slack=0.1 * 1e-5)
        ledger.reserve("everyone", "l", beyond, None, "compose")


@pytest.mark.parametrize(
    "event", [{}, {"kind": "nothing"}, {"event": "GaussianDpEvent"}, {"type": "UnknownDpEvent"}, [], "event"]
)
def test_an_event_of_unknown_kind_is_refused_at_the_door(ledger, event):
    """`CostRequest.of` makes no such request; one that was made by hand comes no further."""
    made, before = dataclasses.replace(request(), event=event), ledger.head()
    with pytest.raises(AccountingError, match="event"):
        ledger.reserve("everyone", "k", made, None, "compose")
    with pytest.raises(AccountingError, match="event"):
        ledger.admit("everyone", made)
    assert ledger.head() == before


def test_an_event_of_unknown_kind_that_is_stored_all_the_same_is_told_by_verification(ledger, monkeypatch):
    monkeypatch.setattr(verdicts, "check_request", lambda account, request: None)
    ledger.reserve("everyone", "k", dataclasses.replace(request(), event={"kind": "nothing"}), None, "compose")
    assert any("its request cannot be read" in problem for problem in ledger.verify().problems)


@pytest.mark.parametrize(("adjacency", "bound"), [("zero-out", 1), ("add-or-remove", 2)])
def test_an_event_of_another_kind_than_its_guarantee_is_refused_at_the_door(ledger, adjacency, bound):
    event = event_to_json(DiscreteGaussianCountsEvent(3.0, adjacency, bound))
    with pytest.raises(AccountingError, match="event and guarantee differ"):
        ledger.reserve("everyone", "k", dataclasses.replace(request(), event=event), None, "compose")


def test_an_unknown_event_has_no_request():
    with pytest.raises(AccountingError):
        CostRequest.of(
            object(),
            dataset="census",
            period=None,
            guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 1),
            plan_digest="a" * 64,
            runner="runner",
        )


def test_documents_with_missing_or_unknown_keys_are_refused():
    document = request().to_json()
    assert CostRequest.from_json(document) == request()
    for key in document:
        if key != "delta_slack":
            with pytest.raises(AccountingError):
                CostRequest.from_json({name: value for name, value in document.items() if name != key})
    with pytest.raises(AccountingError):
        CostRequest.from_json(document | {"more": 1})


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "[NaN]", "[-1.0]", "[Infinity]", '["1"]', "{}", "[1e400]", "[true]"]
)
def test_a_sum_that_was_written_by_hand_stops_decisions(ledger, url, text):
    """A decision never goes on beside a number that it cannot trust."""
    from sqlalchemy import create_engine
    from sqlalchemy import text as sql

    with create_engine(url).begin() as connection:
        connection.execute(sql("UPDATE account SET settled = :value"), {"value": text})
    with pytest.raises(LedgerError, match="verify it"):
        Ledger(url).reserve("everyone", "k", request(), None, "compose")


def test_a_sum_of_another_length_stops_decisions(ledger, url):
    from sqlalchemy import create_engine
    from sqlalchemy import text as sql

    with create_engine(url).begin() as connection:
        connection.execute(sql("UPDATE account SET settled = '[0.0]'"))
    with pytest.raises(LedgerError, match="verify it"):
        Ledger(url).reserve("everyone", "k", request(), None, "compose")


def test_an_account_of_another_grid_is_refused():
    sealed = RenyiFilter.seal(4.0, 1e-5)
    with pytest.raises(LedgerError, match="grid"):
        RenyiFilter.from_json(sealed.to_json() | {"grid": "another"}, 4.0, 1e-5)
