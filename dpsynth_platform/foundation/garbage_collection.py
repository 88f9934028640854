"""Settings of Python's garbage collector.

What belongs here: thresholds, and pauses while modules load. What does not: what a process loads (`preloading`).

By default Python collects after 700 new objects, and a full collection runs when a fourth of all objects is new.
Imported modules create half a million permanent objects, and collecting takes a fourth of the time of their import.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = (10_000, 10, 10)
"""Thresholds of the three generations (`gc.set_threshold`)."""


def collect_seldom() -> None:
    """Raises the thresholds, for processes that import modules during their work.

    Cyclic garbage is freed later. Not for processes with large cyclic objects, such as training.
    """
    gc.set_threshold(*_SELDOM)


@contextmanager
def loading() -> Iterator[None]:
    """Pauses collection while modules load, and exempts all objects that exist at the end.

    Forked processes then share their pages: the collector would write to each object and so copy its page.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()
