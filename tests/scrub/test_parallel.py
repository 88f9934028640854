"""Worker processes: the same findings in the same order, flat memory, a clear end."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub import parallel
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.findings import Finding
from dpsynth_platform.scrub.parallel import ParallelDetector

START = parallel._pool
TEXTS = [f"Record {number}: Ann Smith, 212-736-5{number:03d}, wrote to a{number}@corp.com." for number in range(60)]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers from the first text on, and small units."""
    monkeypatch.setattr(parallel, "WORTH_CHARACTERS", 0)
    monkeypatch.setattr(parallel, "UNIT_CHARACTERS", 300)


@pytest.fixture(scope="module")
def shared() -> Iterator[ParallelDetector]:
    """One with two workers, which take seconds to start."""
    with ParallelDetector(processes=2) as detector:
        yield detector


def test_workers_find_what_one_process_finds_in_order(eager: None, shared: ParallelDetector) -> None:
    taken = []

    def items() -> Iterator[list[str]]:
        for start in range(0, 60, 10):
            taken.append(start)
            yield TEXTS[start : start + 10]

    expected = text_detector().find([Document(text) for text in TEXTS])
    got: list[list[Finding]] = []
    ahead: list[int] = []
    for item, findings in shared.each(items(), lambda item: [Document(text) for text in item]):
        assert item == TEXTS[len(got) : len(got) + 10]
        got += findings
        ahead.append(taken[-1] - len(got) + 10)
    assert got == expected
    # What is not yet needed is not yet read: never more than a few items ahead of the one in hand.
    assert max(ahead) <= 20


def test_a_contracts_rules_go_to_a_worker(
    eager: None, shared: ParallelDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Scrub.model_validate({"patterns": [{"entity": "LOOP", "pattern": "(x+x+)+y"}]})
    monkeypatch.setattr(parallel, "_pool", lambda processes: shared._pool or START(processes))
    detector = ParallelDetector(own, 2)
    ((_, found),) = detector.each([["xxxy", "x" * 5000]], lambda item: [Document(text) for text in item])
    shared._pool = detector._pool
    assert shared._pool is not None, "no worker was asked"
    assert found == [[Finding(0, 4, "LOOP")], [Finding(0, 5000, "UNREAD")]]


def test_a_crash_leaves_no_image_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    with ParallelDetector():
        assert limits[resource.RLIMIT_CORE] == (0, 0)


def test_few_texts_start_no_process() -> None:
    with ParallelDetector(processes=2) as detector:
        list(detector.each([TEXTS], lambda item: [Document(text) for text in item]))
        assert detector._pool is None


def test_items_without_texts_do_not_wait_for_each_other() -> None:
    """A table without free text is read as one with it: a whole one would not fit into the memory."""
    read = []

    def items() -> Iterator[int]:
        for number in range(50):
            read.append(number)
            yield number

    with ParallelDetector(processes=1) as detector:
        for place, (item, _) in enumerate(detector.each(items(), lambda _: [])):
            assert item == place
            assert len(read) < place + 5


def test_no_worker_outlives_its_parent() -> None:
    """The parent is killed, so that nothing tidies up after it."""
    code = (
        "import os, sys\n"
        "from dpsynth_platform.scrub import parallel\n"
        "from dpsynth_platform.scrub.detection import Document\n"
        "parallel.WORTH_CHARACTERS = 0\n"
        "if __name__ == '__main__':\n"
        "    with parallel.ParallelDetector(processes=2) as detector:\n"
        "        list(detector.each([['a text'] * 3], lambda item: [Document(text) for text in item]))\n"
        "        print(*[p.pid for p in detector._pool._processes.values()], flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    workers = [int(pid) for pid in done.stdout.split()]
    assert workers
    deadline = time.monotonic() + 120
    while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.1)
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]  # noqa: PTH110


def test_a_killed_worker_is_named_without_a_text(eager: None, shared: ParallelDetector) -> None:
    """Nor does it leave an image of its memory. The last of those that share workers: none is left."""
    stream = shared.each(iter([[text] for text in TEXTS]), lambda item: [Document(text) for text in item])
    next(stream)
    assert shared._pool is not None
    for process in list((shared._pool._processes or {}).values()):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"Max core file size\s+0\s+0\s", limits)
        os.kill(process.pid or 0, signal.SIGKILL)
    with pytest.raises(SourceError, match="a detector process ended unexpectedly") as raised:
        list(stream)
    assert "Smith" not in str(raised.value)
