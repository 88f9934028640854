"""The pages of families: each budget for life, what was spent of it, and what may still be.

What belongs here: reading accounts for somebody with certain actions. What does not: accounting (`ledger`), and
forecasts of a single run (`datasets`).

What is spent and left is for `READ_SPEND`. What owners have left depends on who took part in what, and stands in no
operator's record: it is in the reviewers' dossier, and so here for those who may `READ_QUALITY` as well. Only shares of
the owners are shown, in steps of a tenth of the cap: no class of owners, and no worst one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import Paged, View, part, require
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import LedgerError, NotFound
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.composition import spent_over_time
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import Account, Entry
from dpsynth_platform.ledger.words import change_words
from dpsynth_platform.reviewing import accounts, catalogue
from dpsynth_platform.reviewing.catalogue import Catalogue
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle, opened
from dpsynth_platform.synth.planning import audited_key


@dataclass(frozen=True)
class RaiseView(View):
    """A larger cap that somebody asks for, and that nobody has approved yet.

    Attributes:
        event: number of the event that asks; it is what another approves.
        words: from which cap to which.
    """

    event: int
    at: str
    by: str
    reason: str
    epsilon: float
    delta: float
    words: str


@dataclass(frozen=True)
class EntryRow(View):
    """A ledger entry in a list.

    Attributes:
        purpose: `release` or `bound` (a learned contribution bound).
        state: `reserved`, `started`, `spent` or `void`.
        since: since when it is in that state, ISO 8601, UTC.
        epsilon, delta: the guarantee that it reserved.
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
class FamilyRow(View):
    """A budget in a list.

    Attributes:
        mode: `family` (every entry is charged to everybody) or `per-owner`.
        cap_words: the cap for life in words.
        epsilon_left, left_words: for `READ_SPEND`; of a Gaussian-like mechanism at the cap's delta.
        opened_at: None where no run has opened its account yet.
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
    epsilon_left: float | None
    left_words: str | None
    entries: int
    datasets: tuple[str, ...]
    raises: tuple[RaiseView, ...]


@dataclass(frozen=True)
class SpentPoint(View):
    """What a family had spent after one event.

    Attributes:
        at: ISO 8601, UTC.
        event: its number in the ledger's chain.
        entry: the entry that it is about.
        kind: `reserved`, `void` (given back) or `raised` (the cap changed).
        epsilon: of all charged entries composed, at the cap's delta; for who took part in every one of them.
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
class OwnersView(View):
    """What owners have left: restricted.

    Attributes:
        owners: how many were ever charged.
        steps: (from, to, share) of epsilon left at the cap's delta, and the share of the charged owners; from nothing
            left on.
        quantiles: epsilon left by share of the charged owners, the least spent first; without the ends, which are
            single owners'.
    """

    owners: int
    epsilon_left_unspent: float
    steps: tuple[tuple[float, float, float], ...]
    quantiles: dict[str, float]


@dataclass(frozen=True)
class RemainingView(View):
    """How many more releases of a dataset fit under its family's cap.

    Attributes:
        releases: how many like its last one; None where it has none yet.
        at_least: there may be more than that many.
        words: the same in a sentence.
    """

    dataset: str
    releases: int | None
    at_least: bool
    words: str


@dataclass(frozen=True)
class FamilyView(View):
    """One family's budget.

    Attributes:
        file_fault: how the family's file differs from its account, or None.
        spend: what it had spent by when; for `READ_SPEND`. `spend_note` says what that number is worth.
        owners: for `READ_SPEND` and `READ_QUALITY`, in mode `per-owner`.
        remaining: for `READ_SPEND`.
        entries: the newest first.
        raises_done: raises of the cap that were approved, in words.
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
class FamiliesView(View):
    """One page of the list of families, by name."""

    rows: tuple[FamilyRow, ...]
    paged: Paged


SPEND_NOTE = (
    "Composed so far: what one unit has lost that took part in every entry, at the cap's delta, if the plans were "
    "fixed in advance. Of the account itself only its cap is claimed."
)
MOST_COUNTED = 1000
"""Releases that are counted as remaining; beyond, there are just more."""


def families(settings: Settings, allowed: Collection[Action], page: int = 1) -> FamiliesView:
    """A page (from 1 on) of `budgets`. Raises `NotAllowed` like that."""
    rows = budgets(settings, allowed)
    paged = Paged.of(len(rows), page)
    return FamiliesView(rows[paged.slice()], paged)


def budgets(settings: Settings, allowed: Collection[Action]) -> tuple[FamilyRow, ...]:
    """All families that a file declares or an account was opened for, by name.

    Raises:
        NotAllowed: the asker may not read.
    """
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    names = sorted({*declared.families, *known.accounts})
    left = part(allowed, Action.READ_SPEND, lambda: _left_of_all(settings, known))
    return tuple(_row(known, declared, name, left) for name in names)


def family(settings: Settings, allowed: Collection[Action], name: str) -> FamilyView:
    """One family's budget.

    Raises:
        NotAllowed: the asker may not read.
        NotFound: no file declares it, and no account was opened for it.
    """
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    account, file = known.accounts.get(name), declared.families.get(name)
    if account is None and file is None:
        fault = declared.family_faults.get(name)
        raise NotFound(fault or f"family {name!r}: no file declares it, and it has no account; accepted: one that has")
    row = _row(known, declared, name, part(allowed, Action.READ_SPEND, lambda: _left_of_all(settings, known)))
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
    return EntryRow(
        entry=entry.entry_id,
        dataset=entry.request.dataset,
        period=entry.request.period,
        place=entry.request.place,
        family=entry.family,
        purpose=entry.request.purpose,
        epsilon=found["epsilon"],
        delta=found["delta"],
        state=entry.state,
        since=found["since"],
        runner=entry.request.runner,
    )


def raises_asked(known: Chronicle, account: Account) -> tuple[RaiseView, ...]:
    """What larger caps are asked for and could be approved now."""
    return tuple(
        RaiseView(
            event=event.sequence,
            at=event.at,
            by=event.payload["by"],
            reason=event.payload["reason"],
            epsilon=event.payload["cap"]["epsilon"],
            delta=event.payload["cap"]["delta"],
            words=change_words(event.payload["was"], event.payload["cap"]),
        )
        for event in known.raises_asked.get(account.family, ())
        if event.payload["was"] == accounts.cap_of(account)
    )


def _row(known: Chronicle, declared: Catalogue, name: str, left_of_all: Mapping[str, float] | None) -> FamilyRow:
    account = known.accounts.get(name)
    terms = account or declared.families[name]
    epsilon, delta = (
        (terms.epsilon, terms.delta) if isinstance(terms, Account) else (terms.cap.epsilon, terms.cap.delta)
    )
    left = None
    if left_of_all is not None:
        left = left_of_all[name] if account else RenyiFilter.seal(epsilon, delta).left([], delta)
    return FamilyRow(
        family=name,
        mode=terms.mode,
        unit=terms.unit,
        adjacency=terms.adjacency,
        namespace=terms.namespace,
        cap_epsilon=epsilon,
        cap_delta=delta,
        cap_words=f"epsilon {epsilon:g}, delta {delta:g}, for life",
        opened_at=account.opened_at if account else None,
        epsilon_left=left,
        left_words=None if left is None else accounts.left_words(left, terms.mode),
        entries=sum(item.family == name and item.live for item in known.entries.values()),
        datasets=tuple(dataset for dataset, (contract, _) in declared.datasets.items() if contract.family == name),
        raises=raises_asked(known, account) if account else (),
    )


def _left_of_all(settings: Settings, known: Chronicle) -> Mapping[str, float]:
    return opened(settings).left_of_all() if known.accounts else {}


def _differs(settings: Settings, account: Account, file: FamilyBudget | None) -> str | None:
    if file is None:
        return f"no file declares family {account.family} any more; its account stays"
    try:
        opened(settings).check_declared(file)
    except LedgerError as differs:
        return str(differs)
    return None


def _spend(known: Chronicle, name: str) -> tuple[SpentPoint, ...]:
    return tuple(
        SpentPoint(
            at=item.event.at,
            event=item.event.sequence,
            entry=item.entry.entry_id if item.entry else None,
            place=item.entry.request.place if item.entry else None,
            kind=item.event.kind,
            epsilon=item.epsilon,
            cap=item.cap,
        )
        for item in spent_over_time(known.events, known.entries, name)
    )


_ENDS = ("0", "1")


def _owners(settings: Settings, allowed: Collection[Action], account: Account | None) -> OwnersView | None:
    if account is None or account.mode != "per-owner" or not {Action.READ_SPEND, Action.READ_QUALITY} <= set(allowed):
        return None
    found = opened(settings).owner_spending(account.family)
    return OwnersView(
        owners=found.owners,
        epsilon_left_unspent=found.epsilon_left_unspent,
        steps=found.shares(),
        quantiles={share: left for share, left in found.epsilon_left_quantiles.items() if share not in _ENDS},
    )


def _remaining(settings: Settings, known: Chronicle, row: FamilyRow) -> tuple[RemainingView, ...]:
    last = {
        item.request.dataset: item
        for item in known.entries.values()
        if item.family == row.family and item.live and item.request.purpose == "release"
    }
    names = sorted({*row.datasets, *last})
    keys = {item.key for item in known.entries.values() if item.family == row.family and item.live}
    return tuple(_remaining_of(settings, row.mode, name, last.get(name), keys) for name in names)


def _remaining_of(
    settings: Settings, mode: str, dataset: str, last: Entry | None, keys: Collection[str]
) -> RemainingView:
    if last is None:
        return RemainingView(
            dataset, None, False, f"it has had no run yet; what one would cost: dpsynth plan {dataset}"
        )
    mechanisms = 2 if audited_key(last.key) in keys else 1
    found = opened(settings).remaining(last.family, last.request, most=mechanisms * MOST_COUNTED) // mechanisms
    more = found >= MOST_COUNTED
    whose = ", for an owner who was never charged" if mode == "per-owner" else ""
    words = f"{'more than ' if more else ''}{number_of(found, 'more release')} like the last one would fit{whose}"
    return RemainingView(dataset, found, more, words)
