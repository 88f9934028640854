"""What an error may say about itself outside the restricted zone.

What belongs here: the one decision which part of an exception is safe to show. What does not: catching exceptions, or
reporting them. A library's message may quote a value of the data ("could not convert string to float: ..."), and so
may its cause and its notes; therefore only errors that the platform wrote itself keep their message.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from collections.abc import Iterator
from itertools import islice
from socket import gaierror

from dpsynth_platform.foundation.errors import DpsynthError

UNEXPECTED = "unexpected"
MACHINE = "machine"
"""A full or failing disk, or too little memory or too few open files: what may be otherwise later."""
_PLACE = "configuration"
"""The code of what stays so until somebody changes it: rights, a name that is too long."""
_ROOM = "make room where it writes and for temporary files (TMPDIR), then run it again"
_FILES = "allow more open files (ulimit -n), then run it again"
_RIGHTS = "give this user the right to read or write there"
_NO_DATABASE = -1
_NO_TEMPORARY = -2
"""Where the system's own number does not come through."""
_OF_THE_MACHINE = {
    _NO_DATABASE: "make room, its directory writable, or allow more open files (ulimit -n), then run it again",
    _NO_TEMPORARY: "make room in one, or name another in TMPDIR, then run it again",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "make what it writes to writable, then run it again",
    errno.EIO: "see that the disk works, then run it again",
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
"""Packages whose errors have the operating system's number, or its words, in their text alone. `_internal` is
deltalake's.
"""
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
"""Characters of a text that are looked through."""


def safe_error(error: BaseException) -> tuple[str, str]:
    """Code and message of an exception, free of any value of the data.

    A `DpsynthError` keeps its code and its message. What the operating system refuses is told as that, in its own fixed
    words with the way out, also where a library has put it into words of its own: those are searched for an allow-list
    of numbers and phrases, and never quoted. Of every other exception only the name of its type is told, under the code
    `unexpected`.
    """
    if isinstance(error, DpsynthError):
        return error.code, str(error)
    number = system_number(error)
    if number is None:
        return UNEXPECTED, reason_of(error)
    code = MACHINE if number in _OF_THE_MACHINE else _PLACE
    return code, f"the machine says: {reason_of(error)}; {_WAYS_OUT[number]}"


def reason_of(error: BaseException) -> str:
    """Why something failed, within a message of ours: our own words, the operating system's, or the error's type."""
    if isinstance(error, DpsynthError):
        return str(error)
    number = system_number(error)
    if number is not None:
        return _SAID[number]
    name = type(error).__name__
    # Types made at run time may carry anything as their name.
    return name if name.isidentifier() and len(name) <= _LONGEST_NAME else "Exception"


def system_number(error: BaseException) -> int | None:
    """The operating system's number, or one of ours, if its refusal is why an exception was raised; see `_WAYS_OUT`.

    An error that was raised while another was handled counts as that one where the machine was at fault.
    """
    for place, one in enumerate(islice(_chain(error), _LONGEST_CHAIN)):
        number = _number_of(one)
        if number in _OF_THE_MACHINE or (place == 0 and number in _OF_THE_PLACE):
            return number
    return None


def detached(error: BaseException) -> None:
    """Takes from one of our errors what it was raised from, which may quote data and would be shown with it."""
    error.__cause__ = error.__context__ = error.__traceback__ = None


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _number_of(error: BaseException) -> int | None:
    # Errors of TLS and of looking up names have numbers of their own.
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
