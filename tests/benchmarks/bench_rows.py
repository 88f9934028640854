"""What a table's rows cost, from its files to the counts. Not a test: run it, and it prints tables.

    python tests/benchmarks/bench_rows.py                                   # 1 and 10 million rows, half an hour
    python tests/benchmarks/bench_rows.py --rows 1000000 --formats csv      # a part of it
    python tests/benchmarks/bench_rows.py --rows 100000000 --formats parquet

What belongs here: processor time by stage and peak memory of `synth table`, by rows, format and privacy unit, beside
DuckDB alone on the same files in the same run. What does not: asserting, and the mechanism (`bench_tabular.py`).

The table is made up: the fifteen columns of Adult with their public values, and a column of people with two rows each.
Each run is a process of its own. Seconds and memory are less those of a run on ten thousand rows, which has the same
mechanism: noise, estimation and drawing do not grow with the rows. `ratio` is the processor time over that of DuckDB,
which counts all rows, and all pairs of columns in cells as coarse as the mechanism's.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.one_table import Options, synthesize

ROOT = Path(__file__).parents[2]
FORMATS = ("parquet", "csv", "delta")
SMALL = 10_000
PART = 500_000
OWNERS = "person_id"
STAGES = ("opening", "reading rows", "bounding", "checking", "counting", "mechanism")
"""Of a run, by its reports of progress; `checking` are digests and the worker's checks before it counts."""


def declared() -> dict[str, Any]:
    """Adult's columns, as the demonstration declares them."""
    columns = yaml.safe_load((ROOT / "deploy/contracts/census.yaml").read_text(encoding="utf-8"))["columns"]
    kinds = ("integer", "categorical")
    return {name: column for name, column in columns.items() if column["type"] in kinds and name != "wave"}


def made_up(rows: int, first: int) -> pa.RecordBatch:
    """Categories with falling frequencies, whole numbers most of which are small, and people in pairs of rows."""
    random = np.random.default_rng(first)
    columns: dict[str, pa.Array] = {OWNERS: pa.array(random.integers(0, max(first + rows, 2) // 2, rows))}
    for name, column in declared().items():
        places = random.random(rows) ** 3
        if column["type"] == "categorical":
            values = pa.array(column["values"])
            columns[name] = values.take(pa.array((len(values) * places).astype(np.int32)))
        else:
            low, high = column["min"], column["max"]
            columns[name] = pa.array((low + (high - low + 1) * places).astype(np.int64))
    return pa.record_batch(columns)


@contextmanager
def stored(rows: int, form: str) -> Iterator[Path]:
    """A table of so many rows, as long as the block lasts."""
    with tempfile.TemporaryDirectory() as directory:
        batches = (made_up(min(PART, rows - first), first) for first in range(0, rows, PART))
        schema = made_up(1, 0).schema
        path = Path(directory) / {"parquet": "table.parquet", "csv": "table.csv", "delta": "table"}[form]
        if form == "delta":
            write_table(path, schema, batches)
        else:
            writer = pq.ParquetWriter if form == "parquet" else pyarrow.csv.CSVWriter
            with writer(path, schema) as file:
                for batch in batches:
                    file.write(batch)
        yield path


def run(path: Path, form: str, owned: bool) -> dict[str, float]:
    """Processor seconds of `synth table` by stage."""
    seconds: dict[str, float] = defaultdict(float)
    stage, clock = "opening", time.process_time()

    def progress(reported: str, done: int, total: int, beside: str = "") -> None:
        nonlocal stage, clock
        now = time.process_time()
        seconds[stage] += now - clock
        clock = now
        if reported.startswith("counting"):
            stage = "counting" if done < total else "mechanism"
        elif reported in STAGES:
            stage = reported if done < total else "checking"
        else:
            stage = "mechanism"

    owners = {"owners": OWNERS, "contributions": 2} if owned else {}
    columns = declared() | {OWNERS: {"type": "identifier"} if owned else {"ignore": True}}
    options = Options(epsilon=1.0, delta=1e-9, method="mst", rows=1000, schema={"columns": columns}, **owners)
    with tempfile.TemporaryDirectory() as out:
        synthesize(path, Path(out) / "out", options, progress=progress)
    seconds[stage] += time.process_time() - clock
    return dict(seconds)


def duckdb_alone(path: Path, form: str, owned: bool) -> dict[str, float]:
    """Processor seconds of DuckDB for the number of rows, and for all pairs of columns."""
    import duckdb

    source = {"parquet": f"read_parquet('{path}')", "csv": f"read_csv('{path}')", "delta": f"read_parquet('{path}/*')"}
    cells = [
        f"{name} // {max(1, (column['max'] - column['min']) // 16)} AS {name}"
        if column["type"] == "integer"
        else f"CAST({name} AS ENUM ({', '.join(map(repr, column['values']))})) AS {name}"
        for name, column in declared().items()
    ]
    with duckdb.connect(config={"threads": 2, "memory_limit": "2GB"}) as connection:
        clock = [time.process_time()]
        connection.sql(f"SELECT count(*) FROM {source[form]}").fetchall()
        clock.append(time.process_time())
        connection.sql(f"CREATE TEMPORARY TABLE coded AS SELECT {', '.join(cells)} FROM {source[form]}")
        for one, other in itertools.combinations(declared(), 2):
            connection.sql(f"SELECT {one}, {other}, count(*) FROM coded GROUP BY ALL").fetchall()
        clock.append(time.process_time())
    return dict(zip(("rows", "pairs"), np.diff(clock).tolist(), strict=True))


def alone(work: Callable[..., dict[str, float]], *arguments: object) -> tuple[dict[str, float], float]:
    """The seconds that it returns, and its peak memory in MB, in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_alone, args=(there, work, *arguments))
    process.start()
    there.close()
    try:
        found: tuple[dict[str, float], float] = here.recv()
    except EOFError:
        sys.exit("a run failed")
    process.join()
    return found


def _alone(there: Connection, work: Callable[..., dict[str, float]], *arguments: object) -> None:
    seconds = work(*arguments)
    there.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6))


def compare(sizes: list[int], forms: list[str], units: list[str]) -> None:
    """A line for each number of rows, format and privacy unit."""
    names = ("all s", "s/million", "peak MB", "more MB", "duckdb s", "its MB", "ratio")
    print(f"{'rows':>11} {'format':>8} {'unit':>6} " + " ".join(f"{name:>12}" for name in (*STAGES, *names)))
    for form in forms:
        with stored(SMALL, form) as path:
            basis = {unit: alone(run, path, form, unit == "owner") for unit in units}
            _, least = alone(duckdb_alone, path, form, False)
        for rows in sizes:
            with stored(rows, form) as path:
                counted, most = alone(duckdb_alone, path, form, False)
                for unit in units:
                    seconds, peak = alone(run, path, form, unit == "owner")
                    parts = [seconds.get(name, 0.0) - basis[unit][0].get(name, 0.0) for name in STAGES]
                    total = sum(parts)
                    alone_s = sum(counted.values())
                    more = (
                        total,
                        1e6 * total / rows,
                        peak,
                        peak - basis[unit][1],
                        alone_s,
                        most - least,
                        total / alone_s,
                    )
                    print(
                        f"{rows:>11} {form:>8} {unit:>6} " + " ".join(f"{part:>12.2f}" for part in (*parts, *more)),
                        flush=True,
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--units", nargs="+", choices=("row", "owner"), default=("row", "owner"))
    chosen = parser.parse_args()
    compare(chosen.rows, chosen.formats, chosen.units)
