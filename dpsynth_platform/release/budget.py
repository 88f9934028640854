"""What a release took of its family's budget, in shares of the cap.

What belongs here: shares by the entries of the ledger, which are public facts. What does not: what any owner has spent,
which is restricted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpsynth_platform.ledger.filter import add_up
from dpsynth_platform.ledger.records import Account, Entry


def budget_shares(account: Account, entries: Sequence[Entry], entry_id: str) -> dict[str, Any] | None:
    """Shares of the cap that an entry and the started ones before it took; None if the entry is not among them.

    The ledger adds Renyi curves at sealed orders, and a sum must stay under the limit of one order. Shares are of the
    order at which the least is used, so that they add up, or of the delta that is set aside where more of that is used.
    In the mode `per-owner` they are those of an owner who took part in every mechanism: others have more left.

    Args:
        entries: of the account, in any order.
    """
    entry = next((item for item in entries if item.entry_id == entry_id), None)
    if entry is None or entry.started_at is None:
        return None
    before = [
        item
        for item in entries
        if item.started_at is not None and item.entry_id != entry_id and item.started_at <= entry.started_at
    ]
    limits, earlier = account.filter, account.filter.nothing
    for item in before:
        earlier = add_up(earlier, limits.cost(item.request.curve, item.request.delta_slack))
    this = limits.cost(entry.request.curve, entry.request.delta_slack)
    shares = [
        (own / limit, previous / limit)
        for own, previous, limit in zip(this, earlier, limits.limits, strict=True)
        if limit > 0
    ]
    if not shares:
        return None
    of_orders, of_slack = shares[:-1], shares[-1]
    used = max(min(of_orders, key=sum, default=of_slack), of_slack, key=sum)
    return {
        "this_release": round(used[0], 6),
        "earlier": round(used[1], 6),
        "left": round(max(0.0, 1 - sum(used)), 6),
        "mechanisms_before": len(before),
    }
