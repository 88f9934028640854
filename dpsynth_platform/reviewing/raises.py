"""Raising a family's cap for life: one asks, another approves.

What belongs here: what must be said where a cap becomes weak, and handing both words to the ledger. What does not: who
may approve what (`ledger.caps`).
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
    """Records that somebody asks for a larger cap; the event's `sequence` is what another approves.

    Args:
        settings: the deployment.
        family: whose cap.
        epsilon, delta: the new cap, for life.
        by: who asks.
        reason: why; kept for ever.
        accept_weak: why it may be a weak guarantee; None: it may not.

    Raises:
        LedgerError: it is weak and nobody says why, there is no such account, or it is no larger cap.
    """
    weak = not (epsilon <= WEAK_EPSILON and delta < WEAK_DELTA)
    if weak and accept_weak is None:
        raise LedgerError(
            f"a cap of epsilon {epsilon:g}, delta {delta:g} is a weak guarantee (epsilon above {WEAK_EPSILON:g}, or "
            f"delta {WEAK_DELTA:g} or more); accepted: a smaller one, or a word on why it may be weak "
            "(--accept-weak-guarantee REASON)"
        )
    why = f"{reason}; weak guarantee accepted: {accept_weak}" if weak else reason
    return accounts.ledger(settings).ask_raise(family, epsilon=epsilon, delta=delta, by=by, reason=why)


def approve(settings: Settings, family: str, asked: int, *, by: str, reason: str) -> Account:
    """Raises a cap as event `asked` asks; from then on the family's file must declare the new one.

    Raises:
        LedgerError: there is no such event, the cap has changed since, or the approver is the one who asked.
    """
    return accounts.ledger(settings).approve_raise(family, asked, by=by, reason=reason)
