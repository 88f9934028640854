"""Federated marginals of adult beside the central ones. Not a test: run it, and it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation.py            # about half an hour of a core

What belongs here: rows that are divided among eight participants (evenly; by age; very unevenly), whole runs over
signed messages and secure sums in one process with real ledgers, with and without two that send no vector in any round,
and the central method at the same epsilon. What does not: the network (`tests/federation/test_flower.py`), and
asserting. Distances are mean total variations from all rows, of single columns and of pairs; seconds are of a core, of
all parties together; bytes are those of requests and replies, of one participant in the whole run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from bench_tabular import QUALITY_DELTA, adult_columns, conduct, plan_of, say, stored
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.federated_plan import FederatedOptions, federated_plan
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.synth.interface import generator

NAMES = tuple(f"site-{number}" for number in range(8))
MINIMUM, COLLUDERS = 6, 1
EPSILONS = (0.5, 1.0, 4.0)
Division = npt.NDArray[np.int64]


def divisions(table: pa.Table) -> Iterator[tuple[str, Division]]:
    """Who has each row: evenly, by age in equal parts, and each participant with a third of the one before."""
    rng, rows = np.random.default_rng(0), table.num_rows
    yield "evenly", rng.permutation(rows) % len(NAMES)
    ages = np.argsort(np.argsort(table["age"].to_numpy(), kind="stable"))
    yield "by age", ages * len(NAMES) // rows
    weights = 3.0 ** -np.arange(len(NAMES))
    yield "unevenly", rng.choice(len(NAMES), rows, p=weights / weights.sum())


class Wires:
    """A link in one process that counts bytes; some are silent from their third message of each round on."""

    def __init__(self, nodes: Mapping[str, Node], silent: int) -> None:
        self._nodes, self._silent = nodes, frozenset(NAMES[:silent])
        self._rounds: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        replies = {}
        for name, message in requests.items():
            if b'"kind":"sum"' in message[:100_000] and name in self._silent:
                self._rounds[name] += 1
                if self._rounds[name] % 3 == 0:  # its vector is not sent, and it is asked no more in this round
                    continue
            replies[name] = self._nodes[name].answer(message)
            self.bytes[name] += len(message) + len(replies[name])
        return replies


def federated(
    table: pa.Table, division: Division, method: str, epsilon: float, silent: int
) -> tuple[MarginalsPlan, pa.Table, Counter[str]]:
    """The plan, synthetic rows, and bytes by participant."""
    keys = {name: Ed25519PrivateKey.generate() for name in NAMES}
    coordinator = Ed25519PrivateKey.generate()
    roster = Roster({name: key.public_key() for name, key in keys.items()})
    columns = {name: adult_columns()[name] for name in table.column_names}
    options = FederatedOptions(
        schema={"columns": columns},
        dataset="adult",
        epsilon=epsilon,
        delta=QUALITY_DELTA,
        expected_units=table.num_rows,
        method=method,
        minimum=MINIMUM,
        colluders=COLLUDERS,
        most_records=table.num_rows,
    )
    plan = federated_plan(options, roster)
    with tempfile.TemporaryDirectory() as place:
        nodes = {
            name: Node(
                Participant(
                    _policy(name, keys, coordinator, list(columns)),
                    Ledger(f"sqlite:///{place}/{name}.db"),
                    table.filter(pa.array(division == number)),
                    plan.domain,
                ),
                keys[name],
            )
            for number, name in enumerate(NAMES)
        }
        wires = Wires(nodes, silent)
        Coordinator(roster, coordinator, wires).run("benchmark", plan, Path(place) / "model")
        made = generator(method).sample(Path(place) / "model", table.num_rows)
    return plan, made, wires.bytes


def _policy(
    name: str, keys: Mapping[str, Ed25519PrivateKey], coordinator: Ed25519PrivateKey, columns: list[str]
) -> Policy:
    cap = Cap(epsilon=10.0, delta=QUALITY_DELTA)
    return Policy(
        name=name,
        dataset="adult",
        family=FamilyBudget(family="adults", unit="example", namespace="person", mode="family", cap=cap),
        run_cap=cap,
        methods=["mst", "aim", "independent"],
        columns=columns,
        participants={each: _public(key) for each, key in keys.items()},
        coordinator=_public(coordinator),
        approval="policy",
        minimum=MINIMUM,
        colluders=COLLUDERS,
        max_contributions=1,
    )


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def distances(plan: MarginalsPlan, table: pa.Table, made: pa.Table) -> str:
    real, found = (np.stack([column.codes(each) for column in plan.domain], axis=1) for each in (table, made))
    parts = (k_way_distance(real, found, plan.domain.sizes, ways).mean for ways in (1, 2))
    return "".join(f"{part:10.4f}" for part in parts)


def run(data: Path, methods: tuple[str, ...], epsilons: tuple[float, ...]) -> None:
    """Prints the table."""
    table = pq.read_table(data / "adult/adult_dp2stage_split.parquet").drop(["split"])
    columns: dict[str, Any] = {name: adult_columns()[name] for name in table.column_names}
    say(f"adult, {table.num_rows} rows, {len(NAMES)} participants, minimum {MINIMUM}, colluders {COLLUDERS}")
    say(f"{'':44}{'single':>10}{'pairs':>10}   seconds   kB a participant")
    for method in methods:
        for epsilon in epsilons:
            what = f"{method}, epsilon {epsilon:g}"
            for how, division in divisions(table):
                for silent in (0, 2) if how == "evenly" else (0,):
                    began = time.process_time()
                    plan, made, sent = federated(table, division, method, epsilon, silent)
                    seconds, least, most = time.process_time() - began, min(sent.values()), max(sent.values())
                    label = f"{what}, {how}" + (f", {silent} silent" if silent else "")
                    worth = f"{distances(plan, table, made)}{seconds:10.0f}"
                    say(f"{label:44}{worth}   {least / 1e3:.0f} to {most / 1e3:.0f}")
            central = plan_of(method, columns, table.schema, epsilon, QUALITY_DELTA)
            with stored(table) as bounded:
                began = time.process_time()
                made = conduct(central, bounded, table.num_rows, "cpu").rows
                worth = f"{distances(plan, table, made)}{time.process_time() - began:10.0f}"
            say(f"{f'{what}, central':44}{worth}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=("independent", "mst", "aim"))
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    chosen = parser.parse_args()
    run(Path(os.environ["DPSYNTH_BENCH_DATA"]), tuple(chosen.methods), tuple(chosen.epsilons))
