"""Spark: the SQL engine for what one machine's memory or processors are too small for.

What belongs here: one short-lived session, its settings, and moving tables in and out of it. What does not: the process
that it runs in (`spark_driver`), any SQL of a step.

Every intermediate table is written to Parquet files in a private spill directory, and read from there: a worker that
dies takes nothing with it that cannot be computed again from files. (Spark's `localCheckpoint` keeps its blocks in the
workers, so that the job is lost with one of them; a reliable checkpoint would write the same data as Java objects.) The
rows of `stream` come by such files too, so that neither driver nor Python ever holds more than a batch. On a cluster of
several machines the spill directory and the tables must be on a file system that all of them see.

Delta tables are read by the list of their files and written as files with one commit after them, both through
`deltalake`, so that Spark needs no Delta library of its own.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_platform.compute.engine import EngineError, Value, refuse_missing, refuse_names, stopped, whole_table
from dpsynth_platform.compute.reading import BATCH_ROWS, read_batches, selected
from dpsynth_platform.compute.spark_driver import SparkDriver
from dpsynth_platform.foundation.permissions import private_directory, private_files

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_T = TypeVar("_T")

MEBIBYTE = 1 << 20
"""What Java and Spark count memory in."""

_SETTINGS = {
    # One text means the same here as in DuckDB.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.session.timeZone": "UTC",
    # Dates and times as everybody else writes them into Parquet files.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # A task that is done again, because its worker died, must not leave its rows twice.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Nothing is shown, told or kept.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # SQL reads registered tables and no files.
    "spark.sql.runSQLOnFiles": "false",
}
# Spark writes rows into its log wherever a worker meets a value that it cannot use. Without any appender it would take
# its own configuration instead.
_NO_LOG = """
status = off
appender.none.type = Null
appender.none.name = none
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
"""
RESERVED = frozenset(
    {
        *_SETTINGS,
        "spark.master",
        "spark.driver.memory",
        "spark.executor.memory",
        "spark.driver.extraJavaOptions",
        "spark.executor.extraJavaOptions",
        "spark.local.dir",
        "spark.sql.warehouse.dir",
        "spark.sql.shuffle.partitions",
    }
)
"""Settings of Spark that are the engine's own and no deployment's."""


class SparkEngine:
    """A Spark session for the length of a `with` block; see `compute.engine.Engine`.

    Args:
        spill: directory of the restricted zone; a private directory is made in it and removed at the end.
        master: `local[N]` (N threads of one process), `local-cluster[N,cores,megabytes]` (N processes on this
            machine) or `spark://host:port`.
        memory: bytes of heap of the one process, or of each worker's.
        partitions: how many parts a shuffle has at most; Spark joins small ones by itself.
        options: further settings of Spark, none of them in `RESERVED`. A cluster whose machines know each other by a
            secret (`spark.authenticate`) needs it here; on one machine the engine makes its own.
    """

    def __init__(
        self,
        spill: Path,
        *,
        master: str,
        memory: int,
        partitions: int,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._spill_parent = spill
        self._master = master
        self._heap = f"{memory // MEBIBYTE}m"
        self._partitions = partitions
        self._options = dict(options or {})
        self._spill: Path | None = None
        self._open_driver: SparkDriver | None = None
        self._session: Any = None
        self._files: dict[str, Path] = {}

    def __enter__(self) -> SparkEngine:
        self._spill = Path(tempfile.mkdtemp(prefix="spill-", dir=private_directory(self._spill_parent)))
        try:
            self._open_driver = self._start(self._spill)
            self._session = self._run(self._open_session)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A cluster is told when all is well. Otherwise Spark may be dead, or busy for hours with what was interrupted.
        if self._session is not None and kind is None and not self._is_local:
            with contextlib.suppress(EngineError):
                self._run(self._session.stop)
        self._session = None
        if self._open_driver is not None:
            self._open_driver.end()
            self._open_driver = None
        if self._spill is not None:
            _remove(self._spill)
            self._spill = None
        self._files.clear()

    def register(self, name: str, data: pa.Table | ds.Dataset) -> None:
        """Makes Arrow data readable as the table `name`. Raises `EngineError`."""
        self._copy(name, data.schema, data.to_batches() if isinstance(data, pa.Table) else read_batches(data))

    def register_delta(
        self, name: str, uri: Path, *, columns: Sequence[str] | None = None, version: int | None = None
    ) -> None:
        """Makes a Delta table readable as `name`: Spark reads its data files. Raises `EngineError`."""
        from deltalake import DeltaTable, Schema

        table = self._run(lambda: DeltaTable(str(uri), version=version))
        # Refuses what the log says that only other readers understand, such as deletion vectors.
        dataset = self._run(table.to_pyarrow_dataset)
        schema = selected(dataset.schema, columns)
        files = table.file_uris()
        if table.metadata().partition_columns or not files:
            # Values of partition columns stand in the log, not in the files.
            self._copy(name, schema, read_batches(dataset, columns))
            return
        refuse_names(name, schema.names)
        fields = {field.name: field for field in table.schema().fields}
        read = Schema([fields[item] for item in schema.names])
        reader = self._run(lambda: self._session.read().schema(self._type(read.to_json())))
        self._keep(name, self._run(lambda: reader.parquet(self._driver.texts(files))))

    def materialize(self, name: str, sql: str, parameters: Sequence[Value] = ()) -> None:
        """Runs a query once and keeps its rows as the table `name`. Raises `EngineError`."""
        directory = self._new_directory()

        def write() -> Any:
            rows = self._query(sql, parameters)
            rows.write().parquet(str(directory))
            return self._session.read().schema(rows.schema()).parquet(self._driver.texts([str(directory)]))

        self._keep(name, self._run(write), directory)

    def drop(self, name: str) -> None:
        """Forgets a table, if there is one, and frees its space. Raises `EngineError`."""
        self._run(lambda: self._session.catalog().dropTempView(name))
        self._forget(name)

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first value of the first row. Raises `EngineError`."""
        rows = self._run(lambda: self._query(sql, parameters).takeAsList(1))
        return rows[0].get(0) if rows else None

    def stream(self, sql: str, parameters: Sequence[Value] = ()) -> Generator[pa.RecordBatch]:
        """The rows of a query as record batches, once all have been written. Raises `EngineError`."""
        directory = self._new_directory()
        try:
            self._run(lambda: self._query(sql, parameters).write().parquet(str(directory)))
            batches = (batch for path in _parts(directory) for batch in pq.ParquetFile(path).iter_batches(BATCH_ROWS))
            while (batch := self._run(lambda: next(batches, None))) is not None:
                yield batch
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def write_delta(self, target: Path, schema: pa.Schema, sql: str, parameters: Sequence[Value] = ()) -> int:
        """Writes the rows of a query as a new Delta table, in parallel. Raises `EngineError`."""
        from deltalake import Schema

        delta_schema = Schema.from_arrow(schema)

        def write() -> int:
            rows = self._query(sql, parameters)
            refuse_missing(schema, rows.columns())
            with whole_table(target) as partial:
                rows.to(self._type(delta_schema.to_json())).write().parquet(str(partial))
                return _commit(partial, delta_schema)

        return self._run(write)

    def _start(self, spill: Path) -> SparkDriver:
        logging = spill / "log4j2.properties"
        with private_files():
            logging.write_text(_NO_LOG, encoding="utf-8")
        # Spark takes the options apart again by spaces outside quotes.
        java = f'-Duser.timezone=UTC "-Dlog4j2.configurationFile={logging.as_uri()}"'
        # Whatever else of Java or Hadoop looks for a place for its files finds it here.
        place = f'"-Djava.io.tmpdir={private_directory(spill / "tmp")}"'
        launch = {
            "spark.driver.memory": self._heap if self._is_one_process else "1g",
            "spark.driver.extraJavaOptions": f"{java} {place}",
            "spark.executor.extraJavaOptions": f"{java} {place}",
        }
        environment = {"SPARK_LOCAL_DIRS": str(spill / "local")}  # would outrank the setting
        if self._is_local:
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"  # nobody else may connect
        return SparkDriver(spill, launch, environment)

    def _open_session(self) -> Any:
        settings = {
            **self._options,
            **_SETTINGS,
            "spark.local.dir": str(self._directory / "local"),
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            "spark.sql.shuffle.partitions": str(self._partitions),
            "spark.executor.memory": self._heap,
        }
        if self._is_local:
            settings |= {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}
        builder = self._driver.jvm.org.apache.spark.sql.SparkSession.builder().master(self._master).appName("dpsynth")
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    @property
    def _is_one_process(self) -> bool:
        return self._master.startswith("local[")

    @property
    def _is_local(self) -> bool:
        return self._master.startswith("local")

    def _query(self, sql: str, parameters: Sequence[Value]) -> Any:
        return self._session.sql(sql, self._driver.objects(parameters))

    def _type(self, schema: str) -> Any:
        """Spark's type of a Delta schema, which is written as Spark writes its own."""
        return self._driver.jvm.org.apache.spark.sql.types.DataType.fromJson(schema)

    def _copy(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Makes batches readable as a table: Spark reads files."""
        import pyarrow.dataset as ds

        refuse_names(name, schema.names)
        directory = private_directory(self._new_directory())
        options = ds.ParquetFileFormat().make_write_options(coerce_timestamps="us")

        def write() -> Any:
            with private_files():
                ds.write_dataset(batches, directory, schema=schema, format="parquet", file_options=options)
                if not any(directory.iterdir()):  # no row, no file; but Spark takes the schema from one
                    pq.write_table(schema.empty_table(), directory / "part-0.parquet")
            return self._session.read().parquet(self._driver.texts([str(directory)]))

        self._keep(name, self._run(write), directory)

    def _keep(self, name: str, rows: Any, directory: Path | None = None) -> None:
        """Gives a table its name; the one that had it before goes, with its files."""
        self._run(lambda: rows.createOrReplaceTempView(name))
        self._forget(name)
        if directory is not None:
            self._files[name.casefold()] = directory

    def _forget(self, name: str) -> None:
        directory = self._files.pop(name.casefold(), None)
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _new_directory(self) -> Path:
        return private_directory(self._directory / "tables") / secrets.token_hex(8)

    @property
    def _directory(self) -> Path:
        if self._spill is None:
            raise EngineError("the SQL engine is used outside its `with` block")
        return self._spill

    @property
    def _driver(self) -> SparkDriver:
        if self._open_driver is None:
            raise EngineError("the SQL engine is used outside its `with` block")
        return self._open_driver

    def _run(self, action: Callable[[], _T]) -> _T:
        """Runs an action; of what goes wrong in Spark, Arrow or Delta only the type leaves."""
        from deltalake.exceptions import DeltaError
        from py4j.protocol import Py4JError, Py4JNetworkError

        if self._open_driver is None:
            raise EngineError("the SQL engine is used outside its `with` block")
        try:
            return action()
        except (Py4JNetworkError, ConnectionError):
            failure = EngineError("the SQL engine stopped (its process is gone)")
        except Py4JError as error:
            failure = EngineError(f"the SQL engine stopped ({_type_of(error)})")
        except (DeltaError, pa.ArrowException, OSError) as error:
            failure = stopped(error)
        raise failure


def _commit(directory: Path, schema: Any) -> int:
    """Makes a directory of Spark's Parquet files a Delta table; the number of its rows.

    The log holds their number and no minima and maxima of columns, which would be values of the data.
    """
    from deltalake.transaction import AddAction, create_table_with_add_actions

    actions, total = [], 0
    for checksum in directory.glob(".*.crc"):
        checksum.unlink()
    for path in _parts(directory):
        rows = pq.read_metadata(path).num_rows
        if rows == 0:
            path.unlink()
            continue
        total += rows
        size, modified = path.stat().st_size, time.time_ns() // 1_000_000
        actions.append(AddAction(path.name, size, {}, modified, True, json.dumps({"numRecords": rows})))
    create_table_with_add_actions(str(directory), schema, actions)
    return total


def _parts(directory: Path) -> list[Path]:
    """The Parquet files that Spark wrote, in the order of the query."""
    return sorted(directory.glob("part-*.parquet"))


def _type_of(error: Exception) -> str:
    """The Java type of an error of Spark, or the Python type where Spark cannot be asked any more."""
    try:
        return str(error.java_exception.getClass().getSimpleName())  # type: ignore[attr-defined]
    except Exception:
        return type(error).__name__


def _remove(directory: Path, seconds: float = 10.0) -> None:
    """Deletes a directory into which processes that were just killed may write for a moment yet."""
    deadline = time.monotonic() + seconds
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            time.sleep(0.05)
