"""A thousand clients: `arn` by federated averaging beside DP-SGD. Not a test: run it, and it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_averaging.py     # about five minutes of a core

What belongs here: adult, divided at random among 1,000 clients, of which each is one privacy unit; `arn` by DP-FTRL, by
DP-FedAvg with Poisson sampling, and by DP-SGD that samples clients and clips their mean gradients (the same rows in one
place), at the same guarantee, with the same part of it for the columns' shares. What does not: the network, and
asserting. Distances are mean total variations from all rows, as `bench_federation` prints them: of single columns, of
pairs, and of pairs if columns were independent. Seconds are of a core, of all clients together. Rates and shares were
found by a few runs on the same rows: that would cost, where rows are sensitive.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from bench_federation import planned
from bench_tabular import QUALITY_DELTA, adult_columns, say

from dpsynth_platform.federation.averaged_arn import AveragedArn, column_shares, counted_columns
from dpsynth_platform.federation.averaging import AveragingServer, Client, Vector, noisy_sum
from dpsynth_platform.federation.averaging_plan import ADJACENCY, AveragingPlan
from dpsynth_platform.privacy.accounting import epsilon as epsilon_of
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.synth.network_training import train_once
from dpsynth_platform.synth.neural.arn_network import Rows
from dpsynth_platform.synth.neural.network_generator import LearnedColumns, StateRecords
from dpsynth_platform.synth.neural.states_network import prepared
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.trial import NoJournal

CLIENTS = 1000
NAMES = tuple(f"client-{number:04d}" for number in range(CLIENTS))
EPSILONS = (4.0, 8.0)
ROUNDS, COHORT, TIMES, APART = 20, 200, 4, 5
COLUMNS_SHARE, WIDTH, AVERAGE = 0.6, 16, 0.7
LOCAL = {"local_rate": 1.0, "local_steps": 1, "server_rate": 0.8, "momentum": 0.9, "clipping_norm": 1.0}
Found = tuple[AveragedArn, Vector, str]


class Clients:
    """The clients' rows, and distances from all of them."""

    def __init__(self, table: pa.Table, domain: Domain) -> None:
        self.domain, self._all = domain, domain.encode(table)
        self.number = np.random.default_rng(0).permutation(table.num_rows) % CLIENTS
        self.tables = [table.filter(pa.array(self.number == each)) for each in range(CLIENTS)]
        self.most = max(each.num_rows for each in self.tables)

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        return self._all

    def distance(self, arn: AveragedArn, weights: Vector, ways: int) -> float:
        made = arn.drawn_codes(weights, len(self._all))
        return float(k_way_distance(self._all, made, self.domain.sizes, ways).mean)

    def learned(self, plan: AveragingPlan, members: dict[str, Client]) -> LearnedColumns:
        vectors = (column_shares(self.domain, plan, table) for table in self.tables)
        updates = [member.describe(vector) for member, vector in zip(members.values(), vectors, strict=True)]
        return counted_columns(self.domain, plan, noisy_sum(plan, updates, sum(self.domain.sizes), None))


def averaged(asking: str, clients: Clients, guarantee: Guarantee) -> Found:
    """By messages of clients, who each keep their own record."""
    limits = {"participations": TIMES, "separation": APART} if asking == "separated" else {}
    plan = AveragingPlan.calibrated(
        guarantee,
        clients=CLIENTS,
        rounds=ROUNDS,
        cohort=COHORT,
        asking=asking,
        columns_share=COLUMNS_SHARE,
        **limits,
        **LOCAL,
    )
    training: dict[str, Callable[[Vector], Vector]] = {}
    members = {name: Client(name, plan, partial(_train, training, name), guarantee, None) for name in NAMES}
    arn = AveragedArn(clients.learned(plan, members), plan, WIDTH)
    training |= {name: arn.training(table) for name, table in zip(NAMES, clients.tables, strict=True)}
    server = AveragingServer(plan, arn.weights, NAMES, NoJournal())
    live = torch.from_numpy(arn.weights)
    kept = ExponentialAverage({"all": live}, AVERAGE)
    for number in range(1, ROUNDS + 1):
        for name, asked in server.ask(NAMES).items():
            server.take(members[name].answer(asked))
        live.copy_(torch.from_numpy(server.close()))
        kept.step(number)
    bands = f", {len(plan.coefficients)} bands" if asking == "separated" else ""
    return arn, kept.values["all"].numpy(), f"noise {plan.noise_multiplier:.2f}{bands}"


def _train(training: dict[str, Callable[[Vector], Vector]], name: str, weights: Vector) -> Vector:
    return training[name](weights)


def central(clients: Clients, guarantee: Guarantee) -> Found:
    """DP-SGD-ULS in one place, with the optimizer and the rate of the generator `arn`."""
    from dp_accounting import dp_event

    shares = AveragingPlan.calibrated(
        guarantee, clients=CLIENTS, rounds=ROUNDS, cohort=COHORT, columns_share=COLUMNS_SHARE, **LOCAL
    )
    first = shares.event.events[0]
    training = TrainingPlan.calibrated(
        guarantee,
        beside=lambda event: dp_event.ComposedDpEvent([first, event]),
        units=CLIENTS,
        batch_size=COHORT,
        steps=ROUNDS,
        sampled="user",
        learning_rate=0.05,
    )
    whole = dp_event.ComposedDpEvent([first, training.event])
    assert epsilon_of(whole, guarantee.delta).epsilon <= guarantee.epsilon
    members = {name: Client(name, shares, np.copy, guarantee, None) for name in NAMES}
    arn = AveragedArn(clients.learned(shares, members), shares, WIDTH)
    parameters: Any = SimpleNamespace(training=training, fixed_order=0.7, evidence=(), average=AVERAGE)
    ready = prepared(arn.network, Rows, parameters, "cpu")
    records = StateRecords(arn.learned.states_of(clients.codes), clients.number.astype(np.int64))
    weights = train_once(ready, training, records, NoJournal(), progress=lambda *_: None)
    flat = torch.cat([value.detach().double().reshape(-1) for value in weights.values()]).numpy()
    return arn, flat, f"noise {training.noise_multiplier:.2f}"


def run(data: Path, epsilons: tuple[float, ...]) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    table = pq.read_table(data / "adult/adult_dp2stage_split.parquet").drop(["split"])
    columns: dict[str, Any] = {name: adult_columns()[name] for name in table.column_names}
    clients = Clients(table, planned(columns, table.num_rows, "independent", 1.0).domain)
    say(f"adult, {table.num_rows} rows of {CLIENTS} clients, delta {QUALITY_DELTA:g} for a client, {ROUNDS} rounds")
    say(f"{'':36}{'single':>10}{'pairs':>10}{'alone':>10}   seconds   ")
    methods: dict[str, Callable[[Clients, Guarantee], Found]] = {
        f"DP-FTRL, {TIMES} rounds each": partial(averaged, "separated"),
        "DP-FedAvg, Poisson": partial(averaged, "poisson"),
        "DP-SGD of clients, central": central,
    }
    for epsilon in epsilons:
        guarantee = Guarantee(epsilon, QUALITY_DELTA, "user", ADJACENCY, clients.most)
        for name, method in methods.items():
            began = time.process_time()
            arn, weights, noise = method(clients, guarantee)
            seconds = time.process_time() - began
            single, pairs = (clients.distance(arn, weights, ways) for ways in (1, 2))
            alone = clients.distance(arn, np.zeros_like(weights), 2)
            say(f"{f'epsilon {epsilon:g}, {name}':36}{single:10.4f}{pairs:10.4f}{alone:10.4f}{seconds:10.0f}   {noise}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    chosen = parser.parse_args()
    run(Path(os.environ["DPSYNTH_BENCH_DATA"]), tuple(chosen.epsilons))
