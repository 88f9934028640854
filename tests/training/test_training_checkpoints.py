"""Checkpoints: whole or not there, sealed for one plan and entry, two kept, and a full disk survived."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import subprocess
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from dpsynth_platform.foundation.errors import CheckpointFailed, ConfigurationError, ResumeRefused
from dpsynth_platform.training import checkpoints as module
from dpsynth_platform.training.checkpoints import CHUNK_BYTES, Checkpoint, CheckpointPolicy, Checkpoints

KEY = secrets.token_bytes(32)


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return at(tmp_path / "kept")


def at(directory: Path, *, key: bytes = KEY, plan: str = "a" * 64, entry: str = "e" * 32) -> Checkpoints:
    return Checkpoints(directory, key, plan_digest=plan, entry_id=entry)


def content_of(kept: Checkpoints, checkpoint: Checkpoint) -> bytes:
    return b"".join(kept.read(checkpoint))


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
@pytest.mark.parametrize("piece", [999, 2 * CHUNK_BYTES + 5])
def test_what_is_kept_comes_back(kept: Checkpoints, length: int, piece: int) -> None:
    content = secrets.token_bytes(length)
    kept.save(7, 9, [content[start : start + piece] for start in range(0, length, piece)])
    latest = kept.latest()
    assert (latest.step, latest.executed) == (7, 9)
    assert content_of(kept, latest) == content


def test_nothing_is_in_clear_and_nothing_twice(kept: Checkpoints) -> None:
    content = b"the same words " * 1000
    one, two = kept.save(1, 1, [content]), kept.save(2, 2, [content])
    bodies = [checkpoint.path.read_bytes().partition(b"\n")[2] for checkpoint in (one, two)]
    assert b"words" not in bodies[0] + bodies[1]
    assert not {bodies[0][place : place + 16] for place in range(1000)} & {
        bodies[1][place : place + 16] for place in range(1000)
    }
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(one.path.parent.stat().st_mode) == 0o700


def test_the_last_two_are_kept_and_all_are_purged(kept: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "kept" / ".partial-of-a-kill").write_bytes(b"x")
    for step in range(1, 6):
        kept.save(step, step + 2, [b"state"])
    assert files(tmp_path / "kept") == [f"{step + 2:012d}-{step:012d}.checkpoint" for step in (4, 5)]
    assert kept.purge() == 2
    assert files(tmp_path / "kept") == []
    assert kept.latest() is None


def test_the_newest_is_the_one_with_most_executed_steps(kept: Checkpoints) -> None:
    kept.save(50, 50, [b"earlier, and lost for a time"])
    kept.save(45, 61, [b"after going on from step 40"])
    assert kept.latest().step == 45


def damages(content: bytes) -> Iterator[bytes]:
    body = content.index(b"\n") + 1
    sealed = CHUNK_BYTES + 16
    yield b""
    yield content[: body // 2]
    yield content[:body]
    yield content[:-1]
    yield content[: body + sealed]  # cut off where a chunk ends
    yield content[:body] + content[body + sealed :]
    yield content[:body] + content[body + sealed : body + 2 * sealed] + content[body:]
    yield content + content[body:]
    yield content + b"x"
    for place in (body, body + sealed, len(content) - 1):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    yield content.replace(b'"step":2', b'"step":3')
    yield content.replace(b'"executed":2', b'"executed":3')
    yield bytes(len(content))


def test_a_damaged_one_falls_back_to_the_one_before(kept: Checkpoints) -> None:
    kept.save(1, 1, [b"before"])
    newest = kept.save(2, 2, [secrets.token_bytes(2 * CHUNK_BYTES + 10)])
    whole = newest.path.read_bytes()
    for number, damaged in enumerate(damages(whole)):
        assert damaged != whole
        newest.path.write_bytes(damaged)
        latest = kept.latest()
        assert latest.step == 1, number
        assert content_of(kept, latest) == b"before"
        with pytest.raises(ResumeRefused, match="damaged since"):
            content_of(kept, newest)
    newest.path.write_bytes(whole)
    assert kept.latest() == newest


def test_where_all_are_damaged_somebody_has_to_decide(kept: Checkpoints, tmp_path: Path) -> None:
    for step in (1, 2):
        path = kept.save(step, step, [b"state"]).path
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ResumeRefused, match="none of 2 checkpoints can be read"):
        kept.latest()
    kept.purge()
    kept.save(1, 1, [b"state"])
    with pytest.raises(ResumeRefused, match="under another key"):
        at(tmp_path / "kept", key=secrets.token_bytes(32)).latest()


@pytest.mark.parametrize("other", [{"plan": "b" * 64}, {"entry": "f" * 32}])
def test_those_of_another_plan_or_entry_are_refused(kept: Checkpoints, tmp_path: Path, other: dict[str, str]) -> None:
    (name,) = other
    foreign = at(tmp_path / "foreign", **other).save(5, 5, [b"state"]).path
    kept.save(1, 1, [b"state"])
    brought = tmp_path / "kept" / foreign.name
    brought.write_bytes(foreign.read_bytes())
    with pytest.raises(ResumeRefused, match=f"of another {name} lies here"):
        kept.latest()
    # Nor does it pass for this plan's by its header alone.
    mine = {"plan": "a" * 64, "entry": "e" * 32}[name]
    brought.write_bytes(foreign.read_bytes().replace(other[name].encode(), mine.encode()))
    assert kept.latest().step == 1


def test_an_unusable_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="16 bytes; accepted: 32"):
        at(tmp_path, key=bytes(16))


def test_a_large_state_is_not_held_as_a_whole(kept: Checkpoints) -> None:
    piece = bytes(5 * CHUNK_BYTES)
    tracemalloc.start()
    try:
        saved = kept.save(1, 1, (piece for _ in range(20)))
        assert kept.latest() == saved
        assert sum(map(len, kept.read(saved))) == 100 * CHUNK_BYTES
        assert tracemalloc.get_traced_memory()[1] < 8 * CHUNK_BYTES
    finally:
        tracemalloc.stop()


class FullAfterOneChunk(io.RawIOBase):
    """A file on a disk that has no more room than a chunk."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._left = CHUNK_BYTES

    def write(self, content: bytes) -> int:
        self._left -= len(content)
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def refused_for_want_of_space(directory: Path, full: AbstractContextManager[object]) -> None:
    kept = at(directory)
    kept.save(1, 1, [b"before"])
    here = files(directory)
    with full, pytest.raises(CheckpointFailed, match=r"no space left on device.*the one before is kept"):
        kept.save(2, 2, (secrets.token_bytes(CHUNK_BYTES) for _ in range(5)))
    assert files(directory) == here
    assert content_of(kept, kept.latest()) == b"before"
    assert kept.save(3, 3, [b"after"]) == kept.latest()


@contextmanager
def disk_full_after_one_chunk() -> Iterator[None]:
    class Os:
        """The operating system's functions, except one."""

        fdopen = staticmethod(lambda descriptor, mode: FullAfterOneChunk(descriptor))

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "os", Os())
        yield


def test_a_full_disk_leaves_the_earlier_ones(tmp_path: Path) -> None:
    refused_for_want_of_space(tmp_path / "kept", disk_full_after_one_chunk())


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    try:
        refused_for_want_of_space(place / "kept", nullcontext())
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_so_many_interruptions_fit_under_the_allowance() -> None:
    policy = CheckpointPolicy.for_allowance(50, interruptions=4)
    assert policy.every * 4 <= 50
    assert [step for step in range(1, 50) if policy.due(step, 0.0)] == [12, 24, 36, 48]
    assert policy.due(1, 600.0)
    assert not policy.due(1, 599.0)
    assert CheckpointPolicy.for_allowance(1).every == 1
    without = CheckpointPolicy.for_allowance(0)
    assert not any(without.due(step, 0.0) for step in range(1000))
