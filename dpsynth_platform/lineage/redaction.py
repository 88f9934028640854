"""What an error may say about itself outside the restricted zone.

What belongs here: the one decision which part of an exception is safe to show. What does not: catching exceptions, or
reporting them. A library's message may quote a value of the data ("could not convert string to float: ..."), and so
may its cause and its notes; therefore only errors that the platform wrote itself keep their message.
"""

from __future__ import annotations

import errno
import os
import re

from dpsynth_platform.errors import DpsynthError

UNEXPECTED = "unexpected"
MACHINE = "machine"
"""A full or failing disk, or too little memory or too few open files: what may be otherwise later."""
_OF_THE_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE
}  # fmt: skip
_NUMBER = re.compile(r"\(os error (\d{1,3})\)")
_LONGEST_NAME = 80


def safe_error(error: BaseException) -> tuple[str, str]:
    """Code and message of an exception, free of any value of the data.

    A `DpsynthError` keeps its code and its message. What the operating system refuses for want of something is told as
    that, in its own fixed words. Of every other exception only the name of its type is told, under the code
    `unexpected`; its message, cause, context, notes and traceback are not read.
    """
    if isinstance(error, DpsynthError):
        return error.code, str(error)
    number = _number_of(error)
    if number in _OF_THE_MACHINE:
        return MACHINE, f"the machine says: {os.strerror(number).lower()}"
    name = type(error).__name__
    # Types made at run time may carry anything as their name.
    return UNEXPECTED, name if name.isidentifier() and len(name) <= _LONGEST_NAME else "Exception"


def _number_of(error: BaseException) -> int | None:
    """The operating system's number of an error. Libraries in Rust have it in their words only."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error.errno, int):
        return error.errno
    try:
        found = _NUMBER.search(str(error))
    except Exception:  # of a library's class; nothing of ours may fail here
        return None
    return int(found.group(1)) if found else None
