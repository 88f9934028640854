"""Spark: the SQL engine for tables that are too large for one machine's memory or processors.

What belongs here: one short-lived session, its settings, and moving tables in and out of it. What does not: its process
(`spark_driver`), and any SQL of a step.

Every intermediate table is written to Parquet files in a private spill directory and read from there, so the loss of a
worker loses nothing that cannot be computed again from files. (Spark's `localCheckpoint` keeps its blocks in the
workers, so the job fails with one of them; a reliable checkpoint would write the same data as Java objects.) `stream`
also reads such files, so neither driver nor Python holds more than a batch. On a cluster of several machines, all of
them must see the spill directory and the tables.

Delta tables are read by the list of their files, and written as files followed by one commit, both through `deltalake`,
so Spark needs no Delta library.
"""

from __future__ import annotations

import contextlib
import json
import re
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

from dpsynth_platform.compute.engine import Value, refuse_missing, refuse_names, stopped, whole_table
from dpsynth_platform.compute.spark_driver import SparkDriver
from dpsynth_platform.foundation.errors import EngineError
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.reading import BATCH_ROWS, read_batches, selected
from dpsynth_platform.foundation.storage import arrow_files

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_T = TypeVar("_T")

MEBIBYTE = 1 << 20
"""The unit of memory of Java and Spark."""

_SETTINGS = {
    # A query means the same as in DuckDB.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    # A column's name may look like a variable: ${env:HOME}.
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    # Dates and times in the standard form of Parquet files.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # A task that is repeated after its worker died must not write its rows twice.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # No user interface, event log or readable file.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # SQL reads registered tables only.
    "spark.sql.runSQLOnFiles": "false",
}
# Spark logs rows with values that it cannot use. Without any appender it would use its default configuration.
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
"""Settings of Spark that a deployment may not set."""


class SparkEngine:
    """A Spark session for the length of a `with` block; see `compute.engine.Engine`.

    Args:
        spill: directory of the restricted zone; a private directory is made in it and removed at the end.
        master: `local[N]` (N threads of one process), `local-cluster[N,cores,megabytes]` (N processes on this
            machine) or `spark://host:port`.
        memory: bytes of heap of the one process, or of each worker.
        partitions: the most parts of a shuffle; Spark joins small ones.
        options: further settings of Spark, none in `RESERVED`. The secret of a cluster (`spark.authenticate`) is given
            here; on one machine the engine makes its own.
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
        # A cluster's session is closed after success only. Otherwise Spark may be dead, or busy for hours.
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
        # Refuses reader features that this reader lacks, such as deletion vectors.
        dataset = self._run(lambda: table.to_pyarrow_dataset(filesystem=arrow_files(uri)))
        schema = selected(dataset.schema, columns)
        files = table.file_uris()
        if table.metadata().partition_columns or not files:
            # Values of partition columns are in the log, not in the files.
            self._copy(name, schema, read_batches(dataset, columns))
            return
        refuse_names(name, schema.names)
        fields = {field.name: field for field in table.schema().fields}
        read = Schema([fields[item] for item in schema.names])
        reader = self._run(lambda: self._session.read().schema(self._type(read.to_json())))
        self._keep(name, self._run(lambda: reader.parquet(self._driver.texts(files))))

    def materialize(self, name: str, sql: str, parameters: Sequence[Value] = ()) -> None:
        """Runs a query once and stores its rows as the table `name`. Raises `EngineError`."""
        directory = self._new_directory()

        def write() -> Any:
            rows = self._query(sql, parameters)
            rows.write().parquet(str(directory))
            return self._session.read().schema(rows.schema()).parquet(self._driver.texts([str(directory)]))

        self._keep(name, self._run(write), directory)

    def drop(self, name: str) -> None:
        """Removes a table, if it exists, and frees its space. Raises `EngineError`."""
        self._run(lambda: self._session.catalog().dropTempView(name))
        self._forget(name)

    def scalar(self, sql: str, parameters: Sequence[Value] = ()) -> Any:
        """The first value of the first row. Raises `EngineError`."""
        rows = self._run(lambda: self._query(sql, parameters).takeAsList(1))
        return rows[0].get(0) if rows else None

    def stream(self, sql: str, parameters: Sequence[Value] = ()) -> Generator[pa.RecordBatch]:
        """The rows of a query as record batches, after all were written to files. Raises `EngineError`."""
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
        # Spark splits the options at spaces outside quotes.
        java = f'-Duser.timezone=UTC "-Dlog4j2.configurationFile={logging.as_uri()}"'
        # For temporary files of Java and Hadoop.
        place = f'"-Djava.io.tmpdir={private_directory(spill / "tmp")}"'
        launch = {
            "spark.driver.memory": self._heap if self._is_one_process else "1g",
            "spark.driver.extraJavaOptions": f"{java} {place}",
            "spark.executor.extraJavaOptions": f"{java} {place}",
        }
        environment = {"SPARK_LOCAL_DIRS": str(spill / "local")}  # takes precedence over the setting
        if self._is_local:
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"  # no other machine may connect
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
        return self._session.sql(_in_backticks(sql), self._driver.objects(parameters))

    def _type(self, schema: str) -> Any:
        """Spark's type of a Delta schema; both have the same JSON form."""
        return self._driver.jvm.org.apache.spark.sql.types.DataType.fromJson(schema)

    def _copy(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Writes batches to files and registers them as a table."""
        import pyarrow.dataset as ds

        refuse_names(name, schema.names)
        directory = private_directory(self._new_directory())
        options = ds.ParquetFileFormat().make_write_options(coerce_timestamps="us")

        def write() -> Any:
            with private_files():
                ds.write_dataset(batches, directory, schema=schema, format="parquet", file_options=options)
                if not any(directory.iterdir()):  # no rows, no file; but Spark reads the schema from one
                    pq.write_table(schema.empty_table(), directory / "part-0.parquet")
            return self._session.read().parquet(self._driver.texts([str(directory)]))

        self._keep(name, self._run(write), directory)

    def _keep(self, name: str, rows: Any, directory: Path | None = None) -> None:
        """Names a table; removes the earlier one of that name with its files."""
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
        """Runs an action; only the type of an error of Spark, Arrow or Delta leaves it."""
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
    """Makes a directory of Spark's Parquet files a Delta table; returns the number of rows.

    The log contains their number and no minima and maxima of columns, which would be values of the data.
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


_TEXT_OR_NAME = re.compile(r"""'[^']*'|"((?:[^"]|"")*)\"""")


def _in_backticks(sql: str) -> str:
    """The SQL with Spark's quotes around names. Its double quotes hold neither a double quote nor a backslash."""

    def written(part: re.Match[str]) -> str:
        name = part[1]
        return part[0] if name is None else "`" + name.replace('""', '"').replace("`", "``") + "`"

    return _TEXT_OR_NAME.sub(written, sql)


def _parts(directory: Path) -> list[Path]:
    """The Parquet files that Spark wrote, in the order of the query."""
    return sorted(directory.glob("part-*.parquet"))


def _type_of(error: Exception) -> str:
    """The Java type of an error of Spark, or the Python type if Spark does not answer."""
    try:
        return str(error.java_exception.getClass().getSimpleName())  # type: ignore[attr-defined]
    except Exception:
        return type(error).__name__


def _remove(directory: Path, seconds: float = 10.0) -> None:
    """Deletes a directory; processes that were just killed may still write into it for a moment."""
    deadline = time.monotonic() + seconds
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            time.sleep(0.05)
