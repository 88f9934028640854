"""The owners of each row, as fingerprints.

What belongs here: reading one or several owner columns, or a column of lists of ids. What does not: an id's normalized
text and fingerprint (`fingerprints`), and rows without an owner (`scrub`).

Values in the data may stop a run only if at least `LEAST_OWNERS` owners have them, as counted by `OwnerCount`. No
single owner can cause a stop, except the last of so many. So a stop is an access to the data without noise, and privacy
statements list it as not covered.

A row's owners are a set. All owner columns of a contract belong to one identity namespace, so equal ids are one person.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.scrub.fingerprints import (
    FingerprintKeys,
    canonical_text,
    canonical_texts,
    owner_fingerprint,
    owner_fingerprints,
)

RowOwners = tuple[str, ...]
"""Fingerprints of a row's owners in hex: distinct, sorted; empty for a row without an owner."""

LEAST_OWNERS = 20


class OwnerCount:
    """Counts owners up to `least`, or rows with several owners if they share none with a counted row."""

    def __init__(self, least: int = LEAST_OWNERS) -> None:
        self._least = least
        self._rows = 0
        self._owners: set[str] = set()

    @property
    def enough(self) -> bool:
        return self._rows >= self._least

    def add(self, owners: RowOwners) -> None:
        if not self.enough and self._owners.isdisjoint(owners):
            self._owners.update(owners)
            self._rows += 1


@dataclass(frozen=True)
class RowUnits(Sequence[RowOwners]):
    """The owners of `rows` rows, after `first` others, of which each is a privacy unit without an id."""

    first: int
    rows: int

    def __len__(self) -> int:
        return self.rows

    @overload
    def __getitem__(self, row: int) -> RowOwners: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[RowOwners]: ...

    def __getitem__(self, row: int | slice) -> RowOwners | Sequence[RowOwners]:
        places = range(self.first, self.first + self.rows)[row]
        return (str(places),) if isinstance(places, int) else [(str(place),) for place in places]


@dataclass(frozen=True)
class ColumnOwners(Sequence[RowOwners]):
    """The owners of rows, from a column of fingerprints in hex (null: no owner) or of lists of them (empty: none)."""

    column: pa.Array

    @property
    def owned(self) -> pa.Array:
        """A mask of the rows that have an owner."""
        if pa.types.is_list(self.column.type):
            return pc.greater(pc.list_value_length(self.column), 0)
        return self.column.is_valid()

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, row: int) -> RowOwners: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[RowOwners]: ...

    def __getitem__(self, row: int | slice) -> RowOwners | Sequence[RowOwners]:
        if isinstance(row, slice):
            return ColumnOwners(self.column[row])
        found = self.column[row].as_py()
        return tuple(found) if isinstance(found, list) else () if found is None else (found,)


class OwnerReader:
    """Reads the owners of rows. Counts missing ids in rows that have another owner, and repeated ids within rows."""

    def __init__(self, privacy: Privacy, keys: FingerprintKeys) -> None:
        self.columns = tuple(privacy.owner_columns)
        self._multiple = privacy.multi_owner
        self._normalization = privacy.owner_normalization
        self._keys = keys
        self.missing = 0
        self.repeated = 0

    def read(self, batch: pa.RecordBatch) -> ColumnOwners:
        if not self._multiple:
            ids = batch.column(self.columns[0]).dictionary_encode()
            texts = canonical_texts(ids.dictionary, self._normalization)
            return ColumnOwners(owner_fingerprints(texts, self._keys).take(ids.indices))
        columns = (_listed(batch.column(name)) for name in self.columns)
        owners = [self._owners(values) for values in zip(*columns, strict=True)]
        return ColumnOwners(pa.array(owners, pa.list_(pa.string())))

    def _owners(self, values: Iterable[list[Any]]) -> RowOwners:
        texts = [canonical_text(value, self._normalization) for part in values for value in part]
        known = {text for text in texts if text is not None}
        if known:
            self.missing += texts.count(None)
            self.repeated += len(texts) - texts.count(None) - len(known)
        return tuple(sorted(owner_fingerprint(text, self._keys) for text in known))


def is_id_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of ids."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def listed_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A row's value with the name of its column; the elements of a list with names that no column has."""
    if isinstance(value, list):
        yield from ((f"{name}\n{place}", part) for place, part in enumerate(value))
    else:
        yield name, value


def _listed(column: pa.Array) -> list[list[Any]]:
    values = column.to_pylist()
    if is_id_list(column.type):
        return [value or [] for value in values]
    return [[value] for value in values]
