"""Step outputs: visible by their record only, atomic, private, and stale when they are not of this run."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dpsynth_platform.foundation import storage as module
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import DpsynthError, SourceError, StaleInput
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.storage import (
    Place,
    Storage,
    count_rows,
    digest_directory,
    read_table,
    table_schema,
    write_durably,
    write_table,
)

PLACE = Place("people")
MONTH = Place("visits", "2026-03")
TABLE = pa.table({"number": pa.array([1, 2, 3], pa.int32()), "word": ["a", None, "c"]})

ROOT = Path(__file__).parents[2]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "restricted")


def written(storage: Storage, place: Place = PLACE, step: str = "scrubbed", text: str = "x", key: str = "k") -> Path:
    with storage.new_output(place, step) as directory:
        (directory / "file").write_text(text)
        storage.record(place, step, run_key=key, directory=directory, facts={"rows": 3})
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_output_exists_once_its_record_does(storage: Storage) -> None:
    with storage.new_output(PLACE, "scrubbed") as directory:
        (directory / "file").write_text("x")
        assert storage.read(PLACE, "scrubbed") is None
        with pytest.raises(StaleInput, match="people/scrubbed has not been materialized; materialize it first"):
            storage.require(PLACE, "scrubbed")
        record = storage.record(PLACE, "scrubbed", run_key="k", directory=directory, runner="me", lineage_run="r")
    assert storage.require(PLACE, "scrubbed", run_key="k") == record
    assert (record.directory, record.runner, record.lineage_run) == (directory, "me", "r")
    assert record.content_hash == digest_directory(directory)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StaleInput])
def test_a_failed_output_leaves_nothing(storage: Storage, error: type[BaseException]) -> None:
    before = written(storage)
    with pytest.raises(error), storage.new_output(PLACE, "scrubbed") as directory:
        (directory / "half").write_text("half")
        raise error("stopped")
    assert not directory.exists()
    assert storage.require(PLACE, "scrubbed").directory == before
    assert storage.outputs(PLACE, "scrubbed") == [before]


def test_a_new_output_supersedes_the_old_one_and_keeps_it_for_the_purge(storage: Storage) -> None:
    first, second = written(storage, text="1"), written(storage, text="2")
    assert storage.require(PLACE, "scrubbed").directory == second
    assert set(storage.outputs(PLACE, "scrubbed")) == {first, second}


def test_a_record_of_another_run_is_stale(storage: Storage) -> None:
    written(storage, MONTH, key="old")
    with pytest.raises(StaleInput) as caught:
        storage.require(MONTH, "scrubbed", run_key="new")
    assert str(caught.value) == (
        "visits/2026-03/scrubbed belongs to another contract, source version or plan than visits/2026-03/raw; "
        "materialize visits/2026-03/scrubbed again"
    )


def test_a_purged_output_is_stale_and_its_record_stays(storage: Storage) -> None:
    shutil.rmtree(written(storage))
    record = storage.require(PLACE, "scrubbed")
    assert not storage.exists(record)
    with pytest.raises(StaleInput, match=r"its output is gone \(purged .*\); materialize people/scrubbed again"):
        _ = record.directory


def test_a_record_without_a_directory_is_its_own_output(storage: Storage) -> None:
    record = storage.record(PLACE, "clearance", run_key="k", facts={"entry_id": "e"})
    assert storage.exists(record)
    assert record.content_hash == storage.record(PLACE, "clearance", run_key="k2", facts={"entry_id": "e"}).content_hash
    assert record.content_hash != storage.record(PLACE, "clearance", run_key="k", facts={"entry_id": "f"}).content_hash
    with pytest.raises(StaleInput):
        _ = record.directory


def test_who_ran_a_step_stays_known_whoever_runs_it_again(storage: Storage) -> None:
    """Also across a run under another key in between; and a record from before this was kept names its one runner."""
    for key, runner in (("k", "ada"), ("k", "bo"), ("other", "cy"), ("k", "di"), ("k", "")):
        record = storage.record(PLACE, "synthetic", run_key=key, runner=runner)
    assert (record.runner, record.runners) == ("", ("ada", "bo", "di"))
    assert storage.require(PLACE, "synthetic") == record
    path = storage.root / "people" / "all" / "synthetic.json"
    old = json.loads(path.read_text()) | {"runner": "eve"}
    del old["ran_by"]
    path.write_text(json.dumps(old))
    assert storage.require(PLACE, "synthetic").runners == ("eve",)
    assert storage.record(PLACE, "synthetic", run_key="k", runner="ada").runners == ("ada", "eve")


def test_inputs_are_kept_by_content(storage: Storage) -> None:
    written(storage)
    scrubbed = storage.require(PLACE, "scrubbed")
    record = storage.record(PLACE, "clearance", run_key="k", inputs=[scrubbed])
    assert record.inputs == {"scrubbed": scrubbed.content_hash}


def test_places_and_locations(storage: Storage) -> None:
    assert storage.places() == []
    written(storage)
    written(storage, MONTH)
    private_directory(storage.root / "logs")
    assert storage.places() == [PLACE, MONTH]
    assert (PLACE.label, MONTH.label) == ("people", "visits/2026-03")
    assert storage.location(MONTH, "model") == storage.root / "visits" / "2026-03" / "model"
    assert storage.outputs(PLACE, "model") == []


def test_a_named_output_outlives_a_failure(storage: Storage) -> None:
    directory = storage.named_output(PLACE, "model", "entry-1")
    (directory / "kept").write_text("paid for")
    assert storage.named_output(PLACE, "model", "entry-1") == directory
    assert (directory / "kept").exists()


def test_everything_is_private_whatever_the_umask(storage: Storage) -> None:
    earlier = os.umask(0)
    try:
        with storage.new_output(PLACE, "scrubbed") as directory:
            write_table(directory / "table", TABLE.schema, TABLE.to_batches())
            storage.record(PLACE, "scrubbed", run_key="k", directory=directory)
        storage.named_output(MONTH, "model", "entry")
    finally:
        assert os.umask(earlier) == 0, "the umask is given back"
    paths = [storage.root, *storage.root.rglob("*")]
    assert len(paths) > 10
    assert {path: oct(mode(path)) for path in paths if mode(path) != (0o700 if path.is_dir() else 0o600)} == {}


def test_private_files_gives_the_umask_back_after_an_error() -> None:
    earlier = os.umask(0o022)
    try:
        with pytest.raises(ValueError), private_files():
            raise ValueError
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(earlier)


def test_private_files_of_one_thread_stay_private_when_another_leaves(tmp_path: Path) -> None:
    earlier = os.umask(0o022)
    entered, left = threading.Event(), threading.Event()

    def overlapping() -> None:
        with private_files():
            entered.set()
            left.wait(120)
            (tmp_path / "made").touch()

    thread = threading.Thread(target=overlapping)
    try:
        with private_files():
            thread.start()
            assert entered.wait(120)
        left.set()
        thread.join()
        assert oct(mode(tmp_path / "made")) == oct(0o600)
        assert os.umask(0o022) == 0o022, "the last one gives the umask back"
    finally:
        os.umask(earlier)


def test_a_fork_while_another_thread_makes_private_files_is_not_stuck() -> None:
    """A child has the lock as it was, and no thread that would let go of it."""
    code = (
        "import os, sys\n"
        "from dpsynth_platform.foundation import permissions\n"
        "permissions._PRIVATE._lock.acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with permissions.private_files():\n"
        "        os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zone" / "record.json"
    write_durably(path, "first")
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)

    def failing(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "fsync", failing)
    with pytest.raises(OSError):
        write_durably(path, "second, and longer than the first")
    monkeypatch.undo()
    assert path.read_text() == "first"
    write_durably(path, "2")
    assert path.read_text() == "2"


def test_readers_never_see_half_a_record(storage: Storage) -> None:
    """One thread writes records without end, another reads them: each is a whole one."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            storage.record(PLACE, "clearance", run_key=str(number), facts={"long": "x" * (number % 50) * 1000})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        keys = [0]
        while keys[-1] < 100 or len(set(keys)) <= 3:  # a reader that was not let run reads on
            record = storage.read(PLACE, "clearance")
            keys.append(0 if record is None else int(record.run_key))
    finally:
        stop.set()
        writer.join()
    assert keys == sorted(keys)
    assert len(set(keys)) > 3


def test_digests_depend_on_names_and_contents(tmp_path: Path) -> None:
    def tree(name: str, files: dict[str, str]) -> str:
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        return digest_directory(tmp_path / name)

    same = {"a": "1", "b/c": "2"}
    assert tree("one", same) == tree("two", same)
    others = [{"a": "1", "b/c": "3"}, {"a": "1", "b/d": "2"}, {"a": "12", "b/c": ""}, {"a": "1"}, same | {"e": ""}]
    digests = {tree(f"other-{number}", files) for number, files in enumerate(others)}
    assert len(digests) == len(others)
    assert tree("three", same) not in digests
    assert digest_file(tmp_path / "one" / "a") == digest_file(tmp_path / "two" / "a")


def test_a_table_is_written_once_and_read_back(tmp_path: Path) -> None:
    uri = tmp_path / "table"
    assert write_table(uri, TABLE.schema, iter(TABLE.to_batches(max_chunksize=2))) == 3
    assert pa.Table.from_batches(read_table(uri)).sort_by("number").cast(TABLE.schema).equals(TABLE)
    assert pa.Table.from_batches(read_table(uri, columns=["word"])).column_names == ["word"]
    assert table_schema(uri).names == ["number", "word"]
    with pytest.raises(Exception, match="exist"):
        write_table(uri, TABLE.schema, TABLE.to_batches())
    assert len(list((uri / "_delta_log").glob("*.json"))) == 1


def test_an_empty_table_has_its_schema(tmp_path: Path) -> None:
    assert write_table(tmp_path / "table", TABLE.schema, []) == 0
    assert table_schema(tmp_path / "table").names == ["number", "word"]
    assert list(read_table(tmp_path / "table")) == [] or sum(b.num_rows for b in read_table(tmp_path / "table")) == 0


@pytest.mark.parametrize("error", [SourceError("ours, as it is"), ValueError("theirs"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 1])
def test_an_error_of_the_batches_comes_out_as_it_is(tmp_path: Path, error: BaseException, after: int) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches() * after
        raise error

    with pytest.raises(type(error)) as caught:
        write_table(tmp_path / "table", TABLE.schema, batches())
    assert caught.value is error
    assert not isinstance(error, DpsynthError) or "Delta" not in str(caught.value)
    assert not list((tmp_path / "table").glob("_delta_log/*.json")), "no commit, no table"


def test_an_error_of_the_writer_is_no_end_of_the_batches(tmp_path: Path) -> None:
    """The writer ends the generator of batches, too, which would be another exception: one that ends no process."""
    numbers = pa.table({"a": pa.array([1, 200], pa.uint8())})  # Delta's bytes are signed
    with pytest.raises(Exception, match="200"):
        write_table(tmp_path / "table", numbers.schema, numbers.to_batches())
    assert not list((tmp_path / "table").glob("_delta_log/*.json"))


COPY = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from dpsynth_platform.foundation.storage import read_table, table_schema, write_table
one, other = sys.argv[1:]
print(write_table(other, table_schema(one), (batch for batch in read_table(one))))
"""


def test_on_a_single_processor_too(tmp_path: Path) -> None:
    """Delta's runtime has a thread for each processor, and the writer holds one while it waits for the reader."""
    environment = {name: value for name, value in os.environ.items() if name != "TOKIO_WORKER_THREADS"}
    schema = pa.schema([("a", pa.int64())])
    write_table(tmp_path / "one", schema, iter([pa.record_batch({"a": [1, 2, 3]}, schema=schema)]))
    command = [sys.executable, "-c", COPY, str(tmp_path / "one"), str(tmp_path / "other")]
    copied = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False, timeout=300)
    assert (copied.returncode, copied.stdout) == (0, b"3\n"), copied.stderr


def test_threads_of_arrow_hold_no_python_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would release them after the last batch, maybe while the process ends, which ends it by a signal."""

    def opened(*_: object) -> None:
        raise AssertionError("opened by a file system written in Python")

    monkeypatch.setattr("deltalake.fs.DeltaStorageHandler.open_input_file", opened)
    write_table(tmp_path / "one", TABLE.schema, TABLE.to_batches())
    assert sum(batch.num_rows for batch in read_table(tmp_path / "one")) == count_rows(tmp_path / "one") == 3


def test_a_table_can_be_read_while_another_is_written(tmp_path: Path) -> None:
    write_table(tmp_path / "one", TABLE.schema, TABLE.to_batches())
    assert write_table(tmp_path / "two", table_schema(tmp_path / "one"), read_table(tmp_path / "one")) == 3
