"""A small deployment with a bit of everything, filled by real runs.

What belongs here: what the tests of the console look at. What does not: assertions, and fixtures (`conftest`).
"""

from __future__ import annotations

import copy
import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from deployment import FAMILY, Deployment
from inside import inside
from line_cases import SMALL, add_dataset, ledger_of, run_here, small_deployment, small_table

from dpsynth_platform.foundation.storage import Place, Storage, write_table
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.reviewing import decisions

MONTHS = ("2025-12", "2026-01", "2026-02")
REFUSED, RELEASED, WAITING = (Place("visits", month) for month in MONTHS)
PEOPLE, SECOND = Place("people"), Place("second")
WHY_REFUSED = "the audit looked at too few canaries"
PRODUCT = "ranker"
OWNERS = [f"P{number:05d}" for number in range(0, 1000, 7)]
"""Some of the ids that stand in the sources."""


def visits_table(rows: int = 1800) -> pa.Table:
    """Three months of visits by people with one or two each."""
    table = small_table(rows)
    first = dt.date(2025, 12, 1)
    days = [first + dt.timedelta(days=int(day)) for day in np.random.default_rng(5).integers(0, 90, rows)]
    return table.append_column("visit_date", pa.array(days, pa.date32()))


def fill(root: Path) -> Deployment:
    """Two families. Of one, a dataset that was released and one that waits; of the other, three months of one."""
    deployment = small_deployment(root)
    _run(deployment, PEOPLE)
    _publish(deployment, PEOPLE)
    add_dataset(deployment, SECOND.dataset, small_table(first_person=500))
    _run(deployment, SECOND)
    _add_visits(deployment)
    for month in MONTHS:
        _run(deployment, Place("visits", month))
    decisions.refuse(deployment.settings, REFUSED, "second reader", WHY_REFUSED)
    _publish(deployment, RELEASED)
    release = Storage(deployment.settings.restricted).require(PEOPLE, "released").facts["release_id"]
    LineageStore(deployment.settings.ledger_url).use(
        release, by="search team", purpose="train", product=PRODUCT, reason="ranking of results"
    )
    ledger_of(deployment).ask_raise("tests", epsilon=3.0, delta=1e-5, by="engineer", reason="one more release a year")
    return deployment


def _run(deployment: Deployment, place: Place) -> None:
    ran = run_here(deployment, f"{place.dataset}_candidate", period=place.period, accelerator=inside(deployment))
    assert ran.success, ran.failures


def _publish(deployment: Deployment, place: Place) -> None:
    decisions.approve(deployment.settings, place, "reviewer", "as planned")
    ran = run_here(deployment, f"{place.dataset}_release", period=place.period)
    assert ran.success, ran.failures


def _add_visits(deployment: Deployment) -> None:
    contract = copy.deepcopy(SMALL) | {
        "dataset": "visits",
        "family": "clinic",
        "description": "Visits, month by month.",
    }
    contract["source"] = contract["source"] | {
        "uri": "${DPSYNTH_HOME}/sources/visits",
        "period_column": "visit_date",
    }
    contract["privacy"] = contract["privacy"] | {"namespace": "patient"}
    contract["columns"] = contract["columns"] | {
        "visit_date": {"type": "date", "min": dt.date(2025, 12, 1), "max": dt.date(2026, 12, 31)}
    }
    contract["release"] = contract["release"] | {
        "uri": "${DPSYNTH_HOME}/public/visits",
        "cadence": "monthly",
        "start": MONTHS[0],
    }
    family = copy.deepcopy(FAMILY) | {"family": "clinic", "namespace": "patient", "mode": "per-owner"}
    for kind, document in (("contracts", contract), ("families", family)):
        file = deployment.settings.deploy / kind / f"{document['dataset' if kind == 'contracts' else 'family']}.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
    table = visits_table()
    write_table(deployment.settings.home / "sources" / "visits", table.schema, table.to_batches())
