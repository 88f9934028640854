"""How fast noise and choices are drawn, on one core. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_noise.py --draws 4000000

What belongs here: processor time of the two draws over the range of their parameters. What does not: that they have the
right distribution (`tests/synth/test_noise.py`).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian, select_by_exponential_mechanism

SIGMAS = (2.0**-10, 0.5, 10.0, 1e3, 1e6, 1e8, 2.0**30)
CANDIDATES = (2, 100, 10_000, 1_000_000)


def main() -> None:
    """Prints draws a second for each sigma, and milliseconds a choice for each number of candidates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=4_000_000)
    draws = parser.parse_args().draws
    counts = np.zeros(draws, dtype=np.int64)
    sample_rounded_gaussian(counts[:10], 1e9)  # imports
    for sigma in SIGMAS:
        start = time.process_time()
        sample_rounded_gaussian(counts, sigma)
        print(f"sigma {sigma:<14g}{draws / (time.process_time() - start) / 1e6:8.1f} million draws a second")
    for number in CANDIDATES:
        scores = np.arange(number, dtype=np.int64) % 1000
        repeats = max(3, 100_000 // number)
        start = time.process_time()
        for _ in range(repeats):
            select_by_exponential_mechanism(scores, 0.1, 1)
        print(f"{number:>9} candidates {(time.process_time() - start) / repeats * 1000:8.2f} ms a choice")


if __name__ == "__main__":
    main()
