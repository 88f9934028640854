"""Roles of the console, and the actions that each of them allows.

What belongs here: roles and actions. What does not: who has a role (`identity`), and rules about persons, for example
that nobody approves their own run: the library enforces those for every role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, get_args

Role = Literal["engineer", "reviewer", "auditor"]
ROLES: tuple[Role, ...] = get_args(Role)


class Action(StrEnum):
    """An action that roles allow."""

    READ = "read"
    """Names, states, guarantees, declared and DP figures, contracts in words."""
    READ_SPEND = "read-spend"
    """Exact spend and counts: for the operator, covered by no guarantee."""
    READ_QUALITY = "read-quality"
    """Comparison with real data, and the reviewers' dossier: restricted."""
    COMMENT = "comment"
    """Comment on a candidate; comments stay in the restricted zone."""
    DECIDE = "decide"
    """Approve or refuse a candidate, withdraw a release, and say who looks at a candidate."""
    RAISE = "raise"
    """Request a higher cap, or approve another person's request."""
    VERIFY = "verify"
    """Check the ledger's chain and published dossiers; changes nothing."""
    EXPORT = "export"
    """Download the ledger's export."""


ALLOWED: Mapping[Role, frozenset[Action]] = MappingProxyType(
    {
        "engineer": frozenset({Action.READ, Action.READ_SPEND, Action.COMMENT, Action.VERIFY}),
        "reviewer": frozenset(
            {
                Action.READ,
                Action.READ_SPEND,
                Action.READ_QUALITY,
                Action.COMMENT,
                Action.DECIDE,
                Action.RAISE,
                Action.VERIFY,
            }
        ),
        "auditor": frozenset(
            {Action.READ, Action.READ_SPEND, Action.READ_QUALITY, Action.VERIFY, Action.EXPORT},
        ),
    }
)
"""An auditor changes nothing. A person with several roles may do what any of them allows."""


def actions_of(roles: Iterable[Role]) -> frozenset[Action]:
    """All actions that any of these roles allows."""
    return frozenset().union(*(ALLOWED[role] for role in roles))
