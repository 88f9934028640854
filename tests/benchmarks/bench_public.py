"""What a public table brings to methods for tables, and what a misleading one costs. Not a test: it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_public.py --methods aim jam --epsilons 0.1 1 8 --seeds 2

What belongs here: a random half of adult as the private table, parts and distortions of the other half as public ones.
What does not: asserting; `tests/synth` holds what must hold. Delta is 1e-5, each row its own unit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from bench_tabular import NUMBERS, coded_adult, conduct, plan_of, say, stored

from dpsynth_platform.quality.fidelity import k_way_distance

DELTA = 1e-5
OLD = 38 - NUMBERS["age"][0]
FEW = 300


def public_tables(names: list[str], other: np.ndarray, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Public tables by name, from a half that shares no row with the private one."""
    country = other[:, names.index("native-country")]
    rng = np.random.default_rng(7)
    return {
        "half": other,
        "few": other[:FEW],
        "abroad": other[country != np.bincount(country).argmax()],
        "older": other[other[:, names.index("age")] >= OLD],
        "shuffled": np.stack([rng.permutation(column) for column in other.T], axis=1),
        "reversed": np.stack([distorted(other, names, sizes, place) for place in range(len(names))], axis=1),
    }


def distorted(other: np.ndarray, names: list[str], sizes: tuple[int, ...], place: int) -> np.ndarray:
    """A column of numbers from the top down; of categories, the four most frequent ones exchanged."""
    column = other[:, place]
    if names[place] in NUMBERS:
        return np.asarray(sizes[place] - 1 - column)
    new = np.arange(sizes[place])
    frequent = np.argsort(-np.bincount(column, minlength=sizes[place]))[:4]
    new[frequent] = frequent[::-1] if place % 2 else np.roll(frequent, 1)
    return np.asarray(new[column])


def table_of(names: list[str], codes: np.ndarray) -> pa.Table:
    arrays = [pa.array(codes[:, i] if name in NUMBERS else codes[:, i].astype(str)) for i, name in enumerate(names)]
    return pa.table(dict(zip(names, arrays, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["aim", "jam"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 1.0, 8.0])
    parser.add_argument("--seeds", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names, codes, sizes = coded_adult(Path(os.environ["DPSYNTH_BENCH_DATA"]))
    order = np.random.default_rng(7).permutation(len(codes))
    private, other = codes[order[: len(codes) // 2]], codes[order[len(codes) // 2 :]]
    columns = {
        name: {"type": "integer", "min": 0, "max": size - 1}
        if name in NUMBERS
        else {"type": "categorical", "values": [str(code) for code in range(size)]}
        for name, size in zip(names, sizes, strict=True)
    }
    tables = public_tables(names, other, sizes)
    with tempfile.TemporaryDirectory() as directory, stored(table_of(names, private)) as bounded:
        places: dict[str, Path | None] = {"none": None}
        for name, rows in tables.items():
            places[name] = Path(directory) / f"{name}.parquet"
            pq.write_table(table_of(names, rows), places[name])
            itself = [k_way_distance(private, rows, sizes, ways).mean for ways in (1, 2, 3)]
            say(f"{name:10}{len(rows):7} rows, itself" + "".join(f"{distance:8.4f}" for distance in itself))
        say(f"{'':24}    2-way   3-way  seconds")
        for epsilon in chosen.epsilons:
            for method in chosen.methods:
                for name, place in places.items():
                    if method == "jam" and place is None:
                        continue
                    plan = plan_of(method, columns, table_of(names, private[:1]).schema, epsilon, DELTA, public=place)
                    found = []
                    for _ in range(chosen.seeds):
                        run = conduct(plan, bounded, len(private), "cpu")
                        made = np.stack([run.rows[name].to_numpy().astype(np.int64) for name in names], axis=1)
                        distances = [k_way_distance(private, made, sizes, ways).mean for ways in (2, 3)]
                        found.append((*distances, run.seconds))
                    two, three, seconds = np.mean(found, axis=0)
                    say(f"{method:6}{epsilon:6g}  {name:10}{two:9.4f}{three:8.4f}{seconds:9.1f}")


if __name__ == "__main__":
    main()
