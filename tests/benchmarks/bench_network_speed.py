"""How fast private training of networks over columns is, beside Opacus and beside training without privacy.

    python tests/benchmarks/bench_network_speed.py

Not a test: run it for a table. What belongs here: records a processor second in steps of a thousand records of fifteen
columns of twenty states, with the networks' default widths. What does not: that gradients are right
(`tests/synth/test_table_networks.py`). *plain* is a backward pass of the mean loss, *ours* the clipped sums that
training takes, *Opacus* those by its `GradSampleModule`, without the sum's double precision. All run in one process of
one thread, one after the other in each round; the least time of several rounds counts. Machines are not alike and not
quiet: compare the ratios.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.contracts.network_training import NETWORK_DEFAULTS, TableNetwork
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural.adversarial_network import RowDiscriminator
from dpsynth_platform.synth.neural.states_generator import StatesGenerator
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.rows import RowDivision
from dpsynth_platform.training.vectors import VectorSums

COLUMNS, STATES, RECORDS, ROUNDS = 15, 20, 1000, 5
PLAN = TrainingPlan(units=30_000, batch_size=RECORDS, steps=1, noise_multiplier=1.0)
CPU = torch.device("cpu")
Pass = Callable[[], Any]


def prepared(method: str) -> tuple[nn.Module, Any]:
    """The network that is trained, and its rows."""
    made, shares = generator(method), [np.full(STATES, 1 / STATES)] * COLUMNS
    assert isinstance(made, StatesGenerator)
    width = TableNetwork(**NETWORK_DEFAULTS[method]).width
    rows: Any = made.rows()([STATES] * COLUMNS, SimpleNamespace(fixed_order=0.7, evidence=()), CPU)  # type: ignore[arg-type]
    network: nn.Module = made.network(shares, width).eval()
    if method == "dp_gan":
        rows.generator, network = network, RowDiscriminator(STATES * COLUMNS, width).eval()
    return network, rows


def parts(rows: Any, records: Batch) -> list[Any]:
    division = RowDivision(rows.most_rows, 1, rows.drawn, 4 * RECORDS, CPU)
    return [part for (part,) in division.parts(records, [1] * RECORDS, rows.most_rows)]


def plain(network: nn.Module, rows: Any, records: Batch) -> None:
    network.zero_grad(set_to_none=True)
    for part in parts(rows, records):
        (rows.losses(network, part.batch).sum() / RECORDS).backward()


def ours(network: nn.Module, rows: Any, records: Batch) -> None:
    with VectorSums(network, PLAN, rows.losses) as sums:
        for part in parts(rows, records):
            sums.add(part.batch, part.weights)


def by_opacus(wrapped: Any, network: nn.Module, rows: Any, records: Batch) -> None:
    for part in parts(rows, records):
        rows.losses(network, part.batch).sum().backward()  # the hooks are on its layers
        single: list[Any] = [getattr(value, "grad_sample") for value in network.parameters()]  # noqa: B009
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in single]).norm(dim=0)
        factors = (PLAN.clipping_norm / norms).clamp(max=1)
        _ = [torch.tensordot(factors, value, dims=1) for value in single]
        wrapped.zero_grad()


def speeds(method: str) -> list[float]:
    """Records a second of each kind; 0 where it cannot."""
    from opacus import GradSampleModule

    records = {"states": torch.randint(STATES, (RECORDS, COLUMNS))}
    network, rows = prepared(method)
    copied, rows_of_copy = prepared(method)
    wrapped = GradSampleModule(copied.train(), loss_reduction="sum")  # its hooks see nothing in evaluation mode
    kinds: list[Pass] = [
        lambda: plain(network, rows, records),
        lambda: ours(network, rows, records),
        lambda: by_opacus(wrapped, copied, rows_of_copy, records),
    ]
    best = [0.0] * len(kinds)
    for _ in range(ROUNDS):
        for place, step in enumerate(kinds):
            began = time.process_time()
            step()
            best[place] = max(best[place], RECORDS / (time.process_time() - began))
    return best


def main() -> None:
    """Prints a table."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("| network | without privacy | ours | Opacus | ours / without | ours / Opacus |")
    print("| --- | --- | --- | --- | --- | --- |")
    for method in NETWORK_METHODS:
        without, own, opacus = speeds(method)
        print(f"| `{method}` | {without:.0f} | {own:.0f} | {opacus:.0f} | {own / without:.2f} | {own / opacus:.2f} |")


if __name__ == "__main__":
    main()
