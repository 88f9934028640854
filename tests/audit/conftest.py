"""A small contract that the audit's tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract

LEVELS = [f"level-{number}" for number in range(24)]
REGIONS = [f"region-{number}" for number in range(24)]


def document() -> dict[str, Any]:
    return {
        "dataset": "survey",
        "description": "A survey that exists in tests only.",
        "owners": ["nobody@example.org"],
        "source": {"uri": "/nowhere", "key": ["person", "day"]},
        "family": "surveys",
        "privacy": {
            "unit": "user",
            "owner_columns": ["person"],
            "namespace": "person",
            "max_contributions": 2,
            "guarantee": {"epsilon": 1.0},
            "expected_units": 20000,
        },
        "columns": {
            "person": {"type": "identifier"},
            "day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31", "bins": 12},
            "level": {"type": "categorical", "values": LEVELS},
            "level_number": {"type": "integer", "min": 1, "max": 24},
            "region": {"type": "categorical", "values": REGIONS, "nullable": True},
            "wage": {"type": "float", "min": 0, "max": 500, "bins": [10, 20, 40, 80]},
            "insured": {"type": "boolean"},
        },
        "generate": {"rows": 5000},
        "audit": {"canaries": 500, "max_epsilon_lower_bound": 1.0},
        "release": {"uri": "/nowhere/public"},
    }


@pytest.fixture
def contract_of() -> Callable[..., DataContract]:
    """Makes the contract with some parts changed; mappings are merged key by key, others replaced."""

    def make(**changes: Any) -> DataContract:
        whole = document()
        for key, change in changes.items():
            whole[key] = whole[key] | change if isinstance(change, dict) else change
        return parse_contract(whole, where="test", variables={})

    return make


@pytest.fixture
def contract(contract_of: Callable[..., DataContract]) -> DataContract:
    return contract_of()


@pytest.fixture
def schema() -> pa.Schema:
    return pa.schema(
        [
            ("day", pa.date32()),
            ("level", pa.dictionary(pa.int32(), pa.string())),
            ("level_number", pa.int16()),
            ("region", pa.large_string()),
            ("wage", pa.float32()),
            ("insured", pa.bool_()),
            ("remark", pa.string()),
            ("_owner", pa.string()),
            ("_record", pa.string()),
        ]
    )
