"""Codes with which the worker ends, their exit statuses and meanings.

What belongs here: the allow-list. What does not: messages of exceptions, which may quote data and stay in the worker's
restricted log.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress

from dpsynth_platform.foundation.redaction import safe_error

DONE = "done"
UNEXPECTED = "unexpected"
KILLED = "killed"
INTERRUPTED = "interrupted"

_STATUS = {
    DONE: 0,
    "error": 40,
    "configuration": 41,
    "contract": 42,
    "source": 43,
    "accounting": 44,
    "budget": 45,
    "ledger": 46,
    "spend-repeated": 47,
    "grant": 48,
    "stale-input": 49,
    "bounding": 50,
    "mechanism": 51,
    "release": 52,
    "verification": 53,
    "lineage": 54,
    "lineage-stuck": 55,
    "clearance": 56,
    "notification": 57,
    "replay-exhausted": 58,
    "resume": 59,
    "claimed": 60,
    "credentials": 61,
    INTERRUPTED: 62,
    "memory": 63,
    UNEXPECTED: 64,
    "checkpoint": 65,
    "training": 66,
    "launch": 67,
    "not-allowed": 68,
    "signed-out": 69,
    "not-found": 70,
    "backup": 71,
    "machine": 72,
    "purge": 73,
    "engine": 74,
    "publication": 75,
    "round": 76,
}
_CODES = {status: code for code, status in _STATUS.items()}
_MEANINGS = {
    DONE: "the model is complete",
    "claimed": "this grant was used before: another worker started in this model directory",
    "credentials": "the worker's environment contains ledger credentials, which it must not hold",
    "engine": "the SQL engine stopped; the worker's restricted log says why",
    "grant": "the grant is not for this plan, data, participants or model directory",
    "bounding": "the bounded data exceeds the contribution bound or contains records of other owners",
    "mechanism": "the mechanism stopped, or its measurements are incomplete; what it cost stays spent",
    "replay-exhausted": "interruptions cost more replayed steps than the plan pays for; what it cost stays spent, and "
    "another attempt requires --spend-again",
    "resume": "the state of the interrupted training is in use or unusable; its restricted log says why. If that "
    "persists, another attempt requires --spend-again",
    "training": "the model, its batches or its loss cannot be trained with differential privacy as they are",
    "checkpoint": "a checkpoint of the training could not be written",
    INTERRUPTED: "the worker was interrupted",
    "memory": "the worker ran out of memory",
    KILLED: "the worker was killed",
    "machine": "the machine has not enough disk space, memory or open files; the worker's restricted log says which",
    "configuration": "the worker's configuration, a file or a directory is unusable; its restricted log says why",
    UNEXPECTED: "the worker failed; its restricted log says why",
}


def status_of(code: str) -> int:
    """Exit status of a code; an unlisted code is `unexpected`."""
    return _STATUS.get(code, _STATUS[UNEXPECTED])


def code_of(status: int) -> str:
    """Code of an exit status; negative ones and, as in shells and containers, those above 128 are signals."""
    return KILLED if status < 0 or status > 128 else _CODES.get(status, UNEXPECTED)


def meaning(code: str) -> str:
    """A message without data for a code."""
    return _MEANINGS.get(code, f"the worker stopped with code {code!r}; its restricted log says why")


def code_of_exception(error: BaseException) -> str:
    """Code for the exception that stopped the worker; reveals nothing of its text."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    code = "memory" if isinstance(error, MemoryError) else safe_error(error)[0]
    return code if code in _STATUS else UNEXPECTED


def guarded(body: Callable[[], str]) -> str:
    """The body's code, or that of its exception, whose traceback is printed into the restricted log.

    The exception never leaves this function, even if the log cannot be written.
    """
    try:
        return body()
    except BaseException as error:
        caught = error
    with suppress(Exception):
        traceback.print_exception(caught)
    return code_of_exception(caught)
