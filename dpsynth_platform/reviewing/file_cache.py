"""A cache of values made from files, valid while the files are unchanged.

What belongs here: detecting changes of files, and the cache. What does not: reading any file.

A file is unchanged while its place, number, size and times are. The system sets one of them, the time of the last
status change, at every write and renaming, and no program can set it back without the system's clock. So content that
was replaced under its old size and date is noticed. The clock moves in ticks, and the second of two writes in a tick
could pass unseen; so the state of a file that was just written is taken a tick later.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

_Value = TypeVar("_Value")

_TICK_NS = 20_000_000
"""Longer than a tick of the system's clock, at most 10 ms on Linux."""
_TRIES = 5

State = tuple[tuple[str, tuple[int, ...] | None], ...]


def state_of(paths: Iterable[Path]) -> State:
    """The state of files for comparison; a missing file has one, too."""
    names = [str(path) for path in paths]
    return _settled(lambda: tuple((name, _state(name)) for name in names))


def tree_state(directory: Path) -> State:
    """The state of a directory and everything below it, without following links."""
    return _settled(lambda: tuple(sorted(_tree(str(directory)))))


class FileCache(Generic[_Value]):
    """Values by a key, each with the state in which it was made; at most `most`, without the least recently used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, tuple[Hashable, _Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: Hashable, make: Callable[[], _Value]) -> _Value:
        """The value that was made in this state, or a new one. Exceptions of `make` are not cached.

        Take the state before the call, so that a change during `make` gives another state next time.
        """
        found = self.peek(key, state)
        if found is not None:
            return found
        value = make()
        with self._lock:
            self._values[key] = (state, value)
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value

    def peek(self, key: Hashable, state: Hashable) -> _Value | None:
        with self._lock:
            if key not in self._values or self._values[key][0] != state:
                return None
            self._values.move_to_end(key)
            return self._values[key][1]

    def forget(self, key: Hashable) -> None:
        with self._lock:
            self._values.pop(key, None)


def _settled(look: Callable[[], State]) -> State:
    """A state that every later write changes; for files that are written all the time, the last one."""
    state = look()
    for _ in range(_TRIES):
        now = time.time_ns()
        if not any(numbers is not None and 0 <= now - numbers[-1] < _TICK_NS for _, numbers in state):
            break
        time.sleep(_TICK_NS / 1e9)
        state = look()
    return state


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _tree(directory: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    yield directory, _state(directory)
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _tree(entry.path)
        else:
            yield entry.path, _state(entry.path)
