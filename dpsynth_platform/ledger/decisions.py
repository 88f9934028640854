"""Decisions of people about release candidates, and the publications that follow: each an event of the chain.

What belongs here: who may decide what, and that a publication agrees with the decisions at that time, each in one
transaction with the record of it. What does not: whether the candidate's evidence is valid (`release.evidence`), and
what a withdrawal does to a published release (`withdrawing`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection

from dpsynth_platform.foundation.errors import LedgerError, ReleaseRefused
from dpsynth_platform.foundation.people import NAMES_ACCEPTED, name_problem, person_key, same_person
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.records import ChainEvent, Decision


def of_candidate(connection: Connection, candidate: str, entry_id: str) -> list[Decision]:
    """Approvals of a candidate, and refusals and withdrawals of whatever its entry paid for, in order.

    An edited description makes another candidate of the same rows, and another draw one of the same model: neither may
    undo a refusal, while an approval is for exactly what was seen.
    """
    decided = chain.events(connection, kinds=(chain.APPROVED, chain.REFUSED, chain.WITHDRAWN))
    return [
        rows.decision_of(event)
        for event in decided
        if (event.subject == candidate if event.kind == chain.APPROVED else event.payload["entry"] == entry_id)
    ]


def withdrawals(connection: Connection) -> list[Decision]:
    """All withdrawals, in order."""
    return [rows.decision_of(event) for event in chain.events(connection, kinds=[chain.WITHDRAWN])]


def approve(
    connection: Connection,
    candidate: str,
    by: str,
    entry_id: str,
    reason: str,
    runners: Collection[str],
    after_withdrawal: bool,
    decided: int | None,
) -> Decision:
    """See `store.Ledger.approve`."""
    check_person(by, "a decision")
    entry = rows.get_entry(connection, entry_id)
    place = entry.request.place
    earlier = of_candidate(connection, candidate, entry_id)
    if decided is not None and decided != (earlier[-1].sequence if earlier else 0):
        raise ReleaseRefused(
            f"{place}: somebody has decided on this since you looked at it; read that decision, then decide"
        )
    if _is_one_of(by, (*runners, entry.request.runner)):
        raise ReleaseRefused(f"{place}: {by!r} ran this release and cannot approve it; another person must (--as NAME)")
    withdrawn = [item for item in earlier if item.decision == "withdraw"]
    if _is_one_of(by, [item.by for item in withdrawn]):
        raise ReleaseRefused(
            f"{place}: {by!r} withdrew a release of this content and cannot approve it again; another person must"
        )
    if withdrawn and not after_withdrawal:
        last = withdrawn[-1]
        raise ReleaseRefused(
            f"{place}: this content was withdrawn as release {last.release} on {last.at[:10]}; to have it published "
            "all the same, approve it with --after-withdrawal"
        )
    if after_withdrawal and not withdrawn:
        raise ReleaseRefused(f"{place}: no release of this content was withdrawn; leave --after-withdrawal out")
    payload = {"by": by, "entry": entry_id, "reason": reason}
    if after_withdrawal:
        payload["after_withdrawal"] = withdrawn[-1].release or ""
    return _append(connection, chain.APPROVED, candidate, payload)


def refuse(connection: Connection, candidate: str, by: str, entry_id: str, reason: str) -> Decision:
    """See `store.Ledger.refuse`."""
    check_person(by, "a decision")
    _check_reason(reason, "refusal")
    rows.get_entry(connection, entry_id)
    return _append(connection, chain.REFUSED, candidate, {"by": by, "entry": entry_id, "reason": reason})


def release(
    connection: Connection,
    release_id: str,
    candidate: str,
    entry_id: str,
    check: Callable[[Sequence[Decision]], object],
) -> ChainEvent:
    """See `store.Ledger.release`."""
    entry = rows.get_entry(connection, entry_id)
    if entry.state != chain.SPENT:
        raise LedgerError(f"{entry.request.place}: ledger entry {entry_id} is {entry.state}, so it pays for no release")
    check(of_candidate(connection, candidate, entry_id))
    if chain.events(connection, kinds=[chain.WITHDRAWN], subject=release_id):
        raise ReleaseRefused(f"{entry.request.place}: release {release_id} was withdrawn, which is for ever")
    payload = {"entry": entry_id, "candidate": candidate}
    recorded = chain.events(connection, kinds=[chain.RELEASED], subject=release_id)
    if not recorded:
        return chain.append(connection, rows.now_text(connection), chain.RELEASED, release_id, payload)
    if recorded[0].payload != payload:
        raise LedgerError(f"release {release_id} is recorded for another candidate or entry")
    return recorded[0]


def withdraw(connection: Connection, release_id: str, by: str, reason: str) -> Decision:
    """See `store.Ledger.withdraw`."""
    earlier = chain.events(connection, kinds=[chain.WITHDRAWN], subject=release_id)
    if earlier:
        return rows.decision_of(earlier[0])
    check_person(by, "a decision")
    _check_reason(reason, "withdrawal")
    published = chain.events(connection, kinds=[chain.RELEASED], subject=release_id)
    if not published:
        raise LedgerError(f"the ledger records no publication of a release {release_id!r}")
    facts = published[0].payload
    payload = {"by": by, "entry": facts["entry"], "candidate": facts["candidate"], "reason": reason}
    return _append(connection, chain.WITHDRAWN, release_id, payload)


def _append(connection: Connection, kind: str, subject: str, payload: chain.Values) -> Decision:
    return rows.decision_of(chain.append(connection, rows.now_text(connection), kind, subject, payload))


def _is_one_of(name: str, others: Collection[str]) -> bool:
    return any(same_person(name, other) for other in others)


def check_person(by: str, purpose: str) -> None:
    """Raises `LedgerError` for an empty or inadmissible name."""
    if not person_key(by):
        raise LedgerError(f"{purpose} needs a name; set DPSYNTH_USER")
    if (problem := name_problem(by)) is not None:
        raise LedgerError(f"{problem}; {NAMES_ACCEPTED}")


def _check_reason(reason: str, noun: str) -> None:
    if not person_key(reason):
        raise LedgerError(f"a {noun} needs a reason in visible characters")
