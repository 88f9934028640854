"""The heartbeat of the process that started a worker on another machine.

What belongs here: writing and watching it. What does not: other ends of a worker. No kernel kills a process because its
launcher on another machine was killed, but a mechanism must not continue after its step. So the launcher counts in a
shared file, and the worker ends itself if the count stops or the file is missing. Clocks are never compared.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpsynth_platform.foundation.storage import write_durably

BEAT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""The most seconds without a new count; shared file systems may show it late."""
KILLED_STATUS = 128 + signal.SIGKILL


@contextmanager
def lifeline(path: Path) -> Iterator[None]:
    """Counts in a file during the block, then deletes the file."""
    over = threading.Event()

    def count() -> None:
        for number in itertools.count(1):
            if over.wait(BEAT_SECONDS):
                return
            with suppress(OSError):  # a temporarily full disk need not end a training
                path.write_text(str(number), encoding="ascii")

    write_durably(path, "0")
    counting = threading.Thread(target=count, name="lifeline", daemon=True)
    counting.start()
    try:
        yield
    finally:
        over.set()
        counting.join()
        path.unlink(missing_ok=True)


def end_without_heartbeat(path: Path, patience: float = PATIENCE_SECONDS) -> None:
    """Ends this process immediately when the count in the file stops for too long, or the file is missing."""
    threading.Thread(target=_watch, args=(path, patience), name="lifeline", daemon=True).start()


def _watch(path: Path, patience: float) -> None:
    seen, since = "", time.monotonic()
    while time.monotonic() - since < patience:
        try:
            count = path.read_text(encoding="ascii")
        except FileNotFoundError:
            break
        except (OSError, ValueError):
            count = seen
        if count != seen:
            seen, since = count, time.monotonic()
        time.sleep(min(BEAT_SECONDS, patience / 4))
    os._exit(KILLED_STATUS)  # a signal would not end the first process of a container
