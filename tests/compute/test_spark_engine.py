"""Spark's own promises: nothing is left or shown, and what dies on the way is made good or reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.compute import spark_driver
from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import EngineError

pytestmark = pytest.mark.usefixtures("spark_is_there")

SCHEMA = pa.schema([("x", pa.string())])


def opened(place: Path, master: str = "local[1]", **more: Any) -> Engine:
    return SparkChoice(engine="spark", master=master, memory="520MB", **more).open(place)


def java_below(place: Path, kind: str = "") -> list[int]:
    """Processes of Spark's that work in a directory: the driver, and workers in its subdirectories.

    A program that Java just starts (Hadoop's `chmod`) looks like its parent for a moment, and is none of them.
    """
    parents = {}
    for process in Path("/proc").iterdir():
        try:
            inside = (process / "cwd").readlink().is_relative_to(place)
            command = (process / "cmdline").read_bytes().decode()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if process.name.isdigit() and inside and "java" in command and kind in command:
            parents[int(process.name)] = parent
    return [process for process, parent in parents.items() if parent not in parents]


def waits_for(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def killing(condition: Callable[[], object], victims: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Kills the first of the victims as soon as the condition holds; gives the list of the killed."""
    killed: list[int] = []

    def kill() -> None:
        if waits_for(condition) and (found := victims()):
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        thread.join()


def test_a_session_is_private_and_leaves_nothing(
    spark: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place, elsewhere = tmp_path / "a place", tmp_path / "elsewhere"
    elsewhere.mkdir()
    spark.register("of_another_session", pa.table({"x": ["a"]}))
    with opened(place, partitions=2) as engine:
        engine.register("t", pa.table({"x": ["a", "b", "Marked Person"]}))
        engine.materialize("u", "SELECT x, row_number() OVER (ORDER BY x) AS r FROM t")
        assert engine.write_delta(elsewhere / "out", SCHEMA, "SELECT x FROM u") == 3
        with pytest.raises(EngineError):
            engine.scalar("SELECT count(*) AS n FROM of_another_session")
        files = [path for path in place.rglob("*") if not path.is_symlink()]
        assert any(path.suffix == ".parquet" for path in files)
        (spill,) = place.iterdir()
        assert spill.stat().st_mode & 0o077 == 0
        shared = [path for path in files if "/tmp/" not in str(path.relative_to(spill.parent)) and path.is_file()]
        assert not [path for path in shared if path.stat().st_mode & 0o077]
        (driver,) = java_below(place)
        environment = Path(f"/proc/{driver}/environ").read_bytes()
        command = Path(f"/proc/{driver}/cmdline").read_bytes()
        assert b"secret" not in command + environment
        assert re.search(r"Max core file size\s+0\s+0\s", Path(f"/proc/{driver}/limits").read_text())
    assert not list(place.iterdir())
    assert waits_for(lambda: not java_below(place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a place", "elsewhere"]
    assert [path.name for path in elsewhere.iterdir()] == ["out"]
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""
    with pytest.raises(EngineError, match="outside"):
        engine.scalar("SELECT 1 AS x")


def test_files_cannot_be_read_by_sql(spark: Engine, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a\n1\n")
    for sql in (f"SELECT * FROM csv.`{tmp_path}/in.csv`", f"SELECT * FROM text.`{tmp_path}`"):
        with pytest.raises(EngineError):
            list(spark.stream(sql))


def _rounds(engine: Engine, rows: int) -> list[tuple[int, str]]:
    """A job of several rounds, each of which reads what the last one left."""
    engine.register("t", pa.table({"x": list(range(rows))}))
    for number in range(3):
        engine.materialize(
            "t",
            """WITH hashed AS (SELECT x, sha2(? || CAST(x AS STRING), 256) AS h FROM t),
                ranked AS (SELECT x, row_number() OVER (PARTITION BY x % 997 ORDER BY h) AS r FROM hashed)
            SELECT x FROM ranked WHERE r > ?""",
            [f"key {number}", 10],
        )
    batches = engine.stream("SELECT x, sha2(CAST(x AS STRING), 256) AS h FROM t ORDER BY x")
    return [(row["x"], row["h"]) for batch in batches for row in batch.to_pylist()]


def test_a_worker_is_killed_and_the_rows_are_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = 100_000
    with DuckDBChoice(threads=1).open(tmp_path / "duckdb") as duckdb:
        expected = _rounds(duckdb, rows)
    assert len(expected) == rows - 3 * 10 * 997
    place = tmp_path / "a place"

    def a_round_is_being_written() -> bool:
        begun = list(place.glob("spill-*/tables/*"))
        return len(begun) >= 2 and any(place.glob("spill-*/tables/*/_temporary"))

    with opened(place, "local-cluster[2,1,512]", partitions=4) as engine:
        workers = lambda: java_below(place, "CoarseGrainedExecutorBackend")  # noqa: E731
        with killing(a_round_is_being_written, workers) as killed:
            found = _rounds(engine, rows)
        assert killed, "no worker was there to kill"
        assert found == expected
        with pytest.raises(EngineError):
            engine.scalar("SELECT sum(CAST('Marked ' || CAST(x AS STRING) AS INTEGER)) AS s FROM t")
        (spill,) = place.iterdir()
        for process in workers():
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode()
            assert f"-Djava.io.tmpdir={spill}/tmp" in command
            assert re.search(r"Max core file size\s+0\s+0\s", Path(f"/proc/{process}/limits").read_text())
        logs = list(place.glob("spill-*/home/work/**/stderr"))
        assert len(logs) >= 2 and "Marked" not in "".join(log.read_text() for log in logs)
        engine.drop("t")
        assert not list(place.glob("spill-*/tables/*")), "tables that nobody can name any more take no space"
    assert not list(place.iterdir())
    assert waits_for(lambda: not java_below(place))
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def test_a_dead_driver_is_reported_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place, target = tmp_path / "spill", tmp_path / "place" / "out"
    with pytest.raises(EngineError) as raised, opened(place, "local[2]") as engine:
        engine.register("t", pa.table({"x": [f"Marked Person {i}" for i in range(1000)]}))
        writing = lambda: any(target.parent.glob(".out.*/_temporary/*/*"))  # noqa: E731
        # Without end, and without memory or files that grow: nothing but the kill can stop it.
        slow = "SELECT t.x FROM range(1000000000000) AS r JOIN t ON t.x = sha2(CAST(r.id AS STRING), 256)"
        with killing(writing, lambda: java_below(place)) as killed:
            engine.write_delta(target, SCHEMA, slow)
    assert killed
    assert str(raised.value) == "the SQL engine stopped (its process is gone)"
    assert raised.value.__cause__ is None and raised.value.__context__ is None
    assert not list(target.parent.iterdir())
    assert not list(place.iterdir())
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def test_an_interrupted_job_ends_at_once(tmp_path: Path) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    earlier = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted), opened(tmp_path) as engine:
            signal.setitimer(signal.ITIMER_REAL, 2.0)
            engine.scalar("SELECT count(*) AS n FROM range(1000000000000) WHERE sha2(CAST(id AS STRING), 256) = 'x'")
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert not list(tmp_path.iterdir())
    assert waits_for(lambda: not java_below(tmp_path))


def test_spark_ends_with_a_python_that_is_killed(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from dpsynth_platform.compute.choice import SparkChoice
with SparkChoice(engine="spark", master="local[1]", memory="520MB").open(Path(sys.argv[1])):
    print("open", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "open\n"
        assert len(java_below(tmp_path)) == 1
        process.kill()
        process.wait()
    assert waits_for(lambda: not java_below(tmp_path))


@pytest.mark.parametrize("java", ["exit 1", "echo 'Marked Person' >&2; sleep 60"])
def test_a_spark_that_does_not_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "home" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text(f"#!/bin/sh\n{java}\n")
    fake.chmod(0o755)
    environment = dict(os.environ) | {"JAVA_HOME": str(fake.parents[1])}
    monkeypatch.setattr(spark_driver, "inherited_environment", lambda: environment)
    monkeypatch.setattr(spark_driver, "START_SECONDS", 2.0)
    with pytest.raises(EngineError, match="Spark did not start; it needs Java 17"), opened(tmp_path / "spill"):
        pytest.fail("it is not open")
    assert not list((tmp_path / "spill").iterdir())
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def test_a_session_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    engine = opened(tmp_path, options={"spark.serializer": "NoSuchClass"})
    with pytest.raises(EngineError, match="ClassNotFoundException"), engine:
        pytest.fail("it is not open")
    assert not list(tmp_path.iterdir())
