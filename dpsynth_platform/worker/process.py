"""The worker as a process: it dies with its parent and prints only into a restricted file.

What belongs here: signals, output and exit. What does not: plans and data. Linux only, as the platform's containers.
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
from dpsynth_platform.foundation.restricted_log import print_unfailing, takes_notes

HEARTBEAT_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM)
_CREDENTIALS = ("DPSYNTH_LEDGER_URL", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")


class CredentialsFound(DpsynthError):
    """The environment contains credentials of the ledger."""

    code = "credentials"


def refuse_credentials(names: Iterable[str]) -> None:
    """Raises `CredentialsFound` if one of the variables' names is that of a ledger credential."""
    found = sorted(set(names).intersection(_CREDENTIALS))
    if found:
        raise CredentialsFound(
            f"the worker's environment has {', '.join(found)}; accepted: an environment without them"
        )


def redirect_output(log: Path) -> None:
    """Appends stdout, stderr and crash dumps to a file that only its owner can read.

    Drops what cannot be written: a line of the log must not fail a mechanism whose budget is spent.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    takes_notes(descriptor)
    os.close(descriptor)
    print_unfailing()
    faulthandler.enable()


def stop_on_signals() -> None:
    """Raises `KeyboardInterrupt` also at SIGTERM, with which clusters end a process.

    Ignores signals after the first, since they would interrupt its handling.
    """
    for number in _STOPS:
        signal.signal(number, _stop)


def _stop(number: int, frame: object) -> None:
    for one in _STOPS:
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def ignore_stop_signals() -> None:
    """Ignores SIGINT and SIGTERM, which reach all processes at once: the parent ends this one in order."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


def killed_with_parent() -> None:
    """Requests that the kernel kills this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def bind_to_parent(parent: int) -> None:
    """Ends this process with its parent: by the kernel's signal and, in case that is lost, by polling.

    The kernel sends the signal when the *thread* that started this process ends, so a launcher waits in that thread.
    """
    killed_with_parent()
    _die_unless_child_of(parent)  # it may have ended before the request
    threading.Thread(target=_watch, args=(parent,), name="heartbeat", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        _die_unless_child_of(parent)


def _die_unless_child_of(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end(status: int) -> NoReturn:
    """Ends this process immediately with an exit status.

    The interpreter's shutdown ends the threads of libraries in no fixed order. A reader that an exception left open can
    then abort the process, and its launcher would receive the status of a killed one.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
