"""Who is at the console.

What belongs here: a person's name and roles as one request knows them, and asking again before something is done. What
does not: finding out who it is (`sessions`, `users`, `oidc`, `proxy`) and when it must be asked (`access`).

The name is what stands in the ledger as approver, so the library's rules about persons (whoever ran a candidate does
not approve it) hold here as they do on the command line.
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
    """Somebody who signed in.

    Attributes:
        name: as it is recorded of whoever approves or refuses.
        roles: what they are here; never empty.
        how: `password`, `oidc` or `proxy`.
    """

    name: str
    roles: frozenset[Role]
    how: str

    @property
    def actions(self) -> frozenset[Action]:
        """All that they may do."""
        return actions_of(self.roles)

    def may(self, action: Action) -> bool:
        """Whether a role of theirs allows it."""
        return action in self.actions

    def check(self, action: Action) -> None:
        """Raises `NotAllowed` where no role of theirs allows it."""
        if not self.may(action):
            having = ", ".join(role for role in ROLES if action in actions_of((role,)))
            own = ", ".join(role for role in ROLES if role in self.roles)
            raise NotAllowed(f"{action.value}: not for {own}; accepted: {having}")


@dataclass(frozen=True)
class SignedIn:
    """What the middleware leaves with a request of somebody who signed in, as `request.state.signed_in`.

    Attributes:
        identity: who it was when the request came.
        csrf: the token that a form or a request that changes something must carry. Never shown elsewhere.
        again: looks the session up anew. Raises `SignedOut` where it has ended.
        handle: what the session is called inside; it opens nothing.
    """

    identity: Identity
    csrf: str
    again: Callable[[], Identity]
    handle: str = ""


def signed_in(request: HTTPConnection) -> SignedIn:
    """What the middleware left. Raises `SignedOut` where nobody signed in."""
    found: SignedIn | None = getattr(request.state, "signed_in", None)
    if found is None:
        raise SignedOut("nobody is signed in; sign in at /sign-in")
    return found


def current(request: HTTPConnection) -> Identity:
    """Who made a request, as of when it came. Raises `SignedOut` where nobody signed in."""
    return signed_in(request).identity


def acting(request: HTTPConnection, action: Action) -> Identity:
    """Who acts now: for whatever does something a while after its page was asked for.

    A page's websocket outlives its session: handlers of clicks call this before they read or change anything.

    Raises:
        SignedOut: the session has ended, or was never there.
        NotAllowed: no role that they have now allows it.
    """
    identity = signed_in(request).again()
    identity.check(action)
    return identity
