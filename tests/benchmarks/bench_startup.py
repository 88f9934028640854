"""How long people wait for a command, before and after a change. Not a test.

    python tests/benchmarks/bench_startup.py                       # commands that have next to nothing to do
    python tests/benchmarks/bench_startup.py --run                 # a run, the same run again, approval, and the page
    python tests/benchmarks/bench_startup.py --run --beside DIR    # those of another checkout (with a .venv), in turn

Prints the lower of two values each: processor seconds, of all processes together, and seconds by the clock; with
`--beside`, those of the other checkout and the ratio of processor seconds.

On two cores at a load of 1 to 2.5, beside the tree from before `plan` left the trial run to `--rehearse` and commands
stopped loading torch and Dagster where they need neither (27 November 2026):

| | processor | clock | processor, before | clock, before | ratio |
| --- | --- | --- | --- | --- | --- |
| dpsynth --help | 0.2 | 0.2 | 0.2 | 0.2 | 1.04 |
| dpsynth ledger show | 0.5 | 0.5 | 0.5 | 0.5 | 0.97 |
| dpsynth release list | 0.9 | 0.9 | 0.9 | 0.9 | 0.94 |
| dpsynth contract check deploy/contracts/census.yaml | 1.8 | 1.8 | 2.9 | 3.0 | 0.61 |
| dpsynth plan census | 2.7 | 2.7 | 14.6 | 14.5 | 0.18 |
| dpsynth run nothing | 0.3 | 0.3 | 0.3 | 0.3 | 1.05 |
| import dagster | 0.7 | 0.7 | 0.7 | 0.7 | 0.99 |
| import dpsynth_platform.synth.planning | 0.2 | 0.2 | 0.2 | 0.2 | 1.08 |
| import dpsynth_platform.definitions | 1.7 | 1.8 | 1.7 | 1.7 | 1.02 |
| dpsynth run | 15.1 | 11.4 | 14.1 | 14.0 | 1.07 |
| dpsynth run, nothing changed | 2.3 | 2.1 | 10.6 | 10.5 | 0.21 |
| dpsynth release approve, until published | 4.2 | 4.2 | 8.4 | 6.7 | 0.50 |
| dpsynth up, until the page lists the assets | | 5.6 | | 8.4 | |

What belongs here: timing. What does not: asserting; what is loaded is held by `tests/cli/test_startup.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "--help",
    "ledger show",
    "release list",
    "contract check deploy/contracts/census.yaml",
    "plan census",
    "run nothing",
)
PR_SET_CHILD_SUBREAPER = 36
MODULES = ("dagster", "dpsynth_platform.synth.planning", "dpsynth_platform.definitions")
PAGE = b'{"query": "{assetNodes{id}}"}'
Times = tuple[float, float]
"""Processor seconds, and seconds by the clock."""


class Tree:
    """A checkout with an environment of its own, and a small deployment that is made by it."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place = root, place
        python = root / ".venv" / "bin" / "python"
        self.python = str(python) if python.is_file() else sys.executable
        unwritten = {"PYTHONDONTWRITEBYTECODE"}  # or everything is compiled again by every command
        self.environment = {name: value for name, value in os.environ.items() if name not in unwritten}
        self.environment |= {"DPSYNTH_HOME": str(place / "home"), "PYTHONPATH": str(root)}

    def seconds(self, *arguments: str) -> Times:
        """Of one process with all its own, until it has ended."""
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run([self.python, *arguments], env=self.environment, cwd=self.root, capture_output=True)
        clock = time.monotonic() - began
        with suppress(ChildProcessError):
            while True:  # what it left to end by itself, as steps' processes do, has come to this one
                os.wait()
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime, clock

    def command(self, words: str) -> Times:
        return self.seconds("-m", "dpsynth_platform", *words.split())

    def deploy(self) -> None:
        """A small deployment in place of the present one."""
        made = "import sys; sys.path.append('tests/end_to_end'); from line_cases import small_deployment; from pathlib "
        made += "import Path; print(small_deployment(Path(sys.argv[1])).settings.deploy)"
        self.place = Path(tempfile.mkdtemp(dir=self.place))
        done = subprocess.run(
            [self.python, "-c", made, str(self.place)],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
        )
        self.environment |= {
            "DPSYNTH_HOME": str(self.place / "home"),
            "DPSYNTH_DEPLOY": done.stdout.split()[-1],
            "DPSYNTH_USER": "runner",
            "DPSYNTH_DEVICE": "cpu",
        }

    def page(self) -> Times:
        """Until `dpsynth up` answers with the dataset's assets. No processor seconds: its processes live on."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        began = time.monotonic()
        up = subprocess.Popen(
            [self.python, "-m", "dpsynth_platform", "up", "--port", str(port)],
            env=self.environment,
            cwd=self.root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/graphql", PAGE, {"Content-Type": "application/json"})
        try:
            while up.poll() is None:
                with suppress(OSError, ValueError, KeyError, TypeError):
                    if json.loads(urllib.request.urlopen(asked, timeout=10).read())["data"]["assetNodes"]:
                        break
                time.sleep(0.1)
            return math.nan, time.monotonic() - began
        finally:
            os.killpg(up.pid, signal.SIGINT)
            up.wait()


def show(name: str, measures: Sequence[Callable[[], Times]]) -> None:
    """One row of the table: the lower of two, of each tree in turn."""
    rounds = [[measure() for measure in measures] for _ in range(2)]
    row(name, [[turn[place] for turn in rounds] for place in range(len(measures))])


def row(name: str, times: Sequence[Sequence[Times]]) -> None:
    """Processor seconds and seconds by the clock of each tree, and the ratio of the first to the other."""
    least = [tuple(min(column) for column in zip(*tree, strict=True)) for tree in times]
    cells = [f"{value:.1f}" if value == value else "" for tree in least for value in tree]
    measured = len(least) > 1 and least[1][0] == least[1][0]
    ratio = [f"{least[0][0] / least[1][0]:.2f}" if measured else ""] * (len(least) > 1)
    print(f"| {' | '.join([name, *cells, *ratio])} |", flush=True)


def lines(trees: Sequence[Tree]) -> None:
    """A run of a new deployment, the same again, its approval with publication, and the page."""
    said = {
        "dpsynth run": "run people",
        "dpsynth run, nothing changed": "run people",
        "dpsynth release approve, until published": "release approve people --as other",
    }
    found: dict[str, list[list[Times]]] = {name: [[] for _ in trees] for name in said}
    for _ in range(2):
        for place, tree in enumerate(trees):
            tree.deploy()
            for name, words in said.items():
                found[name][place].append(tree.command(words))
    for name, times in found.items():
        row(name, times)
    show("dpsynth up, until the page lists the assets", [tree.page for tree in trees])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="also a run, the same again, an approval and the page")
    parser.add_argument("--beside", type=Path, help="another checkout, with a .venv, for a comparison")
    chosen = parser.parse_args()
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1):
        sys.exit("processor seconds of all processes can be told on Linux alone")
    with tempfile.TemporaryDirectory() as made:
        places = [ROOT, *([chosen.beside.resolve()] if chosen.beside else [])]
        trees = [Tree(place, Path(tempfile.mkdtemp(dir=made))) for place in places]
        named = ["", "processor", "clock", *(["processor, beside", "clock, beside", "ratio"] if chosen.beside else [])]
        print(f"| {' | '.join(named)} |\n|{' --- |' * len(named)}")
        for command in COMMANDS:
            show(f"dpsynth {command}", [partial(tree.command, command) for tree in trees])
        for module in MODULES:
            show(f"import {module}", [partial(tree.seconds, "-c", f"import {module}") for tree in trees])
        if chosen.run:
            lines(trees)
