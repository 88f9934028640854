"""AIM on `mbi`, for `bench_tabular.py` to compare with; needs the extra `oracle`. Not private: its seed is given.

    python tests/benchmarks/aim_on_mbi.py INPUT.npz OUTPUT.npz

What belongs here: algorithm 2 of McKenna, Mullins, Sheldon & Miklau 2022 with the paper's choices (16 rounds a column,
nine tenths of each round for measuring, a model of 1 MB) and mbi's default estimator (mirror descent, 1,000 steps a
round), in a process of its own so that its time, threads and memory are its own. What does not: judging the rows.

INPUT holds `codes` (rows, columns), `sizes` (columns,), `rho` and `seed`; the workload is all pairs. OUTPUT holds
`codes` of as many sampled rows, the `seconds` of the mechanism, and of them those of `estimating`.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path

import jax
import mbi
import numpy as np
import opt_einsum
from mbi.junction_tree import hypothetical_model_size

MAX_MEGABYTES = 1.0
ROUNDS_PER_COLUMN = 16
MEASURING_SHARE = 0.9
ITERATIONS = 1000
MOST_MAPS = 40_000
"""Compiled programs stay mapped into memory, and Linux gives a process 65,530 such maps."""

Clique = tuple[str, ...]


def aim(codes: np.ndarray, sizes: tuple[int, ...], rho: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Sampled rows, and the seconds that estimating took."""
    names = [f"a{index}" for index in range(len(sizes))]
    domain = mbi.Domain(names, sizes)
    data = mbi.Dataset({name: codes[:, index] for index, name in enumerate(names)}, domain)
    workload = list(itertools.combinations(names, 2))
    candidates: list[Clique] = [(name,) for name in names] + workload
    weights = {clique: sum(len(set(clique) & set(other)) for other in workload) for clique in candidates}
    exact = {clique: np.asarray(data.project(clique).datavector()) for clique in candidates}

    began = time.monotonic()
    rounds = ROUNDS_PER_COLUMN * len(names)
    sigma = math.sqrt(rounds / (2 * MEASURING_SHARE * rho))
    epsilon = math.sqrt(8 * (1 - MEASURING_SHARE) * rho / rounds)
    measured: list[object] = []
    used = 0.0
    estimating = 0.0

    def measure(clique: Clique) -> None:
        noisy = exact[clique] + rng.normal(0, sigma, exact[clique].size)
        measured.append(mbi.LinearMeasurement(noisy, clique, stddev=sigma))

    def estimate(before: object | None) -> mbi.MarkovRandomField:
        nonlocal estimating
        start = time.monotonic()
        model = mbi.estimation.MirrorDescent().estimate(domain, measured, iters=ITERATIONS, warm_start=before)
        model.marginals.project(candidates[0]).datavector().block_until_ready()
        estimating += time.monotonic() - start
        return model

    for name in names:
        measure((name,))
        used += 1 / (2 * sigma**2)
    model = estimate(None)
    last = False
    while not last:
        left = rho - used
        last = left <= 2 * (1 / (2 * sigma**2) + epsilon**2 / 8)
        if last:
            sigma, epsilon = math.sqrt(1 / (2 * MEASURING_SHARE * left)), math.sqrt(8 * (1 - MEASURING_SHARE) * left)
        used += 1 / (2 * sigma**2) + epsilon**2 / 8
        limit = MAX_MEGABYTES * used / rho
        taken = list(model.cliques)
        allowed = [
            clique
            for clique in candidates
            if any(set(clique) <= set(other) for other in taken)
            or hypothetical_model_size(domain, [*taken, clique]) <= limit
        ]
        expected = {clique: answer(model, clique) for clique in allowed}
        if len(Path("/proc/self/maps").read_text().splitlines()) > MOST_MAPS:
            jax.clear_caches()
        noise = math.sqrt(2 / math.pi) * sigma
        scores = np.array(
            [weights[c] * (np.abs(exact[c] - expected[c]).sum() - noise * exact[c].size) for c in allowed]
        )
        sensitivity = max(weights[clique] for clique in allowed)
        chosen = allowed[int(np.argmax(epsilon * scores / (2 * sensitivity) + rng.gumbel(size=len(allowed))))]
        measure(chosen)
        model = estimate(model)
        change = np.abs(answer(model, chosen) - expected[chosen]).sum()
        if change <= noise * exact[chosen].size:
            sigma, epsilon = sigma / 2, 2 * epsilon
        print(f"   {used / rho:.0%} of the budget, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    made = model.synthetic_data(rows=len(codes))
    return np.stack([np.asarray(made.data[name]) for name in names], axis=1), estimating


def answer(model: mbi.MarkovRandomField, clique: Clique) -> np.ndarray:
    """The model's marginal, flat, by NumPy: mbi would compile a program for each clique and round."""
    operands: list[object] = []
    for attributes, factor in model.potentials.tables.items():
        values = np.asarray(factor.values, dtype=np.float64)
        operands += [np.exp(values - values.max()), list(attributes)]
    found = opt_einsum.contract(*operands, list(clique), optimize="greedy").ravel()
    return found * (float(model.total) / found.sum())


def main() -> None:
    """Reads the input, runs AIM, writes the output."""
    source, target = sys.argv[1:]
    with np.load(source) as stored:
        codes, sizes = stored["codes"], tuple(int(size) for size in stored["sizes"])
        rho, seed = float(stored["rho"]), int(stored["seed"])
    began = time.monotonic()
    made, estimating = aim(codes, sizes, rho, np.random.default_rng(seed))
    np.savez(target, codes=made, seconds=time.monotonic() - began, estimating=estimating)


if __name__ == "__main__":
    main()
