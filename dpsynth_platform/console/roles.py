"""Roles of the console, and what each of them allows.

What belongs here: the roles, the actions, and which role has which. What does not: who has a role (`identity`), and
rules about persons, such as that nobody approves what they ran: the library holds those, whatever the role.

| action | engineer | reviewer | auditor |
| --- | --- | --- | --- |
| read names, states, guarantees, declared and DP figures | yes | yes | yes |
| read exact spend and counts (the operator's) | yes | yes | yes |
| read what compares with real data (restricted) | | yes | yes |
| approve and refuse | | yes | |
| ask for a higher cap, or second it | | yes | |
| verify ledger and dossiers | yes | yes | yes |
| export the ledger | | | yes |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, get_args

Role = Literal["engineer", "reviewer", "auditor"]
ROLES: tuple[Role, ...] = get_args(Role)


class Action(StrEnum):
    """What a role may allow."""

    READ = "read"
    """Names, states, guarantees, declared and DP figures, contracts in words."""
    READ_SPEND = "read-spend"
    """Exact spend and counts: the operator's, covered by no guarantee."""
    READ_QUALITY = "read-quality"
    """Comparison with real data, and the reviewers' dossier: restricted."""
    DECIDE = "decide"
    """Approve or refuse a candidate."""
    RAISE = "raise"
    """Ask for a higher cap, or second what somebody else asked."""
    VERIFY = "verify"
    """Check the ledger's chain and published dossiers; changes nothing."""
    EXPORT = "export"
    """Take the ledger's export away."""


ALLOWED: Mapping[Role, frozenset[Action]] = MappingProxyType(
    {
        "engineer": frozenset({Action.READ, Action.READ_SPEND, Action.VERIFY}),
        "reviewer": frozenset(
            {Action.READ, Action.READ_SPEND, Action.READ_QUALITY, Action.DECIDE, Action.RAISE, Action.VERIFY}
        ),
        "auditor": frozenset(
            {Action.READ, Action.READ_SPEND, Action.READ_QUALITY, Action.VERIFY, Action.EXPORT},
        ),
    }
)
"""What each role allows. An auditor changes nothing; whoever has several roles may do what any of them allows."""


def actions_of(roles: Iterable[Role]) -> frozenset[Action]:
    """All that somebody with these roles may do."""
    return frozenset().union(*(ALLOWED[role] for role in roles))
