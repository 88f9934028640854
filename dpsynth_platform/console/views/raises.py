"""Raising a family's cap for life: what somebody asks, and what somebody else approves.

What belongs here: handing both to the library on behalf of somebody with certain actions. What does not: who may
approve whose (`ledger`), and what waits (`families`, `overview`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import View, require
from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing import accounts, raises


@dataclass(frozen=True)
class Asked(View):
    """A raise that was asked for.

    Attributes:
        event: its number in the chain, which another approves.
    """

    family: str
    event: int
    by: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Raised(View):
    """A cap that was raised.

    Attributes:
        file: that must declare it before the next run.
    """

    family: str
    epsilon: float
    delta: float
    file: str


def ask(
    settings: Settings,
    allowed: Collection[Action],
    by: str,
    family: str,
    *,
    seen: tuple[float, float],
    epsilon: float,
    delta: float,
    reason: str,
    accept_weak: str | None = None,
) -> Asked:
    """Asks for a larger cap; for `RAISE`. Nothing changes before somebody else approves.

    Args:
        settings: the deployment.
        allowed: what the asker may do.
        by: who asks, as it is recorded for ever.
        family: whose cap.
        seen: epsilon and delta of the cap that the asker saw as the present one.
        epsilon, delta: the new one, for life.
        reason: why, kept for ever.
        accept_weak: why it may be a weak guarantee.

    Raises:
        NotAllowed: the asker may not.
        ConfigurationError: the reason cannot be recorded, or there is no ledger.
        LedgerError: it is weak and nobody says why, there is no such account, it is no larger cap, or the present one
            is not what was seen.
    """
    require(allowed, Action.RAISE)
    account = accounts.ledger(settings).account(family)
    # Who approves sees from which cap to which; so a raise in between is told to either.
    if (account.epsilon, account.delta) != seen:
        raise LedgerError(
            f"family {family}: the cap is epsilon {account.epsilon:g}, delta {account.delta:g} by now, and not what "
            "was seen; look at the family again"
        )
    event = raises.ask(
        settings,
        family,
        epsilon=epsilon,
        delta=delta,
        by=recorded_name(by, "who asks"),
        reason=recorded(reason, "the reason"),
        accept_weak=None if accept_weak is None else recorded(accept_weak, "why it may be weak"),
    )
    cap = event.payload["cap"]
    return Asked(family, event.sequence, event.payload["by"], cap["epsilon"], cap["delta"])


def approve(
    settings: Settings, allowed: Collection[Action], by: str, family: str, event: int, *, reason: str = ""
) -> Raised:
    """Raises a cap as somebody else asked; for `RAISE`.

    Raises:
        NotAllowed: the asker may not.
        ConfigurationError: the reason cannot be recorded, or there is no ledger.
        LedgerError: there is no such event, the cap has changed since, or the same person asked.
    """
    require(allowed, Action.RAISE)
    words = recorded(reason, "the reason", optional=True)
    account = raises.approve(settings, family, event, by=recorded_name(by, "who approves"), reason=words)
    return Raised(family, account.epsilon, account.delta, settings.shown(str(settings.families / f"{family}.yaml")))
