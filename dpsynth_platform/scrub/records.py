"""The texts of records: collecting them for detection, and replacing what was found.

What belongs here: the free texts of a batch's rows with their records' identifying values, and the action on each
finding. What does not: detection (`detection`), fictional values (`replacement`), and which columns are texts (`scrub`,
`alone`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.clues import column_kind
from dpsynth_platform.scrub.detection import Document
from dpsynth_platform.scrub.findings import UNREAD, Finding
from dpsynth_platform.scrub.fingerprints import canonical_text
from dpsynth_platform.scrub.owners import OwnerCount, RowOwners, listed_values
from dpsynth_platform.scrub.parallel import Findings
from dpsynth_platform.scrub.replacement import Replacer, substituted


@dataclass(frozen=True, repr=False)
class RecordTexts:
    """The free texts of rows, by column, before detection; `places` are the (row, column) of each document."""

    texts: dict[str, list[str | None]]
    places: list[tuple[int, str]]
    documents: list[Document]


def record_texts(batch: pa.RecordBatch, free: Collection[str], identifying: Sequence[str]) -> RecordTexts:
    """The free texts of a batch, each with its record's values in the `identifying` columns."""
    texts = {name: batch.column(name).to_pylist() for name in free}
    places = [(row, name) for row in range(batch.num_rows) for name in free if texts[name][row] is not None]
    rows = sorted({row for row, _ in places})
    # Rows without any column have no length in Arrow.
    records = (
        batch.select(identifying).take(pa.array(rows, pa.int64())).to_pylist() if identifying else [{}] * len(rows)
    )
    values = {
        row: {
            name: canonical_text(part) for column, value in found.items() for name, part in listed_values(column, value)
        }
        for row, found in zip(rows, records, strict=True)
    }
    return RecordTexts(texts, places, [Document(str(texts[name][row]), values[row]) for row, name in places])


class Treatment:
    """Replaces, masks, hashes or removes what was found in the texts of records.

    Args:
        own: the actions for entity types, the locale and the consistency of fictional values.
        free: the action on findings in each column of free text.
        key: secret of 32 bytes, for hashes and for fictional values that are consistent within an owner.
        where: the table's name in messages.

    Attributes:
        texts: free texts treated, by column.
        findings: findings, by column and entity type.
    """

    def __init__(self, own: Scrub, free: Mapping[str, str], key: bytes, where: str) -> None:
        self._own = own
        self._free = free
        self._key = key
        self._where = where
        self._unread = OwnerCount()
        self._replacer: Replacer | None = None
        self.texts = dict.fromkeys(free, 0)
        self.findings: dict[str, Counter[str]] = {name: Counter() for name in free}

    def free_texts(
        self, taken: RecordTexts, found: Findings, owners: Sequence[RowOwners]
    ) -> dict[str, Sequence[str | None]]:
        """The columns of free text with their findings treated. Fictional values are consistent within a record.

        Raises:
            SourceError: the contract's own patterns take too long on texts of `owners.LEAST_OWNERS` owners.
        """
        records: dict[int, list[tuple[str, list[Finding]]]] = {}
        for (row, name), findings in zip(taken.places, found, strict=True):
            records.setdefault(row, []).append((name, findings))
            self.texts[name] += 1
            self.findings[name].update(item.entity for item in findings)
            if any(item.entity == UNREAD for item in findings):
                self._unread.add(owners[row])
        if self._unread.enough:
            raise SourceError(
                f"{self._where}: scrub.patterns: the contract's own patterns take too long on texts of many owners; "
                "accepted: patterns without nested repeats, such as (x+)+"
            )
        for row, record in records.items():
            self._record(row, record, taken.texts, owners[row][0])
        return dict(taken.texts)

    def whole_value(self, name: str, action: str, value: str, owner: str) -> str:
        """What stands for a whole value: of a column of one kind, or hashed."""
        if action == "hash":
            return self._hashed(value)
        kind = column_kind(name) or "ID"
        return f"<{kind}>" if action == "mask" else self._fictional().whole(value, kind, owner)

    def _record(
        self,
        row: int,
        record: Sequence[tuple[str, list[Finding]]],
        columns: dict[str, list[str | None]],
        owner: str,
    ) -> None:
        texts = {name: str(columns[name][row]) for name, _ in record}
        replaced = [
            (texts[name][item.start : item.end], item.entity)
            for name, findings in record
            for item in findings
            if self._action(name, item.entity) == "replace"
        ]
        values = self._fictional().values(replaced, owner) if replaced else {}
        for name, findings in record:

            def value(original: str, entity: str, column: str = name) -> str:
                action = self._action(column, entity)
                if action == "replace":
                    return values[original, entity]
                if action == "hash":
                    return f"<{entity}:{self._hashed(original.casefold())}>"
                return f"<{entity}>" if action == "mask" else ""

            columns[name][row] = substituted(texts[name], findings, value)

    def _action(self, column: str, entity: str) -> str:
        if entity == UNREAD:
            return "mask"
        return self._own.actions.get(entity) or self._free[column]

    def _hashed(self, value: str) -> str:
        return hmac.digest(self._key, value.encode("utf-8", "surrogatepass"), hashlib.sha256)[:16].hex()

    def _fictional(self) -> Replacer:
        if self._replacer is None:
            # A derived key, so that a hash and a fictional value of one original cannot be linked.
            key = hmac.digest(self._key, b"fictional values of an owner", hashlib.sha256)
            self._replacer = Replacer(self._own.locale, key if self._own.consistent == "owner" else None)
        return self._replacer
