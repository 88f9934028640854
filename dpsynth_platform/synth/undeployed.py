"""The contract of one table outside of the asset line.

What belongs here: making it of columns and options. What does not: the meaning of declarations (`contracts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.synth.planning import check_constraints

DATASET = "table"
FAMILY = "table"
"""The only account of such a ledger; each entry is charged to all owners."""


def contract_of(columns: Mapping[str, Column], privacy: Mapping[str, Any], **others: Any) -> DataContract:
    """The contract of these columns, with `privacy` and other parts as in a contract, or `ContractError`."""
    document = {
        "dataset": DATASET,
        "description": "One table, outside of the asset line.",
        "owners": ["the person who ran it"],
        "source": {"uri": DATASET, "key": list(privacy["owner_columns"])},
        "family": FAMILY,
        "privacy": {"namespace": FAMILY, **privacy},
        "columns": {name: column.model_dump() for name, column in columns.items()},
        "release": {"uri": "synthetic", "approvals": 0},
    } | others
    contract = parse_contract(document, where=DATASET, variables={})
    check_constraints(contract, DATASET)
    return contract
