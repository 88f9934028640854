"""Raising a family's cap for life: one person requests it, another approves.

What belongs here: passing an actor's request or approval to the library. What does not: who may approve
whose request (`ledger`), and lists of open requests (`families`, `overview`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing import accounts, raises


@dataclass(frozen=True)
class Asked:
    """A requested raise; another person approves `event`, its number in the chain."""

    family: str
    event: int
    by: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Raised:
    """A raised cap; the family's `file` must declare it before the next run."""

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
    """Requests a larger cap for life (`RAISE`). Nothing changes before another person approves.

    `seen` is epsilon and delta that the person saw as the present cap; `accept_weak` says why a weak guarantee is
    acceptable. The ledger keeps `by` and the reasons for ever.

    Raises:
        ConfigurationError: the reason cannot be recorded, or there is no ledger.
        LedgerError: the guarantee is weak without a reason, there is no such account, the cap is not larger, or the
            present cap is not what was seen.
    """
    require(allowed, Action.RAISE)
    account = accounts.ledger(settings).account(family)
    # The approver sees the change from one cap to the other, so a raise in between must be reported to both people.
    if (account.epsilon, account.delta) != seen:
        raise LedgerError(
            f"family {family}: the cap is now epsilon {account.epsilon:g}, delta {account.delta:g}, not what was seen; "
            "look at the family again"
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
    """Raises a cap as another person requested (`RAISE`).

    Raises `ConfigurationError` if the reason cannot be recorded or there is no ledger, and `LedgerError` if there is no
    such event, the cap has changed since, or the same person requested it.
    """
    require(allowed, Action.RAISE)
    words = recorded(reason, "the reason", optional=True)
    account = raises.approve(settings, family, event, by=recorded_name(by, "who approves"), reason=words)
    return Raised(family, account.epsilon, account.delta, settings.shown(str(settings.families / f"{family}.yaml")))
