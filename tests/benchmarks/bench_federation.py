"""Federated tables and pictures beside the central ones. Not a test: run it, and it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation.py            # about half an hour of a core
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation.py --trust central --methods independent mst
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation.py --pictures --epsilons 1 8
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation.py --methods arn --divisions evenly
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_federation.py --methods arn mst --clients 1000 --epsilons 4 8

What belongs here: rows that are divided among eight participants (evenly; by age; very unevenly; or at random among
clients that are units, and these among participants), whole runs over
signed messages and secure sums in one process with real ledgers, with and without two that send no vector in any round,
and the central method at the same epsilon. What does not: the network (`tests/federation/test_flower.py`), and
asserting. Distances are mean total variations from all rows, of single columns and of pairs; seconds are of a core, of
all parties together; bytes are those of requests and replies, of one participant in the whole run. Pictures are judged
by a classifier that learns from synthetic ones, on real ones that no run has seen.
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
from bench_images import DRAWN, Pictures, by_contract, read
from bench_tabular import QUALITY_DELTA, adult_columns, conduct, plan_of, say, stored
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.federated_plan import FederatedOptions, federated_plan
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.quality.images.classifier import PictureClassifier, accuracy
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.sources.pictures import read_pictures
from dpsynth_platform.synth.interface import generator

NAMES = tuple(f"site-{number}" for number in range(8))
MINIMUM, COLLUDERS = 6, 1
EPSILONS = (0.5, 1.0, 4.0)
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES}
COORDINATOR = Ed25519PrivateKey.generate()
ROSTER = Roster({name: key.public_key() for name, key in KEYS.items()})
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


def planned(
    columns: Mapping[str, Any],
    rows: int,
    method: str,
    epsilon: float,
    trust: str = "distributed",
    clients: int = 0,
    most: int = 1,
) -> FederatedPlan:
    """A plan for rows that are units each, or for clients that are, with so many rows at most."""
    options = FederatedOptions(
        schema={"columns": columns},  # type: ignore[arg-type]  # in place of a file
        dataset="benchmark",
        epsilon=epsilon,
        delta=QUALITY_DELTA,
        expected_units=clients or rows,
        **({"owners": "client", "contributions": most} if clients else {}),
        method=method,
        minimum=MINIMUM,
        colluders=COLLUDERS,
        most_records=rows,
        trust=trust,
    )
    return federated_plan(options, ROSTER)


def federated(
    plan: FederatedPlan, table: pa.Table, division: Division, silent: int = 0
) -> tuple[pa.Table, Counter[str]]:
    """Synthetic rows, as many as real ones or more, and bytes by participant."""
    method = plan.sealed.method
    with tempfile.TemporaryDirectory() as place:
        nodes = {
            name: Node(
                Participant(
                    _policy(name, plan),
                    Ledger(f"sqlite:///{place}/{name}.db"),
                    table.filter(pa.array(division == number)),
                    plan.domain,
                    plan.pictures,
                ),
                KEYS[name],
            )
            for number, name in enumerate(NAMES)
        }
        wires = Wires(nodes, silent)
        Coordinator(ROSTER, COORDINATOR, wires).run("benchmark", plan, Path(place) / "model")
        drawn = table.num_rows if plan.pictures is None else DRAWN
        made = generator(method).sample(Path(place) / "model", drawn)
    return made, wires.bytes


def _policy(name: str, plan: FederatedPlan) -> Policy:
    guarantee, cap = plan.guarantee, Cap(epsilon=10.0, delta=QUALITY_DELTA)
    return Policy(
        name=name,
        dataset="benchmark",
        family=FamilyBudget(
            family="benchmark",
            unit=guarantee.unit,  # type: ignore[arg-type]  # one of the accepted
            namespace="person",
            mode="family",
            cap=cap,
            adjacency=guarantee.adjacency,  # type: ignore[arg-type]  # one of the accepted
        ),
        run_cap=cap,
        methods=["mst", "aim", "independent", "arn", "image_moments"],
        columns=list(plan.reads),
        trust=[plan.trust],  # type: ignore[list-item]  # one of the accepted
        participants={each: _public(key) for each, key in KEYS.items()},
        coordinator=_public(COORDINATOR),
        approval="policy",
        minimum=MINIMUM,
        colluders=COLLUDERS,
        max_contributions=plan.terms.max_contributions,
    )


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def distances(plan: FederatedPlan, table: pa.Table, made: pa.Table) -> str:
    real, found = (np.stack([column.codes(each) for column in plan.domain], axis=1) for each in (table, made))
    parts = (k_way_distance(real, found, plan.domain.sizes, ways).mean for ways in (1, 2))
    return "".join(f"{part:10.4f}" for part in parts)


def run(
    data: Path,
    methods: tuple[str, ...],
    epsilons: tuple[float, ...],
    trust: str,
    hows: tuple[str, ...],
    clients: int,
) -> None:
    """Prints the table."""
    table = pq.read_table(data / "adult/adult_dp2stage_split.parquet").drop(["split"])
    columns: dict[str, Any] = {name: adult_columns()[name] for name in table.column_names}
    client = (
        np.arange(table.num_rows) if not clients else np.random.default_rng(0).permutation(table.num_rows) % clients
    )
    owners = pa.array([f"{each:032x}" for each in client.tolist()])
    rows, bound = table.append_column(OWNER_COLUMN, owners), int(np.bincount(client).max())
    ways = [("evenly", client % len(NAMES))] if clients else [each for each in divisions(table) if each[0] in hows]
    if clients:
        say(f"{clients} clients of at most {bound} rows, each of them a unit, divided at random")
    say(f"adult, {table.num_rows} rows, {len(NAMES)} participants, minimum {MINIMUM}, colluders {COLLUDERS}, {trust}")
    say(f"{'':44}{'single':>10}{'pairs':>10}   seconds   kB a participant")
    for method in methods:
        for epsilon in epsilons:
            what = f"{method}, epsilon {epsilon:g}"
            for how, division in ways:
                for silent in (0, 2) if how == "evenly" else (0,):
                    began = time.process_time()
                    plan = planned(columns, table.num_rows, method, epsilon, trust, clients, bound)
                    made, sent = federated(plan, rows, division, silent)
                    seconds, least, most = time.process_time() - began, min(sent.values()), max(sent.values())
                    label = f"{what}, {how}" + (f", {silent} silent" if silent else "")
                    worth = f"{distances(plan, table, made)}{seconds:10.0f}"
                    say(f"{label:44}{worth}   {least / 1e3:.0f} to {most / 1e3:.0f}")
            if clients:
                continue
            central = plan_of(method, columns, table.schema, epsilon, QUALITY_DELTA)
            with stored(table) as bounded:
                began = time.process_time()
                made = conduct(central, bounded, table.num_rows, "cpu").rows
                worth = f"{distances(plan, table, made)}{time.process_time() - began:10.0f}"
            say(f"{f'{what}, central':44}{worth}")


def digits(source: Path | None, most: int) -> tuple[Pictures, Pictures]:
    """Training and test pictures: of a file as `bench_images` reads it, or the 8 x 8 ones of scikit-learn."""
    if source is not None:
        train, test = read(str(source), ImageForm(28, 28, 1))
        chosen = np.random.default_rng(0).permutation(len(train.labels))[:most]
        return Pictures(train.pixels[chosen], train.labels[chosen]), test
    from sklearn.datasets import load_digits

    held = load_digits()
    order = np.random.default_rng(0).permutation(len(held.target))
    pixels = np.rint(held.images * (255 / 16)).astype(np.uint8)[..., None]
    parts = (Pictures(pixels[part], held.target[part].astype(np.int64)) for part in np.split(order, [1400]))
    train, test = parts
    return train, test


def run_pictures(source: Path | None, most: int, epsilons: tuple[float, ...]) -> None:
    """Prints the accuracy on real pictures of a classifier that learned from synthetic ones, beside the central method.

    Labels have a tenth of epsilon in both. Seconds are of a core, of measuring, fitting and drawing by all parties.
    """
    import torch

    torch.set_num_threads(1)
    train, test = digits(source, most)
    form, rows = ImageForm(*train.pixels.shape[1:]), len(train.labels)
    public = {
        "type": "image",
        "size": [form.height, form.width],
        "channels": 1,
        "accept_unscrubbed": "They are public.",
    }
    columns = {"label": {"type": "categorical", "values": [str(label) for label in range(10)]}, "image": public}
    ids = [f"{number:08d}" for number in range(rows)]
    table = pa.table(
        {OWNER_COLUMN: ids, "label": list(map(str, train.labels.tolist())), "image": form.stored(train.pixels)}
    )
    say(f"{rows} pictures, {len(NAMES)} participants, minimum {MINIMUM}, colluders {COLLUDERS}")
    say(f"{'':24}{'accuracy':>10}   seconds   kB a participant")
    for epsilon in epsilons:
        began = time.process_time()
        made, sent = federated(
            planned(columns, rows, "image_moments", epsilon), table, np.arange(rows, dtype=np.int64) % len(NAMES)
        )
        seconds = time.process_time() - began
        pixels, readable, _ = read_pictures(made["image"].combine_chunks(), form, "refuse", raw=False)
        labels = np.array(made["label"].to_pylist(), dtype=np.int64)[readable]
        worth = f"{_judged(Pictures(pixels, labels), test)}{seconds:10.0f}   {max(sent.values()) / 1e3:.0f}"
        say(f"{f'epsilon {epsilon:g}, federated':24}{worth}")
        began = time.process_time()
        central = by_contract("image_moments", {"columns_share": 0.1}, train, epsilon, 1)
        seconds = time.process_time() - began
        say(f"{f'epsilon {epsilon:g}, central':24}{_judged(central, test)}{seconds:10.0f}")


def _judged(made: Pictures, test: Pictures) -> str:
    order = np.random.default_rng(0).permutation(len(made.labels))
    judge = PictureClassifier(made.pixels[order], made.labels[order], 10, 0)
    return f"{accuracy(judge.probabilities(test.pixels), test.labels):10.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=("independent", "mst", "aim"))
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--trust", default="distributed", choices=("distributed", "central", "local"))
    parser.add_argument("--divisions", nargs="*", default=("evenly", "by age", "unevenly"))
    parser.add_argument("--clients", type=int, default=0, help="units with many rows, in place of a unit for each row")
    parser.add_argument("--pictures", action="store_true", help="pictures of digits in place of the table")
    parser.add_argument("--file", type=Path, help="with --pictures: MNIST, in place of those of scikit-learn")
    parser.add_argument("--most", type=int, default=6000, help="of the file's pictures")
    chosen = parser.parse_args()
    if chosen.pictures:
        run_pictures(chosen.file, chosen.most, tuple(chosen.epsilons))
        raise SystemExit
    run(
        Path(os.environ["DPSYNTH_BENCH_DATA"]),
        tuple(chosen.methods),
        tuple(chosen.epsilons),
        chosen.trust,
        tuple(chosen.divisions),
        chosen.clients,
    )
