"""The edge at which errors become safe: what is shown, what is kept, and where."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

import assets.guard
from assets.guard import Caught, Interruptions, guarded, log_if_possible
from dpsynth_platform.foundation.errors import BudgetExceeded, MechanismInterrupted, SourceError
from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, note, output_to

MARK = "Zaphodina-904-55-7731"


class DagsterExecutionInterruptedError(BaseException):
    """Named as Dagster's own, which derives from BaseException."""


def raising(error: BaseException) -> None:
    try:
        raise KeyError(MARK)
    except KeyError as cause:
        raise error from cause


def caught(error: BaseException, logs: Path) -> Caught:
    done = guarded(lambda: raising(error), logs)
    assert isinstance(done, Caught)
    return done


def test_a_value_passes(tmp_path: Path) -> None:
    assert guarded(lambda: 7, tmp_path / "logs") == 7
    assert list((tmp_path / "logs").iterdir()) == [], "an empty log is no log"


def test_our_errors_keep_their_message_and_code(tmp_path: Path) -> None:
    done = caught(BudgetExceeded("epsilon 0.5 is left"), tmp_path)
    assert (done.code, done.interrupted) == ("budget", False)
    ended = caught(MechanismInterrupted("the worker was interrupted"), tmp_path)
    assert (ended.code, ended.interrupted) == ("mechanism", True)
    assert done.message.startswith("epsilon 0.5 is left (details: restricted log step-")
    assert (done.safe.code, str(done.safe)) == (
        "budget",
        "The step failed; its message is kept with the run in Dagster.",
    )


def test_dagster_shows_a_refusal_as_its_message_alone() -> None:
    """Without a traceback, and with the code by which sensors know it."""
    refusal = Caught("budget", "epsilon 0.5 is left", interrupted=False)

    @dg.op
    def refused() -> None:
        raise refusal.failure()

    @dg.job
    def job() -> None:
        refused()

    with dg.DagsterInstance.ephemeral() as instance:
        ran = job.execute_in_process(instance=instance, raise_on_error=False)
    data = ran.failure_data_for_node("refused")
    assert data is not None and data.error is not None and data.user_failure_data is not None
    assert (data.error.message, data.error.stack, data.error.cause) == ("epsilon 0.5 is left", [], None)
    assert data.user_failure_data.description == "epsilon 0.5 is left"
    assert data.user_failure_data.metadata["code"].value == "budget"
    assert not refusal.failure().allow_retries


@pytest.mark.parametrize(
    ("error", "name", "interrupted"),
    [
        (ValueError(MARK), "ValueError", False),
        (type(MARK, (Exception,), {})(MARK), "Exception", False),
        (KeyboardInterrupt(MARK), "KeyboardInterrupt", True),
        (SystemExit(MARK), "SystemExit", True),
        (DagsterExecutionInterruptedError(MARK), "DagsterExecutionInterruptedError", True),
        (MemoryError(MARK), "MemoryError", False),
    ],
)
def test_others_are_told_by_type_only(tmp_path: Path, error: BaseException, name: str, interrupted: bool) -> None:
    done = caught(error, tmp_path / "logs")
    (log,) = (tmp_path / "logs").iterdir()
    assert done.message == f"{name} (details: restricted log {log.name})"
    assert (done.code, done.interrupted) == ("unexpected", interrupted)
    assert MARK not in repr(done)
    assert done.safe.__cause__ is None and done.safe.__context__ is None
    assert log.read_text().count(MARK) >= 2, "message and cause are kept"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700


@pytest.fixture
def dagsters_handler() -> Iterator[None]:
    """Signals raise Dagster's interruption, as in a step."""

    def handle(number: int, frame: object) -> None:
        raise DagsterExecutionInterruptedError

    former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("dagsters_handler")
@pytest.mark.parametrize("handling", ["safe_error", "keep_traceback"])
def test_a_second_interruption_does_not_end_the_handling_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handling: str
) -> None:
    handle = getattr(assets.guard, handling)

    def interrupted_again(*arguments: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        return handle(*arguments)

    monkeypatch.setattr(assets.guard, handling, interrupted_again)
    with Interruptions() as interruptions:
        done = guarded(lambda: signal.raise_signal(signal.SIGINT), tmp_path, interruptions)
        assert isinstance(done, Caught) and done.interrupted
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(DagsterExecutionInterruptedError):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("dagsters_handler")
def test_an_interruption_that_was_swallowed_is_followed_by_others(tmp_path: Path) -> None:
    def body() -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    with Interruptions() as interruptions:
        done = guarded(body, tmp_path, interruptions)
    assert isinstance(done, Caught) and done.interrupted


def test_what_the_caller_raises_afterwards_has_no_context(tmp_path: Path) -> None:
    done = caught(ValueError(MARK), tmp_path)
    with pytest.raises(SourceError) as raised:
        raise SourceError(done.message)
    assert raised.value.__context__ is None


def test_output_of_this_process_and_its_children_is_kept_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = new_log(tmp_path / "zone" / "logs", "step")
    os.write(1, b"before\n")
    with output_to(log):
        os.write(1, MARK.encode())
        os.write(2, MARK.encode())
        os.system(f"echo {MARK}; echo {MARK} >&2")
    os.write(1, b"after\n")
    out, err = capfd.readouterr()
    assert (out, err) == ("before\nafter\n", "")
    assert log.read_text().count(MARK) == 4
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for directory in (tmp_path / "zone", tmp_path / "zone" / "logs"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_what_is_still_buffered_goes_where_it_belongs(tmp_path: Path) -> None:
    """A child process whose standard output is a file, and therefore buffered by the block."""
    code = (
        "import sys; from pathlib import Path; from dpsynth_platform.foundation.restricted_log import output_to\n"
        "print('before')\n"
        f"with output_to(Path(sys.argv[1])): print('{MARK}')\n"
        "print('after')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["before", "after"]
    assert (tmp_path / "log").read_text() == f"{MARK}\n"


def test_output_is_given_back_after_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), output_to(tmp_path / "log"):
        raise ValueError
    os.write(1, b"here")
    assert capfd.readouterr().out == "here"


def test_a_note_is_written_to_a_restricted_log_and_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with output_to(tmp_path / "log"):
        note(MARK)
    assert (tmp_path / "log").read_text() == f"{MARK}\n"
    code = f"from dpsynth_platform.foundation.restricted_log import note; note('{MARK}')"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stdout + piped.stderr == ""
    for mode in (0o644, 0o600):  # the second as `nohup` makes it, and a user's umask
        other = tmp_path / f"{mode:o}"
        other.touch()
        other.chmod(mode)
        with other.open("w") as file:
            subprocess.run([sys.executable, "-c", code], stderr=file, check=True)
        assert other.read_text() == ""
    assert MARK not in "".join(capfd.readouterr())


def test_a_traceback_is_appended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("printed\n")
    try:
        raise ValueError("\udcff" + MARK)
    except ValueError as error:
        assert keep_traceback(log, error) == "details: restricted log log"
    text = log.read_text()
    assert text.startswith("printed\nTraceback")
    assert MARK in text


def test_a_sentence_that_cannot_be_written_stops_nothing() -> None:
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        raise OSError(28, MARK)

    log_if_possible(say)("started")
    assert said == ["started"]
