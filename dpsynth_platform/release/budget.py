"""What a release took of its family's budget, in shares of the cap.

What belongs here: shares by the entries of the ledger, which are public facts. What does not: what any owner has spent,
which is restricted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from dpsynth_platform.ledger.filter import Cost, add_up
from dpsynth_platform.ledger.records import Account, Entry


def budget_shares(
    account: Account, entries: Iterable[Entry], started: Sequence[str], own: Collection[str]
) -> dict[str, Any] | None:
    """Shares of the cap that a release and what started before it took; None if its entries are not all started.

    The ledger adds Renyi curves at sealed orders, and a sum must stay under the limit of one order. Shares are of the
    order at which the least is used, so that they add up, or of the delta that is set aside where more of that is used.
    In the mode `per-owner` they are those of an owner who took part in every mechanism: others have more left. There
    they may exceed one together: then nobody took part in all.

    Args:
        entries: of the account, in any order.
        started: ids of entries, of any account, in the order in which the ledger's chain says that they started.
        own: ids of the release's entries: of its mechanism, and of a separate audit model where there is one.
    """
    known = {entry.entry_id: entry for entry in entries}
    if not own or not set(own) <= known.keys() & set(started):
        return None
    last = max(started.index(name) for name in own)
    before = [known[name] for name in started[:last] if name in known and name not in own]
    this, earlier = _sum(account, [known[name] for name in sorted(set(own))]), _sum(account, before)
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
