"""Telling whether a process of this host is still there.

What belongs here: names of processes that outlive them, and whether the named one is at work. What does not: starting
or ending processes.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_name() -> str:
    """This process, as `is_gone` takes it: host, number and start time, since numbers are used again."""
    return f"{socket.gethostname()}/{_identity(os.getpid())}"


def is_gone(name: str) -> bool:
    """Whether a process is known to have ended. Of another host's, nothing is known."""
    host, _, process = name.rpartition("/")
    number = process.partition(":")[0]
    return host == socket.gethostname() and number.isdecimal() and _identity(int(number)) != process


def is_child_at_work(pid: int) -> bool:
    """Whether a process of this host that `multiprocessing` has spawned is there under this number.

    Numbers are used again, in a container that was started again the very same ones; this tells a run's process from
    servers, not from another run's. Whoever asks again later will be told better.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"--multiprocessing-fork" in command and _identity(pid) is not None


def _identity(pid: int) -> str | None:
    """A process by its number and start time. None if it is gone.

    One that was killed and not yet collected by its parent (a zombie) is gone: without an init process, as in many
    containers, it stays for ever.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = status[0], status[19]
    return None if state in "ZX" else f"{pid}:{started}"
