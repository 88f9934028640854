"""Raising a cap: requested by one person, approved by another, both recorded in the chain.

What belongs here: the two steps inside one transaction each. What does not: what fits under a cap (`verdicts`), and
checking a recorded raise (`chain`).

A raised account keeps the orders and weights that it was sealed with, and only its limits grow. So whatever was granted
under the old cap satisfies the new filter too, and all that the account ever granted, before and after, is one Renyi
filter with the new cap, fixed from the start (Feldman & Zrnic 2021, theorem 4.3, order by order). A new filter for the
larger cap would spread delta over other orders, and the union bound would no longer hold over the whole life.
What may be claimed after a raise is the new cap, for everything, if the raise did not depend on what releases showed: a
filter's cap is fixed in advance. Otherwise only the largest cap that could have been chosen may be claimed, and the
ledger cannot know it.
"""

from __future__ import annotations

import math

from sqlalchemy import Connection, update

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.people import same_person
from dpsynth_platform.ledger import chain, rows, schema
from dpsynth_platform.ledger.decisions import check_person
from dpsynth_platform.ledger.records import Account, ChainEvent


def ask(connection: Connection, family: str, epsilon: float, delta: float, by: str, reason: str) -> ChainEvent:
    """See `store.Ledger.ask_raise`."""
    account = rows.get_account(connection, family)
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise LedgerError(
            f"cap (epsilon {epsilon!r}, delta {delta!r}); accepted: epsilon above 0, delta between 0 and 1"
        )
    was = _cap(account)
    cap = {"epsilon": float(epsilon), "delta": float(delta)}
    if cap == was or any(cap[name] < was[name] for name in was):
        raise LedgerError(
            f"family {family}: a cap can only be raised; it is epsilon {account.epsilon:g}, delta {account.delta:g}"
        )
    check_person(by, "raising a cap")
    payload = {"cap": cap, "was": was, "by": by, "reason": reason}
    return chain.append(connection, rows.now_text(connection), chain.RAISE_ASKED, family, payload)


def approve(connection: Connection, family: str, asked: int, by: str, reason: str) -> Account:
    """See `store.Ledger.approve_raise`."""
    account = rows.get_account(connection, family)
    found = chain.events(connection, after=asked - 1, kinds=[chain.RAISE_ASKED], subject=family)
    if not found or found[0].sequence != asked:
        raise LedgerError(f"family {family}: event {asked} does not ask for a raise of its cap")
    request = found[0].payload
    if request["was"] != _cap(account):
        raise LedgerError(f"family {family}: the cap has changed since event {asked}; request it again")
    check_person(by, "raising a cap")
    if same_person(by, request["by"]):
        raise LedgerError(f"family {family}: {by!r} asked for this raise; somebody else must approve it")
    payload = {"cap": request["cap"], "asked": asked, "by": by, "reason": reason}
    raised = chain.append(connection, rows.now_text(connection), chain.RAISED, family, payload)
    table = schema.account
    mine = table.c.family == family
    terms = connection.execute(table.select().where(mine)).one().terms
    connection.execute(update(table).where(mine).values(terms=chain.raised_terms(terms, raised)))
    return rows.get_account(connection, family)


def _cap(account: Account) -> dict[str, float]:
    return {"epsilon": account.epsilon, "delta": account.delta}
