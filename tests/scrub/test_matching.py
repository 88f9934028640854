"""Whole numbers are compared by value; a column of which hardly a value matches its declaration stops the run.

No owner decides alone: what stops a run and what lets it proceed are both counted by owners.
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest
from test_columns import CONTRACT

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.fingerprints import FingerprintKeys
from dpsynth_platform.scrub.owners import LEAST_OWNERS
from dpsynth_platform.scrub.scrub import ScrubKeys, scrub_batches

MARK = "Quillmarker"
KEYS = ScrubKeys(FingerprintKeys(b"a" * 32, (b"b" * 32,)), b"c" * 32, b"d" * 32)
CODES = {"type": "categorical", "values": [1, 2, 3, 4]}
YES = {"type": "categorical", "values": ["yes", "no"]}
FEW = LEAST_OWNERS - 1


def contract(column: dict[str, Any]) -> DataContract:
    document = copy.deepcopy(CONTRACT) | {"columns": {"customer": {"type": "identifier"}, "grade": column}}
    return parse_contract(document, where="orders.yaml", variables={})


def scrubbed(
    column: dict[str, Any], values: list[Any], type_: pa.DataType | None = None, owners: list[int] | None = None
) -> list[Any]:
    """What of a column stays; unless owners are given, of one a row."""
    table = pa.table({"customer": owners or list(range(len(values))), "grade": pa.array(values, type_)})
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
        (YES, ["Yes", None] * 30, None, "columns.grade.values"),
        (CODES, [MARK] * 50 + ["4.0"] * (FEW - 1) + [None], None, "columns.grade.values: none, or hardly any"),
        (CODES, [4.0] + [4.5] * 50, None, "columns.grade.values"),
        ({"type": "time"}, [MARK] * 50 + ["7:30"] * FEW, None, "columns.grade: none, or hardly any"),
        (
            {"type": "time"},
            ["7h30", MARK] * 30,
            None,
            "columns.grade: none, or hardly any, of its values is a time of day",
        ),
    ],
)
def test_hardly_a_value_that_matches_stops_the_run(column: Any, values: list[Any], type_: Any, path: str) -> None:
    with pytest.raises(SourceError) as caught:
        scrubbed(column, values, type_)
    assert path in str(caught.value)
    assert MARK not in str(caught.value) and "7h30" not in str(caught.value)


def test_a_column_that_is_missing_throughout_is_no_mistake() -> None:
    assert scrubbed(CODES, [None] * 50, pa.string()) == [None] * 50


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (CODES, [MARK] * 50 + ["4.0"] * LEAST_OWNERS),
        (CODES, [float("nan")] * 50),
        (CODES, [4.5] * 50 + [4.0] * LEAST_OWNERS),
        (CODES, [MARK] * FEW),
        (YES, [" yes"] * FEW),
        (YES, [" yes"] * FEW + ["yes"] * 50),
        ({"type": "time"}, [MARK] * 50 + ["7:30"] * LEAST_OWNERS),
        ({"type": "categorical", "values": "learned"}, [MARK] * 50),
    ],
)
def test_enough_owners_who_match_or_too_few_who_do_not(column: Any, values: list[Any]) -> None:
    assert len(scrubbed(column, values)) == len(values)


@pytest.mark.parametrize(
    ("values", "owners", "stops"),
    [
        ([MARK] * LEAST_OWNERS, range(LEAST_OWNERS), True),
        ([MARK] * LEAST_OWNERS, [*range(FEW), 0], False),
        ([MARK] * 50 + ["1"] * 90, [*range(50), *[50] * 90], True),
        ([MARK] * 50 + ["1"] * 90, [*range(50), *range(50, 50 + FEW), *[50] * (90 - FEW)], True),
        ([MARK] * 50 + ["1"] * 90, [*range(50), *range(90)], False),
        (["1"] * 90 + [MARK] * 50, [*[50] * 90, *range(50)], True),
        (["' 1 '"] + ["1"] * 90, range(91), False),
        (["'1'"] * 90 + ["1"] * 90, [*range(FEW), *[0] * (90 - FEW), *range(90)], False),
        (["'1'"] * LEAST_OWNERS + ["1"] * 90, range(90 + LEAST_OWNERS), True),
    ],
)
def test_an_owner_of_many_rows_counts_as_one(values: list[str], owners: Any, stops: bool) -> None:
    if not stops:
        assert len(scrubbed(CODES, values, owners=list(owners))) == len(values)
        return
    with pytest.raises(SourceError, match=r"columns\.grade\.values: (none, or hardly any|some)"):
        scrubbed(CODES, values, owners=list(owners))


@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
@pytest.mark.parametrize("text", [" yes", "yes\t", "'yes'", ' "yes"'])
def test_texts_that_are_listed_but_for_blanks_or_quotes_stop_the_run(type_: pa.DataType, text: str) -> None:
    values = ["yes", "no"] * 50 + [text] * LEAST_OWNERS
    with pytest.raises(
        SourceError, match="match except for spaces or quotes around them; accepted: values as"
    ) as caught:
        scrubbed(YES, values, type_)
    assert "yes" not in str(caught.value)
    assert len(scrubbed({"type": "categorical", "values": ["yes", "no", text]}, values, type_)) == len(values)
