"""Scrubbing a table, batch by batch.

What belongs here: whether the source's columns are those of the contract, what becomes of each column, and counting
what was done. What does not: finding and replacing (`text`, `clues`, `replacement`), keys and files.

| column | in the scrubbed table |
| --- | --- |
| integer, float, date, categorical, boolean | as it is, in the source's type |
| identifier | gone; owners and record keys live on as `_owner` and `_record` |
| text, `pii: drop` | gone |
| text, `pii: hash` | HMAC-SHA256 of the whole value, 32 hex characters |
| text, `pii: mask` | the kind (`<PHONE_NUMBER>`) for a column of one kind; in free text, in each finding's place |
| text, `pii: replace` | a fictional value of the kind; in free text, in each finding's place |

Null stays null. A column is of one kind where its name says so (`clues.column_kind`), free text otherwise.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.errors import SourceError
from dpsynth_platform.scrub.clues import clues, column_kind
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    RECORD_COLUMN,
    FingerprintKeys,
    canonical_text,
    owner_fingerprint,
    record_id,
)
from dpsynth_platform.scrub.replacement import Replacer, masked
from dpsynth_platform.scrub.text import Finding, text_detector

# Small enough that progress moves, large enough that the model works in full batches.
CHUNK_ROWS = 8_192

Progress = Callable[[int, int | None], None]
"""Called with the rows done and the total, or None where it is not known."""

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_FITS: dict[str, tuple[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
    # Whole numbers with nulls often arrive as floating point.
    "integer": ("integer or float", (pa.types.is_integer, pa.types.is_floating)),
    "float": ("float", (pa.types.is_floating,)),
    "date": ("date or timestamp", (pa.types.is_date, pa.types.is_timestamp)),
    "categorical": ("string", _TEXT),
    "boolean": ("bool", (pa.types.is_boolean,)),
    "identifier": ("string or integer", (*_TEXT, pa.types.is_integer)),
    "text": ("string", _TEXT),
}


@dataclass(frozen=True, repr=False)
class ScrubKeys:
    """The secrets of scrubbing (32 bytes each).

    Attributes:
        owner: the identity namespace's two keys.
        record: for record ids.
        column: for columns with `pii: hash`.
    """

    owner: FingerprintKeys
    record: bytes
    column: bytes


@dataclass
class ScrubReport:
    """What scrubbing did, filled while its batches are read. Exact numbers: for the operator, never for the public.

    Attributes:
        rows_read: rows of the source.
        rows_without_owner: rows left out because their owner is null or empty: nobody could answer for them.
        texts: free texts examined, by column.
        findings: what was found in free text, by column and entity type.
        actions: what became of each text column.
    """

    rows_read: int = 0
    rows_without_owner: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, dict[str, int]] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return asdict(self)


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
        faults.append(f"not declared in the contract: {', '.join(undeclared)}; declare or remove them")
    for name, column in contract.columns.items():
        if name not in schema.names:
            faults.append(f"column {name!r} ({column.type}) is declared and not in the source")
            continue
        accepted, checks = _FITS[column.type]
        found = schema.field(schema.names.index(name)).type
        if not any(check(found) for check in checks):
            faults.append(f"columns.{name}: declared {column.type}, found Arrow type {found}; accepted: {accepted}")
    if faults:
        raise SourceError("\n".join(f"{contract.dataset}: source: {fault}" for fault in faults))


def scrubbed_schema(contract: DataContract, schema: pa.Schema) -> pa.Schema:
    """Columns of the scrubbed table: those that stay, in the declared order, then `_owner` and `_record`."""
    fields = []
    for name, column in contract.columns.items():
        if name in contract.modelled:
            fields.append(pa.field(name, schema.field(name).type))
        elif column.type == "text" and column.pii != "drop":
            fields.append(pa.field(name, pa.string()))
    return pa.schema([*fields, pa.field(OWNER_COLUMN, pa.string()), pa.field(RECORD_COLUMN, pa.string())])


def scrub_batches(
    batches: Iterable[pa.RecordBatch],
    contract: DataContract,
    schema: pa.Schema,
    keys: ScrubKeys,
    *,
    progress: Progress | None = None,
    total: int | None = None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], ScrubReport]:
    """Scrubs a stream of rows.

    Args:
        schema: the batches' schema.
        progress: called with rows done and `total` after each chunk of rows.
        total: number of rows, where it is known.

    Returns:
        The scrubbed schema, the scrubbed batches, and the report, which is complete when the last batch was taken.

    Raises:
        SourceError: see `check_source_schema`, at once, before a batch is read; or, after the last batch, no row had
            an owner.
    """
    check_source_schema(contract, schema)
    scrubber = _Scrubber(contract, scrubbed_schema(contract, schema), keys)
    return scrubber.schema, _chunks(batches, scrubber, progress, total), scrubber.report


def _chunks(
    batches: Iterable[pa.RecordBatch], scrubber: _Scrubber, progress: Progress | None, total: int | None
) -> Iterator[pa.RecordBatch]:
    report = scrubber.report
    for batch in batches:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            yield scrubber.scrub(batch.slice(start, CHUNK_ROWS))
            if progress is not None:
                progress(report.rows_read, total)
    if report.rows_read and report.rows_read == report.rows_without_owner:
        raise SourceError(
            f"{scrubber.dataset}: source: no row has an owner in {scrubber.owner_column!r}; accepted: owners that are "
            "not null and not blank"
        )


class _Scrubber:
    """One contract's scrubbing, applied chunk by chunk."""

    def __init__(self, contract: DataContract, schema: pa.Schema, keys: ScrubKeys) -> None:
        self.schema = schema
        self.dataset = contract.dataset
        self._privacy = contract.privacy
        self.owner_column = contract.privacy.owner_columns[0]
        self._key_columns = [name for name in contract.source.key if name != self.owner_column]
        self._keys = keys
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
            texts=dict.fromkeys(self._free, 0), findings={name: {} for name in self._free}, actions=dict(texts)
        )
        self._replacer: Replacer | None = None

    def scrub(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        normalization = self._privacy.owner_normalization
        ids = [canonical_text(value, normalization) for value in batch.column(self.owner_column).to_pylist()]
        owned = pa.array([text is not None for text in ids])
        self.report.rows_read += batch.num_rows
        self.report.rows_without_owner += owned.false_count
        batch = batch.filter(owned)
        owners = [owner_fingerprint(text, self._keys.owner) for text in ids if text is not None]
        columns = self._free_texts(batch) | {
            OWNER_COLUMN: owners,
            RECORD_COLUMN: self._records(batch, owners),
        }
        for name, pii in self._whole.items():
            columns[name] = [
                None if value is None else self._whole_value(name, pii, value)
                for value in batch.column(name).to_pylist()
            ]
        arrays = [
            pa.array(columns[item.name], item.type) if item.name in columns else batch.column(item.name)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _records(self, batch: pa.RecordBatch, owners: Sequence[str]) -> list[str]:
        keys = [[canonical_text(value) for value in batch.column(name).to_pylist()] for name in self._key_columns]
        return [
            record_id(owner, [values[row] for values in keys], self._keys.record) for row, owner in enumerate(owners)
        ]

    def _whole_value(self, name: str, pii: str, value: str) -> str:
        if pii == "hash":
            return hmac.digest(self._keys.column, value.encode("utf-8", "surrogatepass"), hashlib.sha256)[:16].hex()
        kind = column_kind(name) or "ID"
        return f"<{kind}>" if pii == "mask" else self._ready_replacer().whole(value, kind)

    def _free_texts(self, batch: pa.RecordBatch) -> dict[str, list[str | None]]:
        """The free-text columns, scrubbed record by record: a record's texts are one document."""
        texts = {name: batch.column(name).to_pylist() for name in self._free}
        places = [(row, name) for row in range(batch.num_rows) for name in self._free if texts[name][row] is not None]
        if not places:
            return texts
        rows = sorted({row for row, _ in places})
        identifying = batch.select(self._identifying).take(pa.array(rows)).to_pylist()
        patterns = {
            row: clues({name: canonical_text(value) for name, value in values.items()})
            for row, values in zip(rows, identifying, strict=True)
        }
        # Loaded at need only: most tables of numbers have no free text, and the model takes seconds.
        found = text_detector().find([texts[name][row] for row, name in places], [patterns[row] for row, _ in places])
        documents: dict[int, dict[str, list[Finding]]] = {row: {} for row in rows}
        for (row, name), findings in zip(places, found, strict=True):
            documents[row][name] = findings
            self.report.texts[name] += 1
            counts = Counter(self.report.findings[name]) + Counter(item.entity for item in findings)
            self.report.findings[name] = dict(counts)
        for row, document in documents.items():
            replaced = [name for name in document if self._free[name] == "replace"]
            if replaced:
                values = self._ready_replacer().document(
                    [texts[name][row] for name in replaced], [document[name] for name in replaced]
                )
                for name, value in zip(replaced, values, strict=True):
                    texts[name][row] = value
            for name in document.keys() - replaced:
                texts[name][row] = masked(texts[name][row], document[name])
        return texts

    def _ready_replacer(self) -> Replacer:
        self._replacer = self._replacer or Replacer()
        return self._replacer
