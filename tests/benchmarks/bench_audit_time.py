"""What the audit adds to a line's own time, from what lineage recorded of its steps. Not a test: it prints a table.

    dpsynth demo census
    python tests/benchmarks/bench_audit_time.py             # or another dataset of DPSYNTH_HOME

What belongs here: the seconds of each step's longest completed run (one that finds its output there takes next to none)
and the share of those that serve the audit alone. What does not: running a line.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

from graph_cases import graph_of

from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS
from dpsynth_platform.lineage.naming import job_name
from dpsynth_platform.lineage.store import LineageStore

AUDITS = ("canaries", "audit")


def seconds(dataset: str) -> dict[str, float]:
    """Of each step that completed."""
    jobs = graph_of(LineageStore(Settings.from_environment().ledger_url)).jobs
    found = {}
    for step in STEPS:
        ended = [
            (dt.datetime.fromisoformat(run.ended_at) - dt.datetime.fromisoformat(run.started_at)).total_seconds()
            for run in jobs.get(job_name(dataset, step), [])
            if run.state == "COMPLETE" and run.started_at and run.ended_at
        ]
        if ended:
            found[step] = max(ended)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", nargs="?", default="census")
    found = seconds(parser.parse_args().dataset)
    for step, took in found.items():
        print(f"{step:12}{took:9.1f} s")
    added = sum(found.get(step, 0.0) for step in AUDITS)
    own = sum(found.values()) - added
    print(f"{' and '.join(AUDITS)}: {added:.1f} s, {added / max(own, 1e-9):.0%} of the other steps' {own:.1f} s")


if __name__ == "__main__":
    main()
