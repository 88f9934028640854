"""Scrubbing a table, batch by batch.

What belongs here: checking the source's columns, the treatment of each column, and counting. What does not: finding and
replacing (`detection`, `clues`, `replacement`), checks of unchanged columns (`columns`, `matching`), processes
(`parallel`), keys and files.

| column | in the scrubbed table |
| --- | --- |
| integer, float, date, categorical, boolean | unchanged, in the source's type, unless it looks like personal data |
| categorical, whole numbers listed | texts of whole numbers have one form (`matching`) |
| identifier | removed; owners and record keys become `_owner` (several: `_owners`) and `_record` |
| text, `pii: drop` | removed |
| any, `ignore: true` | removed, and never read |
| text, `pii: hash` | HMAC-SHA256 of the whole value, 32 hex characters |
| text, `pii: mask` | the kind (`<PHONE_NUMBER>`) of the column; in free text, the type of each finding |
| text, `pii: replace` | a fictional value of the kind; in free text, for each finding |
| image | pixels of the declared form, without metadata (`pictures`) |

Null stays null. A column's name decides whether it has one kind (`clues.column_kind`) or is free text. In free text,
the contract's `scrub.actions` can choose another action for an entity type.

Unusual input is counted. In text that is not UTF-8, invalid bytes become U+FFFD. A record with an owner's id that is
not UTF-8 is removed; else that owner would take part without being counted. A text for which the contract's patterns
take too long is masked as a whole (and the run stops if that happens for texts of `owners.LEAST_OWNERS` owners). A
batch with another schema stops the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, plain_schema, type_name
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import by_tables
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.clues import column_kind
from dpsynth_platform.scrub.columns import ColumnScan, named_faults
from dpsynth_platform.scrub.findings import UNREAD
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    OWNERS_COLUMN,
    RECORD_COLUMN,
    FingerprintKeys,
    canonical_texts,
    keyed,
    owner_column,
    record_ids,
)
from dpsynth_platform.scrub.fitting import TEXT, fits
from dpsynth_platform.scrub.matching import MatchCheck
from dpsynth_platform.scrub.owners import ColumnOwners, OwnerReader, RowUnits, is_id_list
from dpsynth_platform.scrub.parallel import Findings, ParallelDetector
from dpsynth_platform.scrub.pictures import PictureReader
from dpsynth_platform.scrub.records import RecordTexts, Treatment, record_texts
from dpsynth_platform.sources.periods import local, local_schema

# Small enough for regular progress and constant memory, large enough for full batches of the model.
CHUNK_ROWS = 8_192
CHUNK_BYTES = 8_000_000
LEAST_SHOWN = 10
"""Smaller counts of findings are not shown, since they could reveal single people."""
LIMITS = (
    "Scrubbing is best effort. It is blind to who a person is without being named (a rare illness, a job title in a "
    "small town, how somebody writes), to nicknames and names that are everyday words, to names in languages other "
    "than English unless a public list has them, to misspelt or spelled-out numbers, to pictures and attachments. Of "
    "organizations it overlooks about one in three, and some it takes for people, and places for people; those are "
    "removed all the same. A text on which the contract's own patterns take too long is masked as a whole, and counted "
    f"as {UNREAD}."
)
"""What scrubbing cannot find, for reports."""

Progress = Callable[[int, int | None], None]
"""Called with the number of finished rows and the total, or None if it is unknown."""


@dataclass(frozen=True, repr=False)
class ScrubKeys:
    """The secrets of scrubbing (32 bytes each): of the identity namespace, of record ids, and of hashed columns.

    Fictional values that are consistent within an owner use the key `column`, too.
    """

    owner: FingerprintKeys
    record: bytes
    column: bytes


@dataclass
class ScrubReport:
    """Exact counts, filled while the batches are read. For the operator, never for the public.

    Attributes:
        rows_without_owner: rows removed because all their owners are null or empty, or one is not UTF-8.
        owners_without_id: null or empty ids in rows that have other owners; they are ignored.
        owners_repeated: repeated ids within rows; they count once.
        texts: free texts examined, by column.
        findings: findings in free text, by column and entity type; `UNREAD`: texts that were masked as a whole.
        actions: the declared treatment of each text column.
        damaged: values that were not UTF-8, by column.
        pictures: rows that were left out for want of a readable picture, by the fault.
    """

    rows_read: int = 0
    rows_without_owner: int = 0
    owners_without_id: int = 0
    owners_repeated: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Counter[str]] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)
    pictures: Counter[str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON values, without exact counts of findings and damages below `LEAST_SHOWN`."""
        findings = {column: shown_counts(counts) for column, counts in self.findings.items()}
        # By name: a count that is added one day must not be shown unmasked.
        shown = ("rows_read", "rows_without_owner", "owners_without_id", "owners_repeated", "texts", "actions")
        masked = {
            "findings": findings,
            "damaged": shown_counts(self.damaged),
            "limits": f"{LIMITS} The privacy guarantee does not rest on it.",
        }
        pictures = {} if self.pictures is None else {"pictures_left_out": shown_counts(self.pictures)}
        return {name: deepcopy(getattr(self, name)) for name in shown} | masked | pictures


def shown_counts(counts: Mapping[str, int]) -> dict[str, int | str]:
    """Counts by name, without exact ones below `LEAST_SHOWN`."""
    return {
        name: count if count >= LEAST_SHOWN else f"fewer than {LEAST_SHOWN}"
        for name, count in sorted(counts.items())
        if count
    }


def check_source_schema(contract: DataContract, schema: pa.Schema) -> None:
    """Raises `SourceError`, one line per fault, if the source's columns are not those that the contract declares."""
    faults = []
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1}):
        faults.append(f"the source contains column {name!r} more than once")
    undeclared = {place: name for place, name in enumerate(schema.names, 1) if name not in contract.columns}
    if undeclared:
        # A contract declares what counts as a header, also of a file that its editor cannot read.
        places = f"the fields no. {', '.join(map(str, undeclared))} of its first line, which are not shown"
        shown = places if contract.source.format == "csv" else ", ".join(dict.fromkeys(map(_bare, undeclared.values())))
        faults.append(f"not declared in the contract: {shown}; declare each, with ignore: true to leave it out")
    for name, column in contract.columns.items():
        if name in contract.ignored:
            continue
        if name not in schema.names:
            faults.append(f"column {name!r} ({column.type}) is declared, but not in the source")
            continue
        found = schema.field(schema.names.index(name)).type
        lists = contract.privacy.multi_owner and column.type == "identifier" and name in contract.privacy.owner_columns
        read, accepted = fits(column, found.value_type if lists and is_id_list(found) else found)
        if not read:
            accepted += ", or a list of strings or integers" if lists else ""
            shown = type_name(found)
            faults.append(f"columns.{name}: declared {column.type}, found Arrow type {shown}; accepted: {accepted}")
    faults = [f"source: {fault}" for fault in faults] + named_faults(contract)
    if faults:
        raise SourceError("\n".join(f"{contract.dataset}: {by_tables(contract.tables, fault)}" for fault in faults))


def _bare(name: str) -> str:
    """A name without those of a struct's fields, which may have been keys in the data."""
    struct, divided, _ = name.partition(".")
    return f"{struct!r} has fields, which are not shown (dpsynth contract init lists them)" if divided else name


def scrubbed_schema(contract: DataContract, schema: pa.Schema) -> pa.Schema:
    """Columns of the scrubbed table: those that remain, in the declared order, `_owner` or `_owners`, and `_record`."""
    schema = local_schema(schema, contract.source.period_column, contract.release.time_zone)
    fields = []
    for name, column in contract.columns.items():
        if name in contract.modelled or name == contract.privacy.weight:
            fields.append(pa.field(name, schema.field(name).type))
        elif column.type == "text" and column.pii != "drop":
            fields.append(pa.field(name, pa.string()))
        elif name == contract.image_column:
            fields.append(pa.field(name, pa.binary()))
    several = pa.field(OWNERS_COLUMN, pa.list_(pa.string()))
    owned_by = several if contract.privacy.multi_owner else pa.field(OWNER_COLUMN, pa.string())
    return pa.schema([*fields, owned_by, pa.field(RECORD_COLUMN, pa.string())])


def scrub_batches(
    batches: Iterable[pa.RecordBatch],
    contract: DataContract,
    schema: pa.Schema,
    keys: ScrubKeys,
    *,
    progress: Progress | None = None,
    total: int | None = None,
    processes: int | None = None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], ScrubReport]:
    """Scrubs a stream of rows: the scrubbed schema and batches, and a report that is complete after the last batch.

    Args:
        progress: called after each chunk of rows.
        total: number of rows, for `progress`.
        processes: number of detector processes, if there is enough work; None: one for each core.

    Raises:
        SourceError: at once, see `check_source_schema`; while batches are read: a batch of another schema, personal
            data in a column that remains (`columns`), or patterns of the contract that take too long on texts of
            `owners.LEAST_OWNERS` owners; after the last batch: no row had an owner, or a column's values hardly ever
            match its declaration (`matching`).
    """
    check_source_schema(contract, schema)
    read = plain_schema(pa.schema([item for item in schema if item.name not in contract.ignored]))
    scrubber = _Scrubber(contract, scrubbed_schema(contract, read), keys)
    return scrubber.schema, _scrubbed(batches, read, scrubber, progress, total, processes), scrubber.report


def checked_batches(
    batches: Iterable[pa.RecordBatch], contract: DataContract, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Checks rows without free text, of which each is a privacy unit. Nothing is replaced, and no ids are made.

    Raises:
        SourceError: while batches are read: one of another schema, or a column with personal data (`columns`); after
            the last batch: a column's values hardly ever match its declaration (`matching`).
    """
    scan, matching, done = ColumnScan(contract), MatchCheck(contract, schema), 0
    for batch in batches:
        _check_schema(contract.dataset, batch, schema)
        readable, _ = in_utf8(batch)
        readable, units = matching.canonical(readable), RowUnits(done, batch.num_rows)
        scan.look(readable, units)
        matching.look(readable, units)
        done += batch.num_rows
        yield readable
    matching.check()


def _scrubbed(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    scrubber: _Scrubber,
    progress: Progress | None,
    total: int | None,
    processes: int | None,
) -> Iterator[pa.RecordBatch]:
    report, done = scrubber.report, 0
    with ParallelDetector(scrubber.own_rules, processes) as detector:
        chunks = (scrubber.prepare(chunk) for chunk in _chunks(batches, schema, scrubber))
        for chunk, findings in detector.each(chunks, lambda chunk: chunk.taken.documents):
            yield scrubber.finish(chunk, findings)
            done += chunk.rows_read
            if progress is not None:
                progress(done, total)
    if report.rows_read and report.rows_read == report.rows_without_owner:
        raise SourceError(
            f"{scrubber.dataset}: source: no row has an owner in {', '.join(map(repr, scrubber.owner_columns))}; "
            "accepted: owners that are not null and not blank"
        )
    scrubber.matching.check()
    scrubber.pictures.check()


def _chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema, scrubber: _Scrubber) -> Iterator[pa.RecordBatch]:
    """The batches with plain values, in pieces."""
    for batch in batches:
        batch = batch.select([name for name in batch.schema.names if name not in scrubber.ignored])
        plain_columns = [plain(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(plain_columns, schema=plain_schema(batch.schema))
        _check_schema(scrubber.dataset, batch, schema)
        yield from chunks_of(batch, scrubber.free, scrubber.pictures.bytes_per_row)


def chunks_of(batch: pa.RecordBatch, texts: Collection[str], bytes_per_row: int = 0) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of at most `CHUNK_ROWS` rows and `CHUNK_BYTES` of text or pixels (a row may have more)."""
    sizes = np.full(batch.num_rows, bytes_per_row, np.int64)
    for name in texts:
        sizes += pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
        stop = max(start + 1, min(stop, start + CHUNK_ROWS, batch.num_rows))
        yield batch.slice(start, stop - start)
        start = stop


def _check_schema(dataset: str, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    if not batch.schema.equals(schema, check_metadata=False):
        raise SourceError(f"{dataset}: source: {_differences(batch.schema, schema)}")


def _differences(found: pa.Schema, expected: pa.Schema) -> str:
    other = [
        f"{name!r} is {type_name(found.field(name).type)} instead of {type_name(expected.field(name).type)}"
        for name in expected.names
        if name in found.names and found.field(name).type != expected.field(name).type
    ]
    other += [f"{name!r} is missing" for name in expected.names if name not in found.names]
    other += [f"{name!r} is new" for name in found.names if name not in expected.names]
    return f"a part of it has other columns than the rest: {', '.join(other) or 'in another order'}"


@dataclass(frozen=True, repr=False)
class _Chunk:
    """Rows that have an owner, before detection."""

    batch: pa.RecordBatch
    rows_read: int
    owners: ColumnOwners
    taken: RecordTexts


class _Scrubber:
    """One contract's scrubbing, applied chunk by chunk."""

    def __init__(self, contract: DataContract, schema: pa.Schema, keys: ScrubKeys) -> None:
        self.schema = schema
        self.dataset = contract.dataset
        self._zone = contract.release.time_zone
        self.ignored = set(contract.ignored)
        self.own_rules = contract.scrub
        self.owner_columns = contract.privacy.owner_columns
        self._owners = OwnerReader(contract.privacy, keys.owner)
        self._key_columns = [name for name in contract.source.key if name not in self.owner_columns]
        self._record_key = keyed(keys.record)
        self._scan = ColumnScan(contract)
        self.matching = MatchCheck(contract, schema)
        self.pictures = PictureReader(contract)
        texts = {name: column.pii for name, column in contract.columns.items() if column.type == "text"}
        self._whole = {
            name: pii for name, pii in texts.items() if pii == "hash" or (pii != "drop" and column_kind(name))
        }
        self.free = {name: pii for name, pii in texts.items() if pii != "drop" and name not in self._whole}
        self._identifying = [
            name
            for name, column in contract.columns.items()
            if name not in self.free and column.type in ("text", "identifier")
        ]
        self._treatment = Treatment(self.own_rules, self.free, keys.column, self.dataset)
        self.report = ScrubReport(texts=self._treatment.texts, findings=self._treatment.findings, actions=dict(texts))
        if self.pictures.column is not None:
            self.report.pictures = self.pictures.left_out

    def prepare(self, batch: pa.RecordBatch) -> _Chunk:
        rows_read = batch.num_rows
        batch = self.matching.canonical(self._readable(batch))
        owners = self._owners.read(batch)
        owned = owners.owned
        self.report.rows_read += rows_read
        self.report.rows_without_owner += rows_read - owned.true_count
        self.report.owners_without_id = self._owners.missing
        self.report.owners_repeated = self._owners.repeated
        batch, found = self.pictures.read(batch.filter(owned), ColumnOwners(owners.column.filter(owned)))
        self._scan.look(batch, found)
        self.matching.look(batch, found)
        return _Chunk(batch, rows_read, found, record_texts(batch, self.free, self._identifying))

    def finish(self, chunk: _Chunk, found: Findings) -> pa.RecordBatch:
        """The scrubbed rows."""
        batch = chunk.batch
        columns: dict[str, Sequence[Any]] = dict(self._treatment.free_texts(chunk.taken, found, chunk.owners))
        made = {owner_column(self.schema): chunk.owners.column, RECORD_COLUMN: self._records(batch, chunk.owners)}
        for name, pii in self._whole.items():
            columns[name] = [
                None if value is None else self._treatment.whole_value(name, pii, value, owners[0])
                for value, owners in zip(batch.column(name).to_pylist(), chunk.owners, strict=True)
            ]
        arrays = [
            made[item.name]
            if item.name in made
            else pa.array(columns[item.name], item.type)
            if item.name in columns
            else local(batch.column(item.name), item.type, self._zone)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _readable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with valid UTF-8, without rows that have an invalid owner's id."""
        whole = np.ones(batch.num_rows, np.bool_)
        batch, damaged = in_utf8(batch)
        for name, rows in damaged.items():
            self.report.damaged[name] = self.report.damaged.get(name, 0) + sum(rows)
            if name in self.owner_columns:
                whole &= np.array(rows) == 0
        return batch if whole.all() else batch.filter(pa.array(whole))

    def _records(self, batch: pa.RecordBatch, owners: ColumnOwners) -> pa.Array:
        joined = pc.binary_join(owners.column, ",") if pa.types.is_list(owners.column.type) else owners.column
        if not self._key_columns:  # an owner's records have one id
            encoded = joined.dictionary_encode()
            return record_ids(encoded.dictionary.to_pylist(), [], self._record_key).take(encoded.indices)
        keys = [canonical_texts(batch.column(name)) for name in self._key_columns]
        return record_ids(joined.to_pylist(), keys, self._record_key)


def in_utf8(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, list[int]]]:
    """The batch with valid UTF-8, and for each invalid column the number of invalid values per row."""
    found = {}
    for position, item in enumerate(batch.schema):
        column = batch.column(position)
        kind = item.type.value_type if is_id_list(item.type) else item.type
        if not any(check(kind) for check in TEXT):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            values, found[item.name] = _decoded(column)
            batch = batch.set_column(position, item, values)
    return batch, found


def _decoded(column: pa.Array) -> tuple[pa.Array, list[int]]:
    """A column's texts, or lists of texts, with U+FFFD for invalid bytes, and the number of invalid ones per row."""
    values: list[Any] = []
    damaged: list[int] = []

    def readable(raw: bytes | None) -> str | None:
        try:
            return None if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError:
            damaged[-1] += 1
            return raw.decode("utf-8", "replace") if raw is not None else None

    binary = pa.list_(pa.large_binary()) if is_id_list(column.type) else pa.large_binary()
    for raw in column.cast(binary).to_pylist():
        damaged.append(0)
        values.append([readable(part) for part in raw] if isinstance(raw, list) else readable(raw))
    return pa.array(values, column.type), damaged
