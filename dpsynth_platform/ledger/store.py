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
in `per-owner` mode an owner who cannot afford an entry is left out of its participants without a word.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, insert

from dpsynth_platform.foundation.errors import (
    BudgetExceeded,
    DpsynthError,
    LedgerError,
    SpendRepeated,
)
from dpsynth_platform.ledger import caps, chain, decisions, kinship, rekeying, reservations, rows, schema, verdicts
from dpsynth_platform.ledger.database import Database
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.owners import (
    Participants,
    check_participants,
)
from dpsynth_platform.ledger.records import (
    Account,
    Admission,
    ChainEvent,
    CostRequest,
    Decision,
    Entry,
    Head,
    News,
    OverlapPolicy,
    VerificationReport,
)
from dpsynth_platform.ledger.spending import OwnerSpending, owner_spending

if TYPE_CHECKING:
    from dpsynth_platform.contracts.family import FamilyBudget

RESERVATION_LIFETIME = dt.timedelta(hours=24)
OVERLAP_POLICIES: tuple[OverlapPolicy, ...] = ("compose", "exclude", "block")

_Result = TypeVar("_Result")
_KIND = re.compile(r"[a-z][a-z-]{0,39}")


@dataclass(frozen=True)
class Opening:
    """What a reservation seals in its own transaction, if nothing is sealed yet.

    Attributes:
        family: the budget of the account (`Ledger.open_account`).
        key_ids: ids of its keys.
        name: what is tied to the family (`Ledger.bind`).
        owner_columns: with which owner columns.
    """

    family: FamilyBudget
    key_ids: Sequence[str]
    name: str
    owner_columns: Sequence[str]


class Ledger:
    """All accounts of a deployment in one database.

    Args:
        url: SQLAlchemy URL (`sqlite:////path` or `postgresql+psycopg://...`). A SQLite file and its directory are made
            readable for this user alone; the schema is brought up to date.

    Raises:
        LedgerError: the database cannot be used. Every method raises it too when the database is locked, read-only,
            damaged or out of reach.
        ConfigurationError: the SQLite file's directory is open to others and not this user's to close.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    # Accounts

    def open_account(self, family: FamilyBudget, key_ids: Sequence[str]) -> Account:
        """The family's account; opened and sealed at the first call, the same for ever after.

        Args:
            family: the budget as its file declares it now.
            key_ids: `vault.key_id` of the keys that owners' fingerprints are made with, in the order of `Account`.

        Raises:
            LedgerError: the file differs from the sealed account; or the keys are not the account's, or not those of
                the other accounts of its namespace (it is frozen).
        """
        return self._database.write(lambda connection: _open(connection, family, key_ids))

    def check_declared(self, family: FamilyBudget) -> Account | None:
        """The family's account, or None if it was never opened.

        Raises:
            LedgerError: the file differs from the sealed account.
        """

        def work(connection: Connection) -> Account | None:
            account = rows.find_account(connection, family.family)
            if account is not None:
                verdicts.check_declared(connection, account, verdicts.terms_of(family, account.key_ids))
            return account

        return self._database.read(work)

    def bind(self, name: str, family: str, owner_columns: Sequence[str]) -> None:
        """Ties a dataset or a source table to its family and its owner columns, at the first call and for ever.

        Otherwise a dataset's own file could charge the same people to a fresh account, or count them as strangers.

        Raises:
            LedgerError: the name is tied to another family or to other owner columns.
        """
        self._database.write(lambda connection: _bind(connection, name, family, owner_columns))

    def account(self, family: str) -> Account:
        """An account. Raises `LedgerError` if it was never opened."""
        return self._database.read(lambda connection: rows.get_account(connection, family))

    def accounts(self) -> list[Account]:
        """All accounts, by name."""
        return self._database.read(rows.accounts)

    def ask_raise(self, family: str, *, epsilon: float, delta: float, by: str, reason: str = "") -> ChainEvent:
        """Records that somebody asks for a larger cap; the event's `sequence` is what another approves.

        Raises:
            LedgerError: there is no such account, it is no larger cap, or nobody is named.
        """
        return self._database.write(
            lambda connection: caps.ask(connection, rows.get_account(connection, family), epsilon, delta, by, reason)
        )

    def approve_raise(self, family: str, asked: int, *, by: str, reason: str = "") -> Account:
        """Raises a family's cap as event `asked` asks; from then on the family's file must declare the new cap.

        Raises:
            LedgerError: no such event, the cap has changed since, or the approver is the one who asked.
        """
        return self._database.write(
            lambda connection: caps.approve(connection, rows.get_account(connection, family), asked, by, reason)
        )

    def check_rotation(self, namespace: str) -> list[Account]:
        """The accounts of a namespace, if its keys could be rotated now. Changes nothing.

        Raises:
            LedgerError: there is no such account, or an entry is reserved.
        """
        return self._database.read(lambda connection: rekeying.rotatable(connection, namespace))

    def rotate_key(
        self,
        namespace: str,
        new_key_id: str,
        rekey: Callable[[Participants], Participants],
        *,
        by: str,
        reason: str,
    ) -> tuple[ChainEvent, ...]:
        """Carries all accounts of a namespace over to one more fingerprint key, in one serial transaction.

        Every owner keeps what it was charged. Nothing else can be decided meanwhile: three minutes for ten million
        owners with two dozen entries.

        Args:
            namespace: the identity namespace.
            new_key_id: `vault.key_id` of the new key, which must be safe in the vault already.
            rekey: old fingerprints to new ones, one by one and in the same order (`scrub.fingerprints.rotated`).
            by: who asks for it.
            reason: free words.

        Returns:
            The `rekeyed` event of each account, by family.

        Raises:
            LedgerError: there is no such account, an entry is reserved (it would meet owners under other names), the
                key is in use already, nobody or no reason is named, or what is stored was tampered with.
        """
        return self._database.write(
            lambda connection: rekeying.rotate(connection, namespace, new_key_id, rekey, by, reason)
        )

    def erase_replaced(self) -> str | None:
        """Erases rows that were replaced, such as fingerprints of earlier keys, as far as a client of the database can.

        Returns:
            What may still hold them, in words, or None where nothing of the ledger does.
        """
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
            request: what the mechanism would cost.
            keys: one a mechanism, the run's own last. What the latest entry of one is charged for costs nothing new.
            replaces: the failed entry after which another attempt is asked for; then its mechanism counts anew.
            times: how many such mechanisms a run starts, where no keys are given.
            dry_run: only asks; a refusal leaves no record.

        Raises:
            BudgetExceeded: it does not fit; the message says what is left. A `blocked` event is recorded.
            LedgerError: unit or adjacency differ from the account's, or there is no such account.
            AccountingError: the request is impossible (`verdicts.check_request`).
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
            left = verdicts.epsilon_left(connection, account, request.guarantee.delta)
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

    def left_of_all(self) -> dict[str, float]:
        """`left` of every family, at its own cap's delta."""
        return self._database.read(
            lambda connection: {
                account.family: verdicts.epsilon_left(connection, account, account.delta)
                for account in rows.accounts(connection)
            }
        )

    def remaining(self, family: str, request: CostRequest, *, most: int) -> int:
        """How many more requests like one would be admitted, one after another, at most so many. Reserves nothing.

        In `per-owner` mode that is for an owner who was never charged.

        Raises:
            LedgerError: there is no such account.
        """
        return self._database.read(
            lambda connection: verdicts.remaining(connection, rows.get_account(connection, family), request, most)
        )

    def reserve(
        self,
        family: str,
        key: str,
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
    ) -> Entry:
        """Reserves a request's cost in one serial transaction; the same call again gives the same entry.

        In `family` mode everybody is charged. In `per-owner` mode the participants are, less those whose own history
        and this request would exceed the cap, who are left out silently. `exclude` leaves out who was charged before by
        any kin (`kinship`: this family's entries, those of other families of its namespace, and related ones); `block`
        refuses if anybody was. `participants(entry_id)` tells who is in.

        Kin are looked up in the same transaction, so that of two reservations at once, in whatever families, the later
        one sees the earlier. Each account's cap is its own: kin decide who is in, and not what it costs.

        Args:
            family: the account.
            key: names the run (contract, source version, period, plan).
            request: what the mechanism costs.
            participants: fingerprints of the owners concerned (sorted, distinct, dtype S16); needed in `per-owner`
                mode and for `exclude` and `block`.
            key_ids: ids of the keys that their fingerprints were made with; needed with participants. Under other keys
                than the account's now, people who have spent would count as strangers.
            policy: the contract's `on_overlap`.
            related: ids of entries in other namespaces that lineage relates to the dataset, such as what its base model
                was trained on; those of the namespace are found here, named or not.
            replaces: id of this key's failed entry, as the explicit word that its cost is lost and another is spent;
                with `period_keys`, it may be the id of another run's entry of the same period.
            period_keys: keys of all mechanisms of the run, where its period is paid for once: then what another run has
                reserved, started or spent for that is in the way.
            opening: what is sealed before, together with the reservation or not at all, where the account is not open.
            lifetime: an entry that is not started until then is void.

        Raises:
            SpendRepeated: the key's mechanism started before and did not complete, or the period was paid for by
                another run (`reservations.check_period`), and `replaces` does not name it.
            BudgetExceeded: the request does not fit under the cap, `block` met an overlap, or `exclude` or `block` have
                kin whose people cannot be compared (a public fact). Recorded as blocked.
            LedgerError: the key is reserved for another plan, what is asked contradicts the account, a related entry is
                not in the ledger, or the participants' fingerprints were made with other keys than it is kept with.
            AccountingError: the request is impossible (`verdicts.check_request`).
        """
        (entry,) = self.reserve_together(
            family,
            (key,),
            request,
            participants,
            policy,
            key_ids=key_ids,
            related=related,
            replaces=replaces,
            period_keys=period_keys,
            opening=opening,
            lifetime=lifetime,
        )
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
        last one holds all of them: where an earlier one is made anew, the later ones that only wait are void and made
        anew, too.

        Args:
            keys: one a mechanism, the run's own last; a refusal is recorded under that one.
            replaces: id of the failed entry of one of the keys.

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
                _bind(connection, opening.name, opening.family.family, opening.owner_columns)
            account = rows.get_account(connection, family)
            verdicts.check_request(account, request)
            if participants is not None:
                verdicts.check_keys(account, key_ids)
            reservations.void_expired(connection)
            given_up = replaces
            if period_keys:
                paid = rows.charged_for(connection, family, request.place)
                reservations.check_period(paid, period_keys, request, replaces)
                if any(entry.entry_id == replaces and entry.key not in period_keys for entry in paid):
                    given_up = None  # the word was for another run of the period; of this one, nothing is given up
            tried = {key: rows.attempts(connection, key) for key in keys}
            words = reservations.words_for(tried, given_up)
            found = {key: reservations.already_reserved(tried[key], family, request, words[key]) for key in keys}
            standing = reservations.standing_in_order(connection, found)
            wanted = [key for key in keys if key not in standing]
            if not wanted:
                return [standing[key] for key in keys]
            refusal = verdicts.refusal_of(connection, account, request, len(wanted))
            if refusal is not None:
                return verdicts.block(connection, account, request, refusal, keys[-1])
            strangers = kinship.strangers(connection, account, related)
            if policy != "compose" and strangers:
                return verdicts.block(
                    connection, account, request, verdicts.incomparable(request, policy, strangers), keys[-1]
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
                    replaces=words[key],
                    deadline=rows.time_text(rows.moment(connection) + lifetime),
                )
                for key, entry_id in zip(wanted, reservations.new_ids(len(wanted)), strict=True)
            }
            return [(standing | made)[key] for key in keys]

        return _or_raise(self._database.write(work))

    # Transitions

    def start(self, entry_id: str) -> Entry:
        """reserved -> started, exactly once and durable on return. From here on the cost is never given back.

        Raises:
            SpendRepeated: it was started before.
            LedgerError: it is void, or its deadline has passed (it is void now).
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
        """reserved -> void; the same call again changes nothing. `by` is the person who withdraws it.

        Raises:
            LedgerError: the entry was started: its cost stays.
        """

        def work(connection: Connection) -> Entry:
            entry = rows.get_entry(connection, entry_id)
            if entry.state == chain.VOID:
                return entry
            return reservations.transition(connection, entry, chain.VOID, {"reason": reason, "by": by})

        return self._database.write(work)

    def void_expired(self) -> list[Entry]:
        """Records of every reservation whose deadline has passed that it is void; returns them.

        They count for nothing since their deadline. Where there is none, nothing is locked or written.
        """

        return self._database.write(reservations.void_expired) if self._database.read(rows.expired) else []

    # Reading

    def entry(self, entry_id: str) -> Entry:
        """One entry. Raises `LedgerError` if there is none."""
        return self._database.read(lambda connection: rows.get_entry(connection, entry_id))

    def entry_for_key(self, key: str) -> Entry | None:
        """The attempt that speaks for a run: completed, else the latest not void, else the latest; or None."""
        return self._database.read(lambda connection: _attempt_of(connection, key))

    def attempts(self, key: str) -> list[Entry]:
        """All attempts at a run, first to last."""
        return self._database.read(lambda connection: rows.attempts(connection, key))

    def entries(self, family: str | None = None) -> list[Entry]:
        """All entries, of one family or of all, in the order in which they were reserved."""
        return self._database.read(lambda connection: rows.entries(connection, family))

    def check_period(self, family: str, keys: Collection[str], request: CostRequest, word: str | None) -> None:
        """Raises `SpendRepeated` where `reserve` would, with these as `period_keys`. Reserves nothing."""
        reservations.check_period(self.charged_for(family, request.place), keys, request, word)

    def charged_for(self, family: str, place: str) -> list[Entry]:
        """Charged entries that pay for a release of a dataset or period, in the order of their reservation.

        Args:
            family: the account.
            place: `census` or `visits/2026-01` (`CostRequest.place`).
        """
        return self._database.read(lambda connection: rows.charged_for(connection, family, place))

    def participants(self, entry_id: str) -> Participants:
        """Who is charged by an entry: sorted fingerprints, dtype S16. Restricted.

        Raises:
            LedgerError: there is no such entry, or it named nobody.
        """

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

        Raises:
            LedgerError: a related entry is not in the ledger.
        """
        return self._database.read(lambda connection: kinship.kin_entries(connection, family, related, before))

    def overlaps(self, participants: Participants, entry_ids: Collection[str]) -> dict[str, int | None]:
        """How many of the participants each entry names; None for one that names nobody. Restricted.

        Only for entries whose people can be compared with them (`kin`).
        """
        check_participants(participants)
        return self._database.read(
            lambda connection: {name: kinship.overlap(connection, participants, name) for name in entry_ids}
        )

    def history(
        self, *, after: int = 0, kinds: Iterable[str] | None = None, subject: str | None = None
    ) -> list[ChainEvent]:
        """The chain's events in order: all, or of some kinds, or about one subject."""
        chosen = None if kinds is None else list(kinds)
        return self._database.read(
            lambda connection: chain.events(connection, after=after, kinds=chosen, subject=subject)
        )

    def head(self) -> Head:
        """The chain's last link, for signing."""
        return self._database.read(chain.head)

    def news(self, known: Head) -> News | None:
        """Everything that is public, as of one moment; of the chain only what came after a link that is known already.

        Args:
            known: the last link that the caller has.

        Returns:
            None where the chain still ends with that link.
        """

        def work(connection: Connection) -> News | None:
            last = chain.head(connection)
            if last == known:
                return None
            after = known.sequence if chain.holds(connection, known) else 0
            events = chain.events(connection, after=after)
            entries = rows.entries_named(connection, events) if after else rows.entries(connection, None)
            return News(last, after, tuple(events), tuple(rows.accounts(connection)), tuple(entries))

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
            entry_id: the entry that the candidate's model was paid by.
            reason: free words of the reviewer.
            runners: others who ran part of the line, beside the one whom the entry names.
            after_withdrawal: the explicit word that it may be published although a release of it was withdrawn.
            decided: number of the event of the last decision that the reviewer knew of, 0 for none; where it is given,
                nobody may have decided since.

        Raises:
            ReleaseRefused: the approver is one of those who ran it or who withdrew a release of it; or a release of it
                was withdrawn and the word is missing, or none was and the word is given; or somebody has decided since.
            LedgerError: there is no such entry, or nobody is named.
        """
        return self._database.write(
            lambda connection: decisions.approve(
                connection, candidate, by, entry_id, reason, runners, after_withdrawal, decided
            )
        )

    def refuse(self, candidate: str, *, by: str, entry_id: str, reason: str) -> Decision:
        """Records a refusal, which anybody may give; it counts against every candidate that the entry paid for.

        Raises:
            LedgerError: there is no such entry, or a name or a reason is missing.
        """
        return self._database.write(lambda connection: decisions.refuse(connection, candidate, by, entry_id, reason))

    def release(
        self, release_id: str, *, candidate: str, entry_id: str, check: Callable[[Sequence[Decision]], object]
    ) -> ChainEvent:
        """Records that a candidate is published, in one transaction with the check of the decisions on it.

        Call it when everything is ready, just before it is shown: so whatever is public is recorded, and no refusal or
        withdrawal that was recorded before is passed over. The same call again records nothing new.

        Args:
            release_id: names the release.
            candidate: digest of exactly what is published.
            entry_id: the entry that its model was paid by.
            check: raises unless what `approvals` would return now allows it; may be called more than once.

        Raises:
            ReleaseRefused: the release was withdrawn; or whatever `check` raises.
            LedgerError: the entry is not spent, or the release is recorded for something else.
        """
        return self._database.write(
            lambda connection: decisions.release(connection, release_id, candidate, entry_id, check)
        )

    def withdraw(self, release_id: str, *, by: str, reason: str) -> Decision:
        """Records that a published release is withdrawn, which anybody may do; the first one stands.

        What was spent on it stays spent. Its content can be published again only after an approval that says so.

        Raises:
            LedgerError: its publication is not recorded, or a name or a reason is missing.
        """
        return self._database.write(lambda connection: decisions.withdraw(connection, release_id, by, reason))

    def approvals(self, candidate: str, entry_id: str) -> list[Decision]:
        """All approvals of a candidate, and refusals and withdrawals of whatever its entry paid for, in order."""
        return self._database.read(lambda connection: decisions.of_candidate(connection, candidate, entry_id))

    def withdrawals(self) -> list[Decision]:
        """All withdrawals of releases, in order."""
        return self._database.read(decisions.withdrawals)

    def record(self, kind: str, subject: str, payload: dict[str, Any]) -> ChainEvent:
        """Records something else that happened, such as `purged`. Public facts only.

        Raises:
            LedgerError: the kind is the ledger's own or not a word, or the payload is not JSON.
        """
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
        `block` keeps out; and every head that was published earlier
        must be in the chain, which a chain that was cut short or rewritten fails.

        Args:
            known_heads: heads from dossiers.
        """
        from dpsynth_platform.ledger.verification import verify

        heads = tuple(known_heads)
        return self._database.read(lambda connection: verify(connection, heads))

    def owner_spending(self, family: str) -> OwnerSpending:
        """What the owners of an account have left, counted and not named. Restricted.

        Raises:
            LedgerError: there is no such account, or it charges everybody alike (`mode: family`).
        """

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

        return self._database.read(export_document)


def _open(connection: Connection, family: FamilyBudget, key_ids: Sequence[str]) -> Account:
    """See `Ledger.open_account`."""
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


def _bind(connection: Connection, name: str, family: str, owner_columns: Sequence[str]) -> None:
    """See `Ledger.bind`."""
    terms = {"family": family, "owner_columns": list(owner_columns)}
    first = next(iter(chain.events(connection, after=0, kinds=[chain.BOUND], subject=name)), None)
    if first is None:
        chain.append(connection, rows.now_text(connection), chain.BOUND, name, terms)
    elif first.payload != terms:
        raise LedgerError(
            f"{name} belongs to family {first.payload['family']!r} with owner columns "
            f"{first.payload['owner_columns']} for life; declared now: {family!r} with {list(owner_columns)}. "
            "Restore the contract"
        )


def _attempt_of(connection: Connection, key: str) -> Entry | None:
    tried = rows.attempts(connection, key)
    return rows.deciding_attempt(tried) or (tried[-1] if tried else None)


def _or_raise(outcome: _Result | DpsynthError) -> _Result:
    """Raises what a transaction decided after it is committed, so that its record stays."""
    if isinstance(outcome, DpsynthError):
        raise outcome
    return outcome
