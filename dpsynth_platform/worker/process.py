"""The worker as a process: it dies with its parent and prints into a restricted file only.

What belongs here: the operating system's side. What does not: anything about plans or data. Linux only, like the
platform's containers.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.restricted_log import print_unfailing

HEARTBEAT_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM)
_CREDENTIALS = ("DPSYNTH_LEDGER_URL", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")


class CredentialsFound(DpsynthError):
    """The process can reach the ledger, which a mechanism must not."""

    code = "credentials"


def refuse_credentials(names: Iterable[str]) -> None:
    """Raises `CredentialsFound` if one of the environment's variable names is a ledger credential's."""
    found = sorted(set(names).intersection(_CREDENTIALS))
    if found:
        raise CredentialsFound(
            f"the worker's environment holds {', '.join(found)}; accepted: an environment without them"
        )


def redirect_output(log: Path) -> None:
    """Sends stdout, stderr and crash dumps to a file that its owner alone can read (appended to).

    What cannot be written there is dropped: a mechanism that was paid for does not fail for a line of the log.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    print_unfailing()
    faulthandler.enable()


def stop_when_told() -> None:
    """SIGTERM, by which clusters end a process, ends it as an interruption from the keyboard does: in order.

    What comes after the first signal is ignored, or it would interrupt what catches that one.
    """
    for number in _STOPS:
        signal.signal(number, _stopped)


def _stopped(number: int, frame: object) -> None:
    for one in _STOPS:
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def leave_stopping_to_parent() -> None:
    """Ignores SIGINT and SIGTERM: sent to all processes at once, they would break off what the parent means to end."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


def killed_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def bind_to_parent(parent: int) -> None:
    """Ties this process's life to its parent's: killed by the kernel, and by a heartbeat should that signal be lost.

    The kernel's signal comes when the *thread* that started this process ends, so a launcher waits in that thread.
    """
    killed_with_parent()
    _die_unless_child_of(parent)  # it may have ended before the signal was asked for
    threading.Thread(target=_watch, args=(parent,), name="heartbeat", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        _die_unless_child_of(parent)


def _die_unless_child_of(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end(status: int) -> NoReturn:
    """Ends this process at once with an exit status.

    An interpreter that is taken apart ends the threads of libraries in an order that is nobody's: a reader that an
    exception left behind can abort the process then, and its launcher would learn that it was killed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
