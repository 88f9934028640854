"""What may be shown of an error outside the restricted zone.

What belongs here: the decision which part of an exception is safe, and raising a safe one in its place. What does not:
reporting errors. A library's message may quote a value of the data ("could not convert string to float: ..."), and so
may its cause and its notes; so only the platform's own errors keep their message.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from collections.abc import Callable, Iterator
from itertools import islice
from socket import gaierror
from typing import TypeVar

from dpsynth_platform.foundation.errors import DpsynthError

_T = TypeVar("_T")
UNEXPECTED = "unexpected"
MACHINE = "machine"
"""A full or failing disk, too little memory or too few open files: a retry may succeed."""
_PLACE = "configuration"
"""Permissions, a name that is too long: a retry does not help."""
_ROOM = "make room where it writes and for temporary files (TMPDIR), then run it again"
_FILES = "allow more open files (ulimit -n), then run it again"
_RIGHTS = "give this user the right to read or write there"
_NO_DATABASE = -1
_NO_TEMPORARY = -2
"""For errors without the system's number."""
_OF_THE_MACHINE = {
    _NO_DATABASE: "make room, make its directory writable, or allow more open files (ulimit -n), then run it again",
    _NO_TEMPORARY: "make room in one, or name another in TMPDIR, then run it again",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "make what it writes to writable, then run it again",
    errno.EIO: "check the disk, then run it again",
    errno.ENOMEM: "give it more memory, then run it again",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EFBIG: "allow larger files (ulimit -f), then run it again",
}
_OF_THE_PLACE = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENAMETOOLONG: "use a shorter name or path",
}
_WAYS_OUT = _OF_THE_MACHINE | _OF_THE_PLACE
_SAID = {number: os.strerror(number).lower() for number in _WAYS_OUT} | {
    _NO_DATABASE: "a database's file cannot be opened",
    _NO_TEMPORARY: "no directory for temporary files can be written to",
}

_LIBRARIES = (
    "_internal",
    "deltalake",
    "_duckdb",
    "duckdb",
    "pyarrow",
    "sqlite3",
    "sqlalchemy",
    "psycopg",
    "safetensors",
)
"""Packages whose errors have the system's number or words only in their text. `_internal` is deltalake's."""
_NUMBER = re.compile(r"\(os error (\d{1,3})\)|\berrno(?: |\W{3,4})(\d{1,3})\b|\bcode: (\d{1,3}), kind: ")
_WORDS = {
    **{words: number for number, words in _SAID.items()},
    "database or disk is full": errno.ENOSPC,
    "max_temp_directory_size": errno.ENOSPC,
    "attempt to write a readonly database": errno.EROFS,
    "disk i/o error": errno.EIO,
    "unable to open database file": _NO_DATABASE,
}
_LONGEST_NAME = 80
_LONGEST_CHAIN = 8
_READ = 20_000
"""Characters of a text that are searched."""


def safe_error(error: BaseException) -> tuple[str, str]:
    """Code and message of an exception, free of any value of the data.

    A `DpsynthError` keeps its code and its message. An error of the operating system gets the system's fixed words and
    the way out, also where a library reworded it: its text is searched for listed numbers and phrases, and never
    quoted. Every other exception is `unexpected`, with the name of its type.
    """
    if isinstance(error, DpsynthError):
        return error.code, str(error)
    number = system_number(error)
    if number is None:
        return UNEXPECTED, reason_of(error)
    code = MACHINE if number in _OF_THE_MACHINE else _PLACE
    return code, f"the machine says: {reason_of(error)}; {_WAYS_OUT[number]}"


def reason_of(error: BaseException) -> str:
    """A reason to quote in a message: the platform's words, the operating system's, or the error's type."""
    if isinstance(error, DpsynthError):
        return str(error)
    number = system_number(error)
    if number is not None:
        return _SAID[number]
    name = type(error).__name__
    # Types that are made at run time may have any name.
    return name if name.isidentifier() and len(name) <= _LONGEST_NAME else "Exception"


def system_number(error: BaseException) -> int | None:
    """The number of the system's error behind an exception (`_WAYS_OUT`), or None.

    Of errors in the exception's chain, only those of the machine count.
    """
    for place, one in enumerate(islice(_chain(error), _LONGEST_CHAIN)):
        number = _number_of(one)
        if number in _OF_THE_MACHINE or (place == 0 and number in _OF_THE_PLACE):
            return number
    return None


def detached(error: BaseException) -> None:
    """Removes cause, context and traceback, which may quote data and would be shown with the error."""
    error.__cause__ = error.__context__ = error.__traceback__ = None


def safely(body: Callable[[], _T], keep: Callable[[BaseException], str] | None = None) -> _T:
    """Calls `body`; in place of a library's error, raises a safe one with its type and without context.

    Args:
        keep: writes the traceback to a restricted place; returns where it is, in words.
    """
    try:
        return body()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust libraries are no `Exception`
        caught = error
    # Outside of `except`, a further error does not carry this one as its context.
    if not isinstance(caught, DpsynthError):
        code, what = safe_error(caught)
        where = "" if keep is None else f" ({keep(caught)})"
        caught = DpsynthError(f"{'unexpected error: ' if code == UNEXPECTED else ''}{what}{where}")
        caught.code = code
    detached(caught)
    raise caught


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _number_of(error: BaseException) -> int | None:
    # Errors of TLS and of name resolution use other numbers.
    if isinstance(error, OSError) and isinstance(error.errno, int) and not isinstance(error, ssl.SSLError | gaierror):
        lost = str(error.strerror).startswith("No usable temporary directory found in")  # Python's `tempfile`
        return _NO_TEMPORARY if lost else error.errno
    library = type(error).__module__.partition(".")[0] in _LIBRARIES
    panic = not isinstance(error, Exception)  # of a library in Rust
    if not (isinstance(error, OSError) or library or panic):
        return None
    try:
        text = str(error)[:_READ].lower()
    except Exception:  # of a library's class; nothing of ours may fail here
        return None
    if found := _NUMBER.search(text):
        return int(next(filter(None, found.groups())))
    return next((number for words, number in _WORDS.items() if library and words in text), None)
