"""Whether a process of this host is still running.

What belongs here: names of processes that stay unique after their end, and checks by name. What does not: starting or
ending processes.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_name() -> str:
    """This process's name for `is_gone`: host, number and start time, since numbers are reused."""
    return f"{socket.gethostname()}/{_identity(os.getpid())}"


def is_gone(name: str) -> bool:
    """Whether a process is known to have ended. False for processes of other hosts."""
    host, _, process = name.rpartition("/")
    number = process.partition(":")[0]
    return host == socket.gethostname() and number.isdecimal() and _identity(int(number)) != process


def is_child_at_work(pid: int) -> bool:
    """Whether this number belongs to a running process of this host that `multiprocessing` spawned.

    Numbers are reused, the same ones in a restarted container. The check excludes servers, but not a process of another
    run; ask again later.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"--multiprocessing-fork" in command and _identity(pid) is not None


def _identity(pid: int) -> str | None:
    """A process's number and start time. None if it has ended.

    A zombie has ended: without an init process, as in many containers, it stays for ever.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = status[0], status[19]
    return None if state in "ZX" else f"{pid}:{started}"
