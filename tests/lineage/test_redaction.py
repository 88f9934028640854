from __future__ import annotations

import pytest

from dpsynth_platform.foundation.errors import BudgetExceeded, DpsynthError
from dpsynth_platform.foundation.redaction import safe_error

SECRET = "Ada Lovelace 078-05-1120"
FULL = (
    "the machine says: no space left on device; make room where it writes and for temporary files (TMPDIR), then run "
    "it again"
)


def test_our_own_errors_keep_code_and_message() -> None:
    assert safe_error(BudgetExceeded("0.5 is left")) == ("budget", "0.5 is left")
    assert safe_error(DpsynthError("x")) == ("error", "x")


@pytest.mark.parametrize(
    "error", [ValueError(SECRET), KeyError(SECRET), SystemExit(SECRET), type(SECRET, (Exception,), {})()]
)
def test_other_errors_tell_their_type_only(error: BaseException) -> None:
    error.add_note(SECRET)
    error.__cause__ = RuntimeError(SECRET)
    code, message = safe_error(error)
    assert code == "unexpected"
    assert message in ("ValueError", "KeyError", "SystemExit", "Exception")


@pytest.mark.parametrize(
    "error", [OSError(28, SECRET, SECRET), OSError(f"Generic LocalFileSystem error: {SECRET} (os error 28)")]
)
def test_of_what_the_machine_refuses_its_own_words_are_told(error: OSError) -> None:
    assert safe_error(error) == ("machine", FULL)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, SECRET),
        ValueError("(os error 28)"),
        OSError("(os error 2)"),
        OSError(),
        OSError([28], SECRET),
    ],
)
def test_other_refusals_are_told_by_type(error: Exception) -> None:
    assert safe_error(error) == ("unexpected", type(error).__name__)


def test_an_error_that_cannot_be_put_into_words_is_told_by_type() -> None:
    class Wordless(OSError):
        def __str__(self) -> str:
            raise ValueError(SECRET)

    assert safe_error(Wordless()) == ("unexpected", "Wordless")


def test_the_cause_of_our_own_error_is_not_read() -> None:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise BudgetExceeded("safe") from error
    except BudgetExceeded as error:
        assert safe_error(error) == ("budget", "safe")
