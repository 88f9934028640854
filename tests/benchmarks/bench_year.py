"""A year under Dagster's daemon in minutes, with its processes killed at random. Not a test of the suite: it is long.

    python tests/benchmarks/bench_year.py                       # a whole year, a kill in each of seven months
    python tests/benchmarks/bench_year.py --months 4 --cap 1.5 --kills daemon run --seed 5

The clock is moved forward; the schedule, the sensors, the runs and the mechanisms are real. Nothing is done by hand but
approvals. In the end it must hold what `tests/end_to_end/test_simulated_year.py` says, and this fails otherwise.

What belongs here: the whole year. What does not: what a month is (`year_cases`), and what must hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

from test_simulated_year import check
from year_cases import KILLS, months, simulated

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--kills", nargs="*", choices=KILLS, help="one a month, from the first; default: random ones")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--cap", type=float, default=2.5, help="the family's epsilon; 2.5 has room for seven months")
    chosen = parser.parse_args()
    began, lived = time.monotonic(), months(chosen.months)
    with (
        tempfile.TemporaryDirectory(prefix="year") as root,
        simulated(Path(root), cap=chosen.cap, seed=chosen.seed) as simulation,
    ):
        simulation.kills = simulation.chance.choices(KILLS, k=7) if chosen.kills is None else chosen.kills
        simulation.say(f"seed {chosen.seed}: {', '.join(simulation.kills)}")
        for month in lived:
            simulation.lives_through(month)
        check(simulation, lived)
    print(f"{len(lived)} months in {time.monotonic() - began:.0f} s: the state is that of a year without kills")
