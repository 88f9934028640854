"""Budget accounts as people read them: caps, what is left, entries.

What belongs here: opening the deployment's ledger for reading, and its accounts as plain values and words. What does
not: the cost of a run (`forecasts`), and deciding (`ledger`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place

if TYPE_CHECKING:
    from dpsynth_platform.ledger.records import Account, Entry
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


@dataclass(frozen=True)
class Left:
    """What is left of a family's cap for another release like a dataset's last one: the one figure that people read.

    Attributes:
        dataset: whose last release; one that is charged.
        epsilon: the most that such a release may claim, rounded down; of each mechanism where a run has two.
        delta: the release's own, at which `epsilon` holds.
    """

    dataset: str
    epsilon: float
    delta: float


def last_releases(entries: Iterable[Entry]) -> dict[tuple[str, str], tuple[Entry, int]]:
    """The last charged entry of each family and dataset for a release, and how many mechanisms its run started.

    Entries come in order of reservation.
    """
    from dpsynth_platform.synth.planning import audited_key  # late: it imports contracts

    found = list(entries)
    keys = {entry.key for entry in found}
    pairs = {audited_key(key): key for key in keys}
    two = {key for pair in pairs.items() if pair[0] in keys for key in pair}
    last = {
        (entry.family, entry.request.dataset): entry
        for entry in found
        if entry.live and entry.request.purpose == "release"
    }
    return {name: (last[name], 2 if last[name].key in two else 1) for name in sorted(last)}


def left_like_last(store: Ledger, entries: Iterable[Entry]) -> dict[str, tuple[Left, ...]]:
    """What is left for another release like each dataset's last one, by family; `entries` as of `last_releases`.

    Computed where plans and refusals have it from (`ledger.verdicts.left_for`).
    """
    last = last_releases(entries)
    numbers = store.left_for_each([(entry.family, entry.request, times) for entry, times in last.values()])
    found: dict[str, tuple[Left, ...]] = {}
    for ((family, dataset), (entry, _)), epsilon in zip(last.items(), numbers, strict=True):
        found[family] = (*found.get(family, ()), Left(dataset, epsilon, entry.request.guarantee.delta))
    return found


def left_in_words(left: Sequence[Left], mode: str, used: float) -> tuple[str, ...]:
    """A sentence for each dataset; one where no release is charged yet.

    `used` is the share of the cap that is used (`Ledger.used_of_all`).
    """
    if not left and used >= 1:  # by learned bounds, or as the cap is too small for any mechanism
        return ("no release is charged yet, and the cap has no room for one",)
    if not left and used > 0:
        return (f"no release is charged yet; learned bounds take {math.ceil(100 * used)}% of the cap",)
    if not left:
        return ("no release is charged yet" + (", so that all of it is left" if mode == "family" else ""),)
    return tuple(left_words(item.epsilon, item.delta, mode, f"the last one of {item.dataset}") for item in left)


def listing(settings: Settings) -> list[dict[str, Any]]:
    """All accounts: cap, what is left for releases like the last ones, requested raises, entries."""
    from dpsynth_platform.ledger.chain import RAISE_ASKED

    if not settings.has_ledger:
        return []
    store = ledger(settings)
    left, used = left_like_last(store, store.entries()), store.used_of_all()
    return [
        {
            "family": account.family,
            "mode": account.mode,
            "unit": account.unit,
            "adjacency": account.adjacency,
            "cap": cap_of(account),
            "left": [asdict(item) for item in left.get(account.family, ())],
            "left_in_words": left_in_words(left.get(account.family, ()), account.mode, used[account.family]),
            "raises_asked": [
                {"event": event.sequence, "at": event.at[:19]} | event.payload
                for event in store.history(kinds=[RAISE_ASKED], subject=account.family)
                if event.payload["was"] == cap_of(account)
            ],
            "entries": [entry.summary() for entry in store.entries(account.family)],
        }
        for account in store.accounts()
    ]


def left_words(epsilon: float, delta: float, mode: str, like: str) -> str:
    """What is left of a cap for a release, and why that is not the cap minus the spent epsilons.

    Beyond the request's own claim, its cost is scaled as Gaussian noise scales: of DP-SGD a plan may fit less.
    """
    who = ", for an owner who was never charged" if mode == "per-owner" else ""
    if epsilon <= 0:
        return f"no further release like {like} would fit{who}"
    return (
        f"a further release like {like} would fit with up to about epsilon {epsilon:g} at its own delta "
        f"{upper_bound(delta)}{who} (a plan for that epsilon says it exactly; costs add up more slowly than epsilons "
        "do)"
    )


def cap_of(account: Account) -> dict[str, float]:
    """An account's cap as JSON."""
    return {"epsilon": account.epsilon, "delta": account.delta}
