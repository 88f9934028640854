"""The ledger itself: what may be opened, reserved, started and completed, and the record of it.

What belongs here: decisions, each in one serial transaction. What does not: SQL transactions (`database`), the chain's
hashes (`chain`), the filter's arithmetic (`filter`, `owners`).

    ledger = Ledger(settings.ledger_url)
    ledger.open_account(family, key_ids=[key_id(k1), key_id(k2)])
    ledger.admit(family.family, request, keys=[run_key])                    # before any record is read
    entry = ledger.reserve(family.family, run_key, request, participants, policy, key_ids=key_ids)
    ledger.start(entry.entry_id)                                            # durable, exactly once
    ledger.complete(entry.entry_id, model_digest)

A visible verdict depends on public facts only: the cap, and the number and kind of entries. Who took part never shows:
in `per-owner` mode an owner who cannot afford an entry is left out of its participants silently.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack

from sqlalchemy import Connection, insert

from dpsynth_platform.foundation.errors import BudgetExceeded, DpsynthError, LedgerError, SpendRepeated
from dpsynth_platform.ledger import caps, chain, decisions, kinship, rekeying, reservations, rows, schema, verdicts
from dpsynth_platform.ledger.database import Database
from dpsynth_platform.ledger.filter import Cost, RenyiFilter
from dpsynth_platform.ledger.owners import Participants, check_participants
from dpsynth_platform.ledger.records import (
    Account,
    Admission,
    ChainEvent,
    CostRequest,
    Decision,
    Entry,
    Head,
    LedgerChanges,
    OverlapPolicy,
    VerificationReport,
)
from dpsynth_platform.ledger.spending import OwnerSpending, owner_spending

if TYPE_CHECKING:
    from dpsynth_platform.contracts.family import FamilyBudget

RESERVATION_LIFETIME = dt.timedelta(hours=24)
OVERLAP_POLICIES: tuple[OverlapPolicy, ...] = ("compose", "exclude", "block")

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_KIND = re.compile(r"[a-z][a-z-]{0,39}")


@dataclass(frozen=True)
class Opening:
    """What a reservation first seals in its own transaction, by `Ledger.open_account` and `Ledger.bind`."""

    family: FamilyBudget
    key_ids: Sequence[str]
    name: str
    owner_columns: Sequence[str]


class ReservationOptions(TypedDict, total=False):
    """Options of `Ledger.reserve` and `Ledger.reserve_together`."""

    key_ids: Sequence[str]
    related: Collection[str]
    replaces: str | None
    period_keys: Collection[str]
    opening: Opening | None
    lifetime: dt.timedelta


class Ledger:
    """All accounts of a deployment in one database.

    Args:
        url: SQLAlchemy URL (`sqlite:////path` or `postgresql+psycopg://...`). A SQLite file and its directory are made
            readable for this user alone; the schema is brought up to date.

    Raises:
        LedgerError: the database cannot be used. Every method raises it when the database is locked, read-only, damaged
            or unreachable, for an unknown account or entry, and where a required name or reason is missing.
        ConfigurationError: the SQLite file's directory is open to others and not this user's to close.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    def _read(
        self,
        work: Callable[Concatenate[Connection, _Arguments], _Result],
        *args: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Result:
        return self._database.read(lambda connection: work(connection, *args, **options))

    def _write(
        self,
        work: Callable[Concatenate[Connection, _Arguments], _Result],
        *args: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Result:
        return self._database.write(lambda connection: work(connection, *args, **options))

    # Accounts

    def open_account(self, family: FamilyBudget, key_ids: Sequence[str]) -> Account:
        """The family's account, which the first call opens and seals.

        Args:
            family: the budget as its file declares it now.
            key_ids: `vault.key_id` of the keys of owners' fingerprints, in the order of `Account`.

        Raises:
            LedgerError: the file differs from the sealed account, or the keys from those of its namespace.
        """
        return self._write(_open, family, key_ids)

    def check_declared(self, family: FamilyBudget) -> Account | None:
        """The family's account, or None if it was never opened. Raises `LedgerError` if the file differs from it."""
        return self._read(verdicts.declared_account, family)

    def bind(self, name: str, family: str, owner_columns: Sequence[str]) -> None:
        """Binds a dataset or a source table to its family and owner columns for ever.

        Otherwise a dataset's own file could charge the same people to a new account, or count them as new people.
        Raises `LedgerError` for another family or other columns than at the first call.
        """
        self.bind_all(family, {name: owner_columns})

    def bind_all(
        self, family: str, bound: Mapping[str, Sequence[str]], shown: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """As `bind`, all or none.

        Args:
            bound: owner columns by names.
            shown: ids at the ends of names in words, for refusals.
        """
        self._write(_bind, family, bound, shown)

    def account(self, family: str) -> Account:
        return self._read(rows.get_account, family)

    def accounts(self) -> list[Account]:
        """All accounts, by name."""
        return self._read(rows.accounts)

    def ask_raise(self, family: str, *, epsilon: float, delta: float, by: str, reason: str = "") -> ChainEvent:
        """Records a request for a larger cap; another person approves it by the event's `sequence`."""
        return self._write(caps.ask, family, epsilon, delta, by, reason)

    def approve_raise(self, family: str, asked: int, *, by: str, reason: str = "") -> Account:
        """Raises a family's cap as event `asked` requests; from then on the family's file must declare the new cap.

        Raises:
            LedgerError: no such event, the cap has changed since, or `by` requested it.
        """
        return self._write(caps.approve, family, asked, by, reason)

    def check_rotation(self, namespace: str) -> list[Account]:
        """The accounts of a namespace. Raises `LedgerError` if its keys cannot be rotated now (`rotate_key`)."""
        return self._read(rekeying.rotatable, namespace)

    def rotate_key(
        self, namespace: str, new_key_id: str, rekey: rekeying.Rekey, *, by: str, reason: str
    ) -> tuple[ChainEvent, ...]:
        """Moves all accounts of a namespace to one more fingerprint key, in one serial transaction.

        Every owner keeps what it was charged. Nothing else can be decided meanwhile: three minutes for ten million
        owners with two dozen entries.

        Args:
            namespace: the identity namespace.
            new_key_id: `vault.key_id` of the new key, which must already be stored in the vault.
            rekey: old fingerprints to new ones, in the same order (`scrub.fingerprints.rotated`).
            by: the responsible person.
            reason: free text.

        Returns:
            The `rekeyed` event of each account, by family.

        Raises:
            LedgerError: an entry is reserved (its owners have the old fingerprints), the key is in use already, or
                stored participants do not match their commitment.
        """
        return self._write(rekeying.rotate, namespace, new_key_id, rekey, by, reason)

    def erase_replaced(self) -> str | None:
        """Erases replaced rows, such as fingerprints of earlier keys (`Database.erase_replaced`)."""
        return self._database.erase_replaced()

    # Decisions

    def admit(
        self,
        family: str,
        request: CostRequest,
        *,
        keys: Sequence[str] = (),
        replaces: str | None = None,
        times: int = 1,
        dry_run: bool = False,
    ) -> Admission:
        """Whether a request fits, on public facts alone and before any record is read. Reserves nothing.

        In `family` mode everything that is charged and this request must fit under the cap together; in `per-owner`
        mode this request alone.

        Args:
            family: the account.
            request: the cost of one mechanism.
            keys: one for each mechanism, the run's own last. A key whose latest entry is charged costs nothing more.
            replaces: the failed entry after which another attempt is requested; its mechanism is then charged again.
            times: how many such mechanisms a run starts, where no keys are given.
            dry_run: a refusal leaves no record.

        Raises:
            BudgetExceeded: it does not fit; the message says what is left. A `blocked` event is recorded.
            LedgerError, AccountingError: see `verdicts.check_request`.
        """

        def work(connection: Connection) -> Admission | BudgetExceeded:
            account = rows.get_account(connection, family)
            verdicts.check_request(account, request)
            latest = [_attempt_of(connection, key) for key in keys]
            paid = [
                entry
                for entry in latest
                if entry is not None and rows.is_charged(connection, entry) and entry.entry_id != replaces
            ]
            due = len(keys) - len(paid) if keys else times
            taken = verdicts.counted(connection, account)
            left = verdicts.left_for(account.filter, taken, request, len(keys) or times)
            refusal = verdicts.refusal_of(connection, account, request, due) if due else None
            if refusal is None:
                return Admission(family, account.mode, left, latest[-1] if latest else None, due)
            return (
                BudgetExceeded(refusal.message)
                if dry_run
                else verdicts.block(connection, account, request, refusal, keys[-1] if keys else None)
            )

        return _or_raise(self._database.read(work) if dry_run else self._database.write(work))

    def left(self, family: str, delta: float) -> float:
        """The largest epsilon at `delta` of a Gaussian-like (zCDP) mechanism that would still be admitted.

        In `per-owner` mode that is what an owner who was never charged has left: what others have is not public.
        """
        return self._database.read(
            lambda connection: verdicts.epsilon_left(connection, rows.get_account(connection, family), delta)
        )

    def left_for(self, family: str, request: CostRequest, times: int = 1) -> float:
        """What is left for each of `times` releases like the requested one (`verdicts.left_for`); reserves nothing."""
        return self.left_for_each([(family, request, times)])[0]

    def left_for_each(self, asked: Sequence[tuple[str, CostRequest, int]]) -> list[float]:
        """`left_for` of several families, requests and numbers of them."""

        def read(connection: Connection) -> list[float]:
            known: dict[str, tuple[Account, Cost]] = {}
            for family, _, _ in asked:
                if family not in known:
                    account = rows.get_account(connection, family)
                    known[family] = account, verdicts.counted(connection, account)
            return [
                verdicts.left_for(known[family][0].filter, known[family][1], request, times)
                for family, request, times in asked
            ]

        return self._database.read(read)

    def used_of_all(self) -> dict[str, float]:
        """The share of every family's cap that is used (`RenyiFilter.used`); 0 in `per-owner` mode, as in `left`."""
        return self._database.read(
            lambda connection: {
                account.family: account.filter.used(verdicts.counted(connection, account))
                for account in rows.accounts(connection)
            }
        )

    def remaining(self, family: str, request: CostRequest, *, most: int) -> int:
        """How many more requests like this one would be admitted, counted up to `most`. Reserves nothing.

        In `per-owner` mode that is for an owner who was never charged.
        """
        return self._read(verdicts.remaining, family, request, most)

    def reserve(
        self,
        family: str,
        key: str,
        request: CostRequest,
        participants: Participants | None,
        policy: OverlapPolicy,
        **options: Unpack[ReservationOptions],
    ) -> Entry:
        """Reserves a request's cost in one serial transaction; the same call again gives the same entry.

        In `family` mode everybody is charged. In `per-owner` mode the participants are, except those whose history and
        this request would exceed the cap, who are left out silently. `exclude` leaves out who was charged before by any
        kin (`kinship`: this family's entries, those of other families of its namespace, and related ones); `block`
        refuses if anybody was. `participants(entry_id)` returns who is in.

        Kin are found in the same transaction, so that of two reservations at once, in whatever families, the later one
        sees the earlier. Each account has its own cap: kin decide who is in, and not what it costs.

        Args:
            family: the account.
            key: names the run (contract, source version, period, plan).
            request: the mechanism's cost.
            participants: sorted, distinct fingerprints, dtype S16; needed in `per-owner` mode and for `exclude` and
                `block`.
            policy: the contract's `on_overlap`.
            options: those of `reserve_together`.

        Raises:
            SpendRepeated: the key's mechanism started before and did not complete, or the period was paid for by
                another run (`reservations.check_period`), and `replaces` does not name it.
            BudgetExceeded: the request does not fit under the cap, `block` met an overlap, or `exclude` or `block` have
                kin whose people cannot be compared (a public fact). Recorded as blocked.
            LedgerError: the key is reserved for another plan, or a value contradicts the account.
            AccountingError: see `verdicts.check_request`.
        """
        (entry,) = self.reserve_together(family, (key,), request, participants, policy, **options)
        return entry

    def reserve_together(
        self,
        family: str,
        keys: Sequence[str],
        request: CostRequest,
        participants: Participants | None,
        policy: OverlapPolicy,
        *,
        key_ids: Sequence[str] = (),
        related: Collection[str] = (),
        replaces: str | None = None,
        period_keys: Collection[str] = (),
        opening: Opening | None = None,
        lifetime: dt.timedelta = RESERVATION_LIFETIME,
    ) -> list[Entry]:
        """Reserves the same cost once for each key, all or none, in one serial transaction; see `reserve`.

        Entries that are made together charge the same people: in `per-owner` mode those who can afford all of them. An
        entry of a later key is never older than the standing one of an earlier key, so that what is known before the
        last one holds for all of them. Where an earlier one is made again, reserved later ones are void and made again.

        Args:
            keys: one for each mechanism, the run's own last; a refusal is recorded under that one.
            key_ids: ids of the keys of the participants' fingerprints; needed with participants. Under other keys than
                the account's now, charged people would count as new.
            related: ids of entries in other namespaces that lineage relates to the dataset, such as what its base model
                was trained on. Those of the namespace are found here, named or not.
            replaces: id of the failed entry of one of the keys: the explicit order to spend again. With `period_keys`,
                it may be the id of another run's entry of the same period.
            period_keys: keys of all mechanisms of the run, where its period is paid for once: then what another run has
                reserved, started or spent for that period is in the way.
            opening: what is sealed first, in the same transaction.
            lifetime: an entry that is not started until then is void.

        Returns:
            An entry for each key, in their order.

        Raises:
            LedgerError: `replaces` is of none of the keys; or as `reserve`.
        """
        if policy not in OVERLAP_POLICIES:
            raise LedgerError(f"overlap policy {policy!r}; accepted: {', '.join(OVERLAP_POLICIES)}")
        if participants is not None:
            check_participants(participants)

        def work(connection: Connection) -> list[Entry] | BudgetExceeded:
            if opening is not None:
                _open(connection, opening.family, opening.key_ids)
                _bind(connection, opening.family.family, {opening.name: opening.owner_columns}, {})
            account = rows.get_account(connection, family)
            verdicts.check_request(account, request)
            if participants is not None:
                verdicts.check_keys(account, key_ids)
            reservations.void_expired(connection)
            given_up = replaces
            if period_keys:
                paid = rows.charged_for_days(connection, family, request)
                reservations.check_period(paid, period_keys, request, replaces)
                if any(entry.entry_id == replaces and entry.key not in period_keys for entry in paid):
                    given_up = None  # the order names another run of the period
            tried = {key: rows.attempts(connection, key) for key in keys}
            replaced = reservations.replaced_by_key(tried, given_up)
            found = {key: reservations.already_reserved(tried[key], family, request, replaced[key]) for key in keys}
            standing = reservations.standing_in_order(connection, found)
            wanted = [key for key in keys if key not in standing]
            if not wanted:
                return [standing[key] for key in keys]
            refusal = verdicts.refusal_of(connection, account, request, len(wanted))
            if refusal is not None:
                return verdicts.block(connection, account, request, refusal, keys[-1])
            incomparable = kinship.incomparable_entries(connection, account, related)
            if policy != "compose" and incomparable:
                return verdicts.block(
                    connection, account, request, verdicts.incomparable(request, policy, incomparable), keys[-1]
                )
            charged, overlap = reservations.charge(connection, account, request, participants, policy, len(wanted))
            if overlap:
                return verdicts.block(connection, account, request, verdicts.overlap(request), keys[-1])
            made = {
                key: reservations.insert_entry(
                    connection,
                    account,
                    entry_id=entry_id,
                    key=key,
                    attempt=len(tried[key]) + 1,
                    request=request,
                    charged=charged,
                    policy=policy,
                    related=related,
                    replaces=replaced[key],
                    deadline=rows.time_text(rows.moment(connection) + lifetime),
                )
                for key, entry_id in zip(wanted, reservations.new_ids(len(wanted)), strict=True)
            }
            return [(standing | made)[key] for key in keys]

        return _or_raise(self._database.write(work))

    # Transitions

    def start(self, entry_id: str) -> Entry:
        """reserved -> started, exactly once and durable on return. From here on the cost is never refunded.

        Raises:
            SpendRepeated: it was started before.
            LedgerError: it is void, or its deadline has passed (then it is void on return).
        """

        def work(connection: Connection) -> Entry | LedgerError:
            entry = rows.get_entry(connection, entry_id)
            if entry.state in (chain.STARTED, chain.SPENT):
                raise SpendRepeated(
                    f"{entry.request.place}: ledger entry {entry_id} was started at {entry.started_at}; a mechanism "
                    "starts once an entry"
                )
            if entry.state == chain.RESERVED and rows.has_expired(connection, entry):
                entry = reservations.transition(connection, entry, chain.VOID, {"reason": reservations.EXPIRED})
            if entry.state == chain.VOID and entry.void_reason == reservations.EXPIRED:
                return LedgerError(
                    f"{entry.request.place}: the reservation {entry_id} has expired; materialize clearance again"
                )
            return reservations.transition(connection, entry, chain.STARTED, {})

        return _or_raise(self._database.write(work))

    def complete(self, entry_id: str, model_digest: str) -> Entry:
        """started -> spent, naming the model; the same call again changes nothing.

        Raises:
            LedgerError: the entry was not started, or it or another attempt at its run was completed with another
                model.
        """

        def work(connection: Connection) -> Entry:
            entry = rows.get_entry(connection, entry_id)
            if entry.state == chain.SPENT:
                if entry.model_digest != model_digest:
                    raise LedgerError(f"ledger entry {entry_id} was completed with another model")
                return entry
            done = rows.deciding_attempt(rows.attempts(connection, entry.key))
            if done is not None and done.state == chain.SPENT:
                raise LedgerError(
                    f"{entry.request.place}: ledger entry {done.entry_id} completed this run; it has one model"
                )
            return reservations.transition(connection, entry, chain.SPENT, {"model_digest": model_digest})

        return self._database.write(work)

    def void(self, entry_id: str, reason: str = "withdrawn", *, by: str = "") -> Entry:
        """reserved -> void, withdrawn by `by`; repeatable. Raises `LedgerError` if the entry was started."""

        def work(connection: Connection) -> Entry:
            entry = rows.get_entry(connection, entry_id)
            if entry.state == chain.VOID:
                return entry
            return reservations.transition(connection, entry, chain.VOID, {"reason": reason, "by": by})

        return self._database.write(work)

    def void_expired(self) -> list[Entry]:
        """Voids and returns the reservations whose deadline has passed; where there is none, nothing is locked."""
        return self._write(reservations.void_expired) if self._read(rows.expired) else []

    # Reading

    def entry(self, entry_id: str) -> Entry:
        return self._read(rows.get_entry, entry_id)

    def entry_for_key(self, key: str) -> Entry | None:
        """The deciding attempt at a run: completed, else the latest not void, else the latest; or None."""
        return self._read(_attempt_of, key)

    def attempts(self, key: str) -> list[Entry]:
        """All attempts at a run, first to last."""
        return self._read(rows.attempts, key)

    def entries(self, family: str | None = None) -> list[Entry]:
        """All entries, of one family or of all, in the order of their reservation."""
        return self._read(rows.entries, family)

    def check_period(self, family: str, keys: Collection[str], request: CostRequest, replaces: str | None) -> None:
        """Raises `SpendRepeated` where `reserve` would, with these as `period_keys`. Reserves nothing."""
        paid = self._read(rows.charged_for_days, family, request)
        reservations.check_period(paid, keys, request, replaces)

    def charged_for(self, family: str, place: str) -> list[Entry]:
        """Charged entries that pay for a release of a `CostRequest.place`, in the order of their reservation."""
        return self._read(rows.charged_for, family, place)

    def participants(self, entry_id: str) -> Participants:
        """Who is charged by an entry: sorted fingerprints, dtype S16. Restricted. `LedgerError` if it names nobody."""

        def work(connection: Connection) -> Participants:
            rows.get_entry(connection, entry_id)
            found = rows.participants_of(connection, entry_id)
            if found is None:
                raise LedgerError(f"ledger entry {entry_id} names no participants")
            return found

        return self._database.read(work)

    def kin(
        self, family: kinship.Terms, *, related: Collection[str] = (), before: str | None = None
    ) -> list[kinship.KinEntry]:
        """Live entries that may be about the same people as a new one of a family (`kinship`). Public.

        Args:
            family: its account, or its budget where it has none yet.
            related: ids of entries that lineage relates to the dataset.
            before: only what was reserved before this entry.
        """
        return self._read(kinship.kin_entries, family, related, before)

    def overlaps(self, participants: Participants, entry_ids: Collection[str]) -> dict[str, int | None]:
        """How many of the participants each comparable entry (`kin`) names; None if it names nobody. Restricted."""
        check_participants(participants)
        return self._database.read(
            lambda connection: {name: kinship.overlap(connection, participants, name) for name in entry_ids}
        )

    def history(
        self, *, after: int = 0, kinds: Iterable[str] | None = None, subject: str | None = None
    ) -> list[ChainEvent]:
        """The chain's events in order: all, or of some kinds, or about one subject."""
        chosen = None if kinds is None else list(kinds)
        return self._read(chain.events, after=after, kinds=chosen, subject=subject)

    def head(self) -> Head:
        """The chain's last link, for signing."""
        return self._read(chain.head)

    def changes_since(self, known: Head) -> LedgerChanges | None:
        """Everything public in one snapshot, of the chain only what follows the link `known`; None if nothing does."""

        def work(connection: Connection) -> LedgerChanges | None:
            last = chain.head(connection)
            if last == known:
                return None
            after = known.sequence if chain.contains(connection, known) else 0
            events = chain.events(connection, after=after)
            entries = rows.entries_named(connection, events) if after else rows.entries(connection, None)
            return LedgerChanges(last, after, tuple(events), tuple(rows.accounts(connection)), tuple(entries))

        return self._database.read(work)

    # Records of what happens around entries

    def approve(
        self,
        candidate: str,
        *,
        by: str,
        entry_id: str,
        reason: str = "",
        runners: Collection[str] = (),
        after_withdrawal: bool = False,
        decided: int | None = None,
    ) -> Decision:
        """Records a reviewer's approval of a release candidate.

        Args:
            candidate: digest of exactly what would be published.
            by: the reviewer.
            entry_id: the entry that paid for the candidate's model.
            reason: free text.
            runners: others who ran part of the line, beside the one whom the entry names.
            after_withdrawal: it may be published although a release of it was withdrawn.
            decided: number of the event of the last decision that the reviewer knew of, 0 for none; where it is given,
                a later decision refuses the approval.

        Raises:
            ReleaseRefused: the approver ran it or withdrew a release of it; `after_withdrawal` is missing, or given
                where no release was withdrawn; or there is a later decision.
        """
        return self._write(decisions.approve, candidate, by, entry_id, reason, runners, after_withdrawal, decided)

    def refuse(self, candidate: str, *, by: str, entry_id: str, reason: str) -> Decision:
        """Records a refusal, which any person may give; it counts against every candidate that the entry paid for."""
        return self._write(decisions.refuse, candidate, by, entry_id, reason)

    def release(
        self, release_id: str, *, candidate: str, entry_id: str, check: Callable[[Sequence[Decision]], object]
    ) -> ChainEvent:
        """Records that a candidate is published, in one transaction with the check of the decisions on it.

        Call it when everything is ready, just before publication: so whatever is public is recorded, and no earlier
        refusal or withdrawal is missed. The same call again records nothing new.

        Args:
            release_id: names the release.
            candidate: digest of exactly what is published.
            entry_id: the entry that paid for its model.
            check: raises unless what `approvals` would return now allows it; may be called more than once.

        Raises:
            ReleaseRefused: the release was withdrawn; or whatever `check` raises.
            LedgerError: the entry is not spent, or the release is recorded for something else.
        """
        return self._write(decisions.release, release_id, candidate, entry_id, check)

    def withdraw(self, release_id: str, *, by: str, reason: str) -> Decision:
        """Records that a published release is withdrawn, which any person may do; only the first call counts.

        The cost stays spent. Its content can be published again only after an approval with `after_withdrawal`.
        """
        return self._write(decisions.withdraw, release_id, by, reason)

    def approvals(self, candidate: str, entry_id: str) -> list[Decision]:
        """All approvals of a candidate, and refusals and withdrawals of whatever its entry paid for, in order."""
        return self._read(decisions.of_candidate, candidate, entry_id)

    def withdrawals(self) -> list[Decision]:
        """All withdrawals of releases, in order."""
        return self._read(decisions.withdrawals)

    def record(self, kind: str, subject: str, payload: dict[str, Any]) -> ChainEvent:
        """Records an event of a kind that is not in `chain.OWN_KINDS`, such as `purged`. Public facts only."""
        if kind in chain.OWN_KINDS or not _KIND.fullmatch(kind):
            raise LedgerError(
                f"event kind {kind!r}; accepted: a lower-case word other than {', '.join(chain.OWN_KINDS)}"
            )
        return self._database.write(
            lambda connection: chain.append(connection, rows.now_text(connection), kind, subject, payload)
        )

    # Verification

    def verify(self, known_heads: Iterable[Head] = ()) -> VerificationReport:
        """Recomputes the chain, and everything that must follow from it.

        Accounts and entries must be what the chain records; participants must match their commitments; curves must be
        their events'; no account and no single owner may be beyond the cap; nobody may take part whom `exclude` or
        `block` keeps out. `known_heads`, from dossiers, must be in the chain: if it was cut short or rewritten, they
        are not.
        """
        from dpsynth_platform.ledger.verification import verify

        return self._read(verify, tuple(known_heads))

    def owner_spending(self, family: str) -> OwnerSpending:
        """What an account's owners have left, counted and not named. Restricted. `LedgerError` in `family` mode."""

        def work(connection: Connection) -> OwnerSpending:
            account = rows.get_account(connection, family)
            if account.mode != "per-owner":
                raise LedgerError(
                    f"family {family} charges every entry to everybody (mode: family): what is left is what "
                    "`dpsynth ledger show` says, for each owner alike"
                )
            standing = rows.find_standing(connection, family, account.filter.nothing)
            return owner_spending(family, account.filter, standing)

        return self._database.read(work)

    def export(self) -> dict[str, Any]:
        """Everything but the participants as one JSON value for an auditor; `export.verify_export` checks it."""
        from dpsynth_platform.ledger.export import export_document

        return self._read(export_document)


def _open(connection: Connection, family: FamilyBudget, key_ids: Sequence[str]) -> Account:
    terms = verdicts.terms_of(family, key_ids)
    account = rows.find_account(connection, family.family)
    if account is not None:
        verdicts.check_keys(account, terms["key_ids"])
        verdicts.check_declared(connection, account, terms)
        return account
    for kin in rows.accounts_in(connection, family.namespace):
        verdicts.check_keys(kin, terms["key_ids"])
    opened = chain.append(connection, rows.now_text(connection), chain.OPENED, family.family, terms)
    connection.execute(
        insert(schema.account).values(
            family=family.family,
            terms=chain.canonical(terms),
            opened_at=opened.at,
            settled=rows.cost_text(RenyiFilter.from_json(terms["filter"], **terms["cap"]).nothing),
        )
    )
    return rows.get_account(connection, family.family)


def _bind(connection: Connection, family: str, bound: Mapping[str, Sequence[str]], shown: Mapping[str, str]) -> None:
    new = []
    for name, owner_columns in bound.items():
        terms = {"family": family, "owner_columns": list(owner_columns)}
        first = next(iter(chain.events(connection, after=0, kinds=[chain.BOUND], subject=name)), None)
        if first is None:
            new.append((name, terms))
        elif first.payload != terms:
            ending = name.rpartition(" ")[2]
            words = f"{name} ({shown[ending]})" if ending in shown else name
            raise LedgerError(
                f"{words} belongs to family {first.payload['family']!r} with owner columns "
                f"{first.payload['owner_columns']} for life; declared now: {family!r} with {list(owner_columns)}. "
                "Restore the contract"
            )
    for name, terms in new:
        chain.append(connection, rows.now_text(connection), chain.BOUND, name, terms)


def _attempt_of(connection: Connection, key: str) -> Entry | None:
    tried = rows.attempts(connection, key)
    return rows.deciding_attempt(tried) or (tried[-1] if tried else None)


def _or_raise(outcome: _Result | DpsynthError) -> _Result:
    """Raises an error after its transaction is committed, so that the record of it stays."""
    if isinstance(outcome, DpsynthError):
        raise outcome
    return outcome
