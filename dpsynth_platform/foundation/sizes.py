"""Sizes of memory as people write them: 512MB, 2GB."""

from __future__ import annotations

import re

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE = rf"[1-9][0-9]{{0,6}}({'|'.join(_UNITS)})"
"""A whole number of MB, GB or TB, as a regular expression."""


def bytes_of(size: str) -> int:
    """Bytes of a size: 2GB are 2,000,000,000. Raises `ValueError` for what does not match `SIZE`."""
    if not re.fullmatch(SIZE, size):
        raise ValueError(f"{size!r} is not a size; accepted: such as 512MB or 2GB")
    return int(size[:-2]) * _UNITS[size[-2:]]


def size_of(count: int) -> str:
    """A number of bytes in its largest exact unit: the inverse of `bytes_of`."""
    unit = next(unit for unit in reversed(_UNITS) if count % _UNITS[unit] == 0)
    return f"{count // _UNITS[unit]}{unit}"
