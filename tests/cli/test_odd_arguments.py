"""Every command of `dpsynth` with odd arguments: one clear error or success, no traceback, nothing of a file's rows.

The arguments are drawn with a fixed seed for each command. What they found stands below, one case each.
"""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from dpsynth_platform.cli import main as cli

MARK = "Zaphodina904557731"
DOCUMENTED = {0, 1, 2, 3, 4, 5}
TIMES = int(os.environ.get("DPSYNTH_TEST_ODD_ARGUMENTS", "3"))
SECONDS = 60
"""How long one command may take; what takes longer hangs. No command takes a tenth of it on an idle machine."""


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
            if command.invoke_without_command:
                yield (*path, name), command
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))
NAMES = ["", " ", "-", "--", "..", "../..", "nobody", "a" * 300, "ü" * 200, "Ä ö", "\udcff", "[/bold]", "[red]x"]
CONTROLS = [
    "a\nb",
    "\x1b[31mred",
    "\t",
    "\x7f",
    "\u202e",
    "'; DROP TABLE event; --",
    "%s%n",
    "{}",
    "$HOME",
    "~",
    "a,,b",
]
LARGE = ["1e308", "-1e308", "1e-300", "9" * 400]
NUMBERS = ["0", "-1", "1", "7", *LARGE, "nan", "inf", "-inf", "0x10", "1_0", "٣", "1,5", "1/3"]
TIMES_OF = ["2026-01", "2026-13", "0000-00", "99999-01", "2026-1", "2026-02-30", "1h", "-1d", "now", "9" * 30 + "d"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of every kind, most of them with a mark in their rows, and paths where nothing is."""
    root = tmp_path_factory.mktemp("files")
    rows = {"id": [f"{MARK}{row}" for row in range(30)], "x": [f"{MARK}{row % 3}" for row in range(30)]}
    pq.write_table(pa.table(rows), root / "rows.parquet")
    text = "id,x\n" + "".join(f"{MARK}{row},{MARK}\n" for row in range(30))
    contents: dict[str, bytes] = {
        "rows.csv": text.encode(),
        "ragged.csv": (text + f"{MARK},{MARK},{MARK}\n").encode(),
        "latin.csv": text.encode().replace(b"id,x", b"id,\xe9"),
        "rows.jsonl": f'{{"text": "{MARK}"}}\n{{"text": '.encode(),
        "cut.parquet": (root / "rows.parquet").read_bytes()[:-9],
        "garbage.parquet": b"PAR1" + MARK.encode() * 20,
        "empty": b"",
        "empty.csv": b"",
        "empty.parquet": b"",
        "zeros.json": b"\0" * 100,
        "deep.json": b"[" * 100_000,
        "number.json": b"9" * 5000,
        "list.json": b"[1, 2]",
        "text.yaml": b"just text",
        "list.yaml": b"- 1\n- 2\n",
        "tabs.yaml": b"a:\n\t- b",
        "key.pem": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    }
    for name, content in contents.items():
        (root / name).write_bytes(content)
    (root / "directory.csv").mkdir()
    (root / "_delta_log").mkdir()
    (root / "_delta_log" / "00000000000000000000.json").write_bytes(b'{"protocol":')
    (root / "loop").symlink_to(root / "loop")
    unreadable = root / "unreadable.csv"
    unreadable.write_text(text)
    unreadable.chmod(0)
    nowhere = ["/nowhere/at/all.csv", str(root / "rows.csv" / "below"), str(root / ("n" * 300)), "/dev/null", "."]
    return [str(path) for path in root.iterdir()] + [str(root), *nowhere]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], tuple[int, str]]:
    """Runs a command in this process on an empty deployment; returns its status and all that it printed."""
    for name, part in (("DPSYNTH_HOME", "home"), ("DPSYNTH_DEPLOY", "deploy"), ("TMPDIR", "")):
        monkeypatch.setenv(name, str(tmp_path / part))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpsynth_platform.foundation.serving.serve", lambda *_, **__: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["dpsynth"])
    monkeypatch.setattr("runpy.run_module", lambda *_, **__: sys.exit(0))
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: MARK)

    def dpsynth(arguments: Sequence[str]) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{MARK}\n"))
        earlier = signal.signal(signal.SIGALRM, _hangs)
        signal.alarm(SECONDS)
        try:
            cli.app(list(arguments))
        except SystemExit as ended:
            status = ended.code
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, earlier)
        return (status if isinstance(status, int) else -1), "".join(capfd.readouterr())

    return dpsynth


class Hangs(BaseException):
    """A command does not end."""


def _hangs(number: int, frame: FrameType | None) -> None:
    raise Hangs


def check(arguments: Sequence[str], status: int, said: str) -> None:
    assert status in DOCUMENTED, (arguments, said)
    for word in ("Traceback", "unexpected error", MARK):
        assert word not in said, (arguments, said)
    assert status == 0 or said.strip(), arguments


def drawn(words: tuple[str, ...], files: list[str], random_: random.Random) -> list[str]:
    """Arguments of a command: options and positional ones, some left out, few of them what is asked for."""
    pools = (NAMES, CONTROLS, NUMBERS, TIMES_OF, files, files)
    arguments = []
    for parameter in COMMANDS[words].params:
        positional = parameter.param_type_name == "argument"
        if parameter.name == "help" or (random_.random() < (0.1 if parameter.required or positional else 0.6)):
            continue
        value = random_.choice(random_.choice(pools))
        if positional:
            arguments.append(value)
        elif parameter.is_flag:
            arguments.append(parameter.opts[0])
        else:
            arguments += [f"{parameter.opts[0]}={value}"]
    # What is accepted there takes minutes.
    if words == ("demo",):
        arguments = [argument for argument in arguments if argument.startswith("-")] + ["nothing"]
    if words == ("synth", "topics"):
        arguments += ["--phrases=/nowhere/at/all"]
    return [*words, *arguments]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_with_odd_arguments(
    words: tuple[str, ...], files: list[str], run: Callable[[Sequence[str]], tuple[int, str]]
) -> None:
    random_ = random.Random(zlib.crc32(" ".join(words).encode()))
    for _ in range(TIMES):
        arguments = drawn(words, files, random_)
        check(arguments, *run(arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up"], "contains no file dagster.yaml"),
        (["audit", "show", "deep.json"], "the report cannot be read"),
        (["metrics", "--host=\udcff"], "not a host name"),
        (["metrics", f"--host={'a' * 300}"], "not a host name"),
        (["contract", "check", "n" * 300], "cannot be read"),
        (
            ["synth", "table", "rows.csv", f"--out={'n' * 300}", "--epsilon=1", "--expected-units=9"],
            "file name too long",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_odd_arguments_have_found(
    arguments: list[str], words: str, files: list[str], run: Callable[[Sequence[str]], tuple[int, str]]
) -> None:
    """Paths by their name alone are those of `files`."""
    named = {Path(path).name: path for path in files}
    arguments = [named.get(argument, argument) for argument in arguments]
    status, said = run(arguments)
    check(arguments, status, said)
    assert status == 1
    assert words in said, said
