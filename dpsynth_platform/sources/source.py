"""The sensitive source table: pinning a version of it and streaming its rows.

What belongs here: opening the table that a contract names, fixing the version that all later steps read, and errors
that name columns and types, never values. What does not: formats of tables (`delta`, `plain_files`), deciding whether
the columns fit the contract (`scrub` checks that), and any change to the rows.

Pinning reads a table's log, or the names, types and bytes of its files, which it hashes. No record is used before the
ledger has admitted the plan.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain, plain_type
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.declared_types import read_as, read_type
from dpsynth_platform.sources.delta_types import kept, kept_type
from dpsynth_platform.sources.file_versions import version_of_content
from dpsynth_platform.sources.structs import FlatTable

if TYPE_CHECKING:
    from dpsynth_platform.contracts.source import Source
    from dpsynth_platform.foundation.reading import Span
    from dpsynth_platform.sources.delta import DeltaVersion
    from dpsynth_platform.sources.iceberg import IcebergVersion

_DEMONSTRATIONS = ("census", "visits", "mail", "flights", "images")
_FEDERATED = uuid.UUID("c7c2d2ad-6f0b-4d10-9d52-0a4ba3c9b8a6")
BATCH_ROWS = 8_192
"""Rows of a batch; few, since texts may be long."""


@dataclass(frozen=True)
class Copy:
    """A copy in the restricted zone of a source that is not on this machine, and a digest of it."""

    directory: Path
    content: str = field(repr=False)


@dataclass(frozen=True)
class PinnedSource:
    """The rows of a source table at one version.

    Attributes:
        table_id: the table's own id; another table at the same place has another id.
        version: the table's version that added these rows, or the one with the same rows that a run has named.
        schema: Arrow schema of that version.
        first: the first version that is known to hold the same rows.
        read: the last one. Its files are read, since compaction lets earlier files be deleted.
        certain: whether the log shows that `first` has other rows or columns than the version before.
        content: digest of plain files, which the rows must come from; None: the table has versions of its own.
        copy: of a source that is not on this machine; the rows are read from there.
        parts: of linked tables, and of a table of a database file, the columns that lead to an owner, by the id that
            a private table alone has.
        people: tables and a database file by their ids, in words: their people are of the contract's family.
    """

    uri: str
    table_id: str
    version: int
    schema: pa.Schema
    first: int
    read: int
    certain: bool = True
    content: str | None = field(default=None, repr=False)
    copy: Copy | None = None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    people: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`<table id>@<version>`, a stable name of the content that does not depend on it: the id is random."""
        return f"{self.table_id}@{self.version}"

    def named_as(self, name: str) -> PinnedSource:
        """The same source under the name of an earlier pin of the same rows; otherwise unchanged.

        So a run keeps its name, whichever version with its rows was the newest when it was first made.
        """
        table_id, version = _parts(name)
        same = table_id == self.table_id and self.first <= version <= self.read
        return replace(self, version=version) if same else self

    def unsure_since(self, name: str) -> bool:
        """Whether this is later than an earlier pin of the table, and may hold the same rows."""
        table_id, version = _parts(name)
        return table_id == self.table_id and version < self.first and not self.certain


def pin(
    contract: DataContract, zone: Path, *, version: int | None = None, register: bool = False, copy: Copy | None = None
) -> PinnedSource:
    """Opens the contract's source at its newest (or the given) version, without using a record.

    The newest version of a Delta or Iceberg table is the last that changed rows or columns; compaction and other
    maintenance do not count. Plain files have a new version when their content is another one (`file_versions`).

    Args:
        zone: the restricted zone, which keeps the versions of plain files.
        register: whether a new content of plain files is kept as a version; a run does so.
        copy: that of a source that is not on this machine, which a run makes.

    Raises:
        SourceError: there is no readable table of that version.
    """
    uri = contract.source.uri
    if contract.source.federation is not None:
        return _pin_federated(contract)
    try:
        apart = zone if register or version is not None else None  # nobody reads rows otherwise
        if contract.tables:
            return _pin_tables(contract, zone, version, apart, register=register)
        if contract.source.has_versions:
            return _pin_version(contract, contract.source.version if version is None else version, apart)
        from dpsynth_platform.sources.plain_files import open_files

        files = open_files(contract.source, contract.columns, None if copy is None else copy.directory)
        if copy is None:
            _check_apart(files.files.paths, apart)
        schema = _read_schema(contract, FlatTable(files.table, contract.columns).schema)
        if copy is not None:
            known = version_of_content(zone, contract.source.place, copy.content, register=register)
        else:
            known = files.registered(zone, version) if version is not None else files.version(zone, register=register)
        found = PinnedSource(uri, known.table_id, known.version, schema, known.version, known.version)
        if register and contract.source.format == "sql":
            from dpsynth_platform.sources.database_ids import read_by

            read = read_by(zone, contract.source)
            alone = {} if read.alone is None else {read.alone: tuple(contract.privacy.owner_columns)}
            found = replace(found, parts=alone, people=read.people)
        return replace(found, content=known.content, copy=copy)
    except SourceError as error:
        problem = str(error)
    except OSError as error:
        problem = f"the record of versions cannot be used: {file_problem(error)}"
    raise SourceError(f"{contract.dataset}: source.uri: {uri}: {problem.removeprefix(f'{uri}: ')}")


def _pin_tables(
    contract: DataContract, zone: Path, version: int | None, apart: Path | None, *, register: bool
) -> PinnedSource:
    """The present content of linked tables; it must be that of a given version."""
    from dpsynth_platform.contracts.uris import local_path
    from dpsynth_platform.sources.linked_source import pinned_content

    found, content = pinned_content(contract, apart)
    place = str(local_path(contract.source.uri).resolve())
    known = version_of_content(zone, place, content, register=register)
    if version is not None and known.version != version:
        raise SourceError(
            "the tables were changed since the version was pinned; accepted: the same content again, or a run of the "
            "present version, which is a new spend: materialize raw again"
        )
    schema = _read_schema(contract, found.schema)
    pinned = PinnedSource(contract.source.uri, known.table_id, known.version, schema, known.version, known.version)
    if not register:
        return replace(pinned, content=content)
    return replace(pinned, content=content, parts=found.table_ids(zone), people=found.people(zone))


def _pin_federated(contract: DataContract) -> PinnedSource:
    """Rows that stay with participants: the declared version, and an id that follows from the dataset's name."""
    version, table_id = contract.source.version or 0, str(uuid.uuid5(_FEDERATED, contract.dataset))
    return PinnedSource(contract.source.uri, table_id, version, schema_of(contract), version, version)


def schema_of(contract: DataContract) -> pa.Schema:
    """The names of the source's columns, and the types that a run reads them as; pins nothing and reads no record.

    Types are the declared ones where a source has none: CSV files, JSON lines, what a run copies from a database, and
    rows that stay with participants.

    Raises:
        SourceError: there is no readable table, or one that a run copies from a file store.
    """
    from dpsynth_platform.sources.csv_files import text_schema
    from dpsynth_platform.sources.delta import NoDeltaTable
    from dpsynth_platform.sources.plain_files import open_files

    source = contract.source
    if source.federation is not None:
        declared = text_schema([name for name in contract.columns if name not in contract.ignored], contract.columns)
        pictures = [each.with_type(pa.binary()) if each.name == contract.image_column else each for each in declared]
        return _read_schema(contract, pa.schema(pictures))
    if contract.tables:
        from dpsynth_platform.sources.linked_source import source_of_contract

        return _read_schema(contract, source_of_contract(contract, rows=False).schema)
    if source.format == "sql":
        from dpsynth_platform.sources.database import columns_of

        return text_schema(list(columns_of(source)), contract.columns)
    try:
        opened = _open_version(source, source.version) if source.has_versions else open_files(source, contract.columns)
    except NoDeltaTable as error:
        raise SourceError(f"{error}{_made_by(contract)}") from None
    return _read_schema(contract, FlatTable(opened.table, contract.columns).schema)


def _open_version(source: Source, version: int | None) -> DeltaVersion | IcebergVersion:
    """The newest (or the given) version of a table that has versions of its own."""
    if source.format == "iceberg":
        from dpsynth_platform.sources.iceberg import open_iceberg

        return open_iceberg(source, version)
    from dpsynth_platform.sources.delta import open_delta

    return open_delta(source.uri, version)


def _check_apart(files: Iterable[Path], zone: Path | None) -> None:
    """Raises `SourceError` for a file in the restricted zone: a link, or a table's log, may lead to another's rows."""
    if zone is not None and any(file.resolve().is_relative_to(zone.resolve()) for file in files):
        raise SourceError("a data file lies among the platform's own files; accepted: files in a separate place")


def _pin_version(contract: DataContract, version: int | None, apart: Path | None) -> PinnedSource:
    from dpsynth_platform.contracts.uris import local_path
    from dpsynth_platform.sources.delta import DeltaProblem, NoDeltaTable

    uri = contract.source.uri
    named = contract.source.format_by_name
    try:
        found = _open_version(contract.source, version)
    except DeltaProblem as error:
        if named is not None and not (local_path(uri) / "_delta_log").is_dir():
            raise SourceError(
                "there is no Delta table at this place, and delta is the format unless another one is declared; "
                f"accepted: source.format: {named}, as the end of the name says"
            ) from None
        if not isinstance(error, NoDeltaTable):
            raise
        raise SourceError(
            f"{error}{_made_by(contract)}; accepted: a readable Delta table, or "
            "source.format: parquet, csv or json for plain files"
        ) from None
    if apart is not None:
        _check_apart(found.table.local_files(), apart)
    log, schema = found.log, _read_schema(contract, FlatTable(found.table, contract.columns).schema)
    if version is not None:
        return PinnedSource(uri, found.table_id, version, schema, version, log.same_until)
    first = log.same_since
    return PinnedSource(uri, found.table_id, first, schema, first, found.version, log.known_since)


def at_version(newest: PinnedSource, name: str, schema: pa.Schema) -> PinnedSource | None:
    """An earlier version of a table by its name (`PinnedSource.name`), or None if the name is another table's.

    It opens nothing: only reading the rows shows whether the version still exists.
    """
    table_id, version = _parts(name)
    if table_id != newest.table_id:
        return None
    content = None if newest.content is None else ""  # that of no files
    return replace(newest, version=version, schema=schema, first=version, read=version, certain=True, content=content)


def batches(source: PinnedSource, contract: DataContract, period: str | None) -> Iterator[pa.RecordBatch]:
    """Streams the rows of the pinned version, of one period if the contract has a cadence.

    Raises:
        SourceError: a data file is missing, damaged or not that of the version, a column cannot be read, or there is no
            row.
    """
    from dpsynth_platform.sources.plain_files import in_contract

    if contract.source.period_column is not None and period is None:
        raise SourceError(f"{contract.dataset}: releases come by period; name one, such as {contract.release.start}")
    empty, problem = True, None
    try:
        for batch in _stored(source, contract, period):
            if batch.num_rows:
                empty = False
                yield batch
    except SourceError as error:
        problem = in_contract(str(error)).removeprefix(f"{source.uri}: ")
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"a data file is missing, damaged or of another type ({reason_of(error)})"
    place = f"{contract.dataset}: source.uri: {source.uri}: version {source.read}"
    if problem:
        raise SourceError(f"{place}: {problem}")
    if empty:
        raise SourceError(f"{place} has {f'no row of period {period}' if period else 'no row'}")


def _stored(source: PinnedSource, contract: DataContract, period: str | None) -> Iterator[pa.RecordBatch]:
    """The rows as they are stored, with plain types. Raises as the table does."""
    from dpsynth_platform.sources.plain_files import open_files

    unchanged: Callable[[], AbstractContextManager[None]] = nullcontext
    if source.content is None:
        found = _open_version(contract.source, source.read)
        if found.table_id != source.table_id:  # versions of another table have the same numbers
            raise SourceError("another table is at this place than the one that was pinned; materialize raw again")
        table = FlatTable(found.table, contract.columns)
    else:
        copy = source.copy
        files = open_files(contract.source, contract.columns, None if copy is None else copy.directory)
        table = FlatTable(files.table, contract.columns)
        unchanged = partial(files.unchanged, source.content) if copy is None else nullcontext
    columns = [name for name in table.schema.names if name not in contract.ignored]
    span = _span(contract, period, table.schema)
    with unchanged():
        for batch in table.batches(columns, span=span, most_rows=BATCH_ROWS):
            yield _read(contract, batch)


def _read_schema(contract: DataContract, schema: pa.Schema) -> pa.Schema:
    """A schema with the types that declarations read, and that a Delta table has: the next step stores the rows in one.

    A column without a type, which holds nothing, has its declared one.
    """
    from dpsynth_platform.sources.csv_files import text_schema

    declared = text_schema(schema.names, contract.columns)

    def type_of(item: pa.Field, place: int) -> pa.DataType:
        values = plain_type(item.type)
        read = read_type(_kind(contract, item.name), values)
        if contract.source.format == "delta":
            return item.type if read == values else read
        found = declared.field(place).type if pa.types.is_null(read) else read
        return kept_type(found, codes=_is_code(contract, item.name))

    types = [type_of(item, place) for place, item in enumerate(schema)]
    return schema if types == schema.types else pa.schema(map(pa.Field.with_type, schema, types))


def _read(contract: DataContract, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows by `_read_schema`. Raises as `read_as` does."""
    schema = _read_schema(contract, batch.schema)

    def values(found: pa.Array, item: pa.Field) -> pa.Array:
        if pa.types.is_null(found.type):
            return pa.nulls(len(found), item.type)
        if contract.source.format == "delta" and found.type == item.type:
            return found
        read = read_as(_kind(contract, item.name), plain(found), item.name)
        return read if contract.source.format == "delta" else kept(read, codes=_is_code(contract, item.name))

    return pa.RecordBatch.from_arrays(list(map(values, batch.columns, schema)), schema=schema)


def _kind(contract: DataContract, name: str) -> str:
    """The declared type of a column; empty where there is none."""
    column = contract.columns.get(name)
    return "" if column is None else column.type


def _is_code(contract: DataContract, name: str) -> bool:
    """Whether the values of a column must stay distinct, however large their numbers are."""
    return _kind(contract, name) in ("categorical", "identifier")


def _parts(name: str) -> tuple[str, int]:
    table_id, _, version = name.rpartition("@")
    return table_id, int(version)


def _made_by(contract: DataContract) -> str:
    """The command that makes a demonstration's table, if that is what is missing."""
    if contract.dataset in _DEMONSTRATIONS and Path(contract.source.uri).parts[-2:] == ("sources", contract.dataset):
        return f"; to make this demonstration's table: dpsynth demo --source {contract.dataset}"
    return ""


def _span(contract: DataContract, period: str | None, schema: pa.Schema) -> Span | None:
    from dpsynth_platform.sources.periods import period_span

    column = contract.source.period_column
    if column is None or period is None:
        return None
    return period_span(column, schema.field(column).type, period, contract.release.time_zone)
