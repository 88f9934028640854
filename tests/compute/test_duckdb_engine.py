"""The SQL engine: shut off from files and networks, silent about values, tidy."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.foundation.errors import EngineError


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


def test_a_crash_leaves_no_image_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    with DuckDBChoice(threads=1).open(tmp_path):
        assert limits[resource.RLIMIT_CORE] == (0, 0)


def test_it_is_closed_outside_its_block(tmp_path: Path) -> None:
    engine = DuckDBChoice().open(tmp_path)
    with pytest.raises(EngineError, match="outside"):
        engine.scalar("SELECT 1")


@pytest.mark.slow
def test_memory_is_the_limit_and_little_beside(tmp_path: Path) -> None:
    """480 MB of long texts in one row group: 200 MB for the engine, 500 MB for Python, libraries and batches."""
    program = """
import sys
from pathlib import Path
import pyarrow as pa
from dpsynth_platform.compute.choice import DuckDBChoice
place = Path(sys.argv[1])
with DuckDBChoice(memory="200MB", threads=2).open(place / "spill") as engine:
    engine.register_delta("t", place / "t")
    engine.materialize("u", "SELECT x, length(x) AS n FROM t")
    assert engine.scalar("SELECT sum(n) AS s FROM u") == 480_000_000
    schema = pa.schema([("h", pa.string())])
    assert engine.write_delta(place / "out", schema, "SELECT sha2(x, 256) AS h FROM u ORDER BY h") == 400_000
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""
    write_deltalake(str(tmp_path / "t"), pa.table({"x": [f"{number:06}" * 200 for number in range(400_000)]}))
    found = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert 1024 * int(found.stdout) < 700e6
