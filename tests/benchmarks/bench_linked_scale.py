"""Time and memory of linked tables by their number of rows: a parent with ten children on average. Not a test.

    python tests/benchmarks/bench_linked_scale.py --roots 1000000 --place /a/large/disk

What belongs here: making two tables of fictional people, and a run over them with the time of each stage. What does
not: how good the synthetic rows are (`bench_linked`). The machine must do nothing else.

The run is `linked_tables.synthesize_tables` with `mst`, one child table with three columns and an order, at most 20
children a parent, and as many synthetic roots as real ones.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables

BATCH = 100_000
CHILDREN = 10
SCHEMA: dict[str, Any] = {
    "tables": {
        "people": {
            "key": ["person"],
            "columns": {
                "age": {"type": "integer", "min": 0, "max": 99},
                "sex": {"type": "categorical", "values": ["F", "M"]},
            },
        },
        "visits": {
            "key": ["visit"],
            "parent": {"table": "people", "columns": ["person"]},
            "max_children": 20,
            "order_by": ["day"],
            "columns": {
                "day": {"type": "integer", "min": 0, "max": 364},
                "ward": {"type": "categorical", "values": list("ABCDEF")},
                "cost": {"type": "integer", "min": 0, "max": 9999},
            },
        },
    }
}


def _made(roots: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    rng = np.random.default_rng(0)
    for first in range(0, roots, BATCH):
        number = min(BATCH, roots - first)
        person, age = np.arange(first, first + number), rng.integers(0, 100, number)
        sex = rng.integers(0, 2, number)
        owner = np.repeat(np.arange(number), rng.poisson(CHILDREN, number))
        ward = (age[owner] // 20 + rng.integers(0, 2, owner.size)) % 6
        yield (
            pa.table({"person": person, "age": age, "sex": np.array(["F", "M"])[sex]}),
            pa.table(
                {
                    "visit": first * 100 + np.arange(owner.size),
                    "person": person[owner],
                    "day": rng.integers(0, 365, owner.size),
                    "ward": np.array(list("ABCDEF"))[ward],
                    "cost": np.minimum(9999, rng.exponential(500 + 10 * age[owner])).astype(np.int64),
                }
            ),
        )


def _write(place: Path, roots: int) -> int:
    place.mkdir(parents=True)
    rows, writers = 0, list[pq.ParquetWriter]()
    for tables in _made(roots):
        names = (place / "people.parquet", place / "visits.parquet")
        writers = writers or [pq.ParquetWriter(name, table.schema) for name, table in zip(names, tables, strict=True)]
        for writer, table in zip(writers, tables, strict=True):
            writer.write_table(table)
        rows += len(tables[1])
    for writer in writers:
        writer.close()
    return rows


class _Stages:
    """The seconds of each stage, as the progress says them."""

    def __init__(self) -> None:
        self._begun, self._stage = time.monotonic(), "planning"
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, beside: str = "") -> None:
        if stage == self._stage:
            return
        now = time.monotonic()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._begun
        self._begun, self._stage = now, stage
        print(f"{stage} ... {_memory():.1f} GB at most so far", flush=True)


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roots", type=int, default=1_000_000)
    parser.add_argument("--place", type=Path, required=True, help="a directory for the tables and all that is made")
    asked = parser.parse_args()
    data, out = asked.place / f"data-{asked.roots}", asked.place / f"out-{asked.roots}"
    shutil.rmtree(out, ignore_errors=True)
    rows = _write(data, asked.roots) if not data.exists() else pq.read_metadata(data / "visits.parquet").num_rows
    stages, begun, used = _Stages(), time.monotonic(), time.process_time()
    made = synthesize_tables(
        data,
        out,
        TablesOptions(epsilon=1.0, expected_units=asked.roots, schema=SCHEMA, method="mst", roots=asked.roots),
        progress=stages,
    )
    stages("end", 0, 0)
    print(f"{asked.roots:,} roots, {rows:,} children: {time.monotonic() - begun:,.0f} s in all, of processors ", end="")
    print(f"{time.process_time() - used:,.0f} s, {_memory():.1f} GB at most")
    for stage, seconds in stages.seconds.items():
        print(f"  {stage}: {seconds:,.0f} s")
    print({name: found.rows for name, found in made.rows.items()})


if __name__ == "__main__":
    main()
