"""Encrypted checkpoints of a training, and how often to write them.

What belongs here: the files (written whole or not at all, sealed for one plan and one ledger entry, the last two kept)
and the policy. What does not: what is in them (`states`), the count of executed steps (`journal`). A checkpoint is
differentially private, since it is made of noised gradients, and kept restricted all the same.

A file is one line of JSON in clear, the header, and chunks of up to 1 MiB, each sealed by AES-256-GCM. Chunk i has the
nonce (i, whether it is the last), and the header as associated data: plan digest, ledger entry, step, executed steps
and a fresh salt. The key of a file is derived from the caller's and the salt (HKDF-SHA256), so that no nonce comes
twice under one key. That is the STREAM construction (Hoang, Reyhanitabar, Rogaway & Vizár, CRYPTO 2015): chunks cannot
be exchanged, left out or cut off, and nothing is handed out before it is authenticated, however large the file is.
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
    """When a checkpoint is due.

    Attributes:
        every: steps from one to the next, so at most what one interruption loses; None writes none by count.
        seconds: the longest time of work that one interruption may lose.
    """

    every: int | None
    seconds: float = 600.0

    @classmethod
    def for_allowance(cls, replay_allowance: int, *, interruptions: int = 4) -> CheckpointPolicy:
        """Such that so many interruptions fit under the allowance, each at the worst moment; on average twice as many.

        Without an allowance no checkpoint is due by count: any step that is lost is then one too many.
        """
        if replay_allowance == 0:
            return cls(every=None)
        return cls(every=max(1, replay_allowance // interruptions))

    def due(self, step: int, seconds_since_last: float) -> bool:
        """Whether to write a checkpoint now that the model has taken `step` steps."""
        by_count = self.every is not None and step % self.every == 0
        return by_count or seconds_since_last >= self.seconds


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every chunk was authentic when it was looked for.

    Attributes:
        step: how many steps its model has taken.
        executed: how many steps had been executed when it was written, in all attempts.
    """

    step: int
    executed: int
    path: Path


class Checkpoints:
    """The checkpoints of one training.

    Args:
        directory: for checkpoints alone; made where it is missing.
        key: 32 secret bytes.
        plan_digest: digest of the sealed plan that is trained under.
        entry_id: the ledger entry that pays for it.

    Raises:
        ConfigurationError: the key is of another length.
    """

    def __init__(self, directory: Path, key: bytes, *, plan_digest: str, entry_id: str) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"the key of checkpoints has {len(key)} bytes; accepted: {KEY_BYTES}")
        self._directory = private_directory(directory)
        self._key = key
        self._named = {"format": _FORMAT, "plan": plan_digest, "entry": entry_id}

    def save(self, step: int, executed: int, content: Iterable[bytes | memoryview]) -> Checkpoint:
        """Writes a checkpoint, durably and as a whole, and deletes all but the last two.

        Args:
            content: its bytes, in pieces of any length; never held in memory as a whole.

        Raises:
            CheckpointFailed: it could not be written, as where the disk is full. Earlier checkpoints are as they were,
                and nothing of this one is left.
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
                "one before is kept. Training may go on, but an interruption would cost more replayed steps"
            ) from None
        with suppress(OSError):  # the new one is there; what is too many goes with the next, or with the purge
            for stale in [*self._files()[KEPT:], *self._directory.glob(f"{_PARTIAL}*")]:
                stale.unlink()
        return Checkpoint(step, executed, path)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole and authentic, or None where there is none at all.

        Raises:
            ResumeRefused: one is of another plan or ledger entry, or there are some and none is authentic.
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
        """The content in pieces, each authenticated before it is handed out.

        Raises:
            ResumeRefused: at the piece where it is damaged.
        """
        try:
            with checkpoint.path.open("rb") as file:
                header, line = _header(file)
                self._check_named(checkpoint.path, header)
                yield from _opened(file, _file_key(self._key, header), line)
        except (OSError, ValueError, InvalidTag):
            raise ResumeRefused(f"{checkpoint.path}: damaged since it was looked for; resume again") from None

    def purge(self) -> int:
        """Deletes all checkpoints, whole and partial ones; returns how many files there were."""
        files = [*self._files(), *self._directory.glob(f"{_PARTIAL}*")]
        for path in files:
            path.unlink(missing_ok=True)
        sync(self._directory)
        return len(files)

    def _files(self) -> list[Path]:
        """Newest first: names begin with the number of executed steps, which never goes down."""
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
    """The header, and its line as it stands there. Raises ValueError for what is none."""
    line = file.readline(_LONGEST_HEADER)
    header = json.loads(line)
    if not line.endswith(b"\n") or not isinstance(header, dict) or not header.keys() >= _HEADER:
        raise ValueError("no header of a checkpoint")
    return header, line[:-1]


def _opened(file: BinaryIO, key: bytes, line: bytes) -> Iterator[bytes]:
    """The chunks in clear. Raises InvalidTag at the first that is not authentic, or where the last one is missing."""
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
    """The same bytes in chunks of `CHUNK_BYTES`; at least one, of which the last may be shorter or empty."""
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
    """Each chunk with whether it is the last."""
    iterator = iter(chunks)
    waiting = next(iterator, None)
    while waiting is not None:
        following = next(iterator, None)
        yield waiting, following is None
        waiting = following
