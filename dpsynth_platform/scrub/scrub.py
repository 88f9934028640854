"""Scrubbing a table, batch by batch.

What belongs here: whether the source's columns are those of the contract, what becomes of each column, and counting
what was done. What does not: finding and replacing (`detection`, `clues`, `replacement`), a look at columns that stay
(`columns`, `matching`), processes (`parallel`), keys and files.

| column | in the scrubbed table |
| --- | --- |
| integer, float, date, categorical, boolean | as it is, in the source's type, unless it looks like personal data |
| categorical, whole numbers listed | texts of whole numbers have one form (`matching`) |
| identifier | gone; owners and record keys live on as `_owner` (several: `_owners`) and `_record` |
| text, `pii: drop` | gone |
| any, `ignore: true` | gone, and never looked at |
| text, `pii: hash` | HMAC-SHA256 of the whole value, 32 hex characters |
| text, `pii: mask` | the kind (`<PHONE_NUMBER>`) for a column of one kind; in free text, in each finding's place |
| text, `pii: replace` | a fictional value of the kind; in free text, in each finding's place |

Null stays null. A column is of one kind where its name says so (`clues.column_kind`), free text otherwise. In free
text, `scrub.actions` of the contract says otherwise for an entity type: dropped, masked, hashed (`<PERSON:1f0c...>`)
or replaced.

Odd input has one outcome each, and is counted: text that is not UTF-8 keeps what can be read of it, the rest becomes
U+FFFD; a record with an owner's id that is not UTF-8 leaves as a whole, since an owner who is left out of it would take
part in it unasked; a text of any length is read to its end, unless patterns of the contract take too long for it, then
it is masked as a whole (and the run stops where they do for texts of `owners.LEAST_OWNERS` owners); a batch of other
types than the source's schema stops the run.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, plain_schema
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.clues import column_kind
from dpsynth_platform.scrub.columns import ColumnScan, named_faults
from dpsynth_platform.scrub.detection import Document
from dpsynth_platform.scrub.findings import UNREAD, Finding
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    OWNERS_COLUMN,
    RECORD_COLUMN,
    FingerprintKeys,
    canonical_text,
    owner_column,
    record_id,
)
from dpsynth_platform.scrub.fitting import TEXT, fits
from dpsynth_platform.scrub.matching import MatchCheck
from dpsynth_platform.scrub.owners import EachItsOwn, OwnerCount, OwnerReader, RowOwners, is_id_list, listed_values
from dpsynth_platform.scrub.parallel import Findings, ParallelDetector
from dpsynth_platform.scrub.replacement import Replacer, substituted
from dpsynth_platform.sources.periods import local, local_schema

# Small enough that progress moves and memory stays flat, large enough that the model works in full batches.
CHUNK_ROWS = 8_192
CHUNK_BYTES = 8_000_000
LEAST_SHOWN = 10
"""Smaller counts of findings are not shown, so that a report does not tell of single people."""
LIMITS = (
    "Scrubbing is best effort. It is blind to who a person is without being named (a rare illness, a job title in a "
    "small town, how somebody writes), to nicknames and names that are everyday words, to names in languages other "
    "than English unless a public list has them, to misspelt or spelled-out numbers, to pictures and attachments. Of "
    "organizations it overlooks about one in three, and some it takes for people, and places for people; those are "
    "removed all the same. A text on which the contract's own patterns take too long is masked as a whole, and counted "
    f"as {UNREAD}. The privacy guarantee does not rest on it."
)
"""What scrubbing cannot find, for reports."""

Progress = Callable[[int, int | None], None]
"""Called with the rows done and the total, or None where it is not known."""


@dataclass(frozen=True, repr=False)
class ScrubKeys:
    """The secrets of scrubbing (32 bytes each).

    Attributes:
        owner: the identity namespace's two keys.
        record: for record ids.
        column: for columns and findings with `pii: hash`, and for fictional values that hold throughout an owner.
    """

    owner: FingerprintKeys
    record: bytes
    column: bytes


@dataclass
class ScrubReport:
    """What scrubbing did, filled while its batches are read. Exact numbers: for the operator, never for the public.

    Attributes:
        rows_read: rows of the source.
        rows_without_owner: rows left out because all their owners are null or empty, or one is not UTF-8: nobody could
            answer for them.
        owners_without_id: ids that are null or empty beside other owners of their row; they are left out of it.
        owners_repeated: ids that stand again in their row; they count once.
        texts: free texts examined, by column.
        findings: what was found in free text, by column and entity type; `UNREAD`: texts that were masked as a whole.
        actions: what became of each text column.
        damaged: values that were not UTF-8, by column.
    """

    rows_read: int = 0
    rows_without_owner: int = 0
    owners_without_id: int = 0
    owners_repeated: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Counter[str]] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values; counts of findings and damages below `LEAST_SHOWN` are not told."""
        return {
            "rows_read": self.rows_read,
            "rows_without_owner": self.rows_without_owner,
            "owners_without_id": self.owners_without_id,
            "owners_repeated": self.owners_repeated,
            "texts": dict(self.texts),
            "findings": {column: _shown(counts) for column, counts in self.findings.items()},
            "actions": dict(self.actions),
            "damaged": _shown(self.damaged),
            "limits": LIMITS,
        }


def _shown(counts: Mapping[str, int]) -> dict[str, int | str]:
    return {
        name: count if count >= LEAST_SHOWN else f"fewer than {LEAST_SHOWN}"
        for name, count in sorted(counts.items())
        if count
    }


def check_source_schema(contract: DataContract, schema: pa.Schema) -> None:
    """Refuses a source whose columns are not those that the contract declares.

    Raises:
        SourceError: one line for each fault, naming columns and types only.
    """
    faults = []
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1}):
        faults.append(f"column {name!r} stands in the source more than once")
    undeclared = [name for name in schema.names if name not in contract.columns]
    if undeclared:
        faults.append(
            f"not declared in the contract: {', '.join(undeclared)}; declare each, with ignore: true to leave it out"
        )
    for name, column in contract.columns.items():
        if name in contract.ignored:
            continue
        if name not in schema.names:
            faults.append(f"column {name!r} ({column.type}) is declared and not in the source")
            continue
        found = schema.field(schema.names.index(name)).type
        lists = contract.privacy.multi_owner and column.type == "identifier" and name in contract.privacy.owner_columns
        read, accepted = fits(column, found.value_type if lists and is_id_list(found) else found)
        if not read:
            accepted += ", or a list of these" if lists else ""
            faults.append(f"columns.{name}: declared {column.type}, found Arrow type {found}; accepted: {accepted}")
    faults = [f"source: {fault}" for fault in faults] + named_faults(contract)
    if faults:
        raise SourceError("\n".join(f"{contract.dataset}: {fault}" for fault in faults))


def scrubbed_schema(contract: DataContract, schema: pa.Schema) -> pa.Schema:
    """Columns of the scrubbed table: those that stay, in the declared order, `_owner` or `_owners`, and `_record`."""
    schema = local_schema(schema, contract.source.period_column, contract.release.time_zone)
    fields = []
    for name, column in contract.columns.items():
        if name in contract.modelled or name == contract.privacy.weight:
            fields.append(pa.field(name, schema.field(name).type))
        elif column.type == "text" and column.pii != "drop":
            fields.append(pa.field(name, pa.string()))
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
    """Scrubs a stream of rows.

    Args:
        schema: the batches' schema.
        progress: called with rows done and `total` after each chunk of rows.
        total: number of rows, where it is known.
        processes: how many look for personal data, once there is enough to look at; None: one for each core.

    Returns:
        The scrubbed schema, the scrubbed batches, and the report, which is complete when the last batch was taken.

    Raises:
        SourceError: see `check_source_schema`, at once, before a batch is read; or, while batches are taken: a batch
            of another schema, a column that stays and looks like personal data (see `columns`), patterns of the
            contract that take too long on texts of `owners.LEAST_OWNERS` owners; or, after the last batch, no row had
            an owner, or hardly a value of a column is as declared (see `matching`).
    """
    check_source_schema(contract, schema)
    read = _read_schema(contract, schema)
    scrubber = _Scrubber(contract, scrubbed_schema(contract, read), keys)
    return scrubber.schema, _scrubbed(batches, read, scrubber, progress, total, processes), scrubber.report


def _read_schema(contract: DataContract, schema: pa.Schema) -> pa.Schema:
    """The columns that are looked at, as plain values."""
    return plain_schema(pa.schema([item for item in schema if item.name not in contract.ignored]))


def looked_through(
    batches: Iterable[pa.RecordBatch], contract: DataContract, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows of which each is a unit of its own, without free text: nothing is replaced, and nobody gets an id.

    Args:
        batches: the rows.
        contract: declares the columns.
        schema: the batches' schema.

    Raises:
        SourceError: while batches are taken: one of another schema, or a column looks like personal data (`columns`);
            or, after the last batch, hardly a value of a column is as declared (`matching`).
    """
    scan, matching, done = ColumnScan(contract), MatchCheck(contract, schema), 0
    for batch in batches:
        _check_schema(contract.dataset, batch, schema)
        readable, _ = _in_utf8(batch)
        readable, units = matching.canonical(readable), EachItsOwn(done, batch.num_rows)
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
        for chunk, findings in detector.each(chunks, lambda chunk: chunk.documents):
            yield scrubber.finish(chunk, findings)
            done += chunk.rows_read
            if progress is not None:
                progress(done, total)
    if report.rows_read and report.rows_read == report.rows_without_owner:
        raise SourceError(
            f"{scrubber.dataset}: source: no row has an owner in {', '.join(map(repr, scrubber.owner_columns))}; "
            "accepted: owners that are not null and not blank"
        )
    scrubber.check_matches()


def _chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema, scrubber: _Scrubber) -> Iterator[pa.RecordBatch]:
    """The batches in pieces of at most `CHUNK_ROWS` rows and, unless one row has more, `CHUNK_BYTES` of free text."""
    for batch in batches:
        batch = _plain_batch(batch.select([name for name in batch.schema.names if name not in scrubber.ignored]))
        _check_schema(scrubber.dataset, batch, schema)
        sizes = np.zeros(batch.num_rows, np.int64)
        for name in scrubber.free_columns:
            sizes += pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(sizes)
        start = 0
        while start < batch.num_rows:
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
            stop = max(start + 1, min(stop, start + CHUNK_ROWS, batch.num_rows))
            yield batch.slice(start, stop - start)
            start = stop


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([plain(column) for column in batch.columns], schema=plain_schema(batch.schema))


def _check_schema(dataset: str, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    if not batch.schema.equals(schema, check_metadata=False):
        raise SourceError(f"{dataset}: source: {_differences(batch.schema, schema)}")


def _differences(found: pa.Schema, expected: pa.Schema) -> str:
    other = [
        f"{name!r} is {found.field(name).type} instead of {expected.field(name).type}"
        for name in expected.names
        if name in found.names and found.field(name).type != expected.field(name).type
    ]
    other += [f"{name!r} is missing" for name in expected.names if name not in found.names]
    other += [f"{name!r} is new" for name in found.names if name not in expected.names]
    return f"a part of it has other columns than the rest: {', '.join(other) or 'in another order'}"


@dataclass(frozen=True, repr=False)
class _Chunk:
    """Rows that have an owner, made ready.

    Attributes:
        owners: fingerprints of the rows' owners.
        texts: the free-text columns' values.
        places: (row, column) of each document.
    """

    batch: pa.RecordBatch
    rows_read: int
    owners: list[RowOwners]
    texts: dict[str, list[str | None]]
    places: list[tuple[int, str]]
    documents: list[Document]


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
        self._keys = keys
        self._scan = ColumnScan(contract)
        self._matching = MatchCheck(contract, schema)
        self._unread = OwnerCount()
        texts = {name: column.pii for name, column in contract.columns.items() if column.type == "text"}
        self._whole = {
            name: pii for name, pii in texts.items() if pii == "hash" or (pii != "drop" and column_kind(name))
        }
        self._free = {name: pii for name, pii in texts.items() if pii != "drop" and name not in self._whole}
        self._identifying = [
            name
            for name, column in contract.columns.items()
            if name not in self._free and column.type in ("text", "identifier")
        ]
        self.report = ScrubReport(
            texts=dict.fromkeys(self._free, 0), findings={name: Counter() for name in self._free}, actions=dict(texts)
        )
        self._replacer: Replacer | None = None

    @property
    def free_columns(self) -> list[str]:
        """Columns of free text that stay in the table."""
        return list(self._free)

    def prepare(self, batch: pa.RecordBatch) -> _Chunk:
        """The rows that have an owner, and their texts, before anything is looked for in them."""
        rows_read = batch.num_rows
        batch = self._matching.canonical(self._readable(batch))
        owners = self._owners.read(batch)
        owned = pa.array([bool(found) for found in owners], pa.bool_())
        self.report.rows_read += rows_read
        self.report.rows_without_owner += rows_read - owned.true_count
        self.report.owners_without_id = self._owners.missing
        self.report.owners_repeated = self._owners.repeated
        batch = batch.filter(owned)
        found = [found for found in owners if found]
        self._scan.look(batch, found)
        self._matching.look(batch, found)
        texts = {name: batch.column(name).to_pylist() for name in self._free}
        places = [(row, name) for row in range(batch.num_rows) for name in self._free if texts[name][row] is not None]
        rows = sorted({row for row, _ in places})
        identifying = batch.select(self._identifying).take(pa.array(rows, pa.int64())).to_pylist()
        values = {
            row: {
                name: canonical_text(part)
                for column, value in found.items()
                for name, part in listed_values(column, value)
            }
            for row, found in zip(rows, identifying, strict=True)
        }
        return _Chunk(
            batch=batch,
            rows_read=rows_read,
            owners=found,
            texts=texts,
            places=places,
            documents=[Document(str(texts[name][row]), values[row]) for row, name in places],
        )

    def check_matches(self) -> None:
        """Refuses columns of which hardly a value is as declared, once all rows are read. Raises `SourceError`."""
        self._matching.check()

    def finish(self, chunk: _Chunk, found: Findings) -> pa.RecordBatch:
        """The scrubbed rows."""
        batch = chunk.batch
        columns: dict[str, Sequence[Any]] = self._free_texts(chunk, found) | {
            owner_column(self.schema): self._shown_owners(chunk.owners),
            RECORD_COLUMN: self._records(batch, chunk.owners),
        }
        for name, pii in self._whole.items():
            columns[name] = [
                None if value is None else self._whole_value(name, pii, value, owners[0])
                for value, owners in zip(batch.column(name).to_pylist(), chunk.owners, strict=True)
            ]
        arrays = [
            pa.array(columns[item.name], item.type)
            if item.name in columns
            else local(batch.column(item.name), item.type, self._zone)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _readable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with all its texts in UTF-8; a row with an owner's id that is not is gone."""
        whole = np.ones(batch.num_rows, np.bool_)
        batch, damaged = _in_utf8(batch)
        for name, rows in damaged.items():
            self.report.damaged[name] = self.report.damaged.get(name, 0) + sum(rows)
            if name in self.owner_columns:
                whole &= np.array(rows) == 0
        return batch if whole.all() else batch.filter(pa.array(whole))

    def _shown_owners(self, owners: Sequence[RowOwners]) -> Sequence[Any]:
        return owners if owner_column(self.schema) == OWNERS_COLUMN else [found for (found,) in owners]

    def _records(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> list[str]:
        keys = [[canonical_text(value) for value in batch.column(name).to_pylist()] for name in self._key_columns]
        return [
            record_id(",".join(found), [values[row] for values in keys], self._keys.record)
            for row, found in enumerate(owners)
        ]

    def _whole_value(self, name: str, pii: str, value: str, owner: str) -> str:
        if pii == "hash":
            return self._hashed(value)
        kind = column_kind(name) or "ID"
        return f"<{kind}>" if pii == "mask" else self._ready_replacer().whole(value, kind, owner)

    def _free_texts(self, chunk: _Chunk, found: Findings) -> dict[str, Sequence[str | None]]:
        """The free-text columns, scrubbed record by record: a record's texts are one document."""
        records: dict[int, list[tuple[str, list[Finding]]]] = {}
        for (row, name), findings in zip(chunk.places, found, strict=True):
            records.setdefault(row, []).append((name, findings))
            self.report.texts[name] += 1
            self.report.findings[name].update(item.entity for item in findings)
            if any(item.entity == UNREAD for item in findings):
                self._unread.add(chunk.owners[row])
        if self._unread.enough:
            raise SourceError(
                f"{self.dataset}: scrub.patterns: the contract's own patterns take too long on texts of many owners; "
                "accepted: patterns without a repeat inside of a repeat, such as (x+)+"
            )
        for row, record in records.items():
            self._scrub_record(row, record, chunk)
        return dict(chunk.texts)

    def _scrub_record(self, row: int, record: Sequence[tuple[str, list[Finding]]], chunk: _Chunk) -> None:
        texts = {name: str(chunk.texts[name][row]) for name, _ in record}
        replaced = [
            (texts[name][item.start : item.end], item.entity)
            for name, findings in record
            for item in findings
            if self._action(name, item.entity) == "replace"
        ]
        values = self._ready_replacer().values(replaced, chunk.owners[row][0]) if replaced else {}
        for name, findings in record:

            def value(original: str, entity: str, column: str = name) -> str:
                action = self._action(column, entity)
                if action == "replace":
                    return values[original, entity]
                if action == "hash":
                    return f"<{entity}:{self._hashed(original.casefold())}>"
                return f"<{entity}>" if action == "mask" else ""

            chunk.texts[name][row] = substituted(texts[name], findings, value)

    def _action(self, column: str, entity: str) -> str:
        if entity == UNREAD:
            return "mask"
        return self.own_rules.actions.get(entity) or self._free[column]

    def _hashed(self, value: str) -> str:
        return hmac.digest(self._keys.column, value.encode("utf-8", "surrogatepass"), hashlib.sha256)[:16].hex()

    def _ready_replacer(self) -> Replacer:
        if self._replacer is None:
            # A key of its own, derived, so that a hash and a fictional value of one original have nothing in common.
            key = hmac.digest(self._keys.column, b"fictional values of an owner", hashlib.sha256)
            own = self.own_rules
            self._replacer = Replacer(own.locale, key if own.consistent == "owner" else None)
        return self._replacer


def _in_utf8(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, list[int]]]:
    """A batch with all its texts in UTF-8; and of columns that were not, how many of each row's values."""
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
    """A column's texts, or lists of texts, with U+FFFD for what is not UTF-8; and how many in each row were so."""
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
