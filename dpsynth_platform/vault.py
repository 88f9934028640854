"""The keys: fingerprint keys of a namespace, hashing keys, and the deployment's signing key.

What belongs here: creating a key once, reading it, telling which key it is. What does not: using keys (fingerprints are
made in `scrub`, signatures in `release` and `ledger`). Keys live in their own directory, readable by the owner alone,
never beside the tables that they protect. Losing a fingerprint key freezes the accounts that depend on it, so a key
that is missing is never made anew in silence: only `create` and `add` make keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.errors import ConfigurationError
from dpsynth_platform.permissions import closed_directory, make_private
from dpsynth_platform.storage import sync

KEY_BYTES = 32
SIGNING_KEY = "signing"


class Vault:
    """Keys as files of 32 random bytes under one directory (mode 0700, files 0600)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> bytes:
        """The key of that name, made from the operating system's randomness if there is none yet."""
        self._keep(name, secrets.token_bytes(KEY_BYTES))
        return self.read(name)

    def add(self, prefix: str) -> bytes:
        """A new key, always, kept as `<prefix>-<its key_id>`; durable on return."""
        key = secrets.token_bytes(KEY_BYTES)
        name = f"{prefix}-{key_id(key)}"
        self._keep(name, key)
        return self.read(name)

    def read(self, name: str) -> bytes:
        """The key of that name. Raises `ConfigurationError` if it is missing or damaged."""
        path = self._path(name)
        try:
            make_private(path)  # as from a backup, it may be open to others
            key = path.read_bytes()
        except FileNotFoundError:
            raise ConfigurationError(f"key {name!r} is missing from the vault; restore it from its backup") from None
        except OSError as error:
            raise ConfigurationError(
                f"key {name!r} cannot be read for this user alone ({type(error).__name__}); accepted: a file of this "
                "user's, mode 0600"
            ) from None
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"key {name!r} is damaged ({len(key)} bytes, not {KEY_BYTES}); restore it")
        return key

    def signing_key(self) -> Ed25519PrivateKey:
        """The deployment's Ed25519 key, made at first use."""
        return Ed25519PrivateKey.from_private_bytes(self.create(SIGNING_KEY))

    def _keep(self, name: str, key: bytes) -> None:
        """Writes a key under a name that is free; one that is there stays."""
        path = self._path(name)
        closed_directory(self._directory)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # atomic, and fails where another process was first
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        sync(self._directory)

    def _path(self, name: str) -> Path:
        if not name or not all(part.isalnum() for part in name.replace("-", "_").split("_") if part):
            raise ConfigurationError(f"key name {name!r}; accepted: letters, digits, '-' and '_'")
        return self._directory / f"{name}.key"


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
