"""The sensitive source table: pinning a version of it and streaming its rows.

What belongs here: opening the table that a contract names, fixing the version that all later steps read, and turning
whatever is wrong with it into a clear error that names columns and types, never values. What does not: deciding
whether the columns fit the contract (`scrub` checks that), and any change to the rows.

Pinning reads the table's log only. No record is read before the ledger has admitted the plan.
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.errors import SourceError

_DEMONSTRATIONS = ("census", "visits", "mail", "flights")


BATCH_ROWS = 8_192
"""Rows that are read at once: long texts make a batch large."""


@dataclass(frozen=True)
class PinnedSource:
    """One version of a source table.

    Attributes:
        table_id: the table's own id, so that a table put in another's place is noticed.
        version: the Delta version; time travel keeps it readable while the source evolves.
        schema: Arrow schema of that version.
    """

    uri: str
    table_id: str
    version: int
    schema: pa.Schema

    @property
    def name(self) -> str:
        """`<table id>@<version>`, a stable name of the content, and no function of it: the id is random."""
        return f"{self.table_id}@{self.version}"


def pin(contract: DataContract, *, version: int | None = None) -> PinnedSource:
    """Opens the contract's source at its newest (or the given) version, reading metadata only.

    Raises:
        SourceError: there is no readable Delta table of that version.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri = contract.source.uri
    try:
        table = DeltaTable(uri, version=version)
        schema = table.to_pyarrow_dataset().schema
        return PinnedSource(uri=uri, table_id=str(table.metadata().id), version=table.version(), schema=schema)
    except TableNotFoundError:
        problem = "there is no Delta table at this place" + _made_by(contract)
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        # The library's own text may quote statistics of the data, so its type must do.
        problem = f"the Delta table cannot be read ({type(error).__name__})"
    raise SourceError(f"{contract.dataset}: source.uri: {uri}: {problem}; accepted: a readable Delta table")


def at_version(newest: PinnedSource, name: str, schema: pa.Schema) -> PinnedSource | None:
    """An earlier version of a table by its name (`PinnedSource.name`), or None where that is another table's.

    Nothing is opened: whether the version can still be read shows where its rows are.
    """
    table_id, _, version = name.rpartition("@")
    if table_id != newest.table_id:
        return None
    return PinnedSource(newest.uri, table_id, int(version), schema)


def batches(source: PinnedSource, contract: DataContract, period: str | None) -> Iterator[pa.RecordBatch]:
    """Streams the rows of the pinned version, of one period where the contract has a cadence.

    Raises:
        SourceError: a data file is missing or damaged, or there is no row at all.
    """
    from deltalake import DeltaTable

    empty = True
    problem = None
    try:
        dataset = DeltaTable(source.uri, version=source.version).to_pyarrow_dataset()
        rows = dataset.to_batches(
            columns=[name for name in source.schema.names if name not in contract.ignored],
            filter=_period_filter(contract, period),
            batch_size=BATCH_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
        )
        for batch in rows:
            if batch.num_rows:
                empty = False
                yield batch
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"a data file is missing, damaged or of another type ({type(error).__name__})"
    if problem:
        raise SourceError(f"{contract.dataset}: source.uri: {source.uri}: version {source.version}: {problem}")
    if empty:
        where = f"no row of period {period}" if period else "no row"
        raise SourceError(f"{contract.dataset}: source.uri: {source.uri}: version {source.version} has {where}")


def period_bounds(period: str) -> tuple[dt.date, dt.date]:
    """First and last day of a month given as `YYYY-MM`."""
    year, month = (int(part) for part in period.split("-"))
    return dt.date(year, month, 1), dt.date(year, month, calendar.monthrange(year, month)[1])


def _made_by(contract: DataContract) -> str:
    """The command that makes a demonstration's table, where that is what is missing."""
    if contract.dataset in _DEMONSTRATIONS and Path(contract.source.uri).parts[-2:] == ("sources", contract.dataset):
        return f"; this demonstration's is made by: dpsynth demo --source {contract.dataset}"
    return ""


def _period_filter(contract: DataContract, period: str | None) -> pc.Expression | None:
    column = contract.source.period_column
    if column is None:
        return None
    if period is None:
        raise SourceError(f"{contract.dataset}: releases come by period; name one, such as {contract.release.start}")
    first, last = period_bounds(period)
    after = dt.datetime.combine(last, dt.time()) + dt.timedelta(days=1)
    value = pc.field(column)
    return (value >= pa.scalar(first)) & (value < pa.scalar(after.date()))
