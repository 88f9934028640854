"""What a vault asks of whatever keeps its keys.

What belongs here: the interface, and what keepers have in common: the form of a key elsewhere, and reading a file that
says where keys are. What does not: a keeper.
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
    """Has keys by their names. What a manager says of a failure is told by its code alone: it knows keys."""

    def found(self, name: str) -> bytes | None:
        """The key of that name, or None where the keeper is sure that there never was one.

        Raises:
            ConfigurationError: it is damaged, or cannot be had: "none" is never a guess.
        """

    def keep(self, name: str, key: bytes) -> None:
        """Keeps a key under a name that is free, durable on return; one that is there stays. Raises as `found`."""

    def lacks(self, name: str) -> str:
        """Where there is no such key, for the message that says so: `the vault`."""


def key_of(name: str, text: str, writer: str) -> bytes:
    """A key from its hexadecimal digits. Raises `ConfigurationError`, which tells how many characters there were."""
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
    """A file that says where keys are, or None where there is none.

    Raises:
        ConfigurationError: it cannot be read, or others could write it, and so have keys go where they like.
    """
    try:
        found, text = file.stat(), read_regular(file).decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file}: {file_problem(error)}") from None
    # Root may put anything in anything's place anyway; a cluster mounts its files as root's.
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(f"{file}: others may write it; accepted: a file of this user's or root's, mode 0600")
    return text
