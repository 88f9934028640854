"""Federated tables by real processes: eight nodes, and Flower with TLS and node keys. Not a test: it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation_flower.py

What belongs here: whole runs over loopback, with all eight participants and with two that are gone, beside the central
method at the same epsilon. What does not: rows divided otherwise, which makes no difference (`bench_federation`), and
asserting. Distances are mean total variations from all rows, of single columns and of pairs; seconds are those that a
coordinator waits on a machine that has all processes; bytes are those of one participant's messages, of the whole run
and of the largest round. Needs `flower` beside the environment's programs (requirements/flower.lock).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from bench_federation import COLLUDERS, MINIMUM, NAMES, distances, divisions
from bench_tabular import QUALITY_DELTA, adult_columns, conduct, plan_of, say, stored

from dpsynth_platform.federation.nodes import Coordinator
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.relays import relayed
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.federation.secure_sum import Link
from dpsynth_platform.foundation.yaml_files import dump
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_plan import FederatedOptions, federated_plan
from dpsynth_platform.synth.interface import generator

sys.path.insert(0, str(Path(__file__).parents[1] / "federation"))
from flower_cases import flower, wait_until
from relay_cases import answers

SECONDS = 120.0
GONE = 2


class Counted:
    """A link that counts bytes by participant, in all and by round, and exchanges."""

    def __init__(self, link: Link) -> None:
        self._link, self.exchanges, self._round = link, 0, 0
        self.bytes: Counter[str] = Counter()
        self.rounds: Counter[tuple[str, int]] = Counter()

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        replies = self._link.ask(requests)
        self.exchanges += 1
        self._round += any(b'"round":' in message.partition(b"\n")[0] for message in requests.values())
        for name, message in requests.items():
            size = len(message) + len(replies.get(name, b""))
            self.bytes[name] += size
            self.rounds[name, self._round] += size
        return replies


class Places:
    """The directories of all parties, and the processes of the participants."""

    def __init__(self, root: Path, stack: ExitStack, table: pa.Table, columns: Mapping[str, Any]) -> None:
        self.root, self.engine = root, stack.enter_context(flower(root / "flower"))
        keys = {name: _public(root / name) for name in (*NAMES, "coordinator")}
        cap = {"epsilon": 1000.0, "delta": QUALITY_DELTA}
        shared = {
            "dataset": "benchmark",
            "family": {"family": "benchmark", "unit": "example", "namespace": "person", "mode": "family", "cap": cap},
            "run_cap": {"epsilon": 10.0, "delta": QUALITY_DELTA},
            "methods": ["independent", "mst", "aim"],
            "columns": list(columns),
            "participants": {name: keys[name] for name in NAMES},
            "coordinator": keys["coordinator"],
            "approval": "policy",
            "minimum": MINIMUM,
            "colluders": COLLUDERS,
            "max_contributions": 1,
        }
        self.roster, self.processes = Roster.from_texts(shared["participants"]), {}
        _, division = next(divisions(table))
        for number, name in enumerate(NAMES):
            here = root / name
            pq.write_table(table.filter(pa.array(division == number)), here / "rows.parquet")
            (here / "columns.yaml").write_text(dump({"columns": dict(columns)}))
            (here / "policy.yaml").write_text(dump(shared | {"name": name}))
            self.processes[name] = self.engine.start(
                f"node-{name}",
                *(sys.executable, "-m", "dpsynth_platform", "node", "up", here, here / "rows.parquet"),
                *("--policy", here / "policy.yaml", "--schema", here / "columns.yaml"),
            )
            self.engine.add_node(name, here / "node.sock")
        for name in NAMES:
            wait_until(partial(answers, root / name / "node.sock"), f"the node of {name} does not answer")

    def stop(self, number: int) -> None:
        """Ends the nodes of so many participants, whose relays find nobody from then on."""
        for name in NAMES[:number]:
            os.killpg(self.processes[name].pid, signal.SIGTERM)
            self.processes[name].wait(30)

    def run(self, plan: FederatedPlan, name: str, rows: int) -> tuple[pa.Table, float, Counted]:
        """Synthetic rows, the seconds of the run without drawing, and what was sent."""
        hub = self.root / "hub.sock"
        with relayed(hub, SECONDS, plan.most_reply_bytes, partial(self.engine.relay_to, hub, SECONDS)) as link:
            counted, began = Counted(link), time.monotonic()
            key = federation_key(self.root / "coordinator")
            Coordinator(self.roster, key, counted).run(name, plan, self.root / name)
            seconds = time.monotonic() - began
        return generator(plan.sealed.method).sample(self.root / name, rows), seconds, counted


def _public(directory: Path) -> str:
    return federation_key(directory).public_key().public_bytes_raw().hex()


def run(data: Path, methods: tuple[str, ...], epsilons: tuple[float, ...]) -> None:
    """Prints the table."""
    table = pq.read_table(data / "adult/adult_dp2stage_split.parquet").drop(["split"])
    columns: dict[str, Any] = {name: adult_columns()[name] for name in table.column_names}
    say(f"adult, {table.num_rows} rows, {len(NAMES)} processes, minimum {MINIMUM}, colluders {COLLUDERS}")
    say(f"{'':36}{'single':>10}{'pairs':>10}   seconds  exchanges   kB a participant, of the largest round")
    root = Path(tempfile.mkdtemp(prefix="bf-"))
    (root / "flower").mkdir()
    try:
        with ExitStack() as stack:
            places = Places(root, stack, table, columns)
            for gone in (0, GONE):
                places.stop(gone)
                for method in methods:
                    for epsilon in epsilons:
                        options = FederatedOptions(
                            schema=root / NAMES[0] / "columns.yaml",
                            dataset="benchmark",
                            epsilon=epsilon,
                            delta=QUALITY_DELTA,
                            expected_units=table.num_rows,
                            method=method,
                            minimum=MINIMUM,
                            colluders=COLLUDERS,
                            most_records=table.num_rows,
                        )
                        plan = federated_plan(options, places.roster)
                        made, seconds, sent = places.run(plan, f"{method}-{epsilon:g}-{gone}", table.num_rows)
                        label = f"{method}, epsilon {epsilon:g}" + (f", {gone} are gone" if gone else "")
                        most, largest = max(sent.bytes.values()) / 1e3, max(sent.rounds.values()) / 1e3
                        worth = f"{distances(plan, table, made)}{seconds:10.0f}{sent.exchanges:11}"
                        say(f"{label:36}{worth}   {most:.0f}, {largest:.0f}")
                        if not gone:
                            central = plan_of(method, columns, table.schema, epsilon, QUALITY_DELTA)
                            with stored(table) as bounded:
                                found = conduct(central, bounded, table.num_rows, "cpu").rows
                            say(f"{f'{label}, central':36}{distances(plan, table, found)}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=("independent", "mst"))
    parser.add_argument("--epsilons", nargs="*", type=float, default=(0.5, 1.0, 4.0))
    chosen = parser.parse_args()
    run(Path(os.environ["DPSYNTH_BENCH_DATA"]), tuple(chosen.methods), tuple(chosen.epsilons))
