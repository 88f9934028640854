"""Who is signed in: sessions on the server's side, by a random token that only the browser holds.

What belongs here: beginning, finding and ending sessions, and what follows from their tokens. What does not: cookies
(`access`), and finding out who somebody is (`users`, `oidc`, `proxy`).

Only a token's SHA-256 is kept: whoever reads the database cannot use what they find. A session begins with a new token
always, so that nobody can prepare one for somebody else, and ends by itself, with its user, or with a change of their
roles or password. The CSRF token follows from the session's token and is not kept at all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection

from dpsynth_platform.console.configuration import SessionLimits
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.store import Store
from dpsynth_platform.console.users import PASSWORD, roles_from, roles_text
from dpsynth_platform.foundation.errors import SignedOut
from dpsynth_platform.foundation.people import person_key

TOKEN_BYTES = 32
LONGEST_TOKEN = 100
_TOUCH_EVERY = 20.0
_CLOCK_SKEW = 60.0


class Sessions:
    """The sessions of one console.

    Args:
        ways: how people may sign in (`password`, `oidc`, `proxy`); sessions that began another way have ended.
        clock: seconds of the epoch.
    """

    def __init__(
        self, store: Store, limits: SessionLimits, ways: Collection[str], clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._limits = limits
        self._ways = frozenset(ways)
        self._clock = clock

    def begin(self, identity: Identity, changed: str | None = None) -> str:
        """Begins a session; returns its token, which is kept nowhere else. Forgets what has ended.

        Args:
            changed: of a local user, as of which change (`users.Verified`).

        Raises:
            SignedOut: the local user was changed or removed since, by which all their sessions ended.
        """
        token, now = secrets.token_urlsafe(TOKEN_BYTES), self._clock()
        with self._store.write() as connection:
            connection.execute(
                "DELETE FROM session WHERE seen < ? OR began < ?",
                (now - self._limits.idle, now - self._limits.longest),
            )
            key = person_key(identity.name)
            if identity.how == PASSWORD:
                row = connection.execute("SELECT changed FROM user WHERE key = ?", (key,)).fetchone()
                if row is None or row[0] != changed:
                    raise SignedOut("the user was changed during the sign-in; sign in again")
            connection.execute(
                "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)",
                (handle_of(token), key, identity.name, roles_text(identity.roles), identity.how, now, now),
            )
        return token

    def find(self, handle: str, *, active: bool = True) -> Identity | None:
        """Whose session it is now, or None if it has ended or never began.

        Args:
            handle: `handle_of` a token.
            active: whether the person does something just now, which puts off the session's end by idleness.
        """
        now = self._clock()
        with self._store.read() as connection:
            row = connection.execute(
                "SELECT s.name, s.roles, s.how, s.began, s.seen, u.roles FROM session s "
                "LEFT JOIN user u ON u.key = s.key WHERE s.token = ?",
                (handle,),
            ).fetchone()
        if row is None:
            return None
        name, roles, how, began, seen, users_roles = row
        latest = now + _CLOCK_SKEW  # a clock that was set back far enough would prolong sessions
        ended = not (now - self._limits.idle <= seen <= latest and now - self._limits.longest <= began <= latest)
        # A local user's roles are those of the database now, whatever they were when the session began.
        present = roles_from((users_roles or "") if how == PASSWORD else roles)
        if ended or how not in self._ways or not present:
            self.end(handle)
            return None
        if active and now - seen > _TOUCH_EVERY:
            with self._store.write() as connection:
                connection.execute("UPDATE session SET seen = max(seen, ?) WHERE token = ?", (now, handle))
        return Identity(name, present, how)

    def end(self, handle: str) -> None:
        """Ends a session, if there is one."""
        with self._store.write() as connection:
            connection.execute("DELETE FROM session WHERE token = ?", (handle,))


def handle_of(token: str) -> str:
    """What is kept of a token, and how its session is called inside: SHA-256, from which it does not follow."""
    return hashlib.sha256(token[:LONGEST_TOKEN].encode()).hexdigest()


def csrf_of(token: str) -> str:
    """The token that a request of this session must carry to change something; nothing follows from it."""
    return hmac.new(token.encode(), b"dpsynth console csrf", hashlib.sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing of where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
