"""State that all threads of a process share, changed for a while.

What belongs here: changes that are safe where several threads make them at once. What does not: what is changed.

If each thread restored the value that it found, the first to leave would end the change for another that still needs
it, and the last would restore the changed value, which would then stay for ever.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ChangedWhileNeeded:
    """A change that begins with the first thread that needs it and ends with the last. A context manager."""

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        """`change` makes the change and returns what restores the earlier state. One instance a process."""
        self._change = change
        self._inside = 0
        self._restore: Callable[[], object] | None = None
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._restore = self._change()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._restore is not None:
                self._restore()

    def _forked(self) -> None:
        """In a forked child no other thread releases the lock. The state stays changed if it was."""
        self._lock = threading.Lock()


_FILTERING = threading.RLock()


@contextmanager
def own_warning_filters() -> Iterator[None]:
    """As `warnings.catch_warnings`, for one thread at a time: filters of several cannot be combined."""
    with _FILTERING, warnings.catch_warnings():
        yield
