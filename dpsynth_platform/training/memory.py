"""How much memory a training on the CPU may take, and what a kill for want of it teaches.

What belongs here: what the machine and its container leave, and the size of physical batches over several attempts.
What does not: what a token takes (`physical`), and accelerators, which say themselves when their memory is short. A
process that takes more than its container may have gets no exception: the kernel kills it. So the size that is under
way stands in a file, and an attempt that finds it there, never ended, takes half of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpsynth_platform.foundation.storage import write_durably

_RUNNING, _ENDED = "running", "ended"


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: what the machine has free, or less where a control group limits it.

    Limits of version 1 and 2 are known (Linux, `Documentation/admin-guide/cgroup-v1/memory.rst` and `cgroup-v2.rst`),
    of the process's own group and all above it. Files that the kernel would drop count as free.

    Args:
        root: where `proc` and `sys` are.
    """
    words = (root / "proc/meminfo").read_text(encoding="ascii").split()
    machine = int(words[words.index("MemAvailable:") + 1]) * 1024
    return max(0, min([machine, *_left_of_groups(root)]))


class BatchSize:
    """The size of physical batches, in a file: made by `remembered_size`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: int | None = None

    def begun(self, tokens: int, least: int) -> int:
        """The size to begin with: at most that of the attempt before, and half of it where that one never ended.

        Args:
            tokens: in a physical batch, as estimated. Public.
            least: fewer are of no use.
        """
        with suppress(OSError, ValueError):
            before, state = self._path.read_text(encoding="ascii").split()
            tokens = min(tokens, max(least, int(before) // (2 if state == _RUNNING else 1)))
        self._tokens = tokens
        self._write(_RUNNING)
        return tokens

    def ended(self) -> None:
        """The attempt ends by itself, however it does. What is complete has no file any more, and gets none."""
        if self._tokens is not None and self._path.exists():
            self._write(_ENDED)

    def _write(self, state: str) -> None:
        with suppress(OSError):  # a full disk: the next attempt takes another size, which costs time at most
            write_durably(self._path, f"{self._tokens} {state}")


@contextmanager
def remembered_size(path: Path) -> Iterator[BatchSize]:
    """The size of one training's physical batches, over its attempts."""
    size = BatchSize(path)
    try:
        yield size
    finally:
        size.ended()


def _left_of_groups(root: Path) -> Iterator[int]:
    """What each group that this process is in leaves of its limit."""
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
        own = base / path.lstrip("/")  # in a container it may not be there: its own group is then the base
        for group in (own, *own.parents[: len(own.relative_to(base).parts)]):
            with suppress(OSError, ValueError):  # no limit is the word max; the machine's own group has no file
                yield _left(group, *names)


def _left(group: Path, limit: str, usage: str, droppable: str) -> int:
    statistics = (group / "memory.stat").read_text(encoding="ascii").split()
    files = int(statistics[statistics.index(droppable) + 1])
    return int((group / limit).read_text(encoding="ascii")) - int((group / usage).read_text(encoding="ascii")) + files
