"""A clinic's linked tables as they would be drawn, their contract, and their evidence by a real plan."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.linked_tables.task import TablesOptions, linked_task
from dpsynth_platform.privacy.statement import privacy_statement, words_of
from dpsynth_platform.release.dossier import Evidence, expected_errors
from dpsynth_platform.release.publish import TableRows
from dpsynth_platform.synth.interface import generator

DAY = dt.date(2024, 1, 1)
LINKED: dict[str, Any] = {
    "patients": {
        "key": ["patient id"],
        "columns": {
            "birth": {"type": "date", "min": "1930-01-01", "max": "2023-12-31"},
            "sex": {"type": "categorical", "values": ["F", "M"]},
            "insured": {"type": "boolean", "nullable": True},
        },
    },
    "stays": {
        "key": ["stay"],
        "parent": {"table": "patients", "columns": ["patient id"]},
        "max_children": 4,
        "order_by": ["admitted"],
        "columns": {
            "admitted": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"},
            "cost": {"type": "float", "min": 0.0, "max": 1000.0},
            "ward": {"type": "categorical", "values": ["A", "B", "C"]},
        },
    },
    "diagnoses": {
        "key": ["stay", "line"],
        "parent": {"table": "stays", "columns": ["stay"]},
        "max_children": 3,
        "lookups": {"code": "codes"},
        "columns": {"severity": {"type": "integer", "min": 1, "max": 5}},
    },
    "codes": {"public": "The clinic lists them.", "key": ["code"]},
}


def document(**release: Any) -> dict[str, Any]:
    """The contract's document."""
    return {
        "dataset": "clinic",
        "description": "Stays in a small clinic; made up entirely.",
        "demo": True,
        "owners": ["clinic-data@example.org"],
        "source": {"uri": "/restricted/place/clinic"},
        "family": "clinic-patients",
        "privacy": {
            "unit": "user",
            "namespace": "patient",
            "guarantee": {"epsilon": 1.0, "delta": 1e-6},
            "expected_units": 48000,
        },
        "tables": LINKED,
        "generate": {"method": "mst"},
        "audit": {"canaries": 500},
        "release": {"uri": "/public/clinic", "approvals": 1, "license": "CC-BY-4.0"} | release,
    }


def contract_of(**release: Any) -> DataContract:
    return parse_contract(document(**release), where="test", variables={})


def drawn(patients: int = 40) -> dict[str, pa.Table]:
    """Tables that join; the same each time."""
    rng = np.random.default_rng(5)
    stays = np.sort(rng.integers(0, patients, 2 * patients))
    lines = np.repeat(np.arange(len(stays)), rng.integers(0, 4, len(stays)))
    within = [int((lines[:place] == stay).sum()) + 1 for place, stay in enumerate(lines)]
    days = [DAY + dt.timedelta(int(day)) for day in rng.integers(0, 365, len(stays))]
    return {
        "patients": pa.table(
            {
                "patient id": pa.array(range(1, patients + 1), pa.int32()),
                "birth": [dt.date(1960, 1, 1) + dt.timedelta(int(day)) for day in rng.integers(0, 9000, patients)],
                "sex": rng.choice(["F", "M"], patients),
                "insured": [None if item == 2 else bool(item) for item in rng.integers(0, 3, patients)],
            }
        ),
        "stays": pa.table(
            {
                "stay": [f"S{place:05d}" for place in range(len(stays))],
                "patient id": pa.array(stays + 1, pa.int64()),
                "admitted": days,
                "cost": rng.random(len(stays)) * 1000,
                "ward": rng.choice(["A", "B", "C"], len(stays)),
            }
        ),
        "diagnoses": pa.table(
            {
                "stay": [f"S{place:05d}" for place in lines],
                "line": within,
                "code": rng.choice(["x", "y", "z"], len(lines)),
                "severity": pa.array(rng.integers(1, 6, len(lines)), pa.int32()),
            }
        ),
        "codes": pa.table({"code": ["x", "y", "z"], "words": ["ex", "why", "zed"]}),
    }


def as_rows(tables: dict[str, pa.Table]) -> dict[str, TableRows]:
    return {name: TableRows(table.schema, table.to_batches(max_chunksize=64)) for name, table in tables.items()}


def evidence_of_tables(evidence: Evidence, family: FamilyBudget) -> Evidence:
    """A single table's evidence with contract, plan and statement of the tables."""
    contract = contract_of()
    options = TablesOptions(epsilon=1, delta=1e-6, expected_units=48000, schema={"tables": LINKED}, method="mst")
    plan = linked_task(drawn(), options).plan
    statement = privacy_statement(contract, family, plan.event, words_of("linked", plan.event))
    return replace(
        evidence,
        contract=contract,
        guarantee=statement.guarantee,
        statement=statement.to_json(),
        plain_words=statement.plain_words(),
        plan_digest=plan.digest,
        method="linked",
        expected_errors=expected_errors(generator("linked").describe(plan)),
        measured=None,
    )
