"""Deferring the signals that stop a process until the current step of training is complete.

What belongs here: recording the signals. What does not: the reaction of a training (`loop`). A step that has begun is
counted and paid for: interrupting it saves nothing, and would cost a replayed one, which a plan may not allow.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE_SECONDS = 14.0
"""Longest time that a step may continue after the signal. Launchers kill the process after 20, and a state is written
in between."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Records SIGINT and SIGTERM within the block, and raises the first one again for its former handler at the end.

    Python runs handlers in the main thread only, so in other threads it does nothing.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._since = 0.0
        self._former: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._noted is not None

    @property
    def overdue(self) -> bool:
        """Whether it came so long ago that the current step must be interrupted."""
        return self.requested and time.monotonic() - self._since > PATIENCE_SECONDS

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._noted is not None:
            signal.raise_signal(self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is None:
            self._noted, self._since = number, time.monotonic()
