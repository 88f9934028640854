"""What every command of `dpsynth` shares: common options, output, safe errors, a temporary directory.

What belongs here: what several command modules need. What does not: any command.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import select
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperCommand

from dpsynth_platform.foundation.errors import BudgetExceeded, DpsynthError
from dpsynth_platform.foundation.people import is_control
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.redaction import UNEXPECTED, safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, logs_of, new_log, output_to
from dpsynth_platform.foundation.scratch import scratch_directory
from dpsynth_platform.foundation.settings import Settings, terminal_copy
from dpsynth_platform.foundation.volumes import require_encrypted

BLOCKED = 3
WIDE = 160
SEVERAL = "separated by commas (in double quotes what has one), or with the option repeated"

Dataset = Annotated[str, typer.Argument(help="Name of the dataset: its contract's file name without the suffix.")]
By = Annotated[str | None, typer.Option("--as", help="Who acts; default: DPSYNTH_USER or the login.")]
Reason = Annotated[
    str, typer.Option(help="Why; kept forever, so it must contain no data and name no person whose data it is about.")
]
Period = Annotated[str | None, typer.Option(help="Period (YYYY-MM for a month), for datasets with a cadence.")]
_JSON = inspect.Parameter(
    "as_json",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--json", help="One JSON value on standard output instead of text.")],
)


class TerminalOutput:
    """Where results go: text for people, or one JSON value."""

    def __init__(self, as_json: bool) -> None:
        # While steps run, standard output and error go to a restricted file: this copy still reaches the terminal.
        self._file = terminal_copy()
        self.as_json = as_json
        # A file has no width to which ids must be cut.
        width = None if self._file.isatty() else WIDE
        self.console = Console(
            file=self._file, highlight=False, emoji=False, soft_wrap=True, quiet=as_json, width=width
        )

    def print(self, text: str = "") -> None:
        self.console.print(plain(text), markup=False)

    def heading(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/bold]")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        table = Table(*(Column(name, overflow="fold") for name in header), show_edge=False, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(plain(str(cell))) for cell in row))
        self.console.print(table)

    def json(self, value: Mapping[str, Any] | Sequence[Any]) -> None:
        if self.as_json:
            print(json.dumps(value, indent=2, ensure_ascii=False, default=str), file=self._file)

    def print_failures(self, failures: Iterable[tuple[str, str]]) -> None:
        """Steps that failed, with their messages; on standard error, unless results are JSON."""
        if not self.as_json:
            for step, message in failures:
                print(f"{step} failed: {message}", file=sys.stderr)

    def fail(self, error: DpsynthError) -> typer.Exit:
        """Shows a safe error and returns the exit to raise."""
        if self.as_json:
            self.json({"error": {"code": error.code, "message": str(error)}})
        else:
            print(plain(str(error)), file=sys.stderr)
        return typer.Exit(BLOCKED if isinstance(error, BudgetExceeded) or error.code == "budget" else 1)


def plain(text: str) -> str:
    """Text without control characters: a file or ledger of other origin may contain some."""
    return "".join("\ufffd" if is_control(item) and item not in "\n\t" else item for item in text)


class PlainCommand(TyperCommand):
    """A command whose errors about a wrong value name no types of the parser's library."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            message = error.message.removeprefix("Value error, ")
            for found, kind in (("number", "a number"), ("integer", "a whole number")):
                if found in error.message and "nput" in error.message:
                    message = f"accepted: {kind}"
            error.message = message
            raise


class Commands(typer.Typer):
    """A group of commands, each of them a `command`."""

    def command(  # type: ignore[override]
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        register = super().command(name, **{"cls": PlainCommand} | options)
        return lambda body: register(command(body))


def command(body: Callable[..., None]) -> Callable[..., None]:
    """Makes a function a command: options by types of its parameters, safe errors.

    A parameter of type `TerminalOutput` becomes the option --json, a dataclass one option for each of its fields. A
    safe error is shown as one message. Of any other error, which may quote data, only the type is shown.
    """
    shown: list[inspect.Parameter] = []
    outputs: list[str] = []
    groups: dict[str, type] = {}
    signature = inspect.signature(body, eval_str=True)
    for item in signature.parameters.values():
        if item.annotation is TerminalOutput:
            outputs.append(item.name)
        elif isinstance(item.annotation, type) and is_dataclass(item.annotation):
            groups[item.name] = item.annotation
            shown += inspect.signature(item.annotation, eval_str=True).parameters.values()
        else:
            shown.append(item)

    @functools.wraps(body)
    def wrapped(*, as_json: bool, **given: Any) -> None:
        error: DpsynthError | None = None
        unexpected: BaseException | None = None
        try:
            for name, group in groups.items():
                given[name] = group(**{option: given.pop(option) for option in inspect.signature(group).parameters})
            body(**given, **{name: TerminalOutput(as_json) for name in outputs})
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except DpsynthError as caught:
            error = caught
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:  # panics of Rust libraries are no `Exception`
            unexpected = caught
        if unexpected is not None:  # outside of `except`, a further error does not carry this one as its context
            if isinstance(unexpected, BrokenPipeError) and _reader_is_gone():
                raise typer.Exit(1)
            error = _unexpected(unexpected)
        if error is not None:
            raise TerminalOutput(as_json).fail(error)

    options = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in shown]
    wrapped.__signature__ = signature.replace(parameters=[*options, _JSON])  # type: ignore[attr-defined]
    return wrapped


_VALUE = re.compile(r'(?:^|(?<=,))\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>[^,]*?)\s*)(?=,|$)', re.DOTALL)


def listed(texts: Sequence[str] | None) -> list[str]:
    """The values of an option that accepts several, separated by commas or repeated, in order.

    A value in double quotes is as it is, with its commas and blanks; a double quote in it is doubled.
    """
    return [
        plain if quoted is None else quoted.replace('""', '"')
        for text in texts or ()
        for quoted, plain in (match.group("quoted", "plain") for match in _VALUE.finditer(text))
    ]


def column_names(option: str, texts: Sequence[str] | None, error: type[DpsynthError]) -> list[str]:
    """The values of an option for columns. Raises `error` if one is empty or named twice."""
    names = listed(texts)
    if not all(names) or len(set(names)) < len(names):
        raise error(f"{option} {','.join(names)!r}; accepted: names of different columns, {SEVERAL}")
    return names


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_AGAIN = 0.1
"""Seconds after which a dropped ending is raised again."""


@contextmanager
def workspace(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A temporary directory for this user alone; it also takes what libraries print.

    Make a `TerminalOutput` for results before. The directory is removed at the end, also after SIGTERM or SIGHUP, which
    raise `SystemExit` inside. What a killed process leaves is removed later (`scratch`).

    Args:
        parent: where it is made; None: the system's place for temporary files.

    Raises:
        ConfigurationError: the deployment requires encryption, and that disk has none (`volumes`).
    """
    written = {"temporary directory": Path(tempfile.gettempdir()) if parent is None else parent}
    require_encrypted(written, Settings.from_environment().require_encrypted)
    # A signal that is already ignored stays ignored: `nohup` works so.
    caught = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    handler = _EndOnce()
    earlier = {number: signal.signal(number, handler) for number in caught}
    try:
        with (
            scratch_directory(prefix, parent) as place,
            private_files(),
            output_to(place / "output.log"),
        ):
            yield place
    finally:
        handler.stop()
        for number, replaced in earlier.items():
            signal.signal(number, replaced)


class _Ending(SystemExit):
    """The exit after a signal. Unlike `SystemExit` itself it allows weak references."""


class _EndOnce:
    """A signal handler that raises `_Ending` once, and again only after the first one was dropped.

    While the first one propagates, no signal interrupts the cleanup. Python drops an error that is raised in a
    finalizer or callback; then the same signal is sent to the main thread again, once it has left that code, and no
    other error is being handled there.
    """

    def __init__(self) -> None:
        self._ending: weakref.ref[_Ending] | None = None
        self._again: threading.Timer | None = None
        self._resent = self._stopped = False

    def stop(self) -> None:
        """No signal is sent from now on."""
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
            self._again.join()

    def _dropped(self, number: int) -> None:
        if not self._stopped:
            self._again = threading.Timer(_AGAIN, self._send, (number,))
            self._again.start()

    def _send(self, number: int) -> None:
        self._resent = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        resent, self._resent = self._resent, False
        if self._ending is not None and self._ending() is not None:
            return
        if resent and sys.exc_info()[0] is not None:  # what cleans up after another error is not interrupted
            self._dropped(number)
            return
        ending = _Ending(128 + number)
        self._ending = weakref.ref(ending, lambda _: self._dropped(number))
        try:
            raise ending
        finally:
            del ending  # its traceback refers to this frame, which would keep it alive


def keep_unexpected(caught: BaseException) -> str:
    """Writes a command's traceback to a restricted log; returns where it is, or why it was not kept. Never raises."""
    try:
        log = new_log(logs_of(Settings.from_environment().restricted), "command")
    except Exception:  # settings that cannot be used are reported where they are needed
        return "its traceback could not be kept: there is no deployment for it"
    return keep_traceback(log, caught)


def _unexpected(caught: BaseException) -> DpsynthError:
    """A safe error in place of a library's; the traceback goes to a restricted log."""
    code, what = safe_error(caught)
    error = DpsynthError(f"{'unexpected error: ' if code == UNEXPECTED else ''}{what} ({keep_unexpected(caught)})")
    error.code = code
    return error


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe whose reader has ended, as `head` does."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
