"""Sessions on the server's side, by a random token that only the browser holds.

What belongs here: beginning, finding and ending sessions, and what is derived from tokens. What does not: cookies
(`access`), and authentication (`users`, `oidc`, `proxy`).

Only a token's SHA-256 is stored, so reading the database gives no access. A session always begins with a new token, so
nobody can prepare one for another person. It ends by itself, with its user, or when their roles or password change. The
CSRF token is derived from the session's token and not stored.
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

    Sessions that began by a method which is not among the enabled `ways` (`password`, `oidc`, `proxy`) have ended.
    `clock` gives seconds since the epoch.
    """

    def __init__(
        self, store: Store, limits: SessionLimits, ways: Collection[str], clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._limits = limits
        self._ways = frozenset(ways)
        self._clock = clock

    def begin(self, identity: Identity, changed: str | None = None) -> str:
        """Begins a session and returns its token, which is stored nowhere else. Deletes sessions that have ended.

        `changed` is, for a local user, the change that was verified (`users.Verified`). Raises `SignedOut` if the user
        was changed or removed since, which ended all their sessions.
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
        """The present identity of the session with a token's `handle_of`, or None if it has ended or never began.

        An `active` request counts as activity and postpones the end by idleness.
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
        latest = now + _CLOCK_SKEW  # setting the clock back far enough would prolong sessions
        ended = not (now - self._limits.idle <= seen <= latest and now - self._limits.longest <= began <= latest)
        # A local user has the database's present roles, not those from the beginning of the session.
        present = roles_from((users_roles or "") if how == PASSWORD else roles)
        if ended or how not in self._ways or not present:
            self.end(handle)
            return None
        if active and now - seen > _TOUCH_EVERY:
            with self._store.write() as connection:
                connection.execute("UPDATE session SET seen = max(seen, ?) WHERE token = ?", (now, handle))
        return Identity(name, present, how)

    def end(self, handle: str) -> None:
        with self._store.write() as connection:
            connection.execute("DELETE FROM session WHERE token = ?", (handle,))


def handle_of(token: str) -> str:
    """The SHA-256 of a token: its stored form, and the internal name of its session."""
    return hashlib.sha256(token[:LONGEST_TOKEN].encode()).hexdigest()


def csrf_of(token: str) -> str:
    """The token that a changing request of this session must carry; the session's token cannot be derived from it."""
    return hmac.new(token.encode(), b"dpsynth console csrf", hashlib.sha256).hexdigest()


def equal_secrets(one: str, other: str) -> bool:
    """Whether two secrets are equal, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
