"""What methods keep of brackets, parities and a chain. Not a test: run it, and it prints tables.

    python tests/benchmarks/bench_structure.py            # some ten minutes of a core

What belongs here: made-up tables of twelve columns and 30,000 rows, and what `aim` and networks keep of them by
contracts in their default configuration, each row its own unit, delta 1e-5, one run each. What does not: asserting;
`tests/synth` holds what must hold. Distances are mean total variations of all marginals of so many columns from the
training rows. Each table has a row of the same number of other real rows, which no method can be expected to exceed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from bench_tabular import QUALITY_DELTA, QUALITY_EPSILONS, conduct, plan_of, say, stored

from dpsynth_platform.quality.fidelity import k_way_distance

ROWS, COLUMNS, WAYS = 30_000, 12, (3, 4, 5)
METHODS = ("aim", "arn", "tbart", "dp_vae", "table_diffusion")
KINDS, PADDING = 2, 4
"""Kinds of brackets, whose opening ones are even; and what follows a string."""
STATES = 4
"""Of a column of the chain."""

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """A made-up table: its states, [rows, columns] from a source, and by part the rows that keep its rules."""

    sizes: tuple[int, ...]
    make: Callable[[np.random.Generator], Codes]
    valid: Callable[[Codes], dict[str, npt.NDArray[np.bool_]]]


def dyck(rng: np.random.Generator) -> Codes:
    """Balanced strings of two kinds of brackets, of 2 to 12 signs, then padding."""
    found = np.full((ROWS, COLUMNS), PADDING)
    for row, length in zip(found, 2 * rng.integers(1, COLUMNS // 2 + 1, ROWS), strict=True):
        opened: list[int] = []
        for place in range(length):
            full = len(opened) == length - place
            if not opened or (not full and rng.random() < 0.5):
                opened.append(int(rng.integers(KINDS)))
                row[place] = 2 * opened[-1]
            else:
                row[place] = 2 * opened.pop() + 1
    return found


def balanced(codes: Codes) -> dict[str, npt.NDArray[np.bool_]]:
    return {"balanced": np.array([_is_balanced(row) for row in codes.tolist()])}


def _is_balanced(row: list[int]) -> bool:
    length = row.index(PADDING) if PADDING in row else COLUMNS
    opened: list[int] = []
    for sign in row[:length]:
        if sign % 2 == 0:
            opened.append(sign)
        elif not opened or opened.pop() != sign - 1:
            return False
    return length > 0 and not opened and {*row[length:]} <= {PADDING}


def parities(rng: np.random.Generator) -> Codes:
    """Columns of two values: the last of three, of four and of five is the parity of the others."""
    found = rng.integers(0, 2, (ROWS, COLUMNS))
    for columns in _groups():
        found[:, columns[-1]] = found[:, columns[:-1]].sum(axis=1) % 2
    return found


def even(codes: Codes) -> dict[str, npt.NDArray[np.bool_]]:
    return {f"{len(columns)}-way parity": codes[:, columns].sum(axis=1) % 2 == 0 for columns in _groups()}


def _groups() -> list[list[int]]:
    return [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]]


def chain(rng: np.random.Generator) -> Codes:
    """A Markov chain, whose probabilities in each step are those of one seed."""
    fixed = np.random.default_rng(5)
    found = np.zeros((ROWS, COLUMNS), dtype=np.int64)
    found[:, 0] = rng.integers(0, STATES, ROWS)
    for column in range(1, COLUMNS):
        sums = fixed.dirichlet(np.full(STATES, 0.5), STATES).cumsum(axis=1)
        found[:, column] = (rng.random(ROWS)[:, None] > sums[found[:, column - 1]][:, :-1]).sum(axis=1)
    return found


TABLES = {
    "dyck": Structure((PADDING + 1,) * COLUMNS, dyck, balanced),
    "parities": Structure((2,) * COLUMNS, parities, even),
    "chain": Structure((STATES,) * COLUMNS, chain, lambda codes: {}),
}


def run(name: str, methods: tuple[str, ...], epsilons: tuple[float, ...]) -> None:
    """Prints the table of one structure."""
    structure = TABLES[name]
    train = structure.make(np.random.default_rng(1))
    columns = {
        f"c{index}": {"type": "categorical", "values": [str(code) for code in range(size)]}
        for index, size in enumerate(structure.sizes)
    }
    table = pa.table({name: pa.array(train[:, index].astype(str)) for index, name in enumerate(columns)})
    say(f"\n{name}, {ROWS} rows, {COLUMNS} columns")
    _line("other real rows", structure, train, structure.make(np.random.default_rng(2)), 0.0)
    with stored(table) as bounded:
        for epsilon in epsilons:
            for method in methods:
                plan = plan_of(method, columns, table.schema, epsilon, QUALITY_DELTA)
                began = time.process_time()
                rows = conduct(plan, bounded, ROWS, "cpu").rows
                seconds = time.process_time() - began
                made = np.stack([rows[name].to_numpy().astype(np.int64) for name in columns], axis=1)
                _line(f"{method}, epsilon {epsilon:g}", structure, train, made, seconds)


def _line(what: str, structure: Structure, train: Codes, made: Codes, seconds: float) -> None:
    shares = "".join(f"   {name} {100 * kept.mean():.1f}%" for name, kept in structure.valid(made).items())
    distances = [k_way_distance(train, made, structure.sizes, ways).mean for ways in WAYS]
    parts = "".join(f"   {ways}-way {mean:.3f}" for ways, mean in zip(WAYS, distances, strict=True))
    say(f"{what:24}{parts}{shares}   {seconds:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", default=tuple(TABLES), choices=TABLES)
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--epsilons", nargs="*", type=float, default=QUALITY_EPSILONS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for table in chosen.tables:
        run(table, chosen.methods, chosen.epsilons)
