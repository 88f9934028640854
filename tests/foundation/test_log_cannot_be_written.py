"""Where a restricted log cannot be written, what it was to hold goes nowhere: no message, context or terminal."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from assets.guard import Caught, guarded
from dpsynth_platform.foundation import restricted_log
from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, note, output_to
from dpsynth_platform.one_table.place import Place
from dpsynth_platform.worker import codes

MARK = "Zaphodina-904-55-7731"
REFUSALS = {
    errno.ENOSPC: "no space left on device",
    errno.EROFS: "read-only file system",
    errno.EMFILE: "too many open files",
    errno.EACCES: "permission denied",
    errno.EDQUOT: "disk quota exceeded",
    errno.ENAMETOOLONG: "file name too long",
}


def raising() -> None:
    """A library at its worst: what it was given stands in the error, its cause, its context and its notes."""
    try:
        raise KeyError(MARK)
    except KeyError as cause:
        failure = ValueError(MARK)
        failure.add_note(MARK)
        raise failure from cause


def words_of(error: BaseException | None) -> str:
    """All that somebody who shows an error could show of it."""
    said = []
    while error is not None:
        said += [str(error), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return "\n".join(said)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 64 KiB, without a byte left."""
    place = tmp_path / "full"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    (place / "logs").mkdir(mode=0o700)
    with suppress(OSError), (place / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(params=["open", "write"])
def refusing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the operating system refuse every log with an error's number: to open it, or to write to it."""

    def refuse(number: int) -> None:
        if request.param == "open":
            monkeypatch.setattr(restricted_log, "_open", failing(number))
        else:
            monkeypatch.setattr(restricted_log.os, "fdopen", failing(number))

    return refuse


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), MARK)

    return fail


@pytest.mark.parametrize("number", REFUSALS)
def test_a_traceback_that_cannot_be_kept_is_told_as_such(
    tmp_path: Path, refusing: Callable[[int], None], number: int
) -> None:
    refusing(number)
    with pytest.raises(ValueError) as raised:
        raising()
    assert keep_traceback(tmp_path / "log", raised.value) == f"its traceback could not be kept: {REFUSALS[number]}"


@pytest.mark.parametrize("number", REFUSALS)
def test_a_step_fails_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    opened = restricted_log._open
    times = iter(range(9))
    # The first is for what the step prints; the traceback comes second.
    monkeypatch.setattr(restricted_log, "_open", lambda log: opened(log) if next(times) == 0 else failing(number)(log))
    done = guarded(raising, tmp_path / "logs")
    assert isinstance(done, Caught)
    assert done.message == f"ValueError (its traceback could not be kept: {REFUSALS[number]})"
    assert MARK not in words_of(done.failure()) + repr(done.failure().metadata)


@pytest.mark.parametrize("number", REFUSALS)
def test_a_step_does_not_start_where_its_log_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(restricted_log, "_open", failing(number))
    done = guarded(lambda: pytest.fail("it started"), tmp_path / "logs")
    assert isinstance(done, Caught)
    assert done.message.startswith(f"the machine says: {REFUSALS[number]}; ")
    assert done.code in ("machine", "configuration")
    assert MARK not in done.message


@pytest.mark.parametrize("number", REFUSALS)
def test_one_table_fails_without_a_context(tmp_path: Path, refusing: Callable[[int], None], number: int) -> None:
    refusing(number)
    with pytest.raises(Exception) as raised:
        Place(tmp_path).guarded(raising)
    assert str(raised.value) == f"unexpected error: ValueError (its traceback could not be kept: {REFUSALS[number]})"
    assert MARK not in words_of(raised.value)


def test_our_own_error_leaves_without_what_it_was_raised_from(tmp_path: Path) -> None:
    from dpsynth_platform.foundation.errors import SourceError

    def refusing_it() -> None:
        try:
            raising()
        except ValueError:
            raise SourceError("the source is damaged") from None

    with pytest.raises(SourceError) as raised:
        Place(tmp_path).guarded(refusing_it)
    assert words_of(raised.value) == "the source is damaged"


def test_on_a_full_disk_nothing_is_shown(full: Path) -> None:
    done = guarded(raising, full / "logs")
    assert isinstance(done, Caught)
    assert done.message == "ValueError (its traceback could not be kept: no space left on device)"


SPEAKING = f"""
    import ctypes, os, sys, warnings
    from contextlib import suppress
    from pathlib import Path
    log = Path(sys.argv[1])
    def speak():
        for say in (
            lambda: print("{MARK}"),
            lambda: print("{MARK}", file=sys.stderr),
            lambda: sys.stdout.write("{MARK}" * 9000),
            lambda: ctypes.CDLL(None).puts(b"{MARK}"),
            lambda: warnings.warn("{MARK}"),
        ):
            with suppress(OSError):
                say()
        raise ValueError("{MARK}")
"""


def process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A real process, whose terminal is a pipe."""
    script = textwrap.dedent(SPEAKING) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)


GUARDED = """
    from assets.guard import guarded
    print("before", flush=True)
    print(guarded(speak, log).message)
    print("after")
"""


def test_what_a_step_prints_on_a_full_disk_does_not_reach_the_terminal_later(full: Path) -> None:
    done = process(GUARDED, full / "logs")
    assert done.stdout.splitlines() == [
        "before",
        "ValueError (its traceback could not be kept: no space left on device)",
        "after",
    ]
    assert done.stderr == ""


def test_nor_where_the_system_lets_no_file_grow(tmp_path: Path) -> None:
    """Without the right to mount: files of this process may have no byte."""
    limit = "\n    import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    done = process(limit + GUARDED, tmp_path / "logs")
    assert done.stdout.splitlines() == [
        "before",
        "ValueError (its traceback could not be kept: file too large)",
        "after",
    ]
    assert done.stderr == ""


def test_nor_where_no_descriptor_is_left(tmp_path: Path) -> None:
    code = """
        import resource
        from assets.guard import guarded
        def exhaust():
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
            speak()
        print(guarded(exhaust, log).message)
        print(guarded(speak, log).message)
    """
    done = process(code, tmp_path / "logs")
    first, second = done.stdout.splitlines()
    assert first == "ValueError (its traceback could not be kept: too many open files)"
    assert second.startswith("the machine says: too many open files; allow more open files (ulimit -n)")
    assert done.stderr == ""


def test_a_worker_ends_with_its_code_on_a_full_disk(full: Path) -> None:
    """It prints more than its log can take, and its error leaves it by code alone."""
    code = """
        from dpsynth_platform.foundation.restricted_log import note
        from dpsynth_platform.worker.codes import guarded, status_of
        from dpsynth_platform.worker.process import end, redirect_output
        redirect_output(log)
        note("a line")
        end(status_of(guarded(speak)))
    """
    done = process(code, full / "logs" / "worker.log")
    assert (done.returncode, done.stdout, done.stderr) == (codes.status_of("unexpected"), "", "")


def test_printing_to_a_full_log_does_not_stop_a_worker(full: Path) -> None:
    code = """
        from dpsynth_platform.worker.process import redirect_output, end
        redirect_output(log)
        for _ in range(1000):
            print("x" * 1000)
            print("x" * 1000, file=sys.stderr)
        end(0)
    """
    done = process(code, full / "logs" / "worker.log")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_without_a_log_ends_with_a_code_and_says_nothing(tmp_path: Path) -> None:
    log = tmp_path / "nowhere" / "worker.log"
    done = subprocess.run(
        [sys.executable, "-m", "dpsynth_platform.worker", "--parent", str(os.getpid()), "--log", str(log)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (codes.status_of("unexpected"), "", "")


def test_what_nobody_catches_is_told_by_type(tmp_path: Path) -> None:
    """In a thread, in a finalizer, in asyncio, by a log's handler, and in the program itself."""
    code = """
        import asyncio, logging, threading
        from dpsynth_platform.foundation.restricted_log import keep_traceback, no_tracebacks
        no_tracebacks(lambda error: keep_traceback(log, error))
        def fail(*_):
            raise ValueError(MARK)
        class Last:
            __del__ = fail
        thread = threading.Thread(target=fail); thread.start(); thread.join()
        Last()
        async def forgotten():
            asyncio.get_running_loop().call_soon(fail)
            await asyncio.sleep(0)
        asyncio.run(forgotten())
        logging.getLogger("some.package").error("%s", MARK, exc_info=ValueError(MARK))
        class Broken(logging.Handler):
            def emit(self, record):
                try:
                    fail()
                except ValueError:
                    self.handleError(record)
        quarrel = logging.getLogger("quarrel"); quarrel.addHandler(Broken()); quarrel.propagate = False
        quarrel.error(MARK)
        fail()
    """.replace("MARK", f'"{MARK}"')
    log = tmp_path / "log"
    done = process(code, log)
    assert done.returncode == 1
    assert MARK not in done.stdout + done.stderr
    assert done.stderr.count("unexpected error: ValueError (details: restricted log log)") == 3
    assert "asyncio, base_events" in done.stderr and "some.package, <string>" in done.stderr
    assert log.read_text().count("Traceback") == 3


def test_a_note_that_cannot_be_written_is_dropped(full: Path) -> None:
    log = new_log(full / "logs", "step")
    with output_to(log):
        note("x" * 100_000)


def test_output_is_given_back_where_the_log_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with output_to(tmp_path / "log"):
        pass
    os.write(1, b"here")
    assert capfd.readouterr().out == "here"
    assert len(list(Path("/proc/self/fd").iterdir())) == before
