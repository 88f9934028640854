"""Whose a row is: the owners' ids of each row, as fingerprints.

What belongs here: reading owner columns, be it one, several, or a list of ids in one. What does not: the normalized
text of an id and its fingerprint (`fingerprints`), and what becomes of rows without an owner (`scrub`).

What is found in the data may stop a run only where it is found of `LEAST_OWNERS` owners; `OwnerCount` counts them, for
all who decide so. Nobody can stop a run by themselves; where all but one are there, the last one does. So a stop is a
look at the data without noise, and privacy statements list it as not covered.

A row's owners are a set: an id that stands twice, in one list or in two columns, is one owner. All owner columns of a
contract are of one identity namespace, so that equal ids in different columns are one person.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import pyarrow as pa

from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.scrub.fingerprints import FingerprintKeys, canonical_text, owner_fingerprint

RowOwners = tuple[str, ...]
"""Fingerprints of a row's owners in hex: distinct, sorted; empty where nobody could answer for the row."""

LEAST_OWNERS = 20


class OwnerCount:
    """Owners of rows of which something holds, up to `LEAST_OWNERS`.

    Of rows with several owners those count that share none with another that counts.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._owners: set[str] = set()

    @property
    def enough(self) -> bool:
        """Whether `LEAST_OWNERS` were reached."""
        return self._rows >= LEAST_OWNERS

    def add(self, owners: RowOwners) -> None:
        if not self.enough and self._owners.isdisjoint(owners):
            self._owners.update(owners)
            self._rows += 1


@dataclass(frozen=True)
class EachItsOwn(Sequence[RowOwners]):
    """The owners of rows of which each is a unit of its own: nobody needs an id to be told from the others.

    Attributes:
        first: how many rows came before.
        rows: how many there are.
    """

    first: int
    rows: int

    def __len__(self) -> int:
        return self.rows

    @overload
    def __getitem__(self, row: int) -> RowOwners: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[RowOwners]: ...

    def __getitem__(self, row: int | slice) -> RowOwners | Sequence[RowOwners]:
        """One row's, or of a slice all."""
        places = range(self.first, self.first + self.rows)[row]
        return (str(places),) if isinstance(places, int) else [(str(place),) for place in places]


class OwnerReader:
    """Reads the owners of rows; counts what it could not take for one.

    Attributes:
        missing: ids that are null, or of which normalization leaves nothing, beside another owner's.
        repeated: ids that stand again in their row.
    """

    def __init__(self, privacy: Privacy, keys: FingerprintKeys) -> None:
        self.columns = tuple(privacy.owner_columns)
        self._normalization = privacy.owner_normalization
        self._keys = keys
        self.missing = 0
        self.repeated = 0

    def read(self, batch: pa.RecordBatch) -> list[RowOwners]:
        columns = (_listed(batch.column(name)) for name in self.columns)
        return [self._owners(values) for values in zip(*columns, strict=True)]

    def _owners(self, values: Iterable[list[Any]]) -> RowOwners:
        texts = [canonical_text(value, self._normalization) for part in values for value in part]
        known = {text for text in texts if text is not None}
        if known:
            self.missing += texts.count(None)
            self.repeated += len(texts) - texts.count(None) - len(known)
        return tuple(sorted(owner_fingerprint(text, self._keys) for text in known))


def is_id_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds a list of ids a row."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def listed_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A row's value by the name of its column; of a list, each element by a name of its own."""
    if isinstance(value, list):
        yield from ((f"{name}_{place}", part) for place, part in enumerate(value))
    else:
        yield name, value


def _listed(column: pa.Array) -> list[list[Any]]:
    values = column.to_pylist()
    if is_id_list(column.type):
        return [value or [] for value in values]
    return [[value] for value in values]
