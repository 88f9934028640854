"""Iceberg tables: a snapshot of one, by a catalog or by the table's own metadata file.

What belongs here: opening a snapshot for reading, and which snapshots hold the same rows. What does not: reading files,
which pyiceberg does, deletes and renamed columns included.

A version is a snapshot's sequence number (https://iceberg.apache.org/spec/#sequence-numbers), which a table's format
version 2 or later has. Columns are those of the snapshot: a change of the columns alone is no version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_batch, plain_schema
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.uris import CATALOG
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import BATCH_ROWS, Span, selected
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.csv_files import parts
from dpsynth_platform.sources.passwords import check_environment

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

NOT_INSTALLED = "pyiceberg is not installed; accepted: pip install 'dpsynth_platform[iceberg]'"
_ACCEPTED = (
    "accepted: the URI of a catalog, its name (source.catalog; default: default) and source.table with the namespace "
    "(namespace.name); or the path of a table's metadata file"
)


@dataclass(frozen=True)
class IcebergTable:
    """The rows of one snapshot."""

    opened: Table
    snapshot: int
    schema: pa.Schema

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The rows; see `files.FileTable.batches`.

        Raises:
            EngineError: there is no such column.
            SourceError: a file is missing, damaged, or not readable by pyiceberg.
        """
        schema = selected(self.schema, columns)
        try:
            for batch in self._scanned(schema.names, span):
                found = plain_batch(batch.select(schema.names)).cast(schema)
                yield from parts(found if span is None else found.filter(span.mask(found)), most_rows)
            return
        except Exception as error:  # of the library or of a store; the text may quote data
            problem = f"a data file is missing, damaged or cannot be read by pyiceberg ({reason_of(error)})"
        raise SourceError(problem)

    def local_files(self) -> list[Path]:
        """Its files that are on this machine. Raises `SourceError` if a manifest cannot be read."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        try:
            tasks = list(self.opened.scan(snapshot_id=self.snapshot).plan_files())
            places = [PyArrowFileIO.parse_location(task.file.file_path) for task in tasks]
            return [Path(path) for scheme, _, path in places if scheme == "file"]
        except Exception as error:  # of the library or of a store; the text may quote data
            problem = f"a manifest is missing, damaged or cannot be read by pyiceberg ({reason_of(error)})"
        raise SourceError(problem)

    def _scanned(self, names: Sequence[str], span: Span | None) -> Iterable[pa.RecordBatch]:
        chosen: dict[str, Any] = {"snapshot_id": self.snapshot, "selected_fields": tuple(names)}
        if span is not None and "." not in span.column:  # which pyiceberg takes for a struct's field
            chosen["row_filter"] = _filter(span)
        found: Iterable[pa.RecordBatch] = self.opened.scan(**chosen).to_arrow_batch_reader()
        return found


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of a table's main branch around the opened one: sequence numbers, and which changed no row."""

    version: int
    quiet: dict[int, bool]

    @property
    def same_since(self) -> int:
        """The first version that is known to hold the rows of this one."""
        found = self.version
        for number in sorted((number for number in self.quiet if number < self.version), reverse=True):
            if not self.quiet[found]:
                break
            found = number
        return found

    @property
    def same_until(self) -> int:
        """The last version that is known to hold the rows of this one."""
        found = self.version
        for number in sorted(number for number in self.quiet if number > self.version):
            if not self.quiet[number]:
                break
            found = number
        return found

    @property
    def known_since(self) -> bool:
        """Whether the snapshot of `same_since` is known to be a change: an expired one before it may have its rows."""
        return not self.quiet[self.same_since]


@dataclass(frozen=True)
class IcebergVersion:
    """One opened snapshot of an Iceberg table; `table_id` is the table's own random id."""

    table_id: str
    version: int
    table: IcebergTable
    log: Snapshots


def open_iceberg(source: Source, version: int | None = None) -> IcebergVersion:
    """Opens the current (or the given) snapshot of an Iceberg table, reading its metadata only.

    Raises:
        SourceError: pyiceberg is missing; there is no readable table, or no such snapshot of its main branch.
    """
    try:
        opened = _table(source)
        return _version(opened, version)
    except ImportError:
        problem = NOT_INSTALLED
    except SourceError as error:
        problem = str(error)
    except Exception as error:  # of the catalog's client, of its database or of a store; texts may hold credentials
        problem = f"the Iceberg table cannot be opened ({reason_of(error)}); {_ACCEPTED}"
    raise SourceError(problem)


def _table(source: Source) -> Table:
    from dpsynth_platform.sources.iceberg_catalogs import load_file

    if source.table is None:
        return load_file(source.uri)
    with open_catalog(source.uri, source.catalog) as catalog:
        return catalog.load_table(source.table)


def open_catalog(uri: str, name: str | None) -> Catalog:
    """A catalog that exists, by credentials of the environment alone. Raises `SourceError`, or as pyiceberg does."""
    import sqlalchemy as sa

    from dpsynth_platform.sources.iceberg_catalogs import load

    parsed = urlsplit(uri)
    kind = parsed.scheme.partition("+")[0]
    if kind == "sqlite" and not Path(unquote(parsed.path)[1:] or ".").is_file():
        raise SourceError("there is no catalog at this place; accepted: the URI of a catalog that exists")
    configured = _configured(uri, name or CATALOG)
    if kind == "postgresql":
        check_environment(sa.make_url(uri))
    if parsed.scheme == "postgresql":  # by the platform's driver
        uri = uri.replace(parsed.scheme, "postgresql+psycopg", 1)
    return load(name or CATALOG, uri, configured)


def _configured(uri: str, name: str) -> dict[str, Any]:
    """What is configured for a catalog, such as a token. Raises `SourceError` if it is not for the contract's URI."""
    from pyiceberg.utils.config import Config

    found = Config().get_catalog_config(name) or {}
    if found.keys() - {"uri", "warehouse"} and str(found.get("uri", "")).rstrip("/") != uri.rstrip("/"):
        raise SourceError(
            f"what is configured for the catalog {name}, which may be credentials, does not say that it is for this "
            f"URI; accepted: the same URI in PYICEBERG_CATALOG__{name.upper()}__URI, or beside it in pyiceberg's file"
        )
    return found


def _version(opened: Table, version: int | None) -> IcebergVersion:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    if opened.current_snapshot() is None:
        raise SourceError("the Iceberg table has no snapshot, so no row; accepted: one with rows")
    found = {int(snapshot.sequence_number): snapshot for snapshot in _ancestors(opened) if snapshot.sequence_number}
    if not found:
        raise SourceError(
            "the Iceberg table is of format version 1, whose snapshots have no numbers; accepted: format version 2 or "
            "later (ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2'), and a new snapshot), or a copy"
        )
    number = max(found) if version is None else version
    if number not in found:
        raise SourceError(
            f"the Iceberg table's main branch has no snapshot with the sequence number {number}, which may have "
            f"expired; accepted: {', '.join(map(str, sorted(found)[-5:]))}"
        )
    snapshot = found[number]
    schemas = opened.schemas()
    named = opened.schema() if snapshot.schema_id is None else schemas[snapshot.schema_id]
    # The whole table's, so that a batch has the same types whatever its file stores.
    read = plain_schema(schema_to_pyarrow(named, include_field_ids=False))
    schema = pa.schema([item.with_type(_usual(item.type)) for item in read])
    log = Snapshots(number, {each: _is_quiet(opened, one) for each, one in found.items()})
    return IcebergVersion(
        str(opened.metadata.table_uuid), number, IcebergTable(opened, snapshot.snapshot_id, schema), log
    )


def _usual(type_: pa.DataType) -> pa.DataType:
    """A type with offsets of 32 bits, as other sources have: pyiceberg gives all texts and lists those of 64."""
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return pa.list_(_usual(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([part.with_type(_usual(part.type)) for part in type_])
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type_, type_)


def _ancestors(opened: Table) -> Iterator[Snapshot]:
    """The current snapshot and those before it that have not expired."""
    snapshot = opened.current_snapshot()
    while snapshot is not None:
        yield snapshot
        before = snapshot.parent_snapshot_id
        snapshot = None if before is None else opened.snapshot_by_id(before)


def _is_quiet(opened: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot has the rows and columns of its parent: files were replaced, as by compaction."""
    from pyiceberg.table.snapshots import Operation

    if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
        return False
    before = opened.snapshot_by_id(snapshot.parent_snapshot_id or 0)
    return before is None or before.schema_id == snapshot.schema_id


def _filter(span: Span) -> Any:
    from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan, Reference

    start, end = (value.as_py().isoformat() for value in (span.start, span.end))
    column: Any = Reference(span.column)
    return And(GreaterThanOrEqual(term=column, value=start), LessThan(term=column, value=end))
