from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.contracts import DataContract, parse_contract
from dpsynth_platform.quality.report import HEADER, NOTICE, measure_quality

PLACES = ["north", "a|b", "west"]


@pytest.fixture
def contract_of() -> Callable[..., DataContract]:
    def make(**quality: Any) -> DataContract:
        document = {
            "dataset": "survey",
            "description": "A survey that exists in tests only.",
            "owners": ["nobody@example.org"],
            "source": {"uri": "/nowhere", "key": ["person"]},
            "family": "surveys",
            "privacy": {
                "unit": "user",
                "owner_columns": ["person"],
                "namespace": "person",
                "max_contributions": 1,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 1000,
            },
            "columns": {
                "person": {"type": "identifier"},
                "place": {"type": "categorical", "values": PLACES},
                "age": {"type": "integer", "min": 0, "max": 99, "bins": 10},
                "insured": {"type": "boolean"},
            },
            "generate": {"rows": 100},
            "quality": quality,
            "release": {"uri": "/nowhere/public"},
        }
        return parse_contract(document, where="test", variables={})

    return make


def people(count: int) -> pa.Table:
    rng = np.random.default_rng(count)
    age = rng.integers(0, 100, count)
    return pa.table(
        {
            "_owner": [f"owner-{number}" for number in range(count)],
            "place": rng.choice(PLACES, count).tolist(),
            "age": age,
            "insured": age > 40,
        }
    )


def test_the_whole_report(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="insured", protected=["place"])
    report = measure_quality(contract, None, people(1500), people(1000), people(600))
    rows = report.rows()
    assert all(len(row) == len(HEADER) for row in rows)
    measures = [row[0] for row in rows]
    assert measures[:2] == ["one-way distance, mean", "two-way distance, mean"]
    assert "classifier of insured, ROC AUC" in measures
    assert "place: gap in selection rate (true)" in measures
    assert not any("not available" in cell for row in rows for cell in row)


def test_it_says_that_it_is_restricted(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(), None, people(300), people(300), people(100))
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["restricted"] is True
    assert document["notice"] == NOTICE
    assert report.markdown().startswith(f"**{NOTICE}**")


def test_markdown_keeps_its_columns_whatever_the_values(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="place", protected=["insured"])
    lines = measure_quality(contract, None, people(300), people(300), people(300)).markdown().splitlines()
    widths = {line.replace("\\|", "").count("|") for line in lines if line.startswith("|")}
    assert widths == {len(HEADER) + 1}


def test_missing_parts_are_explained(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="insured", protected=["place"])
    report = measure_quality(contract, None, people(300), people(300), people(3))
    said = [row[1] for row in report.rows()]
    assert "not available: fewer than 50 held-out rows have a target" in said
    assert "not available: there is no classifier to compare" in said
    empty = measure_quality(contract, None, people(0), people(300), people(0))
    assert "not available: there are no real rows to compare" in [row[1] for row in empty.rows()]
    json.dumps(empty.to_json(), allow_nan=False)
