"""How near single columns come out by the way they are cut into cells. Not a test: it prints a table.

    [DPSYNTH_BENCH_DATA=...] python tests/benchmarks/bench_columns.py [--grids 64 128 256 512] [--repeats 5]

What belongs here: one column at a time through noisy counts, smoothing, states and decoding, with the noise that AIM
gives to each of 14 columns at epsilon 1. What does not: pairs of columns; generators are measured elsewhere. With
DPSYNTH_BENCH_DATA, four of adult's columns come to six made-up ones. Distances are of 100 bins of equal contents (total
variation), and of the distribution functions (Kolmogorov-Smirnov). A fresh sample of the same size is at about 0.025
and 0.005 for 50,000 records, at 0.1 and 0.02 for 3,000.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_platform.synth.tabular import binning
from dpsynth_platform.synth.tabular.compression import compress, one_way_measurements
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Cutting, Domain
from dpsynth_platform.synth.tabular.estimation import project
from dpsynth_platform.synth.tabular.measurements import NoisyCounts

Values = npt.NDArray[np.float64]

SETTINGS = ((50_000, 43.0), (3_000, 30.0))
"""Records, and the noise's standard deviation."""
ADULT = {"capital-gain": (0, 99_999), "fnlwgt": (10_000, 1_500_000), "age": (17, 90), "hours-per-week": (1, 99)}


def columns(records: int, rng: np.random.Generator) -> Iterator[tuple[str, float, float, npt.NDArray[np.generic]]]:
    """Name, declared range and values of every column."""
    yield "lognormal in 0..1e6", 0.0, 1e6, rng.lognormal(10, 1, records)
    yield "heavy tail in 0..1e7", 0.0, 1e7, rng.lognormal(7, 2, records)
    yield "narrow in 0..1e5", 0.0, 1e5, rng.normal(40_000, 300, records)
    yield "uniform", 0.0, 1.0, rng.random(records)
    yield "normal in -6..6", -6.0, 6.0, rng.normal(size=records)
    yield "falling, 0 to 99999", 0, 99_999, rng.exponential(200, records).astype(np.int64)
    if "DPSYNTH_BENCH_DATA" in os.environ:
        adult = pq.read_table(Path(os.environ["DPSYNTH_BENCH_DATA"]) / "adult/adult.parquet", columns=list(ADULT))
        drawn = rng.integers(0, adult.num_rows, records)
        for name, (low, high) in ADULT.items():
            yield f"adult: {name}", low, high, adult[name].to_numpy()[drawn]


def made(column: ColumnDomain, values: npt.NDArray[np.generic], sigma: float, rng: np.random.Generator) -> Values:
    """As many values from noisy counts of the given ones."""
    counts = np.bincount(column.encode(pa.array(values)), minlength=column.size)
    noisy = NoisyCounts((0,), np.rint(counts + rng.normal(0, sigma, counts.size)).astype(np.int64), sigma)
    (states,) = compress(Domain((column,)), [noisy])
    (measured,) = one_way_measurements([noisy], [states])
    held = project(measured.counts[:-1], measured.variance[:-1], max(float(measured.counts[:-1].sum()), 1.0))
    shares = (np.append(held, 0.0) / held.sum())[states.state_of] * states.share
    codes = rng.choice(column.size, size=values.size, p=shares / shares.sum()).astype(np.int32)
    return np.asarray(column.decode(codes, pa.from_numpy_dtype(values.dtype), rng).to_numpy(), dtype=np.float64)


def distances(real: Values, other: Values) -> tuple[float, float]:
    """Total variation over percentiles of the real values, and Kolmogorov-Smirnov."""
    cuts = np.unique(np.quantile(real, np.linspace(0, 1, 101)))
    shares = [
        np.bincount(np.searchsorted(cuts, part, side="right"), minlength=102) / part.size for part in (real, other)
    ]
    both = np.concatenate([real, other])
    below = [np.searchsorted(np.sort(part), both, side="right") / part.size for part in (real, other)]
    return 0.5 * float(np.abs(shares[0] - shares[1]).sum()), float(np.abs(below[0] - below[1]).max())


def measure(cells: int | None, cutting: Cutting, repeats: int) -> None:
    """Prints the distances of all columns; `cells`: equal bins in place of a grid."""
    for records, sigma in SETTINGS:
        rng = np.random.default_rng(1)
        found = []
        for name, low, high, values in columns(records, rng):
            whole = values.dtype.kind == "i"
            cut = binning.whole_edges(int(low), int(high), cells, amounts=True) if whole else None
            edges = cut or binning.real_edges(low, high, cells)
            column = ColumnDomain(name, "integer" if whole else "float", False, edges, cutting=cutting)
            kept = np.clip(values, low, high)
            began = time.perf_counter()
            each = [distances(kept.astype(np.float64), made(column, kept, sigma, rng)) for _ in range(repeats)]
            found.append(np.mean(each, axis=0))
            print(
                f"  {records:6} {name:26} {column.size:5} cells  TV {found[-1][0]:.4f}  KS {found[-1][1]:.4f}  "
                f"{(time.perf_counter() - began) / repeats:.3f} s"
            )
        total, largest = np.mean(found, axis=0)
        print(f"  {records:6} {'mean':26}              TV {total:.4f}  KS {largest:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grids", nargs="*", type=int, default=[64, 128, binning.GRID, 512])
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    print("32 equal bins")
    measure(32, "declared", chosen.repeats)
    for grid in chosen.grids:
        binning.GRID = grid
        print(f"grid of {grid}, adaptive")
        measure(None, "adaptive", chosen.repeats)
