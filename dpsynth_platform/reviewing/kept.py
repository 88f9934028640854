"""What was made of files, kept as long as the files are the same.

What belongs here: telling whether files have changed, and keeping what was made of them. What does not: reading any.

A file counts as the same while its place, number, size and times are. One of them, the time of its last change of
status, is set by the system at every write and renaming, and no program can set it back without the system's clock: so
content that was replaced under its old size and date is noticed, too. The system's clock moves in ticks, and of two
writes in one tick the second could pass unseen; so a file that was just written is looked at a tick later.
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
"""Longer than a tick of the system's clock: 10 ms at most on Linux."""
_TRIES = 5

State = tuple[tuple[str, tuple[int, ...] | None], ...]


def state_of(paths: Iterable[Path]) -> State:
    """What tells whether files are the same as before; of one that is not there, that."""
    looked_at = [str(path) for path in paths]
    return _settled(lambda: tuple((path, _state(path)) for path in looked_at))


def tree_state(directory: Path) -> State:
    """The same of a directory and everything below it; links are not followed."""
    return _settled(lambda: tuple(sorted(_tree(str(directory)))))


class Kept(Generic[_Value]):
    """Values by a key, each with the state that it was made in. Safe to use from several threads.

    Args:
        most: how many are kept; the one that was asked for longest ago goes first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, tuple[Hashable, _Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: Hashable, make: Callable[[], _Value]) -> _Value:
        """The value that was made in this state, or else a new one. What `make` raises is kept nowhere.

        Take the state before: what changes while the value is made is then another state at the next time.
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
        """The value that was made in this state, if one is kept."""
        with self._lock:
            if key not in self._values or self._values[key][0] != state:
                return None
            self._values.move_to_end(key)
            return self._values[key][1]

    def forget(self, key: Hashable) -> None:
        """Drops a value, so that it is made anew."""
        with self._lock:
            self._values.pop(key, None)


def _settled(look: Callable[[], State]) -> State:
    """A state that every later write changes. Of what is written all the time, the last one that was looked at."""
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
    return _numbers(found)


def _numbers(found: os.stat_result) -> tuple[int, ...]:
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
