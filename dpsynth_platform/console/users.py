"""Local users of the console: names, roles and passwords.

What belongs here: adding, changing and removing them, and checking a password. What does not: limits on attempts
(`attempts`), and sessions (`sessions`).

Passwords are stored as Argon2id hashes with the library's defaults (RFC 9106, second recommended option). Refusing an
unknown name takes as long as refusing a wrong password. Names that differ only in case, blanks, invisible characters or
similar letters are one person's (`people.same_person`), as everywhere in the platform; only one of them can be added.
"""

from __future__ import annotations

import datetime as dt
import functools
import secrets
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.roles import ROLES, Role
from dpsynth_platform.console.store import Store
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.people import person_key, recorded_name, same_person

PASSWORD = "password"  # noqa: S105 - a method of signing in
SHORTEST_PASSWORD = 15
LONGEST_PASSWORD = 1000
LONGEST_NAME = 200
FEWEST_CHARACTERS = 5
_hasher = PasswordHasher()


@dataclass(frozen=True)
class User:
    """A local user; `changed` is when roles or password last changed. The password's hash stays in the database."""

    name: str
    roles: frozenset[Role]
    changed: str


@dataclass(frozen=True)
class Verified:
    """The identity of a right password. A session begins only if the user is unchanged since `changed`."""

    identity: Identity
    changed: str


class Users:
    """The local users of one console."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[User]:
        with self._store.read() as connection:
            rows = connection.execute("SELECT name, roles, changed FROM user ORDER BY name").fetchall()
        return [User(name, roles_from(roles), changed) for name, roles, changed in rows]

    def add(self, name: str, roles: Iterable[str], password: str) -> User:
        """Raises `ConfigurationError`: name, roles or password are not accepted, or the name is taken."""
        user = User(checked_name(name, "NAME"), checked_roles(roles), _now())
        kept = _hasher.hash(_checked_password(password, name))
        with self._store.write() as connection:
            for (known,) in connection.execute("SELECT name FROM user").fetchall():
                if same_person(known, name) and person_key(known) != person_key(name):
                    raise ConfigurationError(f"{name!a}: looks like the user {known!a}; accepted: another name")
            added = connection.execute(
                "INSERT INTO user VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (person_key(name), name, roles_text(user.roles), kept, user.changed),
            )
            if added.rowcount == 0:
                raise ConfigurationError(f"{name!r}: there is a user of that name; case and blanks do not count")
        return user

    def change_password(self, name: str, password: str) -> None:
        kept = _hasher.hash(_checked_password(password, name))
        self._change(name, "UPDATE user SET password = ?, changed = ? WHERE key = ?", kept, _now())

    def change_roles(self, name: str, roles: Iterable[str]) -> None:
        kept = roles_text(checked_roles(roles))
        self._change(name, "UPDATE user SET roles = ?, changed = ? WHERE key = ?", kept, _now())

    def remove(self, name: str) -> None:
        """Removes a user and ends their sessions; their decisions stay. Raises `ConfigurationError`."""
        self._change(name, "DELETE FROM user WHERE key = ?")

    def verified(self, name: str, password: str) -> Verified | None:
        """The user, or None for an unknown name or a wrong password. Both take equally long."""
        with self._store.read() as connection:
            row = connection.execute(
                "SELECT name, roles, password, changed FROM user WHERE key = ?", (person_key(name),)
            ).fetchone()
        known, roles, kept, changed = row or ("", "", _hash_of_nothing(), "")
        plain = _normal(password[: LONGEST_PASSWORD + 1])
        try:
            _hasher.verify(kept, plain)
        except (VerificationError, InvalidHashError):
            return None
        if row is None:
            return None
        if _hasher.check_needs_rehash(kept):
            self._keep_better_hash(name, kept, _hasher.hash(plain))
        return Verified(Identity(known, roles_from(roles), PASSWORD), changed)

    def _change(self, name: str, statement: str, *values: str) -> None:
        """Runs a statement on one user, whose sessions end. Raises `ConfigurationError` for an unknown user."""
        key = person_key(name)
        with self._store.write() as connection:
            if connection.execute(statement, (*values, key)).rowcount == 0:
                raise ConfigurationError(f"{name!r}: there is no such user; for the list: dpsynth console user list")
            connection.execute("DELETE FROM session WHERE key = ? AND how = ?", (key, PASSWORD))

    def _keep_better_hash(self, name: str, was: str, now: str) -> None:
        """For stronger defaults of the library; does nothing if the password has changed meanwhile."""
        with self._store.write() as connection:
            connection.execute(
                "UPDATE user SET password = ? WHERE key = ? AND password = ?", (now, person_key(name), was)
            )


def checked_name(name: str, where: str) -> str:
    """A name that the ledger can record. Raises `ConfigurationError`."""
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(f"{where}: {len(name)} characters; accepted: at most {LONGEST_NAME}")
    return recorded_name(name, where)


def checked_roles(roles: Iterable[str]) -> frozenset[Role]:
    """Roles by their names. Raises `ConfigurationError` for an unknown one, or none."""
    found = set(roles)
    unknown = sorted(found - set(ROLES))
    if unknown or not found:
        raise ConfigurationError(f"--role: {repr(unknown[0]) if unknown else 'none'}; accepted: {', '.join(ROLES)}")
    return frozenset(role for role in ROLES if role in found)


def roles_text(roles: Iterable[Role]) -> str:
    """Roles as they are stored."""
    return ",".join(role for role in ROLES if role in set(roles))


def roles_from(text: str) -> frozenset[Role]:
    """Stored roles; unknown ones are ignored."""
    kept = text.split(",")
    return frozenset(role for role in ROLES if role in kept)


def _checked_password(password: str, name: str) -> str:
    """A password in its normal form. Raises `ConfigurationError`, which contains nothing of it."""
    plain = _normal(password)
    problem = ""
    if not SHORTEST_PASSWORD <= len(plain) <= LONGEST_PASSWORD:
        problem = f"{len(plain)} characters"
    elif len(set(plain)) < FEWEST_CHARACTERS:
        problem = f"fewer than {FEWEST_CHARACTERS} different characters"
    elif person_key(name) in person_key(plain):
        problem = "it contains the user's name"
    if problem:
        raise ConfigurationError(
            f"password: {problem}; accepted: {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters, such as several "
            "words, without the name"
        )
    return plain


def _normal(password: str) -> str:
    """The same text for every keyboard's encoding of it."""
    return unicodedata.normalize("NFKC", password)


@functools.cache
def _hash_of_nothing() -> str:
    """A hash that no password has."""
    return _hasher.hash(secrets.token_urlsafe(32))


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
