"""The pages of families: each budget for life, what was spent of it, and what is left.

What belongs here: reading accounts for an actor. What does not: accounting (`ledger`), and forecasts of a single run
(`datasets`).

Spending is for `READ_SPEND`. What owners have left depends on who took part in which release and is in no record for
operators, only in the reviewers' dossier; so it also needs `READ_QUALITY`. Only shares of the owners are shown, in
steps of a tenth of the cap: no class of owners, and no worst one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import Paged, page_of, part, require, view_of
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import LedgerError, NotFound
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.composition import spent_over_time
from dpsynth_platform.ledger.records import Account, Entry
from dpsynth_platform.ledger.words import change_words
from dpsynth_platform.reviewing import accounts, catalogue
from dpsynth_platform.reviewing.accounts import Left
from dpsynth_platform.reviewing.catalogue import Catalogue
from dpsynth_platform.reviewing.chronicle import Chronicle, cached_ledger, chronicle


@dataclass(frozen=True)
class RaiseView:
    """A requested larger cap that is not approved yet; an approval names the number of its event."""

    event: int
    at: str
    by: str
    reason: str
    epsilon: float
    delta: float
    words: str


@dataclass(frozen=True)
class EntryRow:
    """A ledger entry in a list, with the guarantee that it reserved. `purpose` is `release` or `bound` (a learned
    bound).

    `state` is `reserved`, `started`, `spent` or `void`, since `since`.
    """

    entry: str
    dataset: str
    period: str | None
    place: str
    family: str
    purpose: str
    epsilon: float
    delta: float
    state: str
    since: str
    runner: str


@dataclass(frozen=True)
class FamilyRow:
    """A budget in a list.

    Attributes:
        mode: `family` (every entry is charged to everybody) or `per-owner`.
        left, left_words: for `READ_SPEND`; what is left for another release like the last one of each dataset, with a
            sentence for each.
        used: for `READ_SPEND`; the share of the cap that is used, as in dossiers; None in mode `per-owner`.
        opened_at: None until the first run opens the account.
        entries: how many are charged.
    """

    family: str
    mode: str
    unit: str
    adjacency: str
    namespace: str
    cap_epsilon: float
    cap_delta: float
    cap_words: str
    opened_at: str | None
    left: tuple[Left, ...] | None
    left_words: tuple[str, ...] | None
    used: float | None
    entries: int
    datasets: tuple[str, ...]
    raises: tuple[RaiseView, ...]


@dataclass(frozen=True)
class SpentPoint:
    """What a family had spent after one event.

    Attributes:
        kind: `reserved`, `void` (given back) or `raised` (the cap changed).
        epsilon: all charged entries composed at the cap's delta, for an owner who took part in all of them.
        cap: the cap's epsilon at that time.
    """

    at: str
    event: int
    entry: str | None
    place: str | None
    kind: str
    epsilon: float
    cap: float


@dataclass(frozen=True)
class OwnersView:
    """What the charged owners have left: restricted.

    Attributes:
        steps: (from, to, share of the charged owners) by epsilon left at the cap's delta, starting at nothing left.
        quantiles: epsilon left by share of the charged owners, the least spent first; without the two ends, which
            belong to single owners.
    """

    owners: int
    epsilon_left_unspent: float
    steps: tuple[tuple[float, float, float], ...]
    quantiles: dict[str, float]


@dataclass(frozen=True)
class RemainingView:
    """How many more releases like a dataset's last one fit under its family's cap; None if it has no release yet."""

    dataset: str
    releases: int | None
    at_least: bool
    words: str


@dataclass(frozen=True)
class FamilyView:
    """One family's budget.

    Attributes:
        file_fault: how the family's file differs from its account, or None.
        spend: spending over time; for `READ_SPEND`. `spend_note` says how to read the number.
        owners: for `READ_SPEND` and `READ_QUALITY`, in mode `per-owner`.
        remaining: for `READ_SPEND`.
        entries: the newest first; `raises_done` are approved raises of the cap, in words.
    """

    row: FamilyRow
    file_fault: str | None
    spend: tuple[SpentPoint, ...] | None
    spend_note: str
    owners: OwnersView | None
    remaining: tuple[RemainingView, ...] | None
    entries: tuple[EntryRow, ...]
    raises_done: tuple[str, ...]


@dataclass(frozen=True)
class FamiliesView:
    """One page of the list of families, by name."""

    rows: tuple[FamilyRow, ...]
    paged: Paged


SPEND_NOTE = (
    "Composed so far: the privacy loss of one unit that took part in every entry, at the cap's delta, if the plans "
    "were fixed in advance. The account itself guarantees only its cap."
)
MOST_COUNTED = 1000
"""Remaining releases are counted up to this number."""


def families(settings: Settings, allowed: Collection[Action], page: int = 1) -> FamiliesView:
    """A page of `budgets`."""
    return FamiliesView(*page_of(budgets(settings, allowed), page))


def budgets(settings: Settings, allowed: Collection[Action]) -> tuple[FamilyRow, ...]:
    """All families with a file or an account, by name."""
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    names = sorted({*declared.families, *known.accounts})
    spent = part(allowed, Action.READ_SPEND, lambda: _spent_of_all(settings, known))
    return tuple(_row(known, declared, name, spent) for name in names)


def family(settings: Settings, allowed: Collection[Action], name: str) -> FamilyView:
    """One family's budget. Raises `NotFound` if it has neither a file nor an account."""
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    account, file = known.accounts.get(name), declared.families.get(name)
    if account is None and file is None:
        fault = declared.family_faults.get(name)
        raise NotFound(fault or f"family {name!r}: no file declares it, and it has no account; accepted: one that has")
    row = _row(known, declared, name, part(allowed, Action.READ_SPEND, lambda: _spent_of_all(settings, known)))
    entries = [item for item in known.entries.values() if item.family == name]
    return FamilyView(
        row=row,
        file_fault=declared.family_faults.get(name) or (_differs(settings, account, file) if account else None),
        spend=part(allowed, Action.READ_SPEND, lambda: _spend(known, name)),
        spend_note=SPEND_NOTE,
        owners=_owners(settings, allowed, account),
        remaining=part(allowed, Action.READ_SPEND, lambda: _remaining(settings, known, row)),
        entries=tuple(entry_row(item) for item in reversed(entries)),
        raises_done=tuple(
            f"{moment(event.at)}: {words} ({by})"
            for event, (by, words) in zip(known.events, known.words, strict=True)
            if event.kind == chain.RAISED and event.subject == name
        ),
    )


def entry_row(entry: Entry) -> EntryRow:
    """A ledger entry as lists show it."""
    found = entry.summary()
    summary = {name: found[name] for name in ("epsilon", "delta", "since")}
    return view_of(EntryRow, entry, entry.request, entry=entry.entry_id, **summary)


def raises_asked(known: Chronicle, account: Account) -> tuple[RaiseView, ...]:
    """The requested larger caps that could be approved now."""
    return tuple(
        RaiseView(
            event=event.sequence,
            at=event.at,
            by=event.payload["by"],
            reason=event.payload["reason"],
            **event.payload["cap"],
            words=change_words(event.payload["was"], event.payload["cap"]),
        )
        for event in known.raises_asked.get(account.family, ())
        if event.payload["was"] == accounts.cap_of(account)
    )


@dataclass(frozen=True)
class _Spent:
    """Of all families: what is left for releases like the last ones, and the shares of the caps that are used."""

    left: Mapping[str, tuple[Left, ...]]
    used: Mapping[str, float]


def _row(known: Chronicle, declared: Catalogue, name: str, spent: _Spent | None) -> FamilyRow:
    account = known.accounts.get(name)
    terms = account or declared.families[name]
    epsilon, delta = (
        (terms.epsilon, terms.delta) if isinstance(terms, Account) else (terms.cap.epsilon, terms.cap.delta)
    )
    left = None if spent is None else spent.left.get(name, ())
    used = 0.0 if spent is None else spent.used.get(name, 0.0)
    return view_of(
        FamilyRow,
        terms,
        family=name,
        cap_epsilon=epsilon,
        cap_delta=delta,
        cap_words=f"epsilon {epsilon:g}, delta {delta:g}, for life",
        opened_at=account.opened_at if account else None,
        left=left,
        left_words=None if left is None else accounts.left_in_words(left, terms.mode, used),
        used=None if spent is None or terms.mode == "per-owner" else used,
        entries=sum(item.family == name and item.live for item in known.entries.values()),
        datasets=tuple(dataset for dataset, (contract, _) in declared.datasets.items() if contract.family == name),
        raises=raises_asked(known, account) if account else (),
    )


def _spent_of_all(settings: Settings, known: Chronicle) -> _Spent:
    if not known.accounts:
        return _Spent({}, {})
    ledger = cached_ledger(settings)
    return _Spent(accounts.left_like_last(ledger, known.entries.values()), ledger.used_of_all())


def _differs(settings: Settings, account: Account, file: FamilyBudget | None) -> str | None:
    if file is None:
        return f"no file declares family {account.family} any more; its account stays"
    try:
        cached_ledger(settings).check_declared(file)
    except LedgerError as differs:
        return str(differs)
    return None


def _spend(known: Chronicle, name: str) -> tuple[SpentPoint, ...]:
    return tuple(
        view_of(
            SpentPoint,
            item,
            item.event,
            event=item.event.sequence,
            entry=item.entry.entry_id if item.entry else None,
            place=item.entry.request.place if item.entry else None,
        )
        for item in spent_over_time(known.events, known.entries, name)
    )


_ENDS = ("0", "1")


def _owners(settings: Settings, allowed: Collection[Action], account: Account | None) -> OwnersView | None:
    if account is None or account.mode != "per-owner" or not {Action.READ_SPEND, Action.READ_QUALITY} <= set(allowed):
        return None
    found = cached_ledger(settings).owner_spending(account.family)
    quantiles = {share: left for share, left in found.epsilon_left_quantiles.items() if share not in _ENDS}
    return OwnersView(found.owners, found.epsilon_left_unspent, found.shares(), quantiles)


def _remaining(settings: Settings, known: Chronicle, row: FamilyRow) -> tuple[RemainingView, ...]:
    last = {
        dataset: found
        for (family, dataset), found in accounts.last_releases(known.entries.values()).items()
        if family == row.family
    }
    return tuple(_remaining_of(settings, row.mode, name, last.get(name)) for name in sorted({*row.datasets, *last}))


def _remaining_of(settings: Settings, mode: str, dataset: str, last: tuple[Entry, int] | None) -> RemainingView:
    if last is None:
        return RemainingView(dataset, None, False, "no run yet, so the cost of one is not known here")
    entry, mechanisms = last
    most = mechanisms * MOST_COUNTED
    found = cached_ledger(settings).remaining(entry.family, entry.request, most=most) // mechanisms
    more = found >= MOST_COUNTED
    who = ", for an owner who was never charged" if mode == "per-owner" else ""
    words = f"{'more than ' if more else ''}{number_of(found, 'more release')} like the last one would fit{who}"
    return RemainingView(dataset, found, more, words)
