"""What a report lacks of what its contract asks for."""

from __future__ import annotations

from typing import Any

import pytest
from picture_cases import PICTURES

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.quality.completeness import missing_comparisons

ALONE = "there is no column except the target"
REPORT: dict[str, Any] = {
    "fidelity": {"not_available": None},
    "similarity": {"mean": 1.0},
    "closeness": {"share": 0.5},
    "utility": {"not_available": ALONE, "synthetic": None, "real": None},
    "fairness": [],
    "pictures": {"classifier": {}},
}


@pytest.mark.parametrize(
    ("columns", "pictures", "missing"),
    [
        ({}, {"classifier": {}}, []),
        ({}, None, ["pictures: too few, or the features' weights are not installed"]),
        (
            {"size": {"type": "integer", "min": 0, "max": 9, "bins": 5}},
            {"classifier": {}},
            [f"classifiers of kind: {ALONE}"],
        ),
    ],
)
def test_a_target_beside_pictures_alone_is_predicted_from_them(
    columns: dict[str, Any], pictures: Any, missing: list[str]
) -> None:
    generate = PICTURES["generate"] | {"image": {"given": ["kind"]}}
    document = PICTURES | {"columns": PICTURES["columns"] | columns, "generate": generate}
    contract = validated(DataContract, document, "people")
    assert missing_comparisons(contract, REPORT | {"pictures": pictures}) == missing
