"""Imports the modules that a run's steps need. Only their fork server imports this module.

What belongs here: the imports. What does not: the list of modules, and the fork server itself (`forking`).
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
        with suppress(Exception):  # a step that needs it reports the error
            import_module(_name)

# Objects that stay frozen are not freed at the end, which C++ bindings report as leaks.
atexit.register(gc.unfreeze)
