from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.quality.files import read_file

TABLE = pa.table({"age": [1, 2, None], "job": ["a", "b", None]})


def test_parquet_csv_and_delta_hold_the_same(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "one.parquet")
    (tmp_path / "many").mkdir()
    pq.write_table(TABLE, tmp_path / "many" / "part.parquet")
    csv.write_csv(TABLE, tmp_path / "one.CSV")
    write_table(tmp_path / "delta", TABLE.schema, TABLE.to_batches())
    for name in ("one.parquet", "many", "one.CSV", "delta"):
        assert read_file(tmp_path / name).to_pydict() == TABLE.to_pydict(), name


def test_columns_can_be_left_out(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "one.parquet")
    assert read_file(tmp_path / "one.parquet", without=["age", "id"]).column_names == ["job"]


def test_codes_in_csv_are_text_where_the_other_table_has_text(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("code,coded,age\n01,7,3\n,NA,\n")
    like = pa.schema(
        [
            ("code", pa.string()),
            ("coded", pa.dictionary(pa.int8(), pa.string())),
            ("age", pa.int64()),
            ("x", pa.string()),
        ]
    )
    read = read_file(tmp_path / "codes.csv", like=like)
    assert read.to_pydict() == {"code": ["01", None], "coded": ["7", "NA"], "age": [3, None]}
    assert read_file(tmp_path / "codes.csv")["code"].to_pylist() == [1, None]


def test_json_lines_hold_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"day": "2026-01-31", "n": 1}\n\n{"n": 2, "more": "N\u2028A"}\n')
    read = read_file(tmp_path / "one.jsonl", without=["n"])
    assert read.to_pydict() == {"day": ["2026-01-31", None], "more": [None, "N\u2028A"]}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", None, "there is no such file or directory"),
        ("none.parquet", None, "there is no table at this path"),
        ("tabs.tsv", b"a\tb\n1\t2\n", r"a directory of them, a CSV file \(\.csv\), a file of JSON lines"),
        ("damaged.parquet", b"Zaphod" * 100, "the table cannot be read|damaged"),
        ("ragged.csv", b"a,b\n1,2\nZaphod,3,4\n", "the table cannot be read .ArrowInvalid"),
        ("empty.csv", b"", "the table cannot be read .ArrowInvalid"),
        ("bytes.csv", b"a,b\nZaphod,\xff\xfe\n", ""),
        ("headless.csv", b"39,Zaphod\n40,Arthur\n", "the first line has empty or numeric names, so it is not a header"),
        ("none.jsonl", None, "there is no such file or directory"),
        ("broken.jsonl", b'{"a": 1}\nZaphod\n', "line 2 is not a JSON object"),
        ("list.jsonl", b'["Zaphod"]\n', "line 1 is not a JSON object"),
        ("mixed.jsonl", b'{"a": 1}\n{"a": "Zaphod"}\n', "column 'a' holds values of different types"),
        ("bytes.jsonl", b'{"a": "Zaphod\xff"}\n', "it is not UTF-8 text"),
        ("unnamed.csv", b",Zaphod\n40,Arthur\n", "so it is not a header"),
    ],
)
def test_what_cannot_be_read_is_said_and_not_quoted(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    if not said:  # what is no text is a column of bytes, which no comparison takes
        assert read_file(path).schema.field("b").type == pa.binary()
        return
    with pytest.raises(SourceError, match=said) as caught:
        read_file(path)
    assert "Zaphod" not in str(caught.value)
    assert caught.value.__context__ is None
