"""Free memory of a training on the CPU, and the size of its physical batches over several attempts.

What belongs here: free memory of the machine and its container, and reducing the size after a kill. What does not: the
memory of a token (`physical`), and accelerators, which raise errors on short memory. The kernel kills a process that
exceeds its container's memory, without an exception. So a file has the current size, and an attempt that finds it
there, marked as running, takes half of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpsynth_platform.foundation.storage import write_durably

_RUNNING, _ENDED = "running", "ended"


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still allocate: the machine's free memory, or less if a control group limits it.

    It reads limits of version 1 and 2 (Linux, `Documentation/admin-guide/cgroup-v1/memory.rst` and `cgroup-v2.rst`) of
    the process's own group and all above it. Droppable file caches count as free. `root` has `proc` and `sys`.
    """
    words = (root / "proc/meminfo").read_text(encoding="ascii").split()
    machine = int(words[words.index("MemAvailable:") + 1]) * 1024
    return max(0, min([machine, *_left_of_groups(root)]))


class BatchSize:
    """The size of physical batches, in a file (`remembered_size`)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: int | None = None

    def begin(self, tokens: int, least: int) -> int:
        """The initial size: at most the previous attempt's, and half of that if it was killed.

        `tokens` in a physical batch is the public estimate, and `least` the useful minimum.
        """
        with suppress(OSError, ValueError):
            before, state = self._path.read_text(encoding="ascii").split()
            tokens = min(tokens, max(least, int(before) // (2 if state == _RUNNING else 1)))
        self._tokens = tokens
        self._write(_RUNNING)
        return tokens

    def end(self) -> None:
        """Marks the attempt as ended, not killed. A complete training has no file any more, and gets none."""
        if self._tokens is not None and self._path.exists():
            self._write(_ENDED)

    def _write(self, state: str) -> None:
        with suppress(OSError):  # a full disk: the next attempt has another size, which costs time at most
            write_durably(self._path, f"{self._tokens} {state}")


@contextmanager
def remembered_size(path: Path) -> Iterator[BatchSize]:
    """The size of one training's physical batches, over its attempts."""
    size = BatchSize(path)
    try:
        yield size
    finally:
        size.end()


def _left_of_groups(root: Path) -> Iterator[int]:
    """Free memory under the limit of each group of this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, base = ("memory.max", "memory.current", "inactive_file"), root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        own = base / path.lstrip("/")  # it may be missing in a container, whose group is then the base
        for group in (own, *own.parents[: len(own.relative_to(base).parts)]):
            with suppress(OSError, ValueError):  # without a limit the file says max; the machine's own group has none
                yield _left(group, *names)


def _left(group: Path, limit: str, usage: str, droppable: str) -> int:
    statistics = (group / "memory.stat").read_text(encoding="ascii").split()
    files = int(statistics[statistics.index(droppable) + 1])
    return int((group / limit).read_text(encoding="ascii")) - int((group / usage).read_text(encoding="ascii")) + files
