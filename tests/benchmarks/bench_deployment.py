"""How long a deployment with many contracts takes to load, and each of its sensors to look. Not a test.

    python tests/benchmarks/bench_deployment.py                      # 300 contracts
    python tests/benchmarks/bench_deployment.py --contracts 30

Prints, from a process of its own: seconds to import the code location and to resolve it as a code server does, its
memory, whether anything heavy was imported, and the seconds of two looks of every sensor, with no ledger yet. Seconds
are the processor's. Every third contract is monthly; every third asks for runs of new versions of its source.

Measured with 300 contracts (3000 assets, 600 jobs) on machines with two cores, a fast one and a slow one:

| | |
| --- | --- |
| import | 8.6 to 16.7 s, most of it Dagster's own decorator, 2 ms an asset |
| resolving, once a code server | 12 to 22 s, of which Dagster goes through all assets for each job |
| memory | 265 MB; 364 MB after the first look at a hundred sources |
| the first look at a hundred sources | 1.2 to 2.9 s; the first one at the outbox up to 0.4 s, any other 0.07 s |

What belongs here: timing the load and idle ticks. What does not: asserting, and runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import write_deltalake

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "presidio_analyzer", "spacy", "opacus", "sklearn")


def make(place: Path, contracts: int) -> dict[str, str]:
    """Writes a deployment; returns its environment."""
    deploy, home = place / "deploy", place / "home"
    for folder in ("contracts", "families"):
        (deploy / folder).mkdir(parents=True)
    family = yaml.safe_load((ROOT / "deploy" / "families" / "clinic-patients.yaml").read_text())
    monthly: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "contracts" / "visits.yaml").read_text())
    (deploy / "families" / "clinic-patients.yaml").write_text(yaml.safe_dump(family))
    for number in range(contracts):
        name = f"visits_{number:03d}"
        release = {"uri": f"${{DPSYNTH_HOME}}/public/{name}", "approvals": 1}
        source = {"uri": f"${{DPSYNTH_HOME}}/sources/{name}", "key": monthly["source"]["key"]}
        if number % 3 == 0:
            release |= {"cadence": "monthly", "start": "2026-01"}
            source["period_column"] = monthly["source"]["period_column"]
        elif number % 3 == 1:
            release["on_new_version"] = "7d"
            write_deltalake(str(home / "sources" / name), pa.table({"a": [1]}))
        contract = monthly | {"dataset": name, "release": release, "source": source, "demo": False}
        (deploy / "contracts" / f"{name}.yaml").write_text(yaml.safe_dump(contract))
    return {"DPSYNTH_HOME": str(home), "DPSYNTH_DEPLOY": str(deploy), "DPSYNTH_NOTIFY": "true"}


def memory() -> float:
    """The most that this process took so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure() -> None:
    """Loads the deployment that the environment names and looks with each sensor; prints what it takes."""
    began = time.process_time()
    import dagster as dg

    print(f"import dagster: {time.process_time() - began:.1f} s, {memory():.0f} MB")
    began = time.process_time()
    from dpsynth_platform.definitions import defs

    print(f"definitions: {time.process_time() - began:.1f} s, {memory():.0f} MB")
    began = time.process_time()
    repository = defs.get_repository_def()
    repository.load_all_definitions()
    print(f"resolved as a code server does: {time.process_time() - began:.1f} s, {memory():.0f} MB")
    print(f"heavy imports: {', '.join(name for name in HEAVY if name in sys.modules) or 'none'}")
    resources = {"ledger": repository.get_top_level_resources()["ledger"]}
    with tempfile.TemporaryDirectory() as place, dg.DagsterInstance.local_temp(place) as instance:
        for sensor in sorted(repository.sensor_defs, key=lambda item: item.name):
            cursor, seconds = None, []
            for _ in range(2):
                began = time.process_time()
                context = dg.build_sensor_context(
                    instance=instance, cursor=cursor, resources=resources, repository_def=repository
                )
                cursor = sensor.evaluate_tick(context).cursor
                seconds.append(time.process_time() - began)
            print(f"{sensor.name}: {seconds[0]:.2f} s, then {seconds[1]:.2f} s of {sensor.minimum_interval_seconds} s")
    print(f"in the end: {memory():.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contracts", type=int, default=300)
    parser.add_argument("--measure", action="store_true", help="measure the deployment that the environment names")
    chosen = parser.parse_args()
    if chosen.measure:
        measure()
    else:
        with tempfile.TemporaryDirectory() as made:
            environment = os.environ | make(Path(made), chosen.contracts)
            subprocess.run([sys.executable, __file__, "--measure"], env=environment, check=True)
