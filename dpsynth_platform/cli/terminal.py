"""What every command of `dpsynth` shares: where results go, and how errors are shown.

What belongs here: arguments that many have, text, progress or JSON on the terminal, the wrapper that lets no unsafe
error text out, and a place for what a command makes in passing. What does not: any command (`cli`, `privacy_command`).
"""

from __future__ import annotations

import functools
import json
import select
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpsynth_platform.foundation.errors import BudgetExceeded, DpsynthError
from dpsynth_platform.foundation.people import is_control
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.redaction import UNEXPECTED, safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, logs_of, new_log, output_to
from dpsynth_platform.foundation.scratch import scratch_directory
from dpsynth_platform.foundation.settings import Settings, terminal_copy
from dpsynth_platform.foundation.volumes import require_encrypted

if TYPE_CHECKING:
    from dpsynth_platform.foundation.progress import Progress as Told

BLOCKED = 3
WIDE = 160
SEVERAL = "with commas between, or the option repeated"
P = ParamSpec("P")

Dataset = Annotated[str, typer.Argument(help="Name of the dataset, as its contract's file is named.")]
Period = Annotated[str | None, typer.Option(help="Month (YYYY-MM), for datasets with a cadence.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on standard output instead of text.")]


class TerminalOutput:
    """Where results go: text for people, or one JSON value."""

    def __init__(self, as_json: bool) -> None:
        # Steps run with standard output and error sent to a restricted file; the terminal is reached by a copy.
        self._file = terminal_copy()
        self._as_json = as_json
        # Where nobody looks at a screen, ids must not be cut to its width.
        width = None if self._file.isatty() else WIDE
        self.console = Console(
            file=self._file, highlight=False, emoji=False, soft_wrap=True, quiet=as_json, width=width
        )

    def print(self, text: str = "") -> None:
        """A sentence for people."""
        self.console.print(plain(text), markup=False)

    def heading(self, text: str) -> None:
        """A heading for people."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table for people."""
        table = Table(*(Column(name, overflow="fold") for name in header), show_edge=False, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(plain(str(cell))) for cell in row))
        self.console.print(table)

    def json(self, value: Mapping[str, Any] | Sequence[Any]) -> None:
        if self._as_json:
            print(json.dumps(value, indent=2, ensure_ascii=False, default=str), file=self._file)

    def fail(self, error: DpsynthError) -> typer.Exit:
        """Shows a safe error and returns what to raise."""
        if self._as_json:
            self.json({"error": {"code": error.code, "message": str(error)}})
        else:
            print(plain(str(error)), file=sys.stderr)
        return typer.Exit(BLOCKED if isinstance(error, BudgetExceeded) or error.code == "budget" else 1)


@contextmanager
def stages(output: TerminalOutput) -> Iterator[Told]:
    """On a terminal a line for each stage, with what remains of it; elsewhere nothing."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    silenced = not output.console.is_terminal or output.console.quiet
    with Progress(
        *columns, console=output.console, disable=silenced, redirect_stdout=False, redirect_stderr=False
    ) as bars:
        known: dict[str, int] = {}

        def report(stage: str, done: int, total: int, beside: str = "") -> None:
            if stage not in known:
                known[stage] = int(bars.add_task(stage, total=total))
            bars.update(known[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield report


def plain(text: str) -> str:
    """Text without what could steer a terminal: a file or a ledger from elsewhere may hold it."""
    return "".join("\ufffd" if is_control(item) and item not in "\n\t" else item for item in text)


def command(body: Callable[P, None]) -> Callable[P, None]:
    """Shows errors of ours as one message, and of others, which may quote data, their type only."""

    @functools.wraps(body)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        error: DpsynthError | None = None
        unexpected: BaseException | None = None
        try:
            body(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except DpsynthError as caught:
            error = caught
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:  # the panics of libraries in Rust are no `Exception`
            unexpected = caught
        if unexpected is not None:  # out here nothing that fails can carry the error as its context
            if isinstance(unexpected, BrokenPipeError) and _nobody_reads():
                raise typer.Exit(1)
            error = _unexpected(unexpected)
        if error is not None:
            raise TerminalOutput(bool(kwargs.get("as_json"))).fail(error)

    return wrapped


def listed(texts: Sequence[str] | None) -> list[str]:
    """The parts of an option that takes several with commas between, and may be repeated, in order."""
    return [part.strip() for text in texts or () for part in text.split(",")]


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def workspace(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A temporary directory for this user alone, which also takes what libraries print.

    Results go through a `TerminalOutput` that was made before. The directory is removed afterwards, also where the
    process receives SIGTERM or SIGHUP, which become a `SystemExit` inside. What a kill leaves is removed later
    (`scratch`).

    Args:
        parent: where it is made; None: the system's place.

    Raises:
        ConfigurationError: what is written there would reach a disk in clear, and must not (`volumes`).
    """
    written = {"temporary directory": Path(tempfile.gettempdir()) if parent is None else parent}
    require_encrypted(written, Settings.from_environment().require_encrypted)
    # What is ignored already stays so: that is how `nohup` works.
    caught = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    leave = _Leaving()
    earlier = {number: signal.signal(number, leave) for number in caught}
    try:
        with (
            scratch_directory(prefix, parent) as place,
            private_files(),
            output_to(place / "output.log"),
        ):
            yield place
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class _Ending(SystemExit):
    """Of a signal. Unlike `SystemExit` itself it can be referred to weakly."""


class _Leaving:
    """A handler that ends the process once, and again only where nothing keeps the first ending any more.

    While the first one travels, nothing interrupts what tidies up. Python drops an error that is raised in a finalizer
    or in a callback: without a second one, such a process could not be ended in order.
    """

    def __init__(self) -> None:
        self._ending: weakref.ref[_Ending] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._ending is not None and self._ending() is not None:
            return
        ending = _Ending(128 + number)
        self._ending = weakref.ref(ending)
        try:
            raise ending
        finally:
            del ending  # it would keep itself by way of its traceback


def keep_unexpected(caught: BaseException) -> str:
    """Keeps a command's traceback in a restricted log; says where it is, or that it could not be kept. Never raises."""
    try:
        log = new_log(logs_of(Settings.from_environment().restricted), "command")
    except Exception:  # it says which settings cannot be used wherever they are needed
        return "its traceback could not be kept: there is no deployment for it"
    return keep_traceback(log, caught)


def _unexpected(caught: BaseException) -> DpsynthError:
    """A safe account of an error that is not ours; its traceback goes to a restricted file."""
    code, what = safe_error(caught)
    error = DpsynthError(f"{'unexpected error: ' if code == UNEXPECTED else ''}{what} ({keep_unexpected(caught)})")
    error.code = code
    return error


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has left, as `head` does."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
