"""The keys: fingerprint keys of a namespace, hashing keys, and the deployment's signing key.

What belongs here: making a key once, reading it, telling which key it is. What does not: where keys are (`keepers`:
files of the vault's directory, a program, a cloud's secret manager), and using keys (fingerprints are made in `scrub`,
signatures in `release` and `ledger`). Losing a fingerprint key freezes the accounts that depend on it, so a key that is
missing is never made anew in silence: only `create` and `add` make keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.secrets.choice import MANAGER, keeper_of
from dpsynth_platform.secrets.keeper import KEY_BYTES
from dpsynth_platform.secrets.program import COMMAND

SIGNING_KEY = "signing"


class Vault:
    """The keys of one directory: its files, or whatever a file of it says has them.

    Every call asks anew, so that what is changed there counts at once and no key stays in memory longer than its use.
    All raise `ConfigurationError` where keys cannot be had, or a name is none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> bytes:
        """The key of that name, made from the operating system's randomness if there is none yet."""
        keeper = keeper_of(self._directory)
        found = keeper.found(_checked(name))
        if found is not None:
            return found
        keeper.keep(name, secrets.token_bytes(KEY_BYTES))
        return self.read(name)  # of two makers the first one's counts

    def has(self, name: str) -> bool:
        """Whether there is a key of that name. Raises `ConfigurationError` if it is damaged, too."""
        return keeper_of(self._directory).found(_checked(name)) is not None

    def add(self, prefix: str) -> bytes:
        """A new key, always, kept as `<prefix>-<its key_id>`; durable on return."""
        key = secrets.token_bytes(KEY_BYTES)
        name = f"{prefix}-{key_id(key)}"
        keeper_of(self._directory).keep(_checked(name), key)
        return self.read(name)

    def read(self, name: str) -> bytes:
        """The key of that name. Raises `ConfigurationError` if it is missing or damaged."""
        keeper = keeper_of(self._directory)
        found = keeper.found(_checked(name))
        if found is None:
            raise ConfigurationError(f"key {name!r} is missing from {keeper.lacks(name)}; restore it from its backup")
        return found

    def signing_key(self) -> Ed25519PrivateKey:
        """The deployment's Ed25519 key, made at first use."""
        return Ed25519PrivateKey.from_private_bytes(self.create(SIGNING_KEY))

    @property
    def files(self) -> tuple[Path, ...]:
        """What the signing key depends on, on this machine; none of them needs to be there."""
        return tuple(self._directory / file for file in (f"{SIGNING_KEY}.key", COMMAND, MANAGER))


def _checked(name: str) -> str:
    if not name or not all(part.isalnum() for part in name.replace("-", "_").split("_") if part):
        raise ConfigurationError(f"key name {name!r}; accepted: letters, digits, '-' and '_'")
    return name


def keyed_name(key: bytes, purpose: str, content: str) -> str:
    """A name of restricted content that may be exported: HMAC-SHA256 (32 hex characters) under a secret key.

    A plain hash, or one with a short or public addition, would confirm a guess at the content; this tells nothing to
    whoever lacks the key, and equal contents have equal names.

    Args:
        purpose: keeps names apart from whatever else the key signs or names; without a null character.
    """
    message = b"dpsynth name\x00" + purpose.encode() + b"\x00" + content.encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()[:32]


def key_id(key: bytes) -> str:
    """A short public name of a key that tells nothing of it (truncated HMAC of a constant)."""
    return hmac.new(key, b"dpsynth key id", hashlib.sha256).hexdigest()[:16]
