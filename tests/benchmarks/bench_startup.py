"""How long commands take that have next to nothing to do, and the shortest run of a line. Not a test.

    python tests/benchmarks/bench_startup.py                 # every command twice, on an empty deployment
    python tests/benchmarks/bench_startup.py --run           # a run of the small test deployment as well

Prints the lower of two values each: processor seconds, of all processes together, and seconds by the clock.

Processor seconds on two cores that other work shared, and what they were when all was imported at load:

| | | before |
| --- | --- | --- |
| dpsynth --help | 0.6 | 4.9 |
| dpsynth ledger show | 1.1 | 4.6 |
| dpsynth release list | 2.2 | 4.6 |
| dpsynth contract check, census | 6.7 | 8.0 |
| dpsynth run, an unknown dataset | 0.8 | 5.6 |
| import dpsynth_platform.definitions, of which dagster 1.5 | 3.5 | 5.7 |
| dpsynth run, small: least of three | 34 | 41 |

By the clock the three runs took 25, 29 and 37 seconds, before that 37, 37 and 37; the first step began after 9, 10 and
14 seconds, before that after 15, 17 and 17.

Then the garbage collector was kept from what modules load (`collecting`), and more was loaded before steps fork. On
one machine at rest, the lower of two runs: 16.3 processor seconds and 11.0 by the clock, before that 23.6 and 17.2; of
`import dpsynth_platform.definitions` 1.8, and 2.3.

What belongs here: timing. What does not: asserting; what is loaded is held by `tests/cli/test_startup.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "--help",
    "ledger show --help",
    "ledger show",
    "release list",
    "lineage show --help",
    "contract check deploy/contracts/census.yaml",
    "run nothing",
)
PR_SET_CHILD_SUBREAPER = 36
MODULES = ("dagster", "dpsynth_platform.synth.planning", "dpsynth_platform.definitions")


def seconds(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Processor seconds of one process with all its own, and seconds by the clock until it ended."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True)
    clock = time.monotonic() - began
    with suppress(ChildProcessError):
        while True:  # what it left to end by itself, as steps' processes do, has come to this one
            os.wait()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime, clock


def show(name: str, times: list[tuple[float, float]]) -> None:
    """One row of the table."""
    processor, clock = (min(column) for column in zip(*times, strict=True))
    print(f"| {name} | {processor:.1f} | {clock:.1f} |", flush=True)


def run(root: Path, number: int) -> tuple[float, float]:
    """A whole run of a small deployment that is made for it."""
    from line_cases import small_deployment

    deployment = small_deployment(root / str(number))
    return seconds(["-m", "dpsynth_platform", "run", "people"], dict(os.environ) | deployment.environment)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="a run of the small test deployment as well")
    chosen = parser.parse_args()
    sys.path.append(str(ROOT / "tests" / "end_to_end"))
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1):
        sys.exit("processor seconds of all processes can be told on Linux alone")
    print("| | processor | clock |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as made:
        empty = dict(os.environ) | {"DPSYNTH_HOME": str(Path(made) / "home")}
        for command in COMMANDS:
            show(f"dpsynth {command}", [seconds(["-m", "dpsynth_platform", *command.split()], empty) for _ in range(2)])
        for module in MODULES:
            show(f"import {module}", [seconds(["-c", f"import {module}"], empty) for _ in range(2)])
        if chosen.run:
            show("dpsynth run, small", [run(Path(made), number) for number in range(2)])
