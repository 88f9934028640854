"""Raising a family's cap for life: one person requests it, another approves.

What belongs here: requiring a reason for a weak cap, and passing both to the ledger. What does not: who may approve
what (`ledger.caps`).
"""

from __future__ import annotations

from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import Account, ChainEvent
from dpsynth_platform.privacy.guarantee import WEAK_DELTA
from dpsynth_platform.reviewing import accounts


def ask(
    settings: Settings, family: str, *, epsilon: float, delta: float, by: str, reason: str, accept_weak: str | None
) -> ChainEvent:
    """Records the request for a larger cap; an approval names the event's `sequence`.

    `accept_weak` says why a weak guarantee is acceptable. Raises `LedgerError` if the cap is weak without that, is not
    larger, or there is no such account.
    """
    weak = not (epsilon <= WEAK_EPSILON and delta < WEAK_DELTA)
    if weak and accept_weak is None:
        raise LedgerError(
            f"a cap of epsilon {epsilon:g}, delta {delta:g} is a weak guarantee (epsilon above {WEAK_EPSILON:g}, or "
            f"delta {WEAK_DELTA:g} or more); accepted: a smaller one, or a reason why it may be weak "
            "(--accept-weak-guarantee REASON)"
        )
    why = f"{reason}; weak guarantee accepted: {accept_weak}" if weak else reason
    return accounts.ledger(settings).ask_raise(family, epsilon=epsilon, delta=delta, by=by, reason=why)


def approve(settings: Settings, family: str, asked: int, *, by: str, reason: str) -> Account:
    """Raises a cap as event `asked` requests; from then on the family's file must declare the new one.

    Raises `LedgerError` if there is no such event, the cap has changed since, or the same person requested it.
    """
    return accounts.ledger(settings).approve_raise(family, asked, by=by, reason=reason)
