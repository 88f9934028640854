"""The errors that the platform raises on purpose.

What belongs here: exceptions whose message is *safe*: written by us and free of values of the sensitive data, so that
event logs, lineage events and terminals may show it; and safe words for why a file cannot be used. What does not:
errors of libraries. Those may quote data, so a step reports their type only (`assets.guard`), never their text.

Each class has a `code`, a short stable word for places that get no message (the worker process reports a code only).
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
    """A requested object does not exist; the message names it, and what exists."""

    code = "not-found"


class ContractError(DpsynthError):
    """A contract or family file is not acceptable; the message names key path, value and what is accepted."""

    code = "contract"


class ContractDraft(ContractError):
    """A contract or family file in which required keys are still empty: somebody's work that goes on, and no fault."""


class SchemaMissing(ContractError):
    """Some columns are undeclared; the message (`words`) ends with a schema file to fill in (`draft`)."""

    def __init__(self, words: str, draft: str) -> None:
        super().__init__(f"{words}\n\n{draft}")
        self.words = words
        self.draft = draft


class SourceError(DpsynthError):
    """The source table is missing, unreadable, empty or not what the contract declares."""

    code = "source"


class AccountingError(DpsynthError):
    """A privacy event or parameter is outside of what the accounting covers."""

    code = "accounting"


class BudgetExceeded(DpsynthError):
    """The request does not fit under the account's cap. Nothing was spent."""

    code = "budget"


class LedgerError(DpsynthError):
    """The ledger refuses a transition or cannot be used (locked, tampered with, of another schema)."""

    code = "ledger"


class BackupRefused(DpsynthError):
    """A backup is damaged, outdated or of another deployment; or the deployment to back up is not consistent."""

    code = "backup"


class LineageRefused(DpsynthError):
    """A lineage event is invalid, or a declaration names something that the graph does not contain.

    Attributes:
        conflict: the event is valid but contradicts the record.
    """

    code = "lineage"

    def __init__(self, message: str, *, conflict: bool = False) -> None:
        super().__init__(message)
        self.conflict = conflict


class LineageStuck(DpsynthError):
    """Lineage events cannot be delivered, and an operator must act; none is lost."""

    code = "lineage-stuck"


class SpendRepeated(LedgerError):
    """A mechanism already started for this run; a second spend needs an explicit order."""

    code = "spend-repeated"


class ClearanceRefused(DpsynthError):
    """By lineage, a mechanism builds or may build on a forbidden input. The message has public facts only."""

    code = "clearance"


class GrantRefused(DpsynthError):
    """The worker's grant is forged, used, expired or for other data."""

    code = "grant"


class StaleInput(DpsynthError):
    """A step's input is missing or belongs to another run; the message names the step to materialize."""

    code = "stale-input"


class PurgeFailed(DpsynthError):
    """Some expired outputs could not be determined or deleted; all others were deleted, and recorded."""

    code = "purge"


class BoundingError(DpsynthError):
    """The contribution bound cannot be applied or does not hold."""

    code = "bounding"


class EngineError(DpsynthError):
    """The SQL engine stopped. The message contains the error's type, never its text."""

    code = "engine"


class TrainingRefused(DpsynthError):
    """A model, its batches or its loss do not allow private training. Nothing was spent.

    Attributes:
        faults: one sentence each: the place, what is wrong, what to do.
    """

    code = "training"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class RoundRefused(DpsynthError):
    """A message of a secure sum breaks its protocol, or too few participants remain. No sum was opened."""

    code = "round"


class MechanismFailed(DpsynthError):
    """The mechanism stopped after it had started. The ledger entry stays spent."""

    code = "mechanism"


class MechanismInterrupted(MechanismFailed):
    """The worker of a started mechanism was ended by a signal, such as Ctrl-C. The ledger entry stays spent."""


class LaunchFailed(MechanismFailed):
    """A worker could not be started at the configured place, or was lost there."""

    code = "launch"


class ReplayExhausted(MechanismFailed):
    """Interruptions of a training need more replayed steps than its plan pays for."""

    code = "replay-exhausted"


class ResumeRefused(MechanismFailed):
    """The state of an interrupted training is missing, damaged, of another training, or in use."""

    code = "resume"


class CheckpointFailed(DpsynthError):
    """A checkpoint could not be written. The training may continue; an interruption then costs more replayed steps."""

    code = "checkpoint"


class ReleaseRefused(DpsynthError):
    """Evidence is missing, stale, about other content, or not approved."""

    code = "release"


class PublicationFailed(DpsynthError):
    """A release is published, but a target of its contract does not hold it yet."""

    code = "publication"


class VerificationFailed(DpsynthError):
    """A published release differs from its signed attestation; the message says where."""

    code = "verification"


class NotAllowed(DpsynthError):
    """The console user's roles do not allow the request. Nothing was done."""

    code = "not-allowed"


class SignedOut(DpsynthError):
    """The console request has no valid session. Nothing was done."""

    code = "signed-out"


class NotificationFailed(DpsynthError):
    """A receiver did not accept a notice, or has been unreachable for so long that an operator must act."""

    code = "notification"


class NotUsable(OSError):
    """A file of an unsupported kind or size. Unlike libraries', its `strerror` is ours, and safe."""


def printable(text: str) -> str:
    """Escapes what is not UTF-8, as in names of files."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def file_problem(error: OSError | ValueError) -> str:
    """Why a file cannot be read as text or written, in fixed words without any content."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file or directory"
    if isinstance(error, OSError):
        if isinstance(error, NotUsable):
            return str(error.strerror)
        # Libraries may put other words into `strerror`, and other numbers into `errno`.
        number = error.errno or 0
        known = number in errno.errorcode and type(error).__module__ == "builtins"
        return os.strerror(number).lower() if known else "unknown reason"
    return "it is not UTF-8 text"
