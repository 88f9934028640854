"""The keys: fingerprint keys of a namespace, hashing keys, and the deployment's signing key.

What belongs here: creating a key once, reading it, telling which key it is. What does not: using keys (fingerprints are
made in `scrub`, signatures in `release` and `ledger`). Keys live in their own directory, readable by the owner alone,
never beside the tables that they protect. Losing a fingerprint key freezes the accounts that depend on it, so a key
that is missing is never made anew in silence: only `create` and `add` make keys.

Where the directory holds a file `command`, keys are elsewhere (a secret manager, an environment), and a program fetches
and keeps them: the file's one line is its words, quoted as for a shell, to which these are added:

    read NAME    writes the key, 64 hexadecimal digits, on standard output; ends with status 3 if there is none
    keep NAME    reads the key from standard input and keeps it; one that is there already stays as it is
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shlex
import stat
import subprocess
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.errors import ConfigurationError, file_problem
from dpsynth_platform.permissions import closed_directory, make_private
from dpsynth_platform.storage import sync

KEY_BYTES = 32
SIGNING_KEY = "signing"
COMMAND = "command"
"""The file that says which program has the keys, if another one has."""
_SECONDS = 60.0
_NONE = 3


class Vault:
    """Keys as files of 32 random bytes under one directory (mode 0700, files 0600), or in a program's care."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> bytes:
        """The key of that name, made from the operating system's randomness if there is none yet."""
        if self._command() is None or not self.has(name):
            self._keep(name, secrets.token_bytes(KEY_BYTES))
        return self.read(name)

    def has(self, name: str) -> bool:
        """Whether there is a key of that name, damaged or not. Raises `ConfigurationError` if the program fails."""
        path, command = self._path(name), self._command()
        return path.is_file() if command is None else self._asked(command, "read", name) is not None

    def add(self, prefix: str) -> bytes:
        """A new key, always, kept as `<prefix>-<its key_id>`; durable on return."""
        key = secrets.token_bytes(KEY_BYTES)
        name = f"{prefix}-{key_id(key)}"
        self._keep(name, key)
        return self.read(name)

    def read(self, name: str) -> bytes:
        """The key of that name. Raises `ConfigurationError` if it is missing or damaged."""
        path, command = self._path(name), self._command()
        if command is not None:
            return self._fetched(command, name)
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
        path, command = self._path(name), self._command()
        if command is not None:
            self._asked(command, "keep", name, key.hex())
            return
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

    def _command(self) -> tuple[str, ...] | None:
        """The program that has the keys, or None where they are files.

        Raises:
            ConfigurationError: its file cannot be used, or others could put another program in its place.
        """
        file = self._directory / COMMAND
        try:
            found, text = file.stat(), file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file}: {file_problem(error)}") from None
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(f"{file}: others may write it; accepted: a file of this user's, mode 0600")
        try:
            words = tuple(shlex.split(text))
        except ValueError:
            words = ()
        if not words:
            raise ConfigurationError(f"{file}: accepted: one line, a program and its words, quoted as for a shell")
        return words

    def _fetched(self, command: tuple[str, ...], name: str) -> bytes:
        text = self._asked(command, "read", name)
        if text is None:
            raise ConfigurationError(
                f"key {name!r} is missing from the vault (its {COMMAND} ended with status {_NONE}); restore it from "
                "its backup"
            )
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigurationError(
                f"key {name!r} is damaged: the vault's {COMMAND} wrote {len(text)} characters; accepted: "
                f"{2 * KEY_BYTES} hexadecimal digits"
            )
        return key

    def _asked(self, command: tuple[str, ...], verb: str, name: str, given: str = "") -> str | None:
        """What the program wrote, or None where it has no such key. What it says besides is not shown: it knows keys.

        Raises:
            ConfigurationError: it cannot be started, takes too long, or ends badly.
        """
        try:
            done = subprocess.run(
                [*command, verb, name], input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_SECONDS:g} seconds"
        except (OSError, ValueError) as error:
            problem = f"cannot be started ({type(error).__name__})"
        else:
            if done.returncode == 0:
                return done.stdout.strip()
            if done.returncode == _NONE and verb == "read":
                return None
            problem = f"ended with status {done.returncode}"
        raise ConfigurationError(f"key {name!r}: the vault's {COMMAND} ({verb}) {problem}; try it by hand") from None

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
