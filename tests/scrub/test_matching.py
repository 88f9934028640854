"""Whole numbers are compared by value; a column of which nothing matches its declaration stops the run unseen."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest
from test_columns import CONTRACT

from dpsynth_platform.contracts import DataContract, parse_contract
from dpsynth_platform.errors import SourceError
from dpsynth_platform.scrub.fingerprints import FingerprintKeys
from dpsynth_platform.scrub.owners import LEAST_OWNERS
from dpsynth_platform.scrub.scrub import ScrubKeys, scrub_batches

MARK = "Quillmarker"
KEYS = ScrubKeys(FingerprintKeys(b"a" * 32, (b"b" * 32,)), b"c" * 32, b"d" * 32)
CODES = {"type": "categorical", "values": [1, 2, 3, 4]}


def contract(column: dict[str, Any]) -> DataContract:
    document = copy.deepcopy(CONTRACT) | {"columns": {"customer": {"type": "identifier"}, "grade": column}}
    return parse_contract(document, where="orders.yaml", variables={})


def scrubbed(column: dict[str, Any], values: list[Any], type_: pa.DataType | None = None) -> list[Any]:
    """What of a column stays, of one owner a row."""
    table = pa.table({"customer": list(range(len(values))), "grade": pa.array(values, type_)})
    _, batches, _ = scrub_batches(table.to_batches(), contract(column), table.schema, KEYS, processes=1)
    return list(pa.Table.from_batches(batches)["grade"].to_pylist())


def test_texts_of_listed_whole_numbers_have_one_form() -> None:
    texts = ["1", "2.0", " 3 ", "4.", "04", "4.5", None, MARK]
    assert scrubbed(CODES, texts) == ["1", "2", "3", "4", "04", "4.5", None, MARK]
    assert scrubbed(CODES, texts, pa.string_view()) == ["1", "2", "3", "4", "04", "4.5", None, MARK]


@pytest.mark.parametrize("values", [["01", "1"], ["1", "x"], ["1.0", "2.0"], "learned"])
def test_lists_of_texts_are_compared_as_they_are(values: Any) -> None:
    declared = {"type": "categorical", "values": values}
    assert scrubbed(declared, ["01", "1", "1.0", " 1"]) == ["01", "1", "1.0", " 1"]


@pytest.mark.parametrize(
    ("column", "values", "type_", "path"),
    [
        (CODES, [MARK] * 30, None, "columns.grade.values"),
        (CODES, [4.5, float("nan"), 9.0] * 30, None, "columns.grade.values"),
        (CODES, [7] * 30, pa.int8(), "columns.grade.values"),
        ({"type": "categorical", "values": ["yes", "no"]}, [" yes", None] * 30, None, "columns.grade.values"),
        ({"type": "time"}, ["7h30", MARK] * 30, None, "columns.grade: none of its values is a time of day"),
    ],
)
def test_nothing_that_matches_stops_the_run(column: Any, values: list[Any], type_: Any, path: str) -> None:
    with pytest.raises(SourceError) as caught:
        scrubbed(column, values, type_)
    assert path in str(caught.value)
    assert MARK not in str(caught.value) and "7h30" not in str(caught.value)


def test_a_column_that_is_missing_throughout_is_no_mistake() -> None:
    assert scrubbed(CODES, [None] * 50, pa.string()) == [None] * 50


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (CODES, [MARK] * 50 + ["4.0"]),
        (CODES, [float("nan")] * 50),
        (CODES, [4.5] * 50 + [4.0]),
        (CODES, [MARK] * (LEAST_OWNERS - 1)),
        ({"type": "time"}, [MARK] * 50 + ["7:30"]),
        ({"type": "categorical", "values": "learned"}, [MARK] * 50),
    ],
)
def test_one_value_that_matches_or_too_few_owners_do_not(column: Any, values: list[Any]) -> None:
    assert len(scrubbed(column, values)) == len(values)
