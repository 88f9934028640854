"""Any Arrow table and any CSV bytes: they come through or are refused in clear words, and no value is shown.

Each example goes as far as the ledger's start: every look at rows and all planning is in there. The number of examples
is bounded, and they are the same at each run. What was found stands below as a case of its own.
"""

from __future__ import annotations

import datetime as dt
import string
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.one_table import Options
from dpsynth_platform.one_table.declaration import SchemaFile
from dpsynth_platform.one_table.rows import bounded_rows
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.scrub import fitting
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.sources.declared_types import read_type
from dpsynth_platform.sources.structs import flat_schema

MARK = "Quillmarker"
FUZZED = settings(
    max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

whole = st.integers(-(2**63), 2**63 - 1)
text = st.one_of(
    st.sampled_from(["a", "1", "4.0", " a ", "", MARK, f"{MARK} 7", "07:30", "2024-01-01", "true", "NA", "\x00", "é"]),
    st.text(max_size=5).filter(lambda value: value.isprintable()),
)
PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): whole,
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.sampled_from([0.5, 4.0, -1.0, float("nan"), float("inf")]),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): text,
    pa.large_string(): text,
    pa.string_view(): text,
    pa.dictionary(pa.int16(), pa.string()): text,
    pa.binary(): text.map(str.encode),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.date32(): st.dates(),
    pa.timestamp("s"): st.datetimes(),
    pa.timestamp("us", "Asia/Kolkata"): st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),
    pa.timestamp("ns"): st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)),
    pa.time32("ms"): st.times().map(lambda value: value.replace(microsecond=0)),
    pa.time64("ns"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    pa.decimal32(5, 2): st.decimals(-999, 999, places=2),
    pa.decimal64(18, 0): st.integers(-(10**18) + 1, 10**18 - 1).map(Decimal),
    pa.decimal128(38, 0): st.integers(-(10**30), 10**30).map(Decimal),
    pa.decimal256(60, 5): st.decimals(-(10**20), 10**20, places=5),
    pa.null(): st.none(),
}
TYPES = {
    **PLAIN,
    pa.list_(pa.string()): st.lists(text, max_size=2),
    pa.large_list(pa.int64()): st.lists(whole, max_size=2),
    pa.list_view(pa.string_view()): st.lists(text, max_size=2),
    pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))]): st.fixed_dictionaries(
        {"a": text, "b": st.lists(st.integers(0, 9), max_size=2)}
    ),
    pa.struct([("a", pa.struct([("b", pa.duration("s"))])), ("c", pa.binary())]): st.fixed_dictionaries(
        {"a": st.none() | st.fixed_dictionaries({"b": st.timedeltas()}), "c": st.none() | text.map(str.encode)}
    ),
    pa.map_(pa.string(), pa.int64()): st.lists(st.tuples(text, whole), max_size=1),
}
DECLARED: list[dict[str, Any] | None] = [
    None,
    {"ignore": True},
    {"type": "text"},
    {"type": "identifier"},
    {"type": "boolean"},
    {"type": "time"},
    {"type": "integer", "min": -9, "max": 9},
    {"type": "float", "min": -9, "max": 9},
    {"type": "float", "min": 0, "max": 9, "decimals": 2},
    {"type": "date", "min": "2000-01-01", "max": "2030-01-01"},
    {"type": "datetime", "min": "2000-01-01T00:00:00", "max": "2030-01-01T00:00:00"},
    {"type": "categorical", "values": ["a", "b"]},
    {"type": "categorical", "values": [1, 2, 3, 4], "nullable": True},
    {"type": "categorical", "values": "learned"},
]


def likely(type_: pa.DataType) -> list[dict[str, Any] | None]:
    """Declarations that fit a type."""
    plain, known = plain_type(type_), [column for column in DECLARED if column and "type" in column]
    fits = [each for each in known if fitting.fits(column_of(each), read_type(each["type"], plain))[0]]
    return fits or [{"ignore": True}, {"type": "text"}]


def column_of(document: dict[str, Any]) -> Column:
    return SchemaFile(columns={"x": document}).columns["x"]


ASKED = [{}, {}, {"learn_values": True}, {"assume_public_domain": True}]
names = st.lists(
    st.one_of(
        st.sampled_from(["a", "A", "row", "_owner", "x y", "", "included"]), st.text(string.printable, max_size=6)
    ),
    min_size=1,
    max_size=3,
    unique=True,
)


def check(table: Path, columns: dict[str, Any], asked: dict[str, Any]) -> str:
    """What is said of a table; empty where it comes through."""
    with tempfile.TemporaryDirectory() as place:
        directory, options = Path(place), dict(asked)
        if columns:
            options["schema"] = directory / "t.yaml"
            options["schema"].write_text(yaml.safe_dump({"columns": columns}, allow_unicode=True), encoding="utf-8")
        (directory / "work").mkdir()
        try:
            task = task_of(table, Options(**({"epsilon": 1, "delta": 1e-5, "method": "independent"} | options)))
            bounded_rows(task, Vault(directory / "keys"), directory / "work", lambda *_: None)
            return ""
        except DpsynthError as error:
            said, context = str(error), (error.__context__, error.__cause__)
        assert all(other is None or isinstance(other, DpsynthError) for other in context), context
        assert MARK not in repr(context)
        assert MARK not in said, said
        assert "accepted: " in said.lower() or "columns" in said, said
        return said


@FUZZED
@given(data=st.data())
def test_any_arrow_table(data: st.DataObject) -> None:
    rows, columns, declared = data.draw(st.integers(0, 30)), {}, {}
    for name in data.draw(names):
        type_ = data.draw(st.sampled_from(list(TYPES)))
        values = data.draw(st.lists(st.one_of(st.none(), TYPES[type_]), min_size=1, max_size=6))
        columns[name] = pa.array((values * rows)[:rows], type_)
        entire = data.draw(st.sampled_from([(), (), {name}]))
        for field in flat_schema(pa.schema([(name, type_)]), entire):
            column = data.draw(st.sampled_from(likely(field.type) * 20 + DECLARED))
            if column is not None:
                declared[field.name] = column
    with tempfile.TemporaryDirectory() as place:
        table = Path(place) / "t.parquet"
        pq.write_table(pa.table(columns), table)
        check(table, declared, data.draw(st.sampled_from(ASKED)))


FIELDS: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": "integer", "min": -9, "max": 9}, ["1", "-7", "4.0", "", "NA", " 3", "7e3"]),
    ({"type": "float", "min": -9, "max": 9}, ["1.5", "-inf", "nan", "1e400", "", ".5"]),
    ({"type": "boolean"}, ["true", "FALSE", "1", "0.0", ""]),
    ({"type": "date", "min": "2000-01-01", "max": "2030-01-01"}, ["2024-02-29", "2024-02-29 10:00", "0001-01-01", ""]),
    ({"type": "time"}, ["07:30", " 7:30 ", "24:00", MARK, ""]),
    ({"type": "categorical", "values": ["a", "b"]}, ["a", "b", MARK, "", '"a"', "é"]),
    ({"type": "categorical", "values": [1, 2, 3, 4], "nullable": True}, ["1", "4.0", " 2 ", "04", MARK, ""]),
    ({"type": "categorical", "values": "learned"}, ["a", MARK, " b", '"x,y"', '"two\nlines"']),
    ({"type": "text"}, [MARK, "", '"a ""b"""']),
    ({"ignore": True}, [MARK, "\x00", '""']),
]
"""A declaration, and fields of which most can be read so."""


@FUZZED
@given(
    columns=st.lists(st.sampled_from(FIELDS), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 41), min_size=1, max_size=60),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    asked=st.sampled_from([{}, {}, {"csv_separator": ";"}, {"csv_skip_blanks": True}, {"csv_encoding": "utf-16"}]),
    odd=st.one_of(st.none(), st.tuples(st.integers(0, 59), st.integers(0, 3), st.text(string.printable, max_size=4))),
)
def test_csv_files_of_which_most_can_be_read(
    columns: list[tuple[dict[str, Any], list[str]]],
    places: list[int],
    end: str,
    asked: dict[str, Any],
    odd: tuple[int, int, str] | None,
) -> None:
    rows = [[texts[place % len(texts)] for _, texts in columns] for place in places]
    if odd is not None and odd[0] < len(rows) and odd[1] < len(columns):
        rows[odd[0]][odd[1]] = odd[2]
    header = [f"c{place}" for place in range(len(columns))]
    content = end.join(asked.get("csv_separator", ",").join(row) for row in [header, *rows]) + end
    with tempfile.TemporaryDirectory() as place:
        table = Path(place) / "t.csv"
        table.write_bytes(content.encode(asked.get("csv_encoding", "utf-8")))
        said = check(table, {name: column for name, (column, _) in zip(header, columns, strict=True)}, asked)
    assert "first line" not in said, said


fields = st.one_of(
    text, st.sampled_from(['"a"', "'a'", '"a', ' "a, b"', "1,5", "1.5", "4.0", "-0", "true", "1e400", "#N/A", "a\nb"])
)


@FUZZED
@given(
    header=st.lists(st.sampled_from(["a", "b", " c", "d d", "1", "", "é", "a;b"]), min_size=1, max_size=3),
    rows=st.lists(st.lists(fields, min_size=1, max_size=3), max_size=30),
    between=st.sampled_from([",", ", ", ";", "\t", "|", ",,"]),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "cp1252"]),
    spoilt=st.one_of(st.just((0, b"")), st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=4))),
    declared=st.lists(st.sampled_from(DECLARED), min_size=3, max_size=3),
    asked=st.sampled_from(
        [
            *ASKED,
            {"csv_separator": ";"},
            {"csv_separator": "tab", "csv_encoding": "latin-1"},
            {"csv_header": True},
            {"csv_skip_blanks": True},
            {"csv_skip_blanks": False, "csv_quote": ""},
            {"csv_encoding": "utf-16"},
            {"csv_decimal": ",", "csv_quote": "'"},
        ]
    ),
)
def test_any_csv_bytes(
    header: list[str],
    rows: list[list[str]],
    between: str,
    end: str,
    encoding: str,
    spoilt: tuple[int, bytes],
    declared: list[dict[str, Any] | None],
    asked: dict[str, Any],
) -> None:
    lines = [header, *rows]
    content = end.join(between.join(line) for line in lines).encode(encoding, "replace")
    content = content[: spoilt[0]] + spoilt[1] + content[spoilt[0] :]
    columns = {name: column for name, column in zip(header, declared, strict=False) if column is not None}
    with tempfile.TemporaryDirectory() as place:
        table = Path(place) / "t.csv"
        table.write_bytes(content)
        check(table, columns, asked)
