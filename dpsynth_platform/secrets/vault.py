"""The keys: fingerprint keys of a namespace, hashing keys, and the deployment's signing key.

What belongs here: making, reading and identifying keys. What does not: where keys are (the keepers), and using them
(fingerprints in `scrub`, signatures in `release` and `ledger`). Losing a fingerprint key freezes the accounts that
depend on it, so a missing key is never replaced silently: only `create` and `add` make keys.
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
    """The keys of the keeper that a directory chooses.

    Every call reads again, so that changes apply at once and no key stays in memory longer than its use. All raise
    `ConfigurationError` where the keeper fails or a name is invalid.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> bytes:
        """Returns the key of that name; makes one from the operating system's randomness if there is none."""
        keeper = keeper_of(self._directory)
        found = keeper.read(_checked(name))
        if found is not None:
            return found
        keeper.store(name, secrets.token_bytes(KEY_BYTES))
        return self.read(name)  # of two concurrent calls the first wins

    def has(self, name: str) -> bool:
        """Raises `ConfigurationError` also if the key is damaged."""
        return keeper_of(self._directory).read(_checked(name)) is not None

    def add(self, prefix: str) -> bytes:
        """Always makes a new key, named `<prefix>-<its key_id>`; durable on return."""
        key = secrets.token_bytes(KEY_BYTES)
        name = f"{prefix}-{key_id(key)}"
        keeper_of(self._directory).store(_checked(name), key)
        return self.read(name)

    def read(self, name: str) -> bytes:
        """Raises `ConfigurationError` if the key is missing or damaged."""
        keeper = keeper_of(self._directory)
        found = keeper.read(_checked(name))
        if found is None:
            raise ConfigurationError(
                f"key {name!r} is missing from {keeper.place_of(name)}; restore it from its backup"
            )
        return found

    def signing_key(self) -> Ed25519PrivateKey:
        """The deployment's Ed25519 key, made at first use."""
        return Ed25519PrivateKey.from_private_bytes(self.create(SIGNING_KEY))

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the signing key depends on; each may be missing."""
        return tuple(self._directory / file for file in (f"{SIGNING_KEY}.key", COMMAND, MANAGER))


def _checked(name: str) -> str:
    if not name or not all(part.isalnum() for part in name.replace("-", "_").split("_") if part):
        raise ConfigurationError(f"key name {name!r}; accepted: letters, digits, '-' and '_'")
    return name


def keyed_name(key: bytes, purpose: str, content: str) -> str:
    """An exportable name of restricted content: HMAC-SHA256 (32 hex characters) under a secret key.

    Without the key it reveals nothing, whereas a plain hash would confirm a guess. Equal contents have equal names.

    Args:
        purpose: separates the key's uses; without a null character.
    """
    message = b"dpsynth name\x00" + purpose.encode() + b"\x00" + content.encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()[:32]


def key_id(key: bytes) -> str:
    """A short public name of a key that reveals nothing about it (truncated HMAC of a constant)."""
    return hmac.new(key, b"dpsynth key id", hashlib.sha256).hexdigest()[:16]
