"""`dpsynth.scrub`: frames in, frames of the same kind out; files; errors without a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpsynth
from dpsynth_platform.scrub.alone import NO_GUARANTEE, TableScrub

TEXT = "Dr. Xqzmark wrote"
MASKED = "<PERSON> wrote"


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_frame_comes_back_as_one_of_its_kind(make: Any) -> None:
    found = dpsynth.scrub(make({"number": [1, 2], "remark": [TEXT, "b"]}), action="mask")
    assert isinstance(found.data, type(make({"a": [1]})))
    rows = found.data.to_pydict() if make is pa.table else {name: list(found.data[name]) for name in found.data.columns}
    assert rows == {"number": [1, 2], "remark": [MASKED, "b"]}
    assert found.report["no_guarantee"] == NO_GUARANTEE and "Xqzmark" not in f"{found!r}{found.report}"


def test_categories_stay_categories() -> None:
    frame = pd.DataFrame({"remark": pd.Categorical([TEXT, "b", "b"])})
    found = dpsynth.scrub(frame, action="mask").data["remark"]
    assert found.dtype.name == "category" and set(found.cat.categories) == {MASKED, "b"}


def test_a_single_name_of_a_column_needs_no_list() -> None:
    frame = pd.DataFrame({"remark": [TEXT], "email": ["front.desk@example.com"], "n": [1]})
    found = dpsynth.scrub(frame, columns="remark", drop="email", keep="n", action="mask")
    assert found.data.to_dict("list") == {"remark": [MASKED], "n": [1]}


def test_a_file_and_rules_of_presidio(tmp_path: Path) -> None:
    table, out, rules = tmp_path / "letters.csv", tmp_path / "clean.csv", tmp_path / "rules.yaml"
    table.write_text(f"remark\n{TEXT} of the Blue Bird\n", encoding="utf-8")
    rules.write_text(
        "recognizers: [UsSsnRecognizer, {name: B, supported_entity: PROJECT, deny_list: [Blue Bird]}]\n", "utf-8"
    )
    with pytest.raises(dpsynth.SourceError, match="without out"):
        dpsynth.scrub(table, action="mask")
    found = dpsynth.scrub(table, out, action="mask", rules=rules, csv_header=True)
    assert found.data == out and out.read_text(encoding="utf-8") == f'"remark"\n"{MASKED} of the <PROJECT>"\n'
    assert len(found.left_out) == 1 and "UsSsnRecognizer" in found.left_out[0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"csv_spaces": 1}, "csv_spaces: for a table at a path only"),
        ({"out": "clean.csv"}, "out: for a table at a path only"),
        ({"columns": ["nothing"]}, "columns 'nothing'"),
        ({"rules": {"deny": {"lower": ["ab"]}}}, "rules: deny"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: str) -> None:
    with pytest.raises(dpsynth.DpsynthError) as raised:
        dpsynth.scrub(pa.table({"remark": [TEXT]}), **options)
    assert error in str(raised.value) and "Xqzmark" not in str(raised.value)


def test_the_error_of_a_library_has_neither_its_text_nor_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError(TEXT)

    monkeypatch.setattr(TableScrub, "_finished", fails)
    with pytest.raises(dpsynth.DpsynthError, match="ValueError") as raised:
        dpsynth.scrub(pa.table({"remark": [TEXT]}))
    assert "Xqzmark" not in str(raised.value)
    assert raised.value.__context__ is None and raised.value.__cause__ is None
