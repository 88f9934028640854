"""What an error may say about itself outside the restricted zone.

What belongs here: the one decision which part of an exception is safe to show. What does not: catching exceptions, or
reporting them. A library's message may quote a value of the data ("could not convert string to float: ..."), and so
may its cause and its notes; therefore only errors that the platform wrote itself keep their message.
"""

from __future__ import annotations

from dpsynth_platform.errors import DpsynthError

UNEXPECTED = "unexpected"
_LONGEST_NAME = 80


def safe_error(error: BaseException) -> tuple[str, str]:
    """Code and message of an exception, free of any value of the data.

    A `DpsynthError` keeps its code and its message. Of every other exception only the name of its type is told, under
    the code `unexpected`; its message, cause, context, notes and traceback are not read.
    """
    if isinstance(error, DpsynthError):
        return error.code, str(error)
    name = type(error).__name__
    # Types made at run time may carry anything as their name.
    return UNEXPECTED, name if name.isidentifier() and len(name) <= _LONGEST_NAME else "Exception"
