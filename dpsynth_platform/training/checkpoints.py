"""Encrypted checkpoints of a training, and how often to write them.

What belongs here: the files (written atomically, sealed for one plan and one ledger entry, the last two kept) and the
policy. What does not: their content (`states`), the count of executed steps (`journal`). A checkpoint is differentially
private, since it consists of noised gradients, but stays restricted.

A file is one line of JSON in clear, the header, and chunks of up to 1 MiB, each sealed by AES-256-GCM. Chunk i has the
nonce (i, whether it is the last), and the header as associated data: plan digest, ledger entry, step, executed steps
and a fresh salt. The file's key is derived from the caller's key and the salt (HKDF-SHA256), so no nonce repeats under
one key. That is the STREAM construction (Hoang, Reyhanitabar, Rogaway & Vizár, CRYPTO 2015): chunks cannot be
exchanged, omitted or truncated, and no content is returned before it is authenticated, for files of any size.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpsynth_platform.foundation.digests import canonical_json
from dpsynth_platform.foundation.errors import CheckpointFailed, ConfigurationError, ResumeRefused, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import sync

KEY_BYTES = 32
CHUNK_BYTES = 1 << 20
KEPT = 2

_FORMAT = "dpsynth-checkpoint-1"
_HEADER = {"format", "plan", "entry", "step", "executed", "salt"}
_SUFFIX = ".checkpoint"
_PARTIAL = ".partial-"
_TAG_BYTES = 16
_LONGEST_HEADER = 4096


@dataclass(frozen=True)
class CheckpointPolicy:
    """When a checkpoint is due: `every` so many steps (None: not by count), and after so many `seconds` of work."""

    every: int | None
    seconds: float = 600.0

    @classmethod
    def for_allowance(cls, replay_allowance: int, *, interruptions: int = 4) -> CheckpointPolicy:
        """The allowance covers so many interruptions at the worst moment; on average twice as many.

        Without an allowance no checkpoint is due by count, since no step may be lost at all.
        """
        if replay_allowance == 0:
            return cls(every=None)
        return cls(every=max(1, replay_allowance // interruptions))

    def due(self, step: int, seconds_since_last: float) -> bool:
        by_count = self.every is not None and step % self.every == 0
        return by_count or seconds_since_last >= self.seconds


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint after the model's `step`, and `executed` steps in all attempts.

    When it was found, all its chunks were authentic.
    """

    step: int
    executed: int
    path: Path


class Checkpoints:
    """The checkpoints of one training, by its sealed plan and ledger entry.

    The directory is for checkpoints alone, and created if missing; the key has 32 secret bytes.

    Raises:
        ConfigurationError: the key has another length.
    """

    def __init__(self, directory: Path, key: bytes, *, plan_digest: str, entry_id: str) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"the key of checkpoints has {len(key)} bytes; accepted: {KEY_BYTES}")
        self._directory = private_directory(directory)
        self._key = key
        self._named = {"format": _FORMAT, "plan": plan_digest, "entry": entry_id}

    def save(self, step: int, executed: int, content: Iterable[bytes | memoryview]) -> Checkpoint:
        """Writes a checkpoint durably and atomically, and deletes all but the last two.

        The content comes in pieces of any length, and is never in memory as a whole.

        Raises:
            CheckpointFailed: it could not be written, for example on a full disk. Earlier checkpoints are unchanged,
                and no part of this one remains.
        """
        header = self._named | {"step": step, "executed": executed, "salt": secrets.token_hex(32)}
        path = self._directory / f"{executed:012d}-{step:012d}{_SUFFIX}"
        partial = self._directory / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            try:
                _write(partial, self._key, header, content)
                partial.replace(path)
                sync(self._directory)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointFailed(
                f"{self._directory}: the checkpoint of step {step} could not be written ({file_problem(error)}); the "
                "one before is kept. Training may continue, but an interruption would cost more replayed steps"
            ) from None
        with suppress(OSError):  # the new one exists; the next one or the purge deletes stale files
            for stale in [*self._files()[KEPT:], *self._directory.glob(f"{_PARTIAL}*")]:
                stale.unlink()
        return Checkpoint(step, executed, path)

    def latest(self) -> Checkpoint | None:
        """The newest authentic checkpoint, or None if there are no files.

        Raises:
            ResumeRefused: one belongs to another plan or ledger entry, or there are files and none is authentic.
        """
        files = self._files()
        for path in files:
            if (found := self._authentic(path)) is not None:
                return found
        if files:
            raise ResumeRefused(
                f"{self._directory}: none of {len(files)} checkpoints can be read: they are damaged or were written "
                "under another key. Accepted: the key they were written under, or deleting them to start from the "
                "first step, which counts as replayed"
            )
        return None

    def read(self, checkpoint: Checkpoint) -> Iterator[bytes]:
        """The content in pieces, each authenticated first; raises `ResumeRefused` at a damaged piece."""
        try:
            with checkpoint.path.open("rb") as file:
                header, line = _header(file)
                self._check_named(checkpoint.path, header)
                yield from _opened(file, _file_key(self._key, header), line)
        except (OSError, ValueError, InvalidTag):
            raise ResumeRefused(f"{checkpoint.path}: damaged since it was found; resume again") from None

    def purge(self) -> int:
        """Deletes all checkpoints, including partial ones; returns the number of files."""
        files = [*self._files(), *self._directory.glob(f"{_PARTIAL}*")]
        for path in files:
            path.unlink(missing_ok=True)
        sync(self._directory)
        return len(files)

    def _files(self) -> list[Path]:
        """Newest first: names begin with the number of executed steps, which never decreases."""
        return sorted(self._directory.glob(f"*{_SUFFIX}"), reverse=True)

    def _authentic(self, path: Path) -> Checkpoint | None:
        """What the file is, read to its end; None where it is torn or damaged."""
        try:
            with path.open("rb") as file:
                header, line = _header(file)
                self._check_named(path, header)
                for _ in _opened(file, _file_key(self._key, header), line):
                    pass
            return Checkpoint(int(header["step"]), int(header["executed"]), path)
        except (OSError, ValueError, InvalidTag):
            return None

    def _check_named(self, path: Path, header: dict[str, Any]) -> None:
        for name, value in self._named.items():
            if header[name] != value:
                raise ResumeRefused(
                    f"{path}: a checkpoint of another {name} lies here ({header[name]}); accepted: {value}"
                )


def newest_step(directory: Path) -> int:
    """Steps that the model of the newest checkpoint has taken, by its name; 0 where there is none. Needs no key."""
    return max((int(path.stem.partition("-")[2]) for path in directory.glob(f"*{_SUFFIX}")), default=0)


def _write(path: Path, key: bytes, header: dict[str, Any], content: Iterable[bytes | memoryview]) -> None:
    line = canonical_json(header).encode()
    cipher = AESGCM(_file_key(key, header))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(line + b"\n")
        for number, (chunk, last) in enumerate(_marked(_chunks(content))):
            file.write(cipher.encrypt(_nonce(number, last), chunk, line))
        file.flush()
        os.fsync(file.fileno())


def _header(file: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """The header, and its line; raises ValueError for an invalid one."""
    line = file.readline(_LONGEST_HEADER)
    header = json.loads(line)
    if not line.endswith(b"\n") or not isinstance(header, dict) or not header.keys() >= _HEADER:
        raise ValueError("no header of a checkpoint")
    return header, line[:-1]


def _opened(file: BinaryIO, key: bytes, line: bytes) -> Iterator[bytes]:
    """The decrypted chunks; raises InvalidTag at the first that is not authentic, or if the last one is missing."""
    cipher = AESGCM(key)
    sealed = iter(lambda: file.read(CHUNK_BYTES + _TAG_BYTES), b"")
    number = -1
    for number, (chunk, last) in enumerate(_marked(sealed)):
        yield cipher.decrypt(_nonce(number, last), chunk, line)
    if number < 0:
        raise InvalidTag


def _file_key(key: bytes, header: dict[str, Any]) -> bytes:
    salt = bytes.fromhex(str(header["salt"]))
    return HKDF(SHA256(), length=KEY_BYTES, salt=salt, info=_FORMAT.encode()).derive(key)


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _chunks(content: Iterable[bytes | memoryview]) -> Iterator[bytearray]:
    """The bytes in chunks of `CHUNK_BYTES`, at least one; the last may be shorter or empty."""
    chunk = bytearray()
    for piece in content:
        view = memoryview(piece)
        while len(view):
            taken = view[: CHUNK_BYTES - len(chunk)]
            chunk += taken
            view = view[len(taken) :]
            if len(chunk) == CHUNK_BYTES:
                yield chunk
                chunk = bytearray()
    yield chunk


def _marked(chunks: Iterable[bytes | bytearray]) -> Iterator[tuple[bytes | bytearray, bool]]:
    iterator = iter(chunks)
    waiting = next(iterator, None)
    while waiting is not None:
        following = next(iterator, None)
        yield waiting, following is None
        waiting = following
