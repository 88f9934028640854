"""The errors that the platform raises on purpose.

What belongs here: every exception whose message is *safe*, that is, written by us and free of any value of the
sensitive data, so that it may stand in Dagster's event log, in a lineage event or on a terminal; and safe words for why
a file that somebody named cannot be used. What does not: errors of libraries. Those may quote data, so whoever meets
one at a step's edge reports its type only (see `assets.guard`), never its text.

Each class has a `code`, a short stable word that travels where even a safe message would be too much (the worker
process reports nothing but a code).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence


class DpsynthError(Exception):
    """Base of all safe errors. The message names the place, the value (never data) and the way out."""

    code = "error"


class ConfigurationError(DpsynthError):
    """The deployment (environment, paths, keys) is not usable as it is."""

    code = "configuration"


class NotFound(DpsynthError):
    """What somebody asked to look at is not there; the message names it, and what is."""

    code = "not-found"


class ContractError(DpsynthError):
    """A contract or family file is not acceptable; the message names key path, value and what is accepted."""

    code = "contract"


class SchemaMissing(ContractError):
    """Nothing is declared of some columns; the message ends with a schema file to fill in.

    Attributes:
        words: what is missing, and the ways out.
        draft: the file.
    """

    def __init__(self, words: str, draft: str) -> None:
        super().__init__(f"{words}\n\n{draft}")
        self.words = words
        self.draft = draft


class SourceError(DpsynthError):
    """The source table is missing, unreadable, empty or not what the contract declares."""

    code = "source"


class AccountingError(DpsynthError):
    """A privacy event or parameter that cannot be accounted for."""

    code = "accounting"


class BudgetExceeded(DpsynthError):
    """The request does not fit under the account's cap. Nothing was spent."""

    code = "budget"


class LedgerError(DpsynthError):
    """The ledger refuses a transition or cannot be used (locked, tampered with, of another schema)."""

    code = "ledger"


class BackupRefused(DpsynthError):
    """A backup is damaged, another deployment's, or older than what is known; or what it would be of is not sound."""

    code = "backup"


class LineageRefused(DpsynthError):
    """A lineage event that cannot be taken in, or a use or declaration of something that the graph does not know.

    Attributes:
        conflict: it contradicts what is recorded, rather than being no usable event.
    """

    code = "lineage"

    def __init__(self, message: str, *, conflict: bool = False) -> None:
        super().__init__(message)
        self.conflict = conflict


class LineageStuck(DpsynthError):
    """Lineage events do not arrive where they should, and somebody must look; none is lost."""

    code = "lineage-stuck"


class SpendRepeated(LedgerError):
    """A mechanism already started for this run; a second spend needs an explicit word."""

    code = "spend-repeated"


class ClearanceRefused(DpsynthError):
    """Lineage knows, or cannot rule out, what a mechanism must not build on. Says so by public facts only."""

    code = "clearance"


class GrantRefused(DpsynthError):
    """The worker was handed a grant that is forged, used, expired or for other data."""

    code = "grant"


class StaleInput(DpsynthError):
    """A step's input is missing or belongs to another run; the message names the step to materialize."""

    code = "stale-input"


class PurgeFailed(DpsynthError):
    """Some of what is due could not be found out or deleted; all else was deleted, and recorded."""

    code = "purge"


class BoundingError(DpsynthError):
    """The contribution bound cannot be applied or does not hold."""

    code = "bounding"


class TrainingRefused(DpsynthError):
    """A model, its batches or its loss cannot be trained with differential privacy as they are. Nothing was spent.

    Attributes:
        faults: all that was found, one sentence each: the place, what is wrong, the way out.
    """

    code = "training"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class MechanismFailed(DpsynthError):
    """The mechanism stopped after it had started. The ledger entry stays spent."""

    code = "mechanism"


class MechanismInterrupted(MechanismFailed):
    """The worker of a mechanism that had started was told to end, as by Ctrl-C. The ledger entry stays spent."""


class LaunchFailed(MechanismFailed):
    """A worker could not be started where the deployment wants it to run, or was lost there."""

    code = "launch"


class ReplayExhausted(MechanismFailed):
    """Interruptions cost a training more replayed steps than its plan pays for."""

    code = "replay-exhausted"


class ResumeRefused(MechanismFailed):
    """What is kept of an interrupted training is missing, damaged, of another training, or in use."""

    code = "resume"


class CheckpointFailed(DpsynthError):
    """A checkpoint could not be written. The training may go on; an interruption then costs more replayed steps."""

    code = "checkpoint"


class ReleaseRefused(DpsynthError):
    """Evidence is missing, stale, of other content, or not approved."""

    code = "release"


class VerificationFailed(DpsynthError):
    """A published release does not match its own signed attestation; the message says where."""

    code = "verification"


class NotAllowed(DpsynthError):
    """No role that somebody has at the console allows what they asked for. Nothing was done."""

    code = "not-allowed"


class SignedOut(DpsynthError):
    """Nobody is signed in at the console, or their session has ended. Nothing was done."""

    code = "signed-out"


class NotificationFailed(DpsynthError):
    """A receiver of notices did not take one, or could not be told for so long that somebody has to look."""

    code = "notification"


class NotUsable(OSError):
    """A file of a kind or size that is not read. Its `strerror` is written by us, unlike that of libraries' errors."""


def printable(text: str) -> str:
    """A text that every terminal, log and JSON file takes: names of files may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def file_problem(error: OSError | ValueError) -> str:
    """Why a file cannot be read as text or written, in the operating system's fixed words; nothing of its content."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file or directory"
    if isinstance(error, OSError):
        if isinstance(error, NotUsable):
            return str(error.strerror)
        # A library may put words of its own into `strerror`, and numbers of its own into `errno`.
        number = error.errno or 0
        known = number in errno.errorcode and type(error).__module__ == "builtins"
        return os.strerror(number).lower() if known else "the system does not say why"
    return "it is no text in UTF-8"
