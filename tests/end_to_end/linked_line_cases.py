"""A deployment of linked tables: the small clinic, whose patients own their stays and diagnoses.

What belongs here: what the tests of its line share. What does not: assertions.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
from clinic import TABLES, clinic, written
from deployment import Deployment
from line_cases import NO_CHANCE

CONTRACT: dict[str, Any] = {
    "dataset": "people",
    "description": "Patients of a small clinic.",
    "owners": ["tests@example.org"],
    "source": {"uri": "${DPSYNTH_HOME}/sources/people"},
    "family": "tests",
    "privacy": {
        "unit": "user",
        "namespace": "person",
        "guarantee": {"epsilon": 1.0, "delta": 1.0e-6},
        "expected_units": 600,
    },
    "tables": TABLES["tables"],
    "generate": {"method": "mst", "rows": 100},
    "audit": {"canaries": 60, "max_epsilon_lower_bound": 1.0} | NO_CHANCE,
    "quality": {"holdout": 0.1},
    "release": {"uri": "${DPSYNTH_HOME}/public/people", "approvals": 1},
}


def clinic_deployment(root: Path, tables: dict[str, pa.Table] | None = None, **changes: Any) -> Deployment:
    """A deployment with the clinic's contract and its source."""
    deployment = Deployment(root, contract=copy.deepcopy(CONTRACT) | changes)
    written(deployment.write().settings.home / "sources" / "people", clinic(600) if tables is None else tables)
    return deployment
