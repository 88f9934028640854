"""Who may report lineage: the producers' names and the hashes of their tokens.

What belongs here: the file of tokens, making one, and telling whose a token is. What does not: the network (`server`).

The file holds a line `NAME: SHA-256 of the token` for each token, for this user alone; `#` begins a comment. A producer
may have several tokens, so that one can be replaced without a gap. Tokens are made by `dpsynth lineage token` and are
random, so that a plain hash of one tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.errors import ConfigurationError, file_problem
from dpsynth_platform.lineage.ingest import producer_name
from dpsynth_platform.permissions import make_private

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Producer:
    """One token's owner, and its SHA-256."""

    name: str
    digest: str


def load_producers(file: Path) -> tuple[Producer, ...]:
    """The producers that a file names.

    Raises:
        ConfigurationError: it cannot be read for this user alone, names nobody, or has a line of another form.
    """
    try:
        make_private(file)
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the tokens of producers, {file}, cannot be read for this user alone: {file_problem(error)}; accepted: a "
            "file of this user's, mode 0600"
        ) from None
    found = tuple(_producer(file, number, line) for number, line in enumerate(lines, 1) if _content(line))
    if not found:
        raise ConfigurationError(f"{file} names no producer; make a token with: dpsynth lineage token NAME")
    return found


def add_token(file: Path, name: str) -> str:
    """Makes a token, adds its hash to the file, and returns the token, which is kept nowhere.

    Raises:
        ConfigurationError: the name cannot be used, or the file not be written for this user alone.
    """
    token = secrets.token_urlsafe(32)
    line = f"{producer_name(name)}: {_hash(token)}\n"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+", encoding="utf-8") as kept:
            make_private(file)
            there = kept.read()
            kept.write(line if not there or there.endswith("\n") else f"\n{line}")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be written for this user alone: {file_problem(error)}") from None
    return token


def whose(token: str, producers: Sequence[Producer]) -> str | None:
    """Whose token it is, or None; every one is compared, and each in the same time."""
    digest, found = _hash(token), None
    for producer in producers:
        if hmac.compare_digest(producer.digest, digest):
            found = producer.name
    return found


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _content(line: str) -> str:
    return line.partition("#")[0].strip()


def _producer(file: Path, number: int, line: str) -> Producer:
    name, _, digest = (part.strip() for part in _content(line).partition(":"))
    if not _DIGEST.fullmatch(digest):
        raise ConfigurationError(f"{file}, line {number}; accepted: NAME: SHA-256 of the token, 64 digits 0-9a-f")
    return Producer(producer_name(name), digest)
