"""Imports the modules that a run's steps need. Only their fork server imports this module.

What belongs here: the imports. What does not: the list of modules, and the fork server itself (`forking`).
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from dpsynth_platform.foundation.garbage_collection import loading
from dpsynth_platform.operations.forking import PRELOADED, PRELOADED_LATER

_SERVER = os.getpid()
_PAUSE_SECONDS = 0.05
"""Time after the first fork in which the fork server reports the new process."""


def _import(names: Sequence[str]) -> None:
    with loading():
        for name in names:
            with suppress(Exception):  # a step that needs it reports the error
                import_module(name)


def _later() -> None:
    """Imports the other modules soon, in the fork server's only thread: a second thread could not be forked safely."""
    if os.getpid() == _SERVER and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGALRM, lambda *_: _import(PRELOADED_LATER))
        signal.setitimer(signal.ITIMER_REAL, _PAUSE_SECONDS)


_import(PRELOADED)
os.register_at_fork(after_in_parent=_later)
# Objects that stay frozen are not freed at the end, which C++ bindings report as leaks.
atexit.register(gc.unfreeze)
