"""What the fields of a CSV file stand for: as declared, each by itself, whatever stands in another row."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv

from dpsynth_platform.contracts.columns import (
    BooleanColumn,
    Column,
    DateColumn,
    DatetimeColumn,
    FloatColumn,
    IntegerColumn,
    TextColumn,
    TimeColumn,
)
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources import csv_files as sources
from dpsynth_platform.sources.table_files import open_source

NUMBERS: dict[str, Any] = {"min": 0, "max": 10}
COLUMNS: dict[str, Column] = {
    "integer": IntegerColumn(type="integer", **NUMBERS),
    "float": FloatColumn(type="float", **NUMBERS),
    "boolean": BooleanColumn(type="boolean"),
    "date": DateColumn(type="date", min=dt.date(2000, 1, 1), max=dt.date(2030, 1, 1)),
    "datetime": DatetimeColumn(type="datetime", min=dt.datetime(2000, 1, 1), max=dt.datetime(2030, 1, 1)),
    "time": TimeColumn(type="time"),
    "text": TextColumn(type="text"),
}


def read(path: Path, kind: str, texts: list[str]) -> list[Any]:
    """The values of a column declared of a kind. Raises `SourceError`."""
    # A second column, since a line that is empty is no row.
    csv.write_csv(pa.table({"t": texts, "u": ["x"] * len(texts)}), path)
    return pa.Table.from_batches(open_source(path, {"t": COLUMNS[kind]}).batches())["t"].to_pylist()


def moment(*parts: int) -> dt.datetime:
    return dt.datetime(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("integer", ["1", " -7 ", "007", "0x1F", "7.0", "7e3", "+5", "", "NA"], [1, -7, 7, 31, 7, 7000, 5, None, None]),
        ("integer", [str(2**63 - 1), str(-(2**63)), "1.0"], [2**63 - 1, -(2**63), 1]),
        ("float", ["1", " .5", "1e3", "-inf", "NULL", "n/a"], [1.0, 0.5, 1000.0, -np.inf, None, None]),
        ("boolean", ["true", "False", "1", "0", "1.0", "0.0", "NaN"], [True, False, True, False, True, False, None]),
        (
            "date",
            ["2024-02-29", "2024-01-01 23:59:59.5", "1969-12-31T12:00", "2024-01-01T23:30:00-05:00", "null"],
            [dt.date(2024, 2, 29), dt.date(2024, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 1, 2), None],
        ),
        (
            "datetime",
            ["2024-01-01", "2024-01-01 10:00", "2024-01-01T10:00:00Z", "2024-01-01 10:00:00.1234567-0130", "#N/A"],
            [moment(2024, 1, 1), *[moment(2024, 1, 1, 10)] * 2, moment(2024, 1, 1, 11, 30, 0, 123456), None],
        ),
        ("datetime", ["0001-01-01", "9999-12-31 23:59:59"], [moment(1, 1, 1), moment(9999, 12, 31, 23, 59, 59)]),
        ("time", ["07:30", "07:30:00.5", "x", ""], ["07:30", "07:30:00.5", "x", None]),
        ("text", ["NA", " 1 ", "", 'a\n"b', "2024-01-01"], ["NA", " 1 ", None, 'a\n"b', "2024-01-01"]),
    ],
)
def test_what_texts_stand_for(tmp_path: Path, kind: str, texts: list[str], values: list[Any]) -> None:
    assert read(tmp_path / "t.csv", kind, texts) == values
    assert [read(tmp_path / "t.csv", kind, [text])[0] for text in texts] == values


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("integer", text) for text in ("7.5", "true", "2024-01-01", "2023-01-01 00:00:00.5", "07:30", "inf", "1e16")),
        ("integer", str(2**63)),
        *(("float", text) for text in ("true", "2024-01-01", "0x1F", "1,5")),
        *(("boolean", text) for text in ("2", "yes", "2024-01-01")),
        *((kind, text) for kind in ("date", "datetime") for text in ("1", "2024-13-01", "07:30", "1700000000", "true")),
    ],
)
def test_what_cannot_be_read_stops_the_run_and_is_not_shown(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(SourceError, match=r"column 't' is declared to hold .*, and some of its values") as caught:
        read(tmp_path / "t.csv", kind, [text])
    assert caught.value.__context__ is None
    assert repr(text) not in str(caught.value)


SOUND = {
    "integer": ["1", " 3", "-2", "NA", "", "1700000000", str(2**60 + 1), "7.0"],
    "float": ["1", "0.1", "1e-3", "NaN", "", "inf"],
    "boolean": ["0", "1", "true", "FALSE", "", "NA"],
    "date": ["2024-01-01", "2023-05-05", "", "2024-01-01 10:00:00"],
    "datetime": ["2024-01-01 10:00:00", "2023-01-01", "2024-01-01T23:30:00-05:00", "", "0001-01-01", "9999-12-31"],
    "time": ["07:30", "08:00:00", "", "NA"],
    "text": ["NA", "01", "1", "", "x", "2024-01-01"],
}
ODD = [*{text for texts in SOUND.values() for text in texts}, "1.5", "x", "2", "2024-01-01 10:00:00.5", "1e400", "é"]
ODD += [
    "2023-01-01 00:00:00.123456789",
    "2024-01-01T10:00:00Z",
    "07:30:00.5",
    "9" * 30,
    "1e3",
    "0x1F",
    "+5",
    "-0",
    "nan",
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(list(COLUMNS)))
def test_one_row_changes_its_own_value_or_stops_the_run(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    """Read in one block or in many, where another row's length also moves the ends of blocks."""
    others = data.draw(st.lists(st.sampled_from(SOUND[kind]), min_size=1, max_size=30))
    place = data.draw(st.integers(0, len(others)))
    mine = data.draw(st.one_of(st.sampled_from(ODD), st.text('0123456789.-:eETZ /+naf\n",', max_size=30)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_BLOCK_BYTES", data.draw(st.sampled_from([200, 1 << 20])))
        before = read(tmp_path / "t.csv", kind, others)
        try:
            after = read(tmp_path / "t.csv", kind, [*others[:place], mine, *others[place:]])
        except SourceError:
            return
    assert repr([*after[:place], *after[place + 1 :]]) == repr(before)


def test_values_that_spread_over_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"line {row}\nof several, {'long ' * (row % 7)}" for row in range(500)]
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 300)
    csv.write_csv(pa.table({"t": texts, "n": range(500)}), tmp_path / "t.csv")
    table = pa.Table.from_batches(open_source(tmp_path / "t.csv", {"n": COLUMNS["integer"]}).batches())
    assert len(table.to_batches()) > 50
    assert table.to_pydict() == {"t": texts, "n": list(range(500))}


def test_a_million_rows_are_read(tmp_path: Path) -> None:
    rows = 1_000_000
    whole, real = np.arange(rows), np.arange(rows) / 7
    day = pa.array(whole % 20_000, pa.int64()).cast(pa.int32()).cast(pa.date32())
    csv.write_csv(
        pa.table({"integer": whole, "float": real, "date": day, "boolean": whole % 2 == 0}), tmp_path / "t.csv"
    )
