"""The sensitive source table: pinning a version of it and streaming its rows.

What belongs here: opening the table that a contract names, fixing the version that all later steps read, and turning
whatever is wrong with it into a clear error that names columns and types, never values. What does not: how tables are
laid out (`dpsynth_platform.sources`), deciding whether the columns fit the contract (`scrub` checks that), and any
change to the rows.

Pinning reads the table's log only. No record is read before the ledger has admitted the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of

if TYPE_CHECKING:
    from dpsynth_platform.compute.reading import Span

_DEMONSTRATIONS = ("census", "visits", "mail", "flights")


BATCH_ROWS = 8_192
"""Rows that are read at once: long texts make a batch large."""


@dataclass(frozen=True)
class PinnedSource:
    """The rows of a source table as they are at one version of it.

    Attributes:
        table_id: the table's own id, so that a table put in another's place is noticed.
        version: the Delta version that brought these rows, or whichever of those with the same rows a run has named.
        schema: Arrow schema of that version.
        first: the first version that is known to hold the same rows; None: `version`.
        read: the last one, whose files are read: compaction leaves the earlier ones to be deleted. None: `version`.
        certain: whether the log says that `first` brought other rows or columns than the version before.
    """

    uri: str
    table_id: str
    version: int
    schema: pa.Schema
    first: int | None = None
    read: int | None = None
    certain: bool = True

    @property
    def name(self) -> str:
        """`<table id>@<version>`, a stable name of the content, and no function of it: the id is random."""
        return f"{self.table_id}@{self.version}"

    def named_as(self, name: str) -> PinnedSource:
        """The same under the name of an earlier pin, where that is of the same rows; else itself.

        So a run keeps its name, whichever of the versions with its rows was the newest when it was first made.
        """
        table_id, version = _parts(name)
        first, last = self._versions
        return replace(self, version=version) if table_id == self.table_id and first <= version <= last else self

    def unsure_since(self, name: str) -> bool:
        """Whether this is later than an earlier pin of the table, and it is not known that it holds other rows."""
        table_id, version = _parts(name)
        return table_id == self.table_id and version < self._versions[0] and not self.certain

    @property
    def _versions(self) -> tuple[int, int]:
        return (
            self.version if self.first is None else self.first,
            self.version if self.read is None else self.read,
        )


def pin(contract: DataContract, *, version: int | None = None) -> PinnedSource:
    """Opens the contract's source at its newest (or the given) version, reading metadata only.

    The newest is the one that brought its rows or columns: versions that only compact, clean up or describe what was
    there are none.

    Raises:
        SourceError: there is no readable Delta table of that version.
    """
    from dpsynth_platform.sources.delta import DeltaProblem, NoDeltaTable, open_delta

    uri = contract.source.uri
    try:
        found = open_delta(uri, version)
    except NoDeltaTable as error:
        problem = f"{error}{_made_by(contract)}; accepted: a readable Delta table"
    except DeltaProblem as error:
        problem = str(error)
    else:
        log = found.log
        if version is not None:
            return PinnedSource(uri, found.table_id, version, found.schema, version, log.same_until)
        first = log.same_since
        return PinnedSource(uri, found.table_id, first, found.schema, first, found.version, log.known_since)
    raise SourceError(f"{contract.dataset}: source.uri: {uri}: {problem}")


def at_version(newest: PinnedSource, name: str, schema: pa.Schema) -> PinnedSource | None:
    """An earlier version of a table by its name (`PinnedSource.name`), or None where that is another table's.

    Nothing is opened: whether the version can still be read shows where its rows are.
    """
    table_id, version = _parts(name)
    return PinnedSource(newest.uri, table_id, version, schema) if table_id == newest.table_id else None


def batches(source: PinnedSource, contract: DataContract, period: str | None) -> Iterator[pa.RecordBatch]:
    """Streams the rows of the pinned version, of one period where the contract has a cadence.

    Raises:
        SourceError: a data file is missing or damaged, a column cannot be read, or there is no row at all.
    """
    from dpsynth_platform.sources.delta import open_delta

    if contract.source.period_column is not None and period is None:
        raise SourceError(f"{contract.dataset}: releases come by period; name one, such as {contract.release.start}")
    empty = True
    problem = None
    version = source.version if source.read is None else source.read
    try:
        table = open_delta(source.uri, version).table
        columns = [name for name in table.schema.names if name not in contract.ignored]
        for batch in table.batches(columns, span=_span(contract, period, table.schema), most_rows=BATCH_ROWS):
            if batch.num_rows:
                empty = False
                yield batch
    except SourceError as error:
        problem = str(error)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"a data file is missing, damaged or of another type ({reason_of(error)})"
    if problem:
        raise SourceError(f"{contract.dataset}: source.uri: {source.uri}: version {version}: {problem}")
    if empty:
        where = f"no row of period {period}" if period else "no row"
        raise SourceError(f"{contract.dataset}: source.uri: {source.uri}: version {version} has {where}")


def _parts(name: str) -> tuple[str, int]:
    """Table id and version of `PinnedSource.name`."""
    table_id, _, version = name.rpartition("@")
    return table_id, int(version)


def _made_by(contract: DataContract) -> str:
    """The command that makes a demonstration's table, where that is what is missing."""
    if contract.dataset in _DEMONSTRATIONS and Path(contract.source.uri).parts[-2:] == ("sources", contract.dataset):
        return f"; this demonstration's is made by: dpsynth demo --source {contract.dataset}"
    return ""


def _span(contract: DataContract, period: str | None, schema: pa.Schema) -> Span | None:
    from dpsynth_platform.sources.periods import period_span

    column = contract.source.period_column
    if column is None or period is None:
        return None
    return period_span(column, schema.field(column).type, period, contract.release.time_zone)
