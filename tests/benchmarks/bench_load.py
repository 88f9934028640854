"""How many release lines a machine bears at once, on one PostgreSQL. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_load.py                    # one line alone, then 16 at once
    python tests/benchmarks/bench_load.py --lines 4 --cap 1.8

Every line is a dataset of its own with the same family: `dpsynth run` from its source to a candidate, each step in a
process of its own, then somebody's approval and the release. All share one ledger and one lineage graph, on a server
that this starts. The cap has room for ten of 16, so that some must be refused, whoever comes last.

Afterwards it holds what must hold at any load, and fails otherwise: as many entries as fit by arithmetic that shares
nothing with the ledger's, all others refused for want of budget and for nothing else, an unbroken chain, and for each
lineage run that started one end.

Measured on two cores beside other work, under a cap with room for ten of sixteen:

| lines at once | released, refused | the last was released after | the median | processor | most memory |
| --- | --- | --- | --- | --- | --- |
| 1 | 1, 0 | 71 s | 71 s | 48 s | 1.2 GB |
| 16 | 10, 6 | 723 s | 504 s | 1065 s | 10.9 GB |

What belongs here: timing, and what load could break. What does not: what one line does.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import sysconf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "ledger"))
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

import independent_costs as costs
from deployment import FAMILY, Deployment
from line_cases import SMALL, small_table
from postgresql_server import new_database, running_server

from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.synth.interface import SealedPlan

TICKS = sysconf("SC_CLK_TCK")
DELTA = 1.0e-5
COLUMNS = 3
OVER_BUDGET = 3


@dataclass
class Line:
    """One line: its dataset, when its processes ended, and how."""

    dataset: str
    seconds: float = 0.0
    status: int | None = None


@dataclass
class Watch:
    """What the processes below this one took: the most memory at once, and processor time of each that was seen."""

    peak: int = 0
    seconds: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        memory = 0
        for number in _below():
            try:
                stat = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                rollup = Path(f"/proc/{number}/smaps_rollup").read_text().split()
            except OSError:
                continue
            self.seconds[number] = (int(stat[11]) + int(stat[12])) / TICKS
            memory += int(rollup[rollup.index("Pss:") + 1]) if "Pss:" in rollup else 0
        self.peak = max(self.peak, memory)


def _below() -> list[int]:
    """Every process that descends from this one and is still known to."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: set[int] = set()
    new = {int(Path("/proc/self").resolve().name)}
    while new:
        found |= new
        new = {number for number, parent in parents.items() if parent in new} - found
    return sorted(found)


def deployment_of(root: Path, lines: int, cap: float, url: str) -> tuple[Deployment, list[str]]:
    """Datasets of one family, and their names."""
    deployment = Deployment(root, copy.deepcopy(SMALL), copy.deepcopy(FAMILY), url)
    deployment.contract["generate"] = {"method": "independent", "rows": 200}
    deployment.family["cap"] = {"epsilon": cap, "delta": DELTA}
    names, table = [f"line{number:02d}" for number in range(lines)], small_table()
    for name in names:
        deployment.contract["dataset"] = name
        deployment.contract["source"]["uri"] = f"${{DPSYNTH_HOME}}/sources/{name}"
        deployment.contract["release"]["uri"] = f"${{DPSYNTH_HOME}}/public/{name}"
        deployment.write()
        write_table(deployment.settings.home / "sources" / name, table.schema, table.to_batches())
    return deployment, names


def run(deployment: Deployment, names: Sequence[str], watch: Watch) -> list[Line]:
    """All lines at once, each from its source to its release; those beyond the budget end with 3."""
    began, lines = time.monotonic(), [Line(name) for name in names]
    going = {line.dataset: deployment.start("run", line.dataset, "--json") for line in lines}
    approving: set[str] = set()
    while going:
        watch.look()
        for line in lines:
            process = going.get(line.dataset)
            if process is None or process.poll() is None:
                continue
            out, err = process.communicate()
            line.seconds, line.status = time.monotonic() - began, process.returncode
            if process.returncode not in (0, OVER_BUDGET):
                raise AssertionError(f"{line.dataset} ended with {process.returncode}:\n{out}{err}")
            del going[line.dataset]
            if process.returncode == 0 and line.dataset not in approving:
                approving.add(line.dataset)
                decide = ("release", "approve", line.dataset, "--as", "reviewer", "--json")
                going[line.dataset] = deployment.start(*decide)
        time.sleep(0.5)
    return lines


def check(deployment: Deployment, lines: Sequence[Line]) -> None:
    """Nothing was over-spent, nothing refused that had room, nothing lost."""
    ledger = Ledger(deployment.settings.ledger_url)
    spent = [entry for entry in ledger.entries() if entry.state == "spent"]
    account = ledger.account(deployment.family["family"])
    raw = next((deployment.settings.restricted / spent[0].request.dataset / "all" / "raw").glob("*/plan.json"))
    squared = costs.squared_distance(plan_of(raw), COLUMNS, SMALL["privacy"]["max_contributions"])
    orders = dict(zip(account.filter.orders, account.filter.weights, strict=True))
    fit = min(len(lines), costs.rounds_under_cap(squared, epsilon=account.epsilon, delta=DELTA, orders=orders))
    released = [line for line in lines if line.status == 0]
    assert len(spent) == len(ledger.entries()) == len(released) == fit, (len(spent), len(released), fit)
    assert len(ledger.history(kinds=["released"])) == fit
    assert len(ledger.history(kinds=["blocked"])) == len(lines) - fit
    assert ledger.verify().ok
    told: dict[str, Counter[str]] = {}
    for row in deployment.settings.lineage_file.read_text(encoding="utf-8").splitlines():
        event = json.loads(row)
        if "run" in event:
            told.setdefault(event["run"]["runId"], Counter())[event["eventType"]] += 1
    for run_id, types in told.items():
        assert types.pop("START") == 1, run_id
        assert types.total() == 1, (run_id, types)
    print(f"{fit} released, {len(lines) - fit} refused, {len(told)} lineage runs, each ended once", flush=True)


def plan_of(file: Path) -> dict[str, Any]:
    """The sealed plan in words."""
    return SealedPlan.from_json(file.read_text(encoding="utf-8")).describe()


def measure(number: int, cap: float, server: str) -> tuple[list[Line], Watch]:
    """So many lines at once on a database of their own."""
    url, watch = new_database(server), Watch()
    with tempfile.TemporaryDirectory(prefix="load") as root:
        deployment, names = deployment_of(Path(root), number, cap, url)
        lines = run(deployment, names, watch)
        check(deployment, lines)
    return lines, watch


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=16)
    parser.add_argument("--cap", type=float, default=3.5, help="the family's epsilon; each line asks for 1")
    chosen = parser.parse_args()
    print(f"{'lines':>5} {'last s':>7} {'median s':>9} {'processor s':>12} {'peak MB':>8}")
    with running_server() as server:
        for number in (1, chosen.lines):
            lines, watch = measure(number, chosen.cap, server)
            ended = [line.seconds for line in lines]
            print(
                f"{number:>5} {max(ended):>7.0f} {statistics.median(ended):>9.0f} {sum(watch.seconds.values()):>12.0f} "
                f"{watch.peak / 1000:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
