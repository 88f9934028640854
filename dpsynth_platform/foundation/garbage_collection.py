"""When Python looks for objects that nothing leads to any more.

What belongs here: the garbage collector's settings of a process. What does not: what a process loads (`preloading`).

Python looks after every 700 new objects, and through all of them whenever a fourth is new. Modules make half a million
objects that stay, so that a process which loads much spends a fourth of that time looking at what it has just loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = (10_000, 10, 10)
"""New objects, and younger generations' turns, until a generation is looked through."""


def collect_seldom() -> None:
    """For a process that loads modules whenever it comes to need them.

    What is in circles is let go of later, so not for one that makes large objects in circles, as training may.
    """
    gc.set_threshold(*_SELDOM)


@contextmanager
def loading() -> Iterator[None]:
    """Nothing is collected while modules load inside, and what is there at the end stays, and is never looked at again.

    A process that is forked later shares it, too: to look at an object is to write to it, which copies its page.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()
