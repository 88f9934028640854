"""The same rows, however they are stored, are the same rows to the quality report."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.one_table.declaration import read_declared
from dpsynth_platform.quality import records
from dpsynth_platform.quality.columns import align
from dpsynth_platform.quality.one_type import in_one_type, read_tables
from dpsynth_platform.quality.report import measure_tables

SECRET = "Zaphodina Quillmarker"


def rows(count: int, seed: int) -> pa.Table:
    """Every type that a table may have, with missing values; `grade` holds codes that are written as decimals."""
    rng = np.random.default_rng(seed)
    grade = rng.integers(1, 5, count)
    missing = rng.uniform(size=count) < 0.1
    day = [dt.date(2024, 1, 1) + dt.timedelta(days=int(value)) for value in rng.integers(0, 300, count)]
    moment = [dt.datetime(2024, 1, 1) + dt.timedelta(minutes=int(value)) for value in rng.integers(0, 300_000, count)]
    return pa.table(
        {
            "grade": pa.array([f"{value}.0" for value in grade], mask=missing),
            "age": pa.array(rng.integers(0, 90, count), pa.int16(), mask=missing),
            "income": pa.array(np.round(rng.uniform(0, 1000, count), 2), pa.float32()),
            "price": pa.array([decimal.Decimal(int(value)) / 4 for value in rng.integers(0, 99, count)]),
            "city": pa.array(np.where(grade > 2, SECRET, "Aix"), mask=missing).dictionary_encode(),
            "day": pa.array(day, mask=missing),
            "moment": pa.array(moment, pa.timestamp("ms")),
            "opens": pa.array([dt.time(int(value) // 60, int(value) % 60) for value in rng.integers(0, 1440, count)]),
            "member": pa.array(rng.integers(0, 2, count).astype(bool), mask=missing),
            "rich": pa.array(np.where(grade + rng.integers(0, 2, count) > 3, "yes", "no")),
        }
    )


def as_pandas_writes(table: pa.Table, path: Path) -> None:
    """Whole numbers with a missing value as 4.0, and truth values as True."""
    frame = table.set_column(5, "day", table["day"].cast(pa.string())).to_pandas()
    frame["age"] = frame["age"].astype(float)
    frame["grade"] = pd.to_numeric(frame["grade"])
    frame["opens"] = table["opens"].cast(pa.string()).to_pandas()
    frame.to_csv(path, index=False)


WRITTEN = {
    "parquet": lambda table, path: pq.write_table(table, path),
    "texts.parquet": lambda table, path: pq.write_table(
        pa.table({name: table[name].cast(pa.string()) for name in table.column_names}), path
    ),
    "csv": lambda table, path: csv.write_csv(
        table.set_column(4, "city", table["city"].cast(pa.string())).set_column(
            3, "price", table["price"].cast(pa.string())
        ),
        path,
    ),
    "pandas.csv": as_pandas_writes,
}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Without detection, whose trees take half of a report's time; the other measures of whole rows read the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "detection_auc", lambda real, other: float(np.nanmean(other) - np.nanmean(real)))
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    for name, count, seed in (("real", 300, 1), ("made", 260, 2), ("train", 280, 3)):
        for form, write in WRITTEN.items():
            write(rows(count, seed), place / f"{name}.{form}")
    return place


def figures(
    files: Path, real: str, made: str, train: str, categorical: Sequence[str] = (), schema: Path | None = None
) -> dict[str, Any]:
    """The report as the command makes it, without what it draws at random (a bootstrap of the real rows)."""
    known = {} if schema is None else read_declared(schema, None).columns
    coded = [*categorical, *(name for name, item in known.items() if item.type == "categorical")]
    paths = {"real": files / f"real.{real}", "train": files / f"train.{train}", "synthetic": files / f"made.{made}"}
    tables = read_tables(paths, categorical=coded, declared=known)
    report = measure_tables(
        tables["real"], tables["synthetic"], "rich", train=tables["train"], protected=["city"], categorical=coded
    )
    return without_draws(json.loads(json.dumps(report.to_json())))


def without_draws(found: dict[str, Any]) -> dict[str, Any]:
    for item in (*found["fidelity"]["columns"], *found["fidelity"]["pairs"]):
        del item["resampled"]
    del found["fidelity"]["resampled_triples"], found["fidelity"]["resampled_more"]
    for item in (found["moments"] or {"parts": []})["parts"]:
        del item["resampled"]
    return found


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    return found == pytest.approx(expected, abs=1e-9) if isinstance(expected, float) else found == expected


TYPED = ("parquet", "csv", "pandas.csv")
MIXED = [
    *(("parquet", made, train) for made, train in itertools.product(WRITTEN, repeat=2) if made != train),
    *(("csv", "parquet", "parquet"), ("pandas.csv", "parquet", "csv"), ("csv", "pandas.csv", "parquet")),
]


@pytest.fixture(scope="module")
def alike(files: Path) -> dict[str, Any]:
    return figures(files, "parquet", "parquet", "parquet")


@pytest.mark.parametrize(("real", "made", "train"), MIXED)
def test_the_same_rows_have_the_same_report_in_any_mixture(
    files: Path, alike: dict[str, Any], real: str, made: str, train: str
) -> None:
    assert close(figures(files, real, made, train), alike)


@pytest.mark.parametrize("form", ["csv", "pandas.csv"])
def test_files_without_types_need_no_more_than_which_numbers_are_codes(
    files: Path, alike: dict[str, Any], form: str
) -> None:
    assert close(figures(files, form, form, form, ["grade"]), alike)


def test_a_schema_says_it_for_all(files: Path, alike: dict[str, Any]) -> None:
    schema = files / "people.yaml"
    schema.write_text(
        "columns:\n"
        "  grade: {type: categorical, values: ['1.0', '2.0', '3.0', '4.0']}\n"
        "  age: {type: integer, min: 0, max: 90}\n"
        "  income: {type: float, min: 0, max: 1000}\n"
        "  day: {type: date, min: 2024-01-01, max: 2024-12-31}\n"
        "  moment: {type: datetime, min: 2024-01-01, max: 2024-12-31}\n"
        "  opens: {type: time}\n"
        "  price: {type: float, min: 0, max: 100}\n"
        "  member: {type: boolean}\n"
    )
    for form in (*TYPED, "texts.parquet"):
        assert close(figures(files, form, form, form, schema=schema), alike)
    # Ids and texts are made anew, or empty: no report is about them.
    schema.write_text("columns: {age: {type: identifier}, moment: {type: text}}\n")
    columns = figures(files, "parquet", "csv", "parquet", schema=schema)["fidelity"]["columns"]
    assert not {"age", "moment"} & {item["column"] for item in columns}


def test_the_command_says_the_same(
    files: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("DPSYNTH_HOME", str(files / "home"))
    schema = files / "codes.yaml"
    schema.write_text("columns: {grade: {type: categorical, values: ['1.0', '2.0']}, age: {type: identifier}}\n")
    asked = ["--real", "real.csv", "--synthetic", "made.pandas.csv", "--train", "train.csv", "--target", "rich"]
    result = CliRunner().invoke(
        app, ["quality", "table", *asked, "--protected", "city", "--schema", "codes.yaml", "--json"]
    )
    said = without_draws(json.loads(result.output + "".join(capfd.readouterr())))
    assert close(said, figures(files, "csv", "pandas.csv", "csv", schema=schema))
    assert "age" not in [item["column"] for item in said["fidelity"]["columns"]]


def test_codes_that_are_written_as_decimals_are_the_same_codes(files: Path) -> None:
    """The advice of a refusal, followed: distances are those of samples, not of strangers."""
    for real, made in (("csv", "parquet"), ("parquet", "csv"), ("pandas.csv", "texts.parquet")):
        found = figures(files, real, made, "parquet", ["grade"])
        (grade,) = (item for item in found["fidelity"]["columns"] if item["column"] == "grade")
        assert grade["synthetic"] < 0.15


@pytest.mark.parametrize(
    ("real", "made", "agree"),
    [
        (["1", "2", None], [1, 2, None], True),
        (["1.0", "2.0", "2.0"], pa.array([1, 2, 2], pa.int8()), True),
        (pa.array([decimal.Decimal("1.50"), None]), ["1.5", "NA"], True),
        ([0.1, 0.5], pa.array([0.1, 0.5], pa.float32()), True),
        ([True, False, None], ["True", "FALSE", None], True),
        ([True, False], [1, 0], True),
        (["true", "false"], [True, False], True),
        (["True", "False"], ["true", "false"], True),
        ([dt.date(2024, 1, 31), None], ["2024-01-31", ""], True),
        (["2024-01-31", "2024-02-01"], [dt.date(2024, 1, 31), dt.date(2024, 2, 1)], True),
        ([dt.datetime(2024, 1, 31, 10)], ["2024-01-31T10:00:00"], True),
        (pa.array([0], pa.timestamp("us", "UTC")), ["1970-01-01T00:00:00Z"], True),
        ([dt.time(7, 30)], ["07:30"], True),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"], pa.string_view()), True),
        (["a", None], ["a", ""], True),
        (["a", "b"], [None, None], True),
        # What one table tells apart stays so in all.
        (["01", "1"], ["01", "1"], True),
        (["01", "1"], ["1", "1"], False),
        (["a", "A"], ["A", "a"], False),
        ([2**53, 2**53 + 1], [str(2**53), str(2**53 + 1)], True),
    ],
)
def test_equal_values_are_equal_whatever_their_type(real: Any, made: Any, agree: bool) -> None:
    tables = {"real": pa.table({"x": real}), "synthetic": pa.table({"x": made})}
    for categorical in ((), ("x",)):
        (column,) = align(tables, categorical)
        first, second = column.parts
        if tables["synthetic"]["x"].null_count == len(second):
            assert set(second.tolist()) == {(column.size or 0) - 1}
        else:
            assert np.array_equal(first, second, equal_nan=column.size is None) == agree


def test_all_columns_that_do_not_fit_are_named_at_once_without_a_value(tmp_path: Path) -> None:
    real = pa.table({"age": [1, 2], "day": [dt.date(2024, 1, 1)] * 2, "flag": [True, False], "ok": ["a", "b"]})
    made = pa.table({"age": [SECRET, "2"], "day": ["yesterday", SECRET], "flag": [SECRET, "x"], "ok": ["a", "b"]})
    pq.write_table(real, tmp_path / "real.parquet")
    csv.write_csv(made, tmp_path / "made.csv")
    with pytest.raises(SourceError) as caught:
        read_tables({"real": tmp_path / "real.parquet", "synthetic": tmp_path / "made.csv"})
    said = str(caught.value)
    for words in (
        "column 'age' holds numbers; in synthetic: text that cannot all be parsed as numbers",
        "column 'day' holds dates; in synthetic: text that cannot all be parsed as dates",
        "column 'flag' has no value in common in real and synthetic (real: true and false; synthetic: text)",
        "--categorical",
        "--drop",
    ):
        assert words in said
    assert "'ok'" not in said
    for value in (SECRET, "yesterday"):
        assert value not in said
    assert caught.value.__context__ is None


def test_a_delta_table_beside_csv(tmp_path: Path) -> None:
    table = rows(50, 4).drop(["opens"])  # a type that Delta tables lack
    write_table(tmp_path / "real", table.schema, table.to_batches())
    WRITTEN["csv"](table, tmp_path / "made.csv")
    found = read_tables({"real": tmp_path / "real", "synthetic": tmp_path / "made.csv"})
    for name in table.column_names:
        assert found["real"][name].null_count == found["synthetic"][name].null_count, name
    assert found["real"]["grade"].to_pylist() == found["synthetic"]["grade"].to_pylist()


def test_an_undeclared_name_in_the_schema_is_refused() -> None:
    with pytest.raises(SourceError, match=r"schema: no column 'b'; accepted: a"):
        in_one_type({"real": pa.table({"a": [1]})}, kinds={"b": "numbers"})
