"""A sign of life from the process that started a worker on another machine.

What belongs here: giving it and watching it. What does not: what else ends a worker (a cluster's own word). No kernel
kills a process because its launcher on another machine was killed, and a mechanism must not go on behind a step that
everybody believes to be over: so the launcher counts in a file that both see, and a worker that sees it stand still, or
gone, ends itself. Clocks of two machines are never compared.
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
"""How long a count may stand still: file systems that machines share may show it late."""
KILLED_STATUS = 128 + signal.SIGKILL


@contextmanager
def lifeline(path: Path) -> Iterator[None]:
    """Counts in a file as long as the block lasts; the file goes with it."""
    over = threading.Event()

    def count() -> None:
        for number in itertools.count(1):
            if over.wait(BEAT_SECONDS):
                return
            with suppress(OSError):  # a disk that is full for a while need not end a training
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


def die_without(path: Path, patience: float = PATIENCE_SECONDS) -> None:
    """Ends this process at once when the count in a file stands still for too long, or the file is gone."""
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
    os._exit(KILLED_STATUS)  # a signal to itself would not end the first process of a container
