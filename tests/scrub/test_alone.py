"""A table scrubbed without a contract: no marked text is left, and what would stay unseen is refused."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.one_table.scrubbing import scrub_table
from dpsynth_platform.scrub.alone import NO_GUARANTEE, ScrubChoice
from dpsynth_platform.scrub.scrub import LEAST_SHOWN, LIMITS

KEY = bytes(32)


def rows_of(table: pa.Table, **choice: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = scrub_table(table, ScrubChoice(**choice))[0].to_pylist()
    return rows


def refusal(table: pa.Table, **choice: Any) -> str:
    with pytest.raises((SourceError, ContractError)) as raised:
        scrub_table(table, ScrubChoice(**choice))
    return str(raised.value)


def test_all_texts_are_scrubbed_and_a_column_named_like_a_kind_as_a_whole() -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "email": ["not an address", None],
            "remark": ["Ann Lee called 212-736-5001", None],
            "part": [{"note": "write to ann@corp.com"}, None],
            "day": [dt.date(2026, 1, 31), None],
        }
    )
    first, second = rows_of(table, action="mask")
    assert first == {
        "id": 1,
        "email": "<EMAIL_ADDRESS>",
        "remark": "<PERSON> called <PHONE_NUMBER>",
        "part": {"note": "write to <EMAIL_ADDRESS>"},
        "day": dt.date(2026, 1, 31),
    }
    assert second == {"id": 2, "email": None, "remark": None, "part": None, "day": None}


def test_values_of_kinds_of_dropped_columns_and_of_the_owner_are_found_in_the_texts_of_their_row() -> None:
    table = pa.table(
        {"nickname": ["Xqzmark", "Qvonda"], "plate": ["ZZ-55-QX", "AA"], "who": [77001, 88002]}
        | {"remark": ["about Xqzmark, ZZ-55-QX, 77001", "number 77001"]}
    )
    first, second = rows_of(table, action="mask", drop=("plate",), owner="who")
    assert first == {"nickname": "<PERSON>", "who": 77001, "remark": "about <PERSON>, <ID>, <ID>"}
    assert second["remark"] == "number 77001"  # of another row


@pytest.mark.parametrize(
    ("action", "expected"), [("drop", "I am , "), ("mask", "I am <PERSON>, <EMAIL_ADDRESS>")], ids=["drop", "mask"]
)
def test_actions(action: Any, expected: str) -> None:
    table = pa.table({"remark": ["I am Ann Lee, ann@corp.com"], "city": ["Xqz"]})
    (row,) = rows_of(table, action=action)
    assert row == {"remark": expected, "city": None if action == "drop" else "<LOCATION>"}


def test_a_rule_overrides_the_action_for_its_type() -> None:
    rules = Scrub.model_validate({"deny": {"PROJECT": ["Blue Bird"]}, "actions": {"PROJECT": "mask"}})
    (row,) = rows_of(pa.table({"remark": ["Blue Bird, ann@corp.com"]}), rules=rules, action="drop")
    assert row["remark"] == "<PROJECT>, "


def test_hashes_need_a_key_and_depend_on_it() -> None:
    table = pa.table({"remark": ["ann@corp.com", "ANN@corp.com"]})
    one, other = (rows_of(table, action="hash", key=key) for key in (KEY, b"1" * 32))
    assert one[0] == one[1] and one[0] != other[0]
    assert "hash without a key" in refusal(table, action="hash")


def test_an_owner_has_one_fictional_value_for_an_original_and_another_owner_another_one() -> None:
    # Of 1,000 family names and more, ten different owners all have the same one with less than 1e-27.
    table = pa.table({"who": [*range(10), 0], "remark": ["Mr. Rasmussen came"] * 11})
    found = [row["remark"] for row in rows_of(table, owner="who")]
    assert found[10] == found[0] and len(set(found)) > 1 and not any("Rasmussen" in one for one in found)
    rules = Scrub(consistent="owner")
    assert "needs --owner" in refusal(table, rules=rules)


CARD = 4485527627509597


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["red", "ann.lee@corp.com"], "values look like EMAIL_ADDRESS"),
        (["red", "Maria Alvarez"], "values look like PERSON"),
        (["red", "she met the man with Xqz at the station"], "values look like free text"),
        (["red", '{"mail":"ann@corp.com"}'], "values look like EMAIL_ADDRESS"),
        (["red", "x" * 201], "values look like free text"),
        ([1, CARD], "values look like CREDIT_CARD"),
        ([["ann@corp.com"], []], "its type list<item: string> is not looked into"),
        ([b"ann@corp.com", b""], "its type binary is not looked into"),
        ([[("ann@corp.com", 1)], []], "its type map<string, int64> is not looked into"),
    ],
)
def test_one_value_stops_the_run_for_a_column_that_would_stay(values: list[Any], why: str) -> None:
    kind = pa.map_(pa.string(), pa.int64()) if "map" in why else None
    table = pa.table({"remark": ["a", "b"], "label": pa.array(values, kind)})
    said = refusal(table, columns=("remark",))
    assert f"column 'label': {why}" in said and "--keep label" in said
    assert not any(mark in said for mark in ("corp", "Maria", "Xqz", str(CARD)))
    kept = scrub_table(table, ScrubChoice(columns=("remark",), keep=("label",)))[0]
    assert kept.column("label").to_pylist() == values
    assert scrub_table(table, ScrubChoice(columns=("remark",), drop=("label",)))[0].column_names == ["remark"]


@pytest.mark.parametrize(("name", "values"), [("ssn", [1, 2]), ("home_phone", [1, 2]), ("city", ["Aix", "Ulm"])])
def test_a_name_stops_the_run_before_a_row_is_read(name: str, values: list[Any]) -> None:
    assert "the name says" in refusal(pa.table({"remark": ["a", "b"], name: values}), columns=("remark",))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"columns": ("nothing",)}, "--columns 'nothing': the table has no such column"),
        ({"columns": ("number",)}, "--columns 'number': its type is int64"),
        ({"columns": ("remark",), "keep": ("remark",)}, "column 'remark' is named twice"),
        ({"keep": ("remark",)}, "there is no column of texts to scrub"),
        ({"owner": "nobody"}, "--owner 'nobody'"),
        ({"owner": "rate"}, "--owner 'rate'; accepted: a column of texts or whole numbers"),
        ({"action": "shred"}, "--action 'shred'"),
    ],
)
def test_options_that_do_not_fit_are_refused(choice: dict[str, Any], said: str) -> None:
    assert said in refusal(pa.table({"remark": ["a"], "number": [1], "rate": [0.5]}), **choice)


def test_duplicate_names_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    assert "more than once" in refusal(table)


def test_the_report_has_no_small_count_and_the_limits() -> None:
    many = [f"call 212-736-5{number:03d}" for number in range(LEAST_SHOWN)]
    table = pa.table({"remark": [*many, "ann@corp.com"]})
    report = scrub_table(table, ScrubChoice())[1]
    assert report["findings"] == {"remark": {"PHONE_NUMBER": LEAST_SHOWN, "EMAIL_ADDRESS": f"fewer than {LEAST_SHOWN}"}}
    assert report["rows"] == len(table) and report["limits"] == LIMITS and report["no_guarantee"] == NO_GUARANTEE
    assert "corp" not in str(report)


def test_bytes_that_are_no_utf8_are_replaced_and_counted() -> None:
    column = pa.array([b"\xff ann@corp.com", b"a", None], pa.binary()).view(pa.string())
    found, report = scrub_table(pa.table({"remark": column}), ScrubChoice(action="mask"))
    assert found.column("remark").to_pylist() == ["\ufffd <EMAIL_ADDRESS>", "a", None]
    assert report["damaged"] == {"remark": f"fewer than {LEAST_SHOWN}"}


def test_no_metadata_of_a_file_or_column_stays() -> None:
    field = pa.field("remark", pa.string(), metadata={"example": "ann@corp.com"})
    schema = pa.schema([field], metadata={"example": "ann@corp.com"})
    table = pa.Table.from_arrays([pa.array(["a"])], schema=schema)
    made = scrub_table(table, ScrubChoice())[0].schema
    assert made.metadata is None and made.field("remark").metadata is None


def test_categories_and_an_empty_table() -> None:
    table = pa.table({"remark": pa.array(["ann@corp.com", "b", "ann@corp.com"]).dictionary_encode()})
    assert [row["remark"] for row in rows_of(table, action="mask")] == ["<EMAIL_ADDRESS>", "b", "<EMAIL_ADDRESS>"]
    found, report = scrub_table(table.slice(0, 0), ScrubChoice())
    assert found.column_names == ["remark"] and report["rows"] == len(found) == 0


def test_patterns_that_take_too_long_mask_the_text_and_stop_if_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.scrub.detection.PATTERN_SECONDS", 0.001)
    rules = Scrub.model_validate({"patterns": [{"entity": "SLOW", "pattern": "(x+x+)+y"}]})
    text = "x" * 5000
    assert rows_of(pa.table({"remark": [f"Xqz {text}"]}), rules=rules) == [{"remark": "<UNREAD>"}]
    said = refusal(pa.table({"remark": [f"{text} {number}" for number in range(30)]}), rules=rules)
    assert "take too long" in said and "xxx" not in said
