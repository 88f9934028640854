"""The zones on disk: step outputs and the records that name them.

What belongs here: writing tables and files so that readers never see a partial one, and the step records that chain
each output to its inputs by content hash. What does not: what a step computes, keys, the ledger.

A step writes into a new directory and finally a *record* that names the directory and its content hash. No reader uses
a directory without a record. Layout under the restricted zone:

    <dataset>/<period or 'all'>/<step>.json            the record: the step's current output
    <dataset>/<period or 'all'>/<step>/<random>/       one output; old ones go with the purge
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import ConfigurationError, ReleaseRefused, StaleInput
from dpsynth_platform.foundation.permissions import private_directory, private_files

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

_Found = TypeVar("_Found")
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\[\]^|\\]|%[0-9A-Fa-f]{2}")
HANDED = "-job"
"""Suffix of directories with a worker's inputs (`operations.mechanism`)."""
BOUND_FILE = "bound.json"
"""Output of the step that learns a contribution bound."""
STEPS = (
    "raw",
    "scrubbed",
    "canaries",
    "clearance",
    "bounded",
    "audited",
    "model",
    "synthetic",
    "audit",
    "quality",
    "released",
)
OF_ROWS = ("scrubbed", "bounded", "quality")
"""Only lines whose rows are here have these steps."""
AUDITED = "audited"
"""Only lines with a separate audit model have this step (`audit.model: separate`)."""
MODELS = (AUDITED, "model")
"""The steps whose output is a mechanism's."""
SCORES = "scores"
"""The canaries' raw scores and coins, which expire with the model."""
NEAREST = "nearest"
"""A drawing of real pictures for reviewers, which expires with the bounded rows."""
NEAREST_DRAWING = "nearest.svg"
"""The file in it."""
EXTRACT = "extract"
"""The copy of a source that has no versions of its own (a database), beside the output of `raw`."""
EXAMPLES = "training/examples"
"""Directory below a model's for the real texts, during training only."""
PICTURES = "pictures"
"""Directory below a model's for the part that makes pictures, which may have `EXAMPLES` of its own."""
TEXTS_DRAWN = "texts.json"
"""Beside the rows of `synthetic`: how many drawn texts were kept, and why others were not (`synth.text.terms`)."""
TOOK_PART = "took_part.json"
"""In the model of a federated run, and beside the rows of `synthetic`: who took part (`federation.coordinator`)."""
KEPT_SETTING = "setting.json"
"""Beside the rows of `synthetic`: which candidate of `generate.tune` made their model."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def steps_of(*, separate_audit_model: bool, federated: bool = False) -> tuple[str, ...]:
    """The steps of a line, in order; a federated one has no rows."""
    left_out = {*(() if separate_audit_model else (AUDITED,)), *(OF_ROWS if federated else ())}
    return tuple(step for step in STEPS if step not in left_out)


@dataclass(frozen=True)
class Place:
    """A dataset and, for datasets with a cadence, one period (`YYYY-MM` for a month)."""

    dataset: str
    period: str | None = None

    @property
    def label(self) -> str:
        """`census` or `visits/2026-01`, for messages."""
        return self.dataset if self.period is None else f"{self.dataset}/{self.period}"

    @property
    def arguments(self) -> str:
        """The same as arguments of the command: `census` or `visits --period 2026-01`."""
        return self.dataset if self.period is None else f"{self.dataset} --period {self.period}"


@dataclass(frozen=True)
class StepRecord:
    """A step's output: its place, content hash and inputs.

    Attributes:
        run_key: names contract, source version, period and plan together; all steps of one line share it.
        path: directory of the output, or None where the record itself is the output.
        content_hash: `digest_directory(path)`, or the digest of `facts` where there is no directory.
        inputs: content hash of each upstream output that was used.
        facts: JSON values that later steps need. Operator zone: counts allowed, never a value of the data.
        runner: who ran the step.
        lineage_run: OpenLineage run id of the attempt.
        ran_by: by run key, everybody who made an output of this step, also a replaced one. Empty in records of
            earlier versions.
    """

    step: str
    dataset: str
    period: str | None
    run_key: str
    path: str | None
    content_hash: str
    created_at: str
    inputs: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    runner: str = ""
    lineage_run: str = ""
    ran_by: dict[str, list[str]] = field(default_factory=dict)

    @property
    def runners(self) -> tuple[str, ...]:
        """Everybody who ran the step under this run key: the output may have been chosen among theirs."""
        return tuple(sorted({self.runner, *self.ran_by.get(self.run_key, ())} - {""}))

    @property
    def directory(self) -> Path:
        """The output's directory. Raises `StaleInput` where the step has none or it was purged."""
        if self.path is None or not Path(self.path).is_dir():
            raise StaleInput(
                f"{self.dataset}/{self.step}: its output is gone (purged or never written); "
                f"materialize {self.dataset}/{self.step} again"
            )
        return Path(self.path)


class Storage:
    """Step outputs and records of the restricted zone."""

    def __init__(self, restricted: Path) -> None:
        self.root = restricted

    def read(self, place: Place, step: str) -> StepRecord | None:
        """The step's current record, or None.

        Raises:
            StaleInput: it is damaged.
        """
        path = self.record_path(place, step)
        try:
            return StepRecord(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # the message must not quote it
            raise StaleInput(
                f"{place.label}/{step}: its record, {path.name}, is damaged; put it back from a copy of the restricted "
                f"zone or, without one, remove it and materialize {place.label}/{step} again"
            ) from None

    def require(self, place: Place, step: str, *, run_key: str | None = None) -> StepRecord:
        """The step's current record, which must belong to `run_key` where one is given.

        Raises:
            StaleInput: there is none, it is damaged, or it belongs to another contract, source version or plan.
        """
        record = self.read(place, step)
        if record is None:
            raise StaleInput(f"{place.label}/{step} has not been materialized; materialize it first")
        if run_key is not None and record.run_key != run_key:
            raise StaleInput(
                f"{place.label}/{step} belongs to another contract, source version or plan than "
                f"{place.label}/raw; materialize {place.label}/{step} again"
            )
        return record

    @contextmanager
    def new_output(self, place: Place, step: str) -> Iterator[Path]:
        """A new directory to write into; removed if the block fails. Invisible until a record names it."""
        directory = private_directory(self._base(place) / step / secrets.token_hex(8))
        try:
            with private_files():
                yield directory
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def named_output(self, place: Place, step: str, name: str) -> Path:
        """A directory of that name, which survives a crash, so that paid work can be resumed."""
        return private_directory(self._base(place) / step / name)

    def location(self, place: Place, step: str) -> Path:
        """The directory of all outputs of a step, which lineage names."""
        return self._base(place) / step

    def record(
        self,
        place: Place,
        step: str,
        *,
        run_key: str,
        directory: Path | None = None,
        inputs: Iterable[StepRecord] = (),
        facts: dict[str, Any] | None = None,
        runner: str = "",
        lineage_run: str = "",
    ) -> StepRecord:
        """Makes an output the step's current one, atomically and durably. Keeps who made earlier ones."""
        facts = facts or {}
        earlier = self.read(place, step)
        ran_by = earlier.ran_by | {earlier.run_key: list(earlier.runners)} if earlier else {}
        record = StepRecord(
            step=step,
            dataset=place.dataset,
            period=place.period,
            run_key=run_key,
            path=str(directory) if directory else None,
            content_hash=digest_directory(directory) if directory else canonical_digest(facts),
            created_at=dt.datetime.now(dt.UTC).isoformat(),
            inputs={item.step: item.content_hash for item in inputs},
            facts=facts,
            runner=runner,
            lineage_run=lineage_run,
            ran_by=ran_by | {run_key: sorted({*ran_by.get(run_key, ()), runner} - {""})},
        )
        write_durably(self.record_path(place, step), json.dumps(asdict(record), indent=1))
        return record

    def exists(self, record: StepRecord) -> bool:
        """Whether a record's output exists; a record without a directory is its own output."""
        return record.path is None or Path(record.path).is_dir()

    def places(self, dataset: str = "*") -> list[Place]:
        """Every dataset and period that has a record, or those of one dataset."""
        found = []
        for path in sorted(self.root.glob(f"{dataset}/*/")):
            if any(path.glob("*.json")):
                found.append(Place(path.parent.name, None if path.name == "all" else path.name))
        return found

    def outputs(self, place: Place, step: str) -> list[Path]:
        """Directories of a step's outputs, current and superseded."""
        parent = self._base(place) / step
        return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []

    def _base(self, place: Place) -> Path:
        parts = (place.dataset, place.period or "all")
        if not all(_PART.fullmatch(part) for part in parts):
            raise ConfigurationError(f"{place.label!r}: accepted: a dataset's name, and a period such as 2026-01")
        return self.root.joinpath(*parts)

    def record_path(self, place: Place, step: str) -> Path:
        """Path of a step's record."""
        return self._base(place) / f"{step}.json"


class HeldByAnother(Exception):
    """Another process holds a directory or a file."""


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Locks a directory until the block or the process ends. Other machines are not kept out (`hold`).

    Raises:
        HeldByAnother: it is held already.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        hold(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def held_file(path: Path) -> Iterator[None]:
    """As `held`, for a file, which is created if missing. Keeps out other machines too.

    Raises:
        HeldByAnother: it is held already.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        hold(descriptor)
        yield
    finally:
        os.close(descriptor)


def hold(descriptor: int) -> None:
    """Locks an open file until it is closed.

    NFS forwards the lock of a file that is open for writing to its server (flock(2), since Linux 2.6.12), so that other
    machines are kept out too. The lock of a directory holds on one machine only.

    Raises:
        HeldByAnother: it is held already.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HeldByAnother from None


def read_beside_rows(path: Path, made: Callable[[Any], _Found]) -> _Found | None:
    """What is made of a JSON file that the step `synthetic` wrote beside its rows; None if there is none.

    Raises `ReleaseRefused` if the file cannot be read.
    """
    try:
        return made(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        problem = f"{path} cannot be read"
    raise ReleaseRefused(f"{problem}; accepted: as the step synthetic wrote it; materialize synthetic again")


def write_durably(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole: written aside, flushed to disk, renamed. Mode 0600.

    Raises:
        OSError: the file is unchanged, or, where its new name could not be flushed, may be unchanged after a crash.
    """
    private_directory(path.parent)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_unfinished(path: Path) -> None:
    """Removes what a killed `write_durably` of a file left beside it: drawn perhaps, and used by nothing.

    For one process at a time, before the file's content is drawn again. The name may be a pattern.
    """
    for partial in path.parent.glob(f".{path.name}.*"):
        partial.unlink()


def sync(path: Path) -> None:
    """Flushes a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_room(directory: Path, *sizes: int) -> None:
    """Creates files of these sizes (bytes) together and removes them, so that a full disk fails before a spend.

    Raises:
        OSError: no room, or no permission.
    """
    made: list[tuple[int, Path]] = []
    try:
        for size in sizes:
            path = private_directory(directory) / f".room-{secrets.token_hex(8)}"
            made.append((os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path))
            os.posix_fallocate(made[-1][0], 0, size)
    finally:
        for descriptor, path in made:
            os.close(descriptor)
            path.unlink()


def digest_directory(directory: Path) -> str:
    """SHA-256 over the relative names and contents of all files below a directory."""
    return digest_files(directory, sorted(path for path in directory.rglob("*") if path.is_file()))


def digest_files(directory: Path, files: Iterable[Path]) -> str:
    """SHA-256 over the relative names and contents of some files below a directory, in their order."""
    return canonical_digest([[path.relative_to(directory).as_posix(), digest_file(path)] for path in files])


def unusable_place(path: Path) -> str | None:
    """What a path has that no Delta table's may have, and what is accepted; None: nothing.

    The library panics at some of these signs, which no `except Exception` catches, and opens another place for others.
    """
    found = sorted(set(_UNUSABLE.findall(str(path))))
    if not found:
        return None
    return (
        f"the path contains {' '.join(map(repr, found))}; accepted: one without [ ] ^ | \\, control characters and %XX"
    )


def write_table(uri: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes a new Delta table in one commit, streaming. Returns its number of rows. Does not keep their order.

    An exception of `batches` is raised unchanged: the writer would wrap it into a library's error.
    """
    import pyarrow as pa
    from deltalake import write_deltalake

    rows = 0
    failed: list[BaseException] = []

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        try:
            for batch in _from_another_thread(batches):
                rows += batch.num_rows
                yield batch
        except GeneratorExit:  # the writer stopped, for a reason of its own
            raise
        except BaseException as error:  # also interrupts, which the writer would wrap
            failed.append(error)
            raise

    try:
        write_deltalake(str(uri), pa.RecordBatchReader.from_batches(schema, counted()), mode="error")
    except Exception:
        if not failed:
            raise
    if failed:
        raise failed[0]
    return rows


def _from_another_thread(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, read ahead by one in a separate thread.

    The Delta writer iterates inside its asynchronous runtime, where reading another Delta table would start a second
    runtime and fail.
    """
    iterator = iter(batches)
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, iterator, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, iterator, None)
            yield batch


def read_table(uri: Path, *, version: int | None = None, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Streams a Delta table's record batches, each of at most 65,536 rows and some megabytes.

    Raises:
        EngineError: there is no such column.
    """
    from dpsynth_platform.foundation.reading import read_batches

    yield from read_batches(delta_dataset(uri, version), columns)


def table_schema(uri: Path, *, version: int | None = None) -> pa.Schema:
    """Arrow schema of a Delta table."""
    return delta_dataset(uri, version).schema


def count_rows(uri: Path) -> int:
    """Number of rows of a Delta table, from its files' metadata."""
    return int(delta_dataset(uri).count_rows())


def delta_dataset(uri: Path, version: int | None = None) -> ds.Dataset:
    """The files of a Delta table on this machine, which Arrow's own file system reads (`arrow_files`)."""
    from deltalake import DeltaTable

    return DeltaTable(str(uri), version=version).to_pyarrow_dataset(filesystem=arrow_files(uri))


def arrow_files(uri: Path) -> fs.FileSystem:
    """Arrow's own file system below a directory, for a Delta table's files.

    The default is one written in Python, whose objects Arrow's threads may still release while the process ends: Python
    then ends the thread, and C++ the whole process by a signal.
    """
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    return SubTreeFileSystem(str(uri), LocalFileSystem())
