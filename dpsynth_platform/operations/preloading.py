"""Loads what a run's steps need, when it is imported: by the process that they are forked from, and by nobody else.

What belongs here: loading them. What does not: which they are, and that process (`forking`).
"""

from __future__ import annotations

import atexit
import gc
from contextlib import suppress
from importlib import import_module

from dpsynth_platform.foundation.garbage_collection import loading
from dpsynth_platform.operations.forking import PRELOADED

with loading():
    for _name in PRELOADED:
        with suppress(Exception):  # a step that needs it says so
            import_module(_name)

# What is never looked at again is not let go of at the end either, which bindings written in C++ tell as leaks.
atexit.register(gc.unfreeze)
