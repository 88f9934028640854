"""The SQL engine: shut off from files and networks, silent about values, tidy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import EngineError


def test_parameters_and_streaming(tmp_path: Path) -> None:
    with DuckDBChoice(threads=1).open(tmp_path) as engine:
        engine.register("t", pa.table({"x": ["a", "b", None]}))
        batches = list(engine.stream("SELECT x, sha2(? || x, 256) AS h FROM t ORDER BY x NULLS LAST", ["key"]))
        table = pa.Table.from_batches(batches)
        assert table["h"].to_pylist() == [
            hashlib.sha256(b"keya").hexdigest(),
            hashlib.sha256(b"keyb").hexdigest(),
            None,
        ]
        assert engine.scalar("SELECT count(*) FROM t") == 3


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{path}/out.csv'",
        "SELECT * FROM read_csv('{path}/in.csv')",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "ATTACH '{path}/other.db'",
        "SELECT * FROM table_of_this_module",
    ],
)
def test_no_way_out(tmp_path: Path, sql: str) -> None:
    (tmp_path / "in.csv").write_text("a\n1\n")
    table_of_this_module = pa.table({"x": [1]})
    assert table_of_this_module.num_rows == 1
    with DuckDBChoice(threads=1).open(tmp_path / "spill") as engine, pytest.raises(EngineError):
        engine.scalar(sql.format(path=tmp_path))
    assert not (tmp_path / "out.csv").exists()


def test_errors_carry_no_value(tmp_path: Path) -> None:
    with DuckDBChoice(threads=1).open(tmp_path) as engine:
        engine.register("t", pa.table({"x": ["Marked Person"]}))
        with pytest.raises(EngineError) as raised:
            list(engine.stream("SELECT CAST(x AS INTEGER) AS x FROM t"))
    assert "Marked" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def test_spill_files_are_private_and_gone_afterwards(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    with DuckDBChoice(memory="100MB", threads=1).open(spill) as engine:
        engine.materialize("big", "SELECT sha256(CAST(i AS VARCHAR)) AS h FROM range(2000000) r(i)")
        (private,) = spill.iterdir()
        assert private.stat().st_mode & 0o077 == 0
        assert list(private.iterdir()), "this query must spill, or the test shows nothing"
    assert not list(spill.iterdir())


def test_it_is_closed_outside_its_block(tmp_path: Path) -> None:
    engine = DuckDBChoice().open(tmp_path)
    with pytest.raises(EngineError, match="outside"):
        engine.scalar("SELECT 1")
