"""What a release took of its family's budget, in shares of the cap.

What belongs here: shares by the entries of the ledger, which are public facts. What does not: what any owner has spent,
which is restricted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from dpsynth_platform.ledger.filter import Cost, add_up
from dpsynth_platform.ledger.records import Account, Entry


def budget_shares(account: Account, entries: Sequence[Entry], own: Collection[str]) -> dict[str, Any] | None:
    """Shares of the cap that a release and what started before it took; None if its entries are not all started.

    The ledger adds Renyi curves at sealed orders, and a sum must stay under the limit of one order. Shares are of the
    order at which the least is used, so that they add up, or of the delta that is set aside where more of that is used.
    In the mode `per-owner` they are those of an owner who took part in every mechanism: others have more left.

    Args:
        entries: of the account, in any order.
        own: ids of the release's entries: of its mechanism, and of a separate audit model where there is one.
    """
    started = [(entry.started_at, entry) for entry in entries if entry.started_at is not None]
    mine = [(at, entry) for at, entry in started if entry.entry_id in own]
    if not mine or len(mine) < len(set(own)):
        return None
    last = max(at for at, _ in mine)
    before = [entry for at, entry in started if entry.entry_id not in own and at <= last]
    this, earlier = _sum(account, [entry for _, entry in mine]), _sum(account, before)
    shares = [
        (own / limit, previous / limit)
        for own, previous, limit in zip(this, earlier, account.filter.limits, strict=True)
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


def _sum(account: Account, entries: Iterable[Entry]) -> Cost:
    total = account.filter.nothing
    for entry in entries:
        total = add_up(total, account.filter.cost(entry.request.curve, entry.request.delta_slack))
    return total
