"""What a release took of its family's cap, by the ledger's entries alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import Account, CostRequest, Entry
from dpsynth_platform.privacy.events import GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.budget import budget_shares

CAP = (4.0, 1e-5)
ACCOUNT = Account(
    "clinic", "user", "add-or-remove", "patient", (), "family", *CAP, RenyiFilter.seal(*CAP), ("key",), "2026-01-01"
)


def entry(name: str, day: int, sigma: float = 40.0, **changes: object) -> Entry:
    request = CostRequest.of(
        GaussianCountsEvent(sigma, "add-or-remove", 2), dataset="visits", period=None,
        guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 2), plan_digest="5e" * 32, runner="ada",
    )  # fmt: skip
    at = f"2026-02-{day:02}T07:00:00+00:00"
    found = Entry(name, "clinic", name, 1, "spent", request, None, None, at, at, started_at=at)
    return replace(found, **changes)  # type: ignore[arg-type]


def test_shares_add_up_to_the_cap_and_later_mechanisms_count_nowhere() -> None:
    entries = [entry("later", 9), entry("own", 5), entry("first", 1, sigma=20.0), entry("failed", 3)]
    void = entry("void", 2, state="void", started_at=None)
    shares = budget_shares(ACCOUNT, [*entries, void], ["first", "elsewhere", "failed", "own", "later"], {"own"})
    assert shares is not None
    assert shares["mechanisms_before"] == 2
    assert shares["this_release"] + shares["earlier"] + shares["left"] == pytest.approx(1, abs=1e-5)
    # At each order the divergence goes with 1 / sigma^2: four parts, one, and this release's one.
    assert shares["earlier"] == pytest.approx(5 * shares["this_release"], abs=1e-5)


def test_a_release_of_two_mechanisms_took_both() -> None:
    one, two = (
        budget_shares(ACCOUNT, [entry("own", 5), entry("audited", 4)], ["audited", "own"], own)
        for own in ({"own"}, {"own", "audited"})
    )
    assert one is not None and two is not None
    assert (one["mechanisms_before"], two["mechanisms_before"], two["earlier"]) == (1, 0, 0)
    assert two["this_release"] == pytest.approx(2 * one["this_release"], abs=1e-5)


def test_what_fits_has_something_left_and_what_the_ledger_refuses_has_not() -> None:
    """A share of one is where the account's filter ends."""
    own = entry("own", 1)
    cost = own.request.curve, own.request.delta_slack
    most = next(number for number in range(1, 10_000) if not ACCOUNT.filter.fits([cost] * number)) - 1
    shares = budget_shares(ACCOUNT, [own], ["own"], {"own"})
    assert shares is not None
    assert int(1 / shares["this_release"]) == most


def test_entries_that_did_not_start_have_no_shares() -> None:
    assert budget_shares(ACCOUNT, [entry("own", 1)], ["own"], {"own", "other"}) is None
    assert budget_shares(ACCOUNT, [entry("own", 1)], [], {"own"}) is None
    assert budget_shares(ACCOUNT, [], ["own"], {"own"}) is None


def test_the_chain_says_what_was_earlier_whatever_the_clock_said() -> None:
    entries = [entry("own", 5), entry("clock behind", 9), entry("clock ahead", 1)]
    shares = budget_shares(ACCOUNT, entries, ["clock behind", "own", "clock ahead"], {"own"})
    assert shares is not None
    assert shares["mechanisms_before"] == 1
    assert shares["earlier"] == shares["this_release"]
