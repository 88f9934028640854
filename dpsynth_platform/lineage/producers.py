"""The producers that may report lineage, and the hashes of their tokens.

What belongs here: the file of tokens, making a token, and finding its owner. What does not: the network (`server`).

The file is private and has a line `NAME: SHA-256 of the token` for each token; `#` begins a comment. A producer may
have several tokens, so that one can be replaced without a gap. `dpsynth lineage token` makes random tokens, so a plain
hash of one reveals nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import PRIVATE_UMASK
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.lineage.ingest import producer_name

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Producer:
    """One token's owner, and its SHA-256."""

    name: str
    digest: str


@dataclass(frozen=True)
class MadeToken:
    """A new token, which is stored nowhere, and how many the producer had before."""

    token: str
    earlier: int


def load_producers(file: Path) -> tuple[Producer, ...]:
    """The producers in a file.

    Raises:
        ConfigurationError: it cannot be read, is open to others, is empty, or has an invalid line.
    """
    _check_private(file)
    try:
        lines = read_regular(file).decode().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(_unreadable(file, file_problem(error))) from None
    found = tuple(_producer(file, number, line) for number, line in enumerate(lines, 1) if _content(line))
    if not found:
        raise ConfigurationError(f"{file} names no producer; make a token with: dpsynth lineage token NAME")
    return found


def add_token(file: Path, name: str, *, replace: bool = False) -> MadeToken:
    """Makes a token and adds its hash to the file.

    Args:
        replace: remove the producer's earlier tokens; otherwise they stay valid.

    Raises:
        ConfigurationError: the name is invalid, or the file is open to others or cannot be written.
    """
    token, producer = secrets.token_urlsafe(32), producer_name(name)
    lines: list[str] = []
    if file.exists():
        _check_private(file)
    try:
        if file.exists():
            lines = read_regular(file).decode().splitlines()
        earlier = [line for line in lines if _content(line).partition(":")[0].strip() == producer]
        kept = [line for line in lines if not (replace and line in earlier)]
        write_durably(file, "".join(f"{line}\n" for line in (*kept, f"{producer}: {_hash(token)}")))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be written for this user alone: {file_problem(error)}") from None
    return MadeToken(token, len(earlier))


def owner_of(token: str, producers: Sequence[Producer]) -> str | None:
    """The token's producer, or None. All are compared, each in constant time."""
    digest, found = _hash(token), None
    for producer in producers:
        if hmac.compare_digest(producer.digest, digest):
            found = producer.name
    return found


def _check_private(file: Path) -> None:
    """Raises `ConfigurationError` if the file is missing, or open to others: a writer could report in any name."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        raise ConfigurationError(_unreadable(file, file_problem(error))) from None
    if mode & PRIVATE_UMASK:
        raise ConfigurationError(_unreadable(file, f"its mode is {mode:04o}, so others may use it; chmod 600 {file}"))


def _unreadable(file: Path, problem: str) -> str:
    return (
        f"the tokens of producers, {file}, cannot be used: {problem}; accepted: a file that this user alone may read, "
        "mode 0600"
    )


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _content(line: str) -> str:
    return line.partition("#")[0].strip()


def _producer(file: Path, number: int, line: str) -> Producer:
    name, _, digest = (part.strip() for part in _content(line).partition(":"))
    if not _DIGEST.fullmatch(digest):
        raise ConfigurationError(f"{file}, line {number}; accepted: NAME: SHA-256 of the token, 64 digits 0-9a-f")
    return Producer(producer_name(name), digest)
