"""The signed-in person.

What belongs here: a person's name and roles, and checking them again before an action. What does not: authentication
(`sessions`, `users`, `oidc`, `proxy`) and when it is required (`access`).

The ledger records the name as approver, so the library's rules about persons (nobody approves their own run) hold here
as on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsynth_platform.console.roles import ROLES, Action, Role, actions_of
from dpsynth_platform.foundation.errors import NotAllowed, SignedOut

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


@dataclass(frozen=True)
class Identity:
    """A signed-in person: the name that decisions record, at least one role, and `password`, `oidc` or `proxy`."""

    name: str
    roles: frozenset[Role]
    how: str

    @property
    def actions(self) -> frozenset[Action]:
        return actions_of(self.roles)

    def may(self, action: Action) -> bool:
        return action in self.actions

    def check(self, action: Action) -> None:
        """Raises `NotAllowed` if no role of the person allows the action."""
        if not self.may(action):
            having = ", ".join(role for role in ROLES if action in actions_of((role,)))
            own = ", ".join(role for role in ROLES if role in self.roles)
            raise NotAllowed(f"{action.value}: not for {own}; accepted: {having}")


@dataclass(frozen=True)
class SignedIn:
    """What the middleware attaches to a request of a session, as `request.state.signed_in`.

    Attributes:
        identity: as of the request.
        csrf: token that a form or a changing request must carry. Never shown elsewhere.
        again: looks the session up again. Raises `SignedOut` if it has ended.
        handle: the session's internal name; it grants no access.
    """

    identity: Identity
    csrf: str
    again: Callable[[], Identity]
    handle: str = ""


def signed_in(request: HTTPConnection) -> SignedIn:
    """What the middleware attached. Raises `SignedOut` without a session."""
    found: SignedIn | None = getattr(request.state, "signed_in", None)
    if found is None:
        raise SignedOut("nobody is signed in; sign in at /sign-in")
    return found


def acting(request: HTTPConnection, action: Action) -> Identity:
    """The identity for an action that follows the page's request later.

    A page's websocket outlives its session, so handlers of clicks call this before they read or change anything. Raises
    `SignedOut` if the session has ended, and `NotAllowed` if no present role of the person allows the action.
    """
    identity = signed_in(request).again()
    identity.check(action)
    return identity
