"""Moves the clock of every Python process that finds it as `sitecustomize` on its path, from its first instruction on.

What belongs here: `time.time`, `datetime.now` and its kin, waits for them, and the times of files, by the moves in the
file `clock` beside it. What does not: choosing moves (`year_cases`), and clocks that only run (`time.monotonic`).

The file holds one move a line: when by the machine's clock, and by how much from then on, both in nanoseconds. So what
a file's time was at its writing is known later, however often the clock was moved since. Not moved are SQLite's own
`CURRENT_TIMESTAMP` and the commit times that Delta's library writes by itself; nothing here is decided by them.
"""

import ctypes
import datetime
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_machine_ns, _machine_sleep, _machine_stat = time.time_ns, time.sleep, os.stat
_machine_wait = threading.Event.wait
_CLOCK = os.path.join(os.path.dirname(__file__), "clock")  # noqa: PTH118, PTH120 - as above
_PIECE = 0.25
_moves: tuple[int, list[tuple[int, int]]] = (0, [])


def _moved(at: int) -> int:
    """What the moved clock shows, or showed, when the machine's shows `at`."""
    global _moves
    size = _machine_stat(_CLOCK).st_size
    if size != _moves[0]:  # it only grows
        with open(_CLOCK) as file:  # noqa: PTH123 - what starts every process imports little
            _moves = size, [tuple(map(int, line.split())) for line in file]
    known = _moves[1]
    return at + next((by for since, by in reversed(known) if since <= at), known[0][1])


def _now_ns() -> int:
    return _moved(_machine_ns())


def _now() -> float:
    return _now_ns() / 1e9


def _time() -> float:
    """`time.time`. The modules of gRPC hand what it returns to C code, which holds it against the machine's clock."""
    of_grpc = sys._getframe(1).f_globals.get("__name__", "").startswith("grpc.")
    return (_machine_ns() if of_grpc else _now_ns()) / 1e9


def _sleep(seconds: float) -> None:
    until = _now() + seconds
    while (left := until - _now()) > 0:
        _machine_sleep(min(left, _PIECE))


def _wait(event: threading.Event, timeout: float | None = None) -> bool:
    """`Event.wait`, which ends when the moved clock says so: who waits for a minute's end sees that it was moved."""
    if timeout is None:
        return _machine_wait(event)
    until = _now() + timeout
    while (left := until - _now()) > 0 and not _machine_wait(event, min(left, _PIECE)):
        pass
    return event.is_set()


def _stat(*arguments: Any, **options: Any) -> os.stat_result:
    found = _machine_stat(*arguments, **options)
    named = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
    for name in ("st_atime", "st_mtime", "st_ctime"):
        named[f"{name}_ns"] = _moved(named[f"{name}_ns"])
        named[name] = named[f"{name}_ns"] / 1e9
    first = [*tuple(found)[:7], *(int(named[name]) for name in ("st_atime", "st_mtime", "st_ctime"))]
    return os.stat_result(first, named)


def _replace(kind: type, **methods: Callable[..., Any]) -> None:
    """Gives a class of the standard library's C code other methods: its namespace is a dictionary behind a proxy."""
    (namespace,) = (item for item in gc.get_referents(kind.__dict__) if isinstance(item, dict))
    namespace.update({name: classmethod(method) for name, method in methods.items()})
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


if __name__ == "sitecustomize":
    time.time, time.time_ns, time.sleep, os.stat = _time, _now_ns, _sleep, _stat
    threading.Event.wait = _wait  # type: ignore[method-assign]
    _replace(datetime.date, today=lambda kind: kind.fromtimestamp(_now()))
    _replace(
        datetime.datetime,
        now=lambda kind, tz=None: kind.fromtimestamp(_now(), tz),
        today=lambda kind: kind.fromtimestamp(_now()),
        utcnow=lambda kind: kind.fromtimestamp(_now(), datetime.UTC).replace(tzinfo=None),
    )
