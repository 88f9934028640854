"""Quality of tables by the measures of the DP-2Stage benchmark, beside published figures. Not a test: it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_tabular_quality.py                        # real rows, a minute
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_tabular_quality.py --synthetic adult=FILE # a table of your own

What belongs here: tables through the product's own measures, with the time that they take. What does not: asserting;
`tests/quality` holds what must hold. Real training rows stand for the best possible. The published figures are of other
splits of the same sources (for texas of a larger file), so single rows cannot be compared. Pair stands there twice: as
the mean of 20 and 50 bins, which the paper's tables have (section 5.1.2), and of 50 bins, which its published code
computes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsynth_platform.quality.columns import align, cells
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.quality.similarity import measure_similarity
from dpsynth_platform.quality.utility import measure_utility

SOURCES = {
    "adult": ("adult/adult_dp2stage_split.parquet", "income"),
    "texas": ("texas_hospital_2013/texas_dp2stage_split.parquet", "risk_mortality"),
}
PUBLISHED = {
    "adult": {
        "real rows": (69.9, 91.7, 84.0, 97.3, 97.5, 99.1),
        "AIM, epsilon 1": (59.6, 86.8, 80.3, 86.4, 77.1, 88.4),
        "MST, epsilon 1": (39.6, 76.8, 72.8, 70.0, 74.6, 87.0),
        "DP-2Stage, epsilon 1": (31.6, 60.5, 66.4, 55.6, 71.3, 86.9),
    },
    "texas": {
        "real rows": (86.6, 98.8, 95.0, 96.3, 98.9, 99.5),
        "AIM, epsilon 1": (84.5, 98.3, 94.2, 81.0, 93.0, 98.9),
        "MST, epsilon 1": (81.7, 94.8, 93.2, 77.0, 97.5, 99.0),
        "DP-2Stage, epsilon 1": (74.8, 96.7, 89.1, 69.9, 60.5, 91.7),
    },
}
"""Afonja et al., DP-2Stage (TMLR 2025), tables 2 and 8; of DP-2Stage-O the better source by F1."""


def line(name: str, figures: tuple[float, ...], more: str = "") -> None:
    """Prints a row in percent: F1, AUC, accuracy, CorAcc, Pair, HIST; for our own rows also Pair of 50 bins."""
    print(f"{name:32}" + "".join(f"{figure:8.1f}" for figure in figures) + more)


def judge(name: str, test: pa.Table, made: pa.Table, target: str) -> None:
    """Measures a table and prints its row, the distances of its marginals, and the time of each."""
    began = time.monotonic()
    columns = align({"real": test, "synthetic": made})
    similar = measure_similarity(columns)
    compared = time.monotonic()
    utility, _ = measure_utility(columns, target)
    trained = time.monotonic()
    scores = utility.synthetic.mean
    figures = (scores.f1, scores.roc_auc, scores.accuracy)
    similarities = (similar.association_accuracy, similar.pair, similar.histogram, similar.pair_50)
    seconds = f"   {compared - began:.1f} s similarity, {trained - compared:.1f} s classifiers"
    line(name, tuple(100 * figure for figure in (*figures, *similarities)), seconds)
    (real, other), sizes = cells(columns)
    for ways in (1, 2, 3):
        began = time.monotonic()
        found = k_way_distance(real, other, sizes, ways)
        print(
            f"  {ways}-way distance: mean {found.mean:.4f}, largest {found.largest:.4f}, {found.measured} of "
            f"{found.marginals} marginals, {time.monotonic() - began:.2f} s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synthetic", nargs="*", default=[], help="adult=FILE or texas=FILE, any number of times")
    chosen = parser.parse_args()
    if "DPSYNTH_BENCH_DATA" not in os.environ:
        sys.exit("DPSYNTH_BENCH_DATA names the directory with adult and texas_hospital_2013")
    own = [item.split("=", 1) for item in chosen.synthetic]
    for source, (path, target) in SOURCES.items():
        table = pq.read_table(Path(os.environ["DPSYNTH_BENCH_DATA"]) / path)
        train, test = (table.filter(pc.equal(table["split"], part)).drop(["split"]) for part in ("train", "test"))
        print(f"\n{source:32}      F1     AUC     ACC  CorAcc    Pair    HIST")
        for name, figures in PUBLISHED[source].items():
            line(f"published: {name}", figures)
        judge("real training rows", test, train, target)
        for place, file in own:
            if place == source:
                judge(Path(file).name, test, read_file(Path(file)), target)
