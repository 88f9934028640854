"""The line's first steps on sources larger than memory should be. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_large_sources.py                     # 50 million rows of PostgreSQL, 10 GB of Parquet
    python tests/benchmarks/bench_large_sources.py --rows 1000000 --gigabytes 0.2
    python tests/benchmarks/bench_large_sources.py --steps raw scrubbed

What belongs here: time and peak memory of each step, a process of its own, up to the table that the mechanism reads.
What does not: asserting, and tables that are counted in a process (`bench_rows.py`).
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "ledger"))
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deployment import Deployment
from line_cases import SMALL, run_here
from postgresql_server import new_database, running_server
from sqlalchemy import create_engine

STEPS = ("raw", "scrubbed", "canaries", "clearance", "bounded")
NUMBERS = [f"number_{place:02d}" for place in range(100)]
PART = 100_000


@contextmanager
def in_postgresql(rows: int, _: Path) -> Iterator[dict[str, Any]]:
    """People with two rows each, in a server of its own."""
    with running_server() as server:
        url = new_database(server)
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE people AS SELECT 'P' || lpad((n / 2)::text, 9, '0') AS person, n AS visit, "
                "(ARRAY['east', 'north', 'south', 'west'])[1 + mod(n * 7919, 4)] AS region, "
                "mod(n * 104729, 10) AS score, CASE WHEN mod(n * 31, 3) = 0 THEN 'yes' ELSE 'no' END AS outcome "
                f"FROM generate_series(0::bigint, {rows - 1}) AS n"
            )
        engine.dispose()
        yield {"uri": url, "format": "sql", "table": "people"}


@contextmanager
def in_parquet(rows: int, place: Path) -> Iterator[dict[str, Any]]:
    """The same, with a hundred columns of numbers that no codec makes smaller: 800 bytes a row."""
    place.mkdir()
    writer = None
    for first in range(0, rows, PART):
        random = np.random.default_rng(first)
        at = np.arange(first, min(first + PART, rows))
        table = pa.table(
            {
                "person": pa.array([f"P{number // 2:09d}" for number in at]),
                "visit": pa.array(at),
                "region": pa.array(["east", "north", "south", "west"]).take(pa.array(at % 4)),
                "score": pa.array(at % 10),
                "outcome": pa.array(["no", "yes"]).take(pa.array(at % 2)),
            }
            | {name: pa.array(random.random(at.size)) for name in NUMBERS}
        )
        writer = writer or pq.ParquetWriter(place / "people.parquet", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    yield {"uri": str(place / "people.parquet"), "format": "parquet"}


def step(root: Path, contract: dict[str, Any], name: str, answers: Any) -> None:
    """One step of the line, which must succeed; sends its seconds, its processor's, and its peak memory in bytes."""
    begun = time.monotonic()
    deployment = Deployment(root, contract=contract)
    ran = run_here(deployment, steps=[name])
    assert ran.success, ran.failures
    used = resource.getrusage(resource.RUSAGE_SELF)
    answers.put((time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))


def measure(
    title: str, source: dict[str, Any], root: Path, rows: int, columns: Sequence[str], steps: list[str]
) -> None:
    """Prints a line for each step."""
    contract = copy.deepcopy(SMALL)
    contract["source"] = {"key": ["person", "visit"]} | source
    contract["privacy"] |= {"expected_units": rows // 2, "guarantee": {"epsilon": 1.0, "delta": 1.0e-9}}
    contract["columns"] |= {name: {"type": "float", "min": 0.0, "max": 1.0} for name in columns}
    Deployment(root, contract=contract).write()
    spawn = multiprocessing.get_context("spawn")
    for name in steps:
        answers = spawn.SimpleQueue()
        process = spawn.Process(target=step, args=(root, contract, name, answers))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{title}: {name} failed")
        seconds, processor, peak = answers.get()
        print(f"| {title} | {name} | {seconds:,.0f} s | {processor:,.0f} s | {peak / 1e9:.1f} GB |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000_000, help="of the table in PostgreSQL; 0: none")
    parser.add_argument("--gigabytes", type=float, default=10, help="of Parquet; 0: none")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    chosen = parser.parse_args()
    print("| source | step | seconds | processor | most memory |\n| --- | --- | --- | --- | --- |", flush=True)
    sized = ((in_postgresql, chosen.rows, []), (in_parquet, int(chosen.gigabytes * 1e9 / 830), NUMBERS))
    for made, rows, columns in sized:
        with tempfile.TemporaryDirectory() as root:
            if rows:
                with made(rows, Path(root) / "data") as source:
                    title = f"{rows:,} rows, {made.__name__.removeprefix('in_')}"
                    measure(title, source, Path(root), rows, columns, chosen.steps)


if __name__ == "__main__":
    main()
