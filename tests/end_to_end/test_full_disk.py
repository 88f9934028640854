"""Must show: a disk that is full or read-only costs no budget, no value of the data, and is said in plain words.

The disks are real ones (tmpfs), of a few kilobytes or megabytes; where this user may not mount, the tests are skipped,
and `tests/foundation/test_log_cannot_be_written.py` tries the same with limits that every user can set.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from deployment import Deployment
from inside import inside
from leak_cases import FAILING_WORKER, MARKS, SPEAKING_SCRUBBER, found, found_in, marked_deployment
from line_cases import ledger_of, lineage_of, run_here, small_deployment
from test_leaks import Interrupting, raising

from dpsynth_platform.foundation.redaction import reason_of, safe_error
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.operations import running

pytestmark = pytest.mark.end_to_end
Disk = Callable[[Path, str], Path]


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Mounts a disk of some size at a directory, which may hold nothing yet."""
    mounted: list[Path] = []

    def mount(place: Path, size: str) -> Path:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", place], check=False)
        if done.returncode:
            pytest.skip("this user may not mount a file system")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, *, leave: int = 0) -> None:
    """Takes all that is left of a disk but some bytes."""
    rest = place / "rest"
    with suppress(OSError), rest.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    if leave:
        os.truncate(rest, max(0, rest.stat().st_size - leave))


def entries(deployment: Deployment) -> list[tuple[str, str]]:
    """Of each ledger entry its place and state, after the whole ledger was verified."""
    if not (deployment.settings.home / "ledger" / "ledger.db").exists():
        return []
    ledger = Ledger(deployment.settings.ledger_url)
    assert ledger.verify().ok
    return [(entry.request.place, entry.state) for entry in ledger.entries()]


def public_marks(deployment: Deployment) -> dict[str, list[str]]:
    home = deployment.settings.home
    return found(MARKS, deployment.root, without=(home / "restricted", home / "sources"))


def test_a_step_whose_log_is_full_shows_nothing(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries print and raise marks in one step after the other; the event log keeps none in any field."""
    deployment = marked_deployment(tmp_path)
    settings = deployment.settings
    logs = disk(settings.restricted / "logs", "64k")
    fill(logs)
    running.prepare_home(settings)
    patches: tuple[tuple[str, object], ...] = (
        ("dpsynth_platform.sources.source.pin", raising),
        ("dpsynth_platform.scrub.parallel.text_detector", raising),
        ("dpsynth_platform.scrub.parallel.text_detector", Interrupting),
        ("dpsynth_platform.foundation.storage._from_another_thread", raising),
    )
    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        for target, value in patches:
            with monkeypatch.context() as patch:
                patch.setattr(target, value)
                ran = run_here(deployment, instance=instance, accelerator=inside(deployment), steps=["raw", "scrubbed"])
            (message,) = ran.failures.values()
            kept = r"\(its traceback could not be kept: no space left on device\)"
            # A library that prints fails by that already.
            assert re.fullmatch(rf"(ValueError|KeyboardInterrupt|the machine says: no space .*) {kept}", message)
        events = [str(entry) for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    assert len(events) > 20
    assert not found_in(MARKS, "\n".join(events).encode())
    assert public_marks(deployment) == {}
    assert {run.state for run in lineage_of(deployment).runs.values()} <= {"COMPLETE", "FAIL", "ABORT"}


def test_a_real_run_whose_logs_are_full_keeps_the_marks(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of their own, the worker too; all of them speak."""
    deployment = marked_deployment(tmp_path)
    fill(disk(deployment.settings.restricted / "logs", "64k"))
    code = tmp_path / "patches"
    code.mkdir()
    (code / "sitecustomize.py").write_text(SPEAKING_SCRUBBER + FAILING_WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = deployment.dpsynth("run", "people")
    assert done.returncode == 1
    assert "failed: " in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not found_in(MARKS, (done.stdout + done.stderr).encode())
    shutil.rmtree(code)
    assert public_marks(deployment) == {}


def test_libraries_on_a_full_disk_are_understood(tmp_path: Path, disk: Disk) -> None:
    """Each says it in a form of its own, and some quote what they were to write."""
    import deltalake
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq
    import safetensors.numpy
    import sqlalchemy

    place = disk(tmp_path / "small", "256k")
    mark = MARKS[0]
    table = pa.table({"a": [f"{mark}{row}{os.urandom(40).hex()}" for row in range(5000)]})
    engine = sqlalchemy.create_engine(f"sqlite:///{place}/some.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")

    def insert() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (?)", (mark * 20_000,))

    def copy() -> None:
        duckdb.from_arrow(table).write_parquet(f"{place}/copied.parquet")

    def spill() -> None:
        with duckdb.connect(
            config={"memory_limit": "20MB", "threads": 1, "temp_directory": f"{place}/spill"}
        ) as spilling:
            spilling.execute(
                "CREATE TABLE t AS SELECT random()::VARCHAR || range::VARCHAR AS x FROM range(400000) ORDER BY 1"
            )

    writers: dict[str, Callable[[], object]] = {
        "delta": lambda: deltalake.write_deltalake(str(place / "delta"), table),
        "ours": lambda: write_table(place / "ours", table.schema, table.to_batches()),
        "parquet": lambda: pq.write_table(table, place / "rows.parquet"),
        "duckdb": copy,
        "spilling": spill,
        "sqlite": insert,
        "safetensors": lambda: safetensors.numpy.save_file({"a": np.zeros(100_000)}, place / "weights"),
        "numpy": lambda: np.savez(place / "arrays.npz", a=np.zeros(100_000)),
    }
    fill(place)
    for name, write in writers.items():
        with pytest.raises(Exception) as raised:
            write()
        code, words = safe_error(raised.value)
        assert (name, code) == (name, "machine")
        assert words.startswith("the machine says: no space left on device; make room"), (name, words)
        assert reason_of(raised.value) == "no space left on device"


@pytest.mark.parametrize("leave", [0, 100_000, 400_000])
def test_a_disk_that_fills_during_a_run(tmp_path: Path, disk: Disk, leave: int) -> None:
    """Wherever the run finds its disk full, nothing is spent that was not started, and the next run ends well."""
    home = disk(tmp_path / "home", "60m")
    deployment = small_deployment(tmp_path)
    ledger_of(deployment)  # it is there; its next write may fail
    fill(home, leave=leave)
    ran = run_here(deployment, accelerator=inside(deployment))
    assert not ran.success
    for message in ran.failures.values():
        assert re.match(r"the machine says: no space left on device|the ledger's (disk|database)", message), message
    (home / "rest").unlink()
    assert all(state in ("reserved", "void") for _, state in entries(deployment))
    again = run_here(deployment, accelerator=inside(deployment))
    assert again.success, again.failures
    assert [state for _, state in entries(deployment)][-1] == "spent"


def test_a_mechanism_is_not_paid_for_where_its_worker_could_not_write_its_log(tmp_path: Path, disk: Disk) -> None:
    """All before it can do with what is left; the worker's log and messages are what has no room."""
    deployment = small_deployment(tmp_path)
    logs = disk(deployment.settings.restricted / "logs", "64k")
    fill(logs)
    done = deployment.here("run", "people")
    assert done.returncode == 1
    assert "model failed: the machine says: no space left on device" in done.stderr
    assert [state for _, state in entries(deployment)] == ["reserved"]
    subprocess.run(["mount", "-o", "remount,size=4m", logs], check=True)
    again = run_here(deployment, accelerator=inside(deployment))
    assert again.success, again.failures


@pytest.mark.parametrize("leave", [0, 150_000])
def test_the_command_on_a_full_disk(tmp_path: Path, disk: Disk, leave: int) -> None:
    home = disk(tmp_path / "home", "40m")
    deployment = small_deployment(tmp_path)
    fill(home, leave=leave)
    done = deployment.here("run", "people") if leave else deployment.dpsynth("run", "people")
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert "unexpected" not in done.stderr
    assert re.search("no space left on device|disk is full|could not be written", done.stderr), done.stderr
    (home / "rest").unlink()
    assert entries(deployment) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "people"),
        ("ledger", "show"),
        ("ledger", "verify"),
        ("release", "list"),
        ("plan", "people"),
        ("purge",),
        ("lineage", "status"),
    ],
)
def test_commands_on_a_read_only_home(tmp_path: Path, disk: Disk, arguments: tuple[str, ...]) -> None:
    home = disk(tmp_path / "home", "10m")
    deployment = small_deployment(tmp_path)
    Ledger(deployment.settings.ledger_url)
    subprocess.run(["mount", "-o", "remount,ro", home], check=True)
    done = (deployment.dpsynth if arguments[0] == "run" else deployment.here)(*arguments)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "unexpected" not in done.stderr
    if done.returncode:
        assert re.search("read-only", done.stderr), done.stderr
