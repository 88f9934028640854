"""A word to stop that comes while a step of training is under way: heard at once, heeded where nothing is lost.

What belongs here: holding the signals by which a process is told to stop. What does not: what a training does then
(`loop`). A step that has begun is counted and paid for, whether it ends or not: breaking it off saves nothing and would
cost a replayed one, of which a plan may have paid for none.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

PATIENCE_SECONDS = 14.0
"""How long a step may go on once the process was told to stop. Launchers kill it after 20, and states are written."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Notes SIGINT and SIGTERM within the block, and hands the first one on to its former handler at the block's end.

    Python runs handlers in the main thread alone, so in others nothing is held.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._since = 0.0
        self._former: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    @property
    def asked(self) -> bool:
        """Whether the process was told to stop."""
        return self._noted is not None

    @property
    def overdue(self) -> bool:
        """Whether that was so long ago that the step under way must be broken off."""
        return self.asked and time.monotonic() - self._since > PATIENCE_SECONDS

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._noted is not None:
            signal.raise_signal(self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is None:
            self._noted, self._since = number, time.monotonic()
