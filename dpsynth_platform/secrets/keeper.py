"""The interface between a vault and its keeper of keys.

What belongs here: the interface, and what keepers share: a key's text form, and reading the files that choose a keeper.
What does not: a keeper.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.regular_files import read_regular

KEY_BYTES = 32


class Keeper(Protocol):
    """Keys by name. Errors show only the code of a manager's failure: its text may contain keys."""

    def read(self, name: str) -> bytes | None:
        """The key, or None only where the keeper is certain that there is none.

        Raises:
            ConfigurationError: the key is damaged, or the keeper cannot be reached.
        """

    def store(self, name: str, key: bytes) -> None:
        """Stores a key, durable on return; an existing key of that name stays. Raises as `read`."""

    def place_of(self, name: str) -> str:
        """Where the keeper looks for such a key, for messages, such as `the vault`."""


def key_of(name: str, text: str, writer: str) -> bytes:
    """A key from its hexadecimal digits. Raises `ConfigurationError` with the number of characters only."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"key {name!r} is damaged: {writer} wrote {len(text.strip())} characters; accepted: {2 * KEY_BYTES} "
            "hexadecimal digits"
        )
    return key


def own_text(file: Path) -> str | None:
    """The text of a file that chooses the keeper, or None where there is none.

    Raises:
        ConfigurationError: it cannot be read, or other users could write it and so redirect keys.
    """
    try:
        found, text = file.stat(), read_regular(file).decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file}: {file_problem(error)}") from None
    # Root can replace any file anyway, and a cluster mounts its files as root's.
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"{file}: other users can write to it; accepted: a file of this user's or root's, mode 0600"
        )
    return text
