"""Keys as files of 32 random bytes under one directory: mode 0700, files 0600.

What belongs here: reading and writing them. What does not: the form of names, and when a key is made (`vault`).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.permissions import closed_directory, make_private
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.storage import sync
from dpsynth_platform.secrets.keeper import KEY_BYTES


class FileKeeper:
    """See `keeper.Keeper`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """Reads the file; first makes it and its directory private, as after a restore from a backup."""
        path = self._directory / f"{name}.key"
        try:
            make_private(path)
            closed_directory(self._directory)
            key = read_regular(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(
                f"key {name!r} cannot be read for this user alone ({reason_of(error)}); accepted: a file of this "
                "user's, mode 0600"
            ) from None
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"key {name!r} is damaged ({len(key)} bytes, not {KEY_BYTES}); restore it")
        return key

    def store(self, name: str, key: bytes) -> None:
        """Writes under a temporary name first, so that no process reads a partial key."""
        path = closed_directory(self._directory) / f"{name}.key"
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)  # atomic, and fails where another process was first
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        sync(self._directory)

    def place_of(self, name: str) -> str:
        return "the vault"
