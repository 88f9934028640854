"""Whole numbers that pandas wrote as 4.0 are the values that are listed; columns that are ignored are nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import yaml

from dpsynth_platform.foundation.errors import ContractError, DpsynthError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.one_table import Options, more_rows, synthesize
from dpsynth_platform.one_table.task import task_of

MARK = "Zaphodina Quillmarker"
ROWS = 2000


def grades() -> pd.DataFrame:
    """Whole numbers of which some miss, so that pandas holds floating point."""
    rng = np.random.default_rng(3)
    grade = rng.choice([1.0, 2.0, 3.0, 4.0, np.nan], ROWS, p=[0.1, 0.2, 0.3, 0.35, 0.05])
    return pd.DataFrame({"grade": grade, "whole": rng.integers(0, 5, ROWS)})


@pytest.mark.parametrize("format_", ["csv", "parquet", "delta"])
def test_the_same_frame_is_read_alike_from_every_format(tmp_path: Path, format_: str) -> None:
    frame = grades()
    table = tmp_path / ("t" if format_ == "delta" else f"t.{format_}")
    if format_ == "csv":
        frame.to_csv(table, index=False)
        assert "4.0" in table.read_text()
    elif format_ == "parquet":
        frame.to_parquet(table, index=False)
    else:
        found = pa.Table.from_pandas(frame, preserve_index=False)
        write_table(table, found.schema, found.to_batches())
    columns = {
        "grade": {"type": "categorical", "values": [1, 2, 3, 4], "nullable": True},
        "whole": {"type": "integer", "min": 0, "max": 4},
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"columns": columns}))
    options = Options(
        epsilon=100,
        delta=1e-5,
        method="independent",
        schema=tmp_path / "t.yaml",
        rows=ROWS,
        accept_weak_guarantee="fictional grades",
    )
    made = synthesize(table, tmp_path / "out", options)
    drawn = pq.read_table(made.synthetic)["grade"]
    assert drawn.type == (pa.string() if format_ == "csv" else pa.float64())
    numbers = pd.Series(drawn.to_pylist(), dtype="float64")
    real = frame["grade"].value_counts(dropna=False, normalize=True)
    found = numbers.value_counts(dropna=False, normalize=True)
    assert set(found.index.dropna()) == {1.0, 2.0, 3.0, 4.0}
    # At epsilon 100 what is left is drawing 2,000 rows: a share is off by 0.1 with a probability below 2 exp(-40).
    assert all(abs(found[grade] - share) < 0.1 for grade, share in real.items())


def test_numbers_that_are_not_whole_are_none_of_the_listed(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("columns: {grade: {type: categorical, values: [1, 2, 3, 4]}}")
    for name, table in (("t.parquet", pa.table({"grade": [4.5] * 40})), ("t.csv", pa.table({"grade": ["4.5"] * 40}))):
        (pq.write_table if name.endswith("parquet") else csv.write_csv)(table, tmp_path / name)
        with pytest.raises(
            DpsynthError, match=r"columns\.grade\.values: none, or hardly any, of the column's values is listed"
        ):
            synthesize(tmp_path / name, tmp_path / "out", Options(epsilon=1, delta=1e-5, schema=tmp_path / "t.yaml"))
        assert not (tmp_path / "out" / "restricted" / "models").exists()


def nested(rows: int = 60) -> pa.Table:
    return pa.table(
        {
            "whole": np.arange(rows) % 5,
            "tags": [[{f"{MARK}s key": MARK}]] * rows,
            "place": [{"street": MARK}] * rows,
            "photo": pa.array([MARK.encode()] * rows, pa.binary()),
            "uuid": pa.array([b"x" * 16] * rows, pa.binary(16)),
            "props": pa.array([[(MARK, 1)]] * rows, pa.map_(pa.string(), pa.int8())),
            "took": pa.array([5] * rows, pa.duration("s")),
            "note": [MARK] * rows,
        }
    )


IGNORED = ("tags", "place", "photo", "uuid", "props", "took", "note")


def options(directory: Path, columns: dict[str, Any], **others: Any) -> Options:
    (directory / "t.yaml").write_text(yaml.safe_dump({"columns": columns}))
    return Options(**{"epsilon": 5, "delta": 1e-5, "method": "independent", "schema": directory / "t.yaml"} | others)


@pytest.mark.parametrize("format_", ["parquet", "csv", "delta"])
def test_ignored_columns_are_in_no_output_and_said_in_the_statement(tmp_path: Path, format_: str) -> None:
    pq.write_table(nested(), tmp_path / "t.parquet")
    columns = {"whole": {"type": "integer", "min": 0, "max": 4}} | {name: {"ignore": True} for name in IGNORED}
    made = synthesize(tmp_path / "t.parquet", tmp_path / "out", options(tmp_path, columns, format=format_))
    said = json.loads(made.statement.with_suffix(".json").read_text())
    assert f"Declared ignore: true, thus neither used nor contained: {', '.join(IGNORED)}." in said["covered"]
    assert more_rows(tmp_path / "out", 3, to=tmp_path / "more.csv").rows == 3
    assert (tmp_path / "more.csv").read_text().splitlines()[0] == '"whole"'
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or MARK.encode() not in path.read_bytes(), path


def test_an_ignored_column_of_a_csv_file_is_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"whole,raw\n" + b"1,\xff\xfe\n2,x\n" * 30)
    whole = {"whole": {"type": "integer", "min": 0, "max": 4}}
    made = synthesize(tmp_path / "t.csv", tmp_path / "out", options(tmp_path, whole | {"raw": {"ignore": True}}))
    assert pq.read_schema(made.synthetic).names == ["whole"]
    with pytest.raises(DpsynthError, match="'raw' holds text that is not UTF-8"):
        columns = whole | {"raw": {"type": "categorical", "values": ["x", "y"]}}
        synthesize(tmp_path / "t.csv", tmp_path / "other", options(tmp_path, columns))


def test_a_draft_proposes_to_ignore_what_no_declaration_reads(tmp_path: Path) -> None:
    pq.write_table(nested(), tmp_path / "t.parquet")
    with pytest.raises(ContractError) as caught:
        task_of(tmp_path / "t.parquet", Options(epsilon=1, delta=1e-5))
    said = str(caught.value)
    found = yaml.safe_load(said[said.index("columns:") :])["columns"]
    read = {"place.street", "took", "note"}
    assert {name for name, column in found.items() if column == {"ignore": True}} == set(IGNORED) - {"place", *read}
    assert found["took"] == {"type": "integer", "min": None, "max": None}
    assert MARK not in said and "took: {type: integer, min: , max: }  # in s\n" in said
    document = {"whole": {"type": "integer", "min": 0, "max": 4}} | {name: {"type": "text"} for name in read}
    task = task_of(tmp_path / "t.parquet", options(tmp_path, found | document))
    assert task.ignored == ("tags", "photo", "uuid", "props")
    assert task.contract.modelled == ["whole"]


@pytest.mark.parametrize("declared", ["float", "categorical", "boolean", "time"])
def test_each_refusal_of_such_a_column_names_that_way_out(tmp_path: Path, declared: str) -> None:
    pq.write_table(nested(), tmp_path / "t.parquet")
    more = {"float": {"min": 0, "max": 1}, "categorical": {"values": ["a", "b"]}}.get(declared, {})
    whole = {"whole": {"type": "integer", "min": 0, "max": 4}, "note": {"ignore": True}}
    columns = whole | dict.fromkeys(IGNORED[:-1], {"type": declared} | more)
    with pytest.raises(DpsynthError) as caught:
        task_of(tmp_path / "t.parquet", options(tmp_path, columns))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(IGNORED) - 1 and MARK not in str(caught.value)
    assert all("accepted: " in line and "ignore: true, which leaves" in line for line in lines)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"ignore": True, "type": "text"}, "columns.note.ignore: with type; accepted: ignore: true without other keys"),
        ({"ignore": False}, "columns.note.ignore: False; accepted: True"),
        ({"ignore": "yes"}, "columns.note.ignore: 'yes'"),
        ({}, "columns.note.type: not filled in; accepted: integer"),
    ],
)
def test_faults_of_such_a_declaration(tmp_path: Path, column: dict[str, Any], words: str) -> None:
    pq.write_table(nested(), tmp_path / "t.parquet")
    with pytest.raises(ContractError) as caught:
        task_of(tmp_path / "t.parquet", options(tmp_path, {"note": column}))
    assert words in str(caught.value)


def test_owners_are_not_ignored(tmp_path: Path) -> None:
    pq.write_table(nested(), tmp_path / "t.parquet")
    columns = {"whole": {"type": "integer", "min": 0, "max": 4}} | {name: {"ignore": True} for name in IGNORED}
    with pytest.raises(DpsynthError, match="--owners 'note' is declared ignore: true; accepted: another column"):
        task_of(tmp_path / "t.parquet", options(tmp_path, columns, owners="note", contributions=1))
