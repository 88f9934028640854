"""Files for this user alone.

What belongs here: making what is sensitive unreadable for others. What does not: what is sensitive; who writes into the
restricted zone knows. `Path.mkdir` gives its mode to the last directory only, and libraries that write files ask for no
mode at all, so both go through the process's umask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_UMASK = 0o077


@contextmanager
def private_files() -> Iterator[None]:
    """Files made inside are of mode 0600, directories 0700, whoever in this process makes them."""
    earlier = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(earlier)


def private_directory(path: Path) -> Path:
    """Makes a directory and its missing parents, mode 0700 each; returns the path."""
    with private_files():
        path.mkdir(parents=True, exist_ok=True)
    return path
