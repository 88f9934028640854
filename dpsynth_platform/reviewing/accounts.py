"""Budget accounts as people read them: caps, what is left, entries.

What belongs here: opening the deployment's ledger for reading, and its accounts as plain values and words. What does
not: the cost of a run (`forecasts`), and deciding (`ledger`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place

if TYPE_CHECKING:
    from dpsynth_platform.ledger.records import Account
    from dpsynth_platform.ledger.store import Ledger


def ledger(settings: Settings) -> Ledger:
    """The deployment's ledger. Raises `ConfigurationError` if there is none; reading creates none."""
    from dpsynth_platform.ledger.store import Ledger

    if not settings.has_ledger:
        raise ConfigurationError(
            f"there is no ledger in {settings.home} (DPSYNTH_HOME); the first run of a dataset creates it"
        )
    return Ledger(settings.ledger_url)


def check_given_up(settings: Settings, place: Place, entry_id: str) -> None:
    """Raises `LedgerError` if a second spend names no entry of this dataset that can be given up.

    For a period, a completed entry can be given up too: without the explicit order, another run of it spends nothing.
    """
    entry = ledger(settings).entry(entry_id)
    states = ("started",) if place.period is None else ("started", "spent")
    if entry.request.place != place.label or entry.state not in states:
        raise LedgerError(
            f"{place.label}: entry {entry_id} is {entry.state} and of {entry.request.place}; only an entry of "
            f"{place.label} that is {' or '.join(states)} can be given up"
        )


def listing(settings: Settings) -> list[dict[str, Any]]:
    """All accounts: cap, what is left (for a Gaussian-like mechanism at the cap's delta), requested raises, entries."""
    from dpsynth_platform.ledger.chain import RAISE_ASKED

    if not settings.has_ledger:
        return []
    store = ledger(settings)
    return [
        {
            "family": account.family,
            "mode": account.mode,
            "unit": account.unit,
            "adjacency": account.adjacency,
            "cap": cap_of(account),
            "epsilon_left": store.left(account.family, account.delta),
            "raises_asked": [
                {"event": event.sequence, "at": event.at[:19]} | event.payload
                for event in store.history(kinds=[RAISE_ASKED], subject=account.family)
                if event.payload["was"] == cap_of(account)
            ],
            "entries": [entry.summary() for entry in store.entries(account.family)],
        }
        for account in store.accounts()
    ]


def left_words(left: float, mode: str, which: str = "at this delta") -> str:
    """What is left of a cap for a release, and why that is not the cap minus the spent epsilons."""
    who = ", for an owner who was never charged" if mode == "per-owner" else ""
    rounded_down = math.floor(left * 1000) / 1000
    if rounded_down == 0:
        return f"no further release would fit{who}"
    return (
        f"a further release of up to epsilon {rounded_down:g} {which} would fit{who} (costs add up more slowly than "
        "epsilons do)"
    )


def cap_of(account: Account) -> dict[str, float]:
    """An account's cap as JSON."""
    return {"epsilon": account.epsilon, "delta": account.delta}
