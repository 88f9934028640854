"""How much of a table bounding keeps, and how it scales. Not a test: run it, and it prints tables.

    DPSYNTH_BENCH_DATA=DIRECTORY python tests/benchmarks/bench_bounding.py --shares       # real tables, a minute
    python tests/benchmarks/bench_bounding.py --edges 400000 2000000 20000000             # a made-up graph, DuckDB
    python tests/benchmarks/bench_bounding.py --edges 2000000 --engine spark --memory 1GB \
        --master "local-cluster[2,1,1024]" --kill-after 30                                # two workers, one is killed
    python tests/benchmarks/bench_bounding.py --edges 100000000 --memory 4GB --spill DIR  # needs 40 GB of disk

What belongs here: the greedy, the rounds and the upper bound side by side on real tables, and time and memory of
`dpsynth bound evaluate` on graphs that grow. What does not: asserting; `tests/bounding` holds what must always hold.

Measured on two cores that others used at the same time, for b = 5. What is kept, the rounds and what is left for the
process (23,052 ownerships of 100 million) are the same for both engines.

| ownerships | engine | memory | kept | rounds | choice | all | most memory |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 20 million | DuckDB | 1GB | 64.4% | 4 | 34 s | 119 s, with b = 1 | 1.31 GB |
| 100 million | DuckDB | 4GB | 64.4% | 5 | 212 s | 485 s | 4.42 GB |
| 100 million | Spark, 2 workers of 1 core | 2560 MiB each | 64.4% | 5 | 2456 s | 4296 s | 2.9 GB a worker |

Of a core, each of Spark's workers had about a quarter: 18 minutes of computing. Its temporary files took up to 7 GB.
Before files were read in batches and DuckDB was told of less than its memory, the second line took 6.3 GB.

The made-up graph has the shape of the arXiv table: 5.8 owners a record, 0.4 owners for each ownership, and a power law
of records per owner (owner number N u^2 for u uniform on [0, 1]).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dpsynth_platform.bounding import rounds
from dpsynth_platform.bounding.evaluation import KEY, evaluate
from dpsynth_platform.bounding.greedy import greedy
from dpsynth_platform.bounding.order import Order
from dpsynth_platform.bounding.ownership import write_ownership
from dpsynth_platform.compute.choice import DuckDBChoice

BOUNDS = (1, 2, 5, 10)
TABLES = {
    "arxiv_multi_author/ownership_all.parquet": (["authors"], False, "n_authors"),
    "insteval/insteval.parquet": (["student_id", "lecturer_id"], True, "rating"),
    "enron_categories/enron_categories.parquet": (["owners"], False, "coarse_genre"),
}
"""Owner columns, whether equal ids in them are different people, and a column to rank records by."""
OWNERS_PER_RECORD = 5.8
OWNERS_PER_EDGE = 0.4
CHUNK_RECORDS = 1_000_000


def shares(data: Path) -> None:
    """Kept shares of the greedy, of the rounds, and the upper bound, for every table, order and bound."""
    rounds.FINISH_EDGES = 0  # all of it in rounds, so that the two ways are apart
    for name, (columns, separate, weight) in TABLES.items():
        print(f"\n{name}\n{'order':>22} {'b':>3} {'greedy':>8} {'rounds':>8} {'bound':>8} {'number':>7} "
              f"{'greedy s':>9} {'rounds s':>9} {'above b':>8}")  # fmt: skip
        table = ds.dataset(data / name, format="parquet")
        for order in (Order("random"), Order("fewest-owners-first"), Order("weight", weight)):
            with tempfile.TemporaryDirectory() as directory:
                place = Path(directory)
                with DuckDBChoice(threads=2).open(place) as engine:
                    found = evaluate(table, columns, engine=engine, workspace=place, contributions=BOUNDS, order=order,
                                     separate=separate)  # fmt: skip
                write_ownership(table, columns, weight, place / "pairs", separate=separate)
                records = in_order(pq.read_table(place / "pairs"), order)
            for bound in found.bounds:
                began = time.perf_counter()
                room = [bound.max_contributions] * found.owners
                share = sum(greedy(records, room)) / len(records)
                seconds = time.perf_counter() - began
                print(f"{order!s:>22} {bound.max_contributions:>3} {share:>8.2%} {bound.kept_share:>8.2%} "
                      f"{bound.upper_bound_share or np.nan:>8.2%} {bound.rounds:>7} {seconds:>9.2f} "
                      f"{bound.seconds:>9.2f} {bound.owners_above:>8}", flush=True)  # fmt: skip


def in_order(pairs: pa.Table, order: Order) -> list[list[int]]:
    """The records' owners as numbers, in the order of `order`, made without SQL."""
    owners = pairs["_owner"].combine_chunks().dictionary_encode().indices.to_pylist()
    records: dict[int, set[int]] = {}
    weights: dict[int, float | None] = {}
    for record, owner, weight in zip(pairs["_record"].to_pylist(), owners, pairs["_weight"].to_pylist(), strict=True):
        records.setdefault(record, set()).add(owner)
        weights[record] = weight

    def place(record: int) -> tuple[object, ...]:
        weight = weights[record]
        rank = {"random": 0, "fewest-owners-first": len(records[record])}.get(order.name)
        ranked = (weight is None, -(weight or 0)) if rank is None else (rank,)
        return (*ranked, hashlib.sha256(f"{KEY.hex()}{record}".encode()).digest())

    return [sorted(records[record]) for record in sorted(records, key=place)]


def scaling(sizes: list[int], options: list[str], spill: Path, kill_after: float | None) -> None:
    """Time, memory and rounds of the command, each size in a process of its own.

    `own MB`: the most memory of the command's process before the linear program. `peak MB`: of it, the linear program
    included, or of a process that it started (Spark).
    """
    print(f"{'edges':>11} {'b':>3} {'kept':>7} {'bound':>7} {'rounds':>7} {'in process':>11} {'seconds':>8} "
          f"{'us/edge':>8} {'reading s':>10} {'own MB':>7} {'peak MB':>8} {'all s':>7}")  # fmt: skip
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=spill) as directory:
            graph = Path(directory) / "graph.parquet"
            write_graph(graph, size)
            arguments = ["bound", "evaluate", str(graph), "--owners", "owners", "--spill", directory, "--json"]
            if kill_after is not None:
                threading.Timer(kill_after, kill_a_worker, [Path(directory)]).start()
            found, peak, seconds = run([*arguments, *options])
        for choice in found["bounds"]:
            bound = choice["upper_bound_share"]
            print(f"{found['edges']:>11} {choice['max_contributions']:>3} {choice['kept_share']:>7.1%} "
                  f"{'-' if bound is None else format(bound, '.1%'):>7} {choice['rounds']:>7} {choice['finished']:>11} "
                  f"{choice['seconds']:>8.1f} {1e6 * choice['seconds'] / found['edges']:>8.2f} "
                  f"{found['reading_seconds']:>10.1f} {found['peak_memory_bytes'] / 1e6:>7.0f} {peak:>8.0f} "
                  f"{seconds:>7.0f}", flush=True)  # fmt: skip


def run(arguments: list[str]) -> tuple[dict[str, Any], float, float]:
    """The command's JSON, its peak memory in MB (the largest of it and the processes that it started), its time."""
    began = time.perf_counter()
    program = Path(sys.executable).with_name("dpsynth")
    command = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE)
    assert command.stdout is not None
    text = command.stdout.read()
    _, _, usage = os.wait4(command.pid, 0)
    return json.loads(text), 1024 * usage.ru_maxrss / 1e6, time.perf_counter() - began


def kill_a_worker(place: Path) -> None:
    """Kills one of the workers of the Spark that works below a directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended
            worker = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
            if worker and (process / "cwd").readlink().is_relative_to(place):
                os.kill(int(process.name), signal.SIGKILL)
                print(f"worker {process.name} was killed", flush=True)
                return
    print("no worker was there to kill", flush=True)


def write_graph(path: Path, edges: int) -> None:
    """A Parquet file of about so many ownerships, as lists of owners."""
    random = np.random.default_rng(edges)
    people = int(OWNERS_PER_EDGE * edges)
    with pq.ParquetWriter(path, pa.schema([("owners", pa.list_(pa.int64()))])) as writer:
        for sizes in chunks(random, edges):
            owners = (people * random.random(int(sizes.sum())) ** 2).astype(np.int64)
            starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
            writer.write_batch(pa.record_batch([pa.ListArray.from_arrays(starts, owners)], names=["owners"]))


def chunks(random: np.random.Generator, edges: int) -> Iterator[np.ndarray]:
    """Numbers of owners of records, in chunks, `edges` in all or a few more."""
    left = int(edges / OWNERS_PER_RECORD)
    while left > 0:
        yield random.geometric(1 / OWNERS_PER_RECORD, size=min(left, CHUNK_RECORDS))
        left -= CHUNK_RECORDS


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", action="store_true", help="kept shares on the real tables")
    parser.add_argument("--edges", type=int, nargs="*", default=[], help="sizes of made-up graphs")
    parser.add_argument("--kill-after", type=float, help="seconds after which one of Spark's workers is killed")
    parser.add_argument("--spill", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--contributions", default="1,5")
    chosen, more = parser.parse_known_args()  # the rest goes to the command: --engine, --memory, --order, ...
    if chosen.shares:
        shares(Path(os.environ["DPSYNTH_BENCH_DATA"]))
    if chosen.edges:
        scaling(chosen.edges, ["--contributions", chosen.contributions, *more], chosen.spill, chosen.kill_after)
