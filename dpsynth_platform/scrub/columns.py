"""Refuses columns that are declared as ordinary values and contain personal data.

What belongs here: checking every value of the columns that scrubbing does not change (categorical, integer, float).
What does not: text columns (`scrub`), identifiers, which are always removed, and undeclared columns, which are refused
without being read.

A categorical column's declared values are public, so only others are checked; all are if values are learned. Numbers
are checked for valid card numbers, and columns for names such as `ssn`.

Whether a run stops here depends on the data, which the privacy statement lists as an access that is not covered. A run
stops if values of at least `owners.LEAST_OWNERS` different owners of one column look like one type. One person's values
never suffice, but with those of others the last person's decide: the rule limits what a stop reveals, and hides nobody
as noise would. Neither the number nor a value is shown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import whole_texts
from dpsynth_platform.contracts.columns import CategoricalColumn, FloatColumn, IntegerColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.clues import LABEL_WORDS, name_words
from dpsynth_platform.scrub.letters import LOWER, UPPER
from dpsynth_platform.scrub.owners import LEAST_OWNERS, OwnerCount, RowOwners

# Longer values are texts; a list of texts is refused elsewhere.
_LONGEST = 200
_TELLING_TYPES = ("EMAIL_ADDRESS", "PHONE_NUMBER", "US_SSN", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "URL")
_DATE = "DATE_TIME"
"""Not identifying; but a value that is fully a date is not a telephone number."""
_FULL_NAME = re.compile(rf"(?P<first>[{UPPER}][{LOWER}]+),? (?:[{UPPER}]\. )?[{UPPER}][{UPPER}{LOWER}'\u2019-]+")
_NUMBER_NAMES = {
    "US_SSN": {"ssn"},
    "PHONE_NUMBER": {"phone", "telephone", "mobile", "fax"},
    "CREDIT_CARD": {"creditcard"},
    "IBAN_CODE": {"iban"},
}
_LEAST_CARD, _MOST_CARD = 10**12, 2**63 - 1
_MOST_EXACT_FLOAT = 2**53


PASSAGE = "free text"
"""In place of an entity type: values of several words."""


def number_kinds(name: str) -> list[str]:
    """The entity types that the name of a column of numbers suggests."""
    return [kind for kind, words in _NUMBER_NAMES.items() if words & name_words(name)]


def named_faults(contract: DataContract) -> list[str]:
    """Faults of numeric columns whose names suggest personal numbers; reads no data."""
    faults = []
    for name, column in contract.columns.items():
        if isinstance(column, (IntegerColumn, FloatColumn)) and column.accept_pii is None:
            faults += [_fault(name, f"the name says {kind}") for kind in number_kinds(name)]
    return faults


class ValueScan:
    """Counts values that look like personal data, batch by batch. Holds fingerprints of the few counted owners only.

    Args:
        texts: for each column of texts, the values that are public.
        numbers: columns of numbers.
        least: of so many owners a column must have such values.
        passages: whether values count, too, that are as long as free text (as `PASSAGE`), or personal in a part only.
    """

    def __init__(
        self,
        texts: Mapping[str, pa.Array],
        numbers: Iterable[str],
        least: int = LEAST_OWNERS,
        *,
        passages: bool = False,
    ) -> None:
        self._texts, self._numbers, self._passages = dict(texts), tuple(numbers), passages
        self._counts: defaultdict[tuple[str, str], OwnerCount] = defaultdict(lambda: OwnerCount(least))

    def look(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> list[tuple[str, str]]:
        """The columns with such values of enough owners so far, and their types, sorted."""
        for name, declared in self._texts.items():
            values = _texts(batch.column(name))
            others = values.filter(pc.invert(pc.is_in(values, value_set=declared))).drop_null()
            for value in pc.unique(others).to_pylist():
                if (entity := self._type_of(value)) is not None:
                    self._count(name, entity, pc.indices_nonzero(pc.equal(values, value)).to_pylist(), owners)
        for name in self._numbers:
            self._look_for_cards(name, batch.column(name), owners)
        return sorted(key for key, count in self._counts.items() if count.enough)

    def _type_of(self, value: str) -> str | None:
        if self._passages and (len(value.split()) > LABEL_WORDS or len(value) > _LONGEST):
            return PASSAGE
        return _type_of(value, parts=self._passages)

    def _count(self, name: str, entity: str, rows: Iterable[int], owners: Sequence[RowOwners]) -> None:
        count = self._counts[name, entity]
        for row in rows:
            count.add(owners[row])

    def _look_for_cards(self, name: str, values: pa.Array, owners: Sequence[RowOwners]) -> None:
        from dpsynth_platform.scrub.rules import is_card

        if values.type.bit_width < 64:  # cannot represent a card number exactly
            return
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        highest = _MOST_EXACT_FLOAT if pa.types.is_floating(values.type) else _MOST_CARD
        within = pc.and_(
            pc.greater_equal(values, pa.scalar(_LEAST_CARD, values.type)),
            pc.less_equal(values, pa.scalar(highest, values.type)),
        )
        rows = pc.indices_nonzero(within)
        large = zip(rows.to_pylist(), values.take(rows).to_pylist(), strict=True)
        cards = (row for row, value in large if value == int(value) and is_card(str(int(value))))
        self._count(name, "CREDIT_CARD", cards, owners)


class ColumnScan:
    """The check of a contract's columns, batch by batch."""

    def __init__(self, contract: DataContract) -> None:
        self._dataset = contract.dataset
        scanned = {
            name: column
            for name, column in contract.columns.items()
            if isinstance(column, (CategoricalColumn, IntegerColumn, FloatColumn)) and column.accept_pii is None
        }
        self._declared = {
            name: pa.array(column.listed, pa.large_string())
            for name, column in scanned.items()
            if isinstance(column, CategoricalColumn)
        }
        self._values = ValueScan(self._declared, [name for name in scanned if name not in self._declared])

    def look(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> None:
        """Counts each row's owners whose values look like personal data.

        Raises `SourceError` for columns with such values of at least `LEAST_OWNERS` owners; names columns and types.
        """
        faults = []
        for name, entity in self._values.look(batch, owners):
            listed = "; if they are public, list all of them in values" if name in self._declared else ""
            faults.append(f"{self._dataset}: {_fault(name, f'values look like {entity}')}{listed}")
        if faults:
            raise SourceError("\n".join(faults))


def _texts(values: pa.Array) -> pa.Array:
    """Categories as texts; floats as whole numbers if they are whole."""
    if pa.types.is_floating(values.type):
        values = pc.coalesce(whole_texts(values), values.cast(pa.string()))
    return values.cast(pa.large_string())


def _type_of(text: str, *, parts: bool) -> str | None:
    """The entity type of a whole value, or if `parts`, of a part of it; or None."""
    from dpsynth_platform.scrub.lists import word_lists
    from dpsynth_platform.scrub.rules import rules

    bare = text.strip()
    if not bare or len(bare) > _LONGEST:
        return None
    items = [item for rule in rules() if rule.entity in (*_TELLING_TYPES, _DATE) for item in rule.find(bare)]
    found = [(item.trust, item.entity) for item in items if (item.start, item.end) == (0, len(bare))]
    if found:
        entity = min(found)[1]
        return None if entity == _DATE else entity
    if parts and (within := [(item.trust, item.entity) for item in items if item.entity != _DATE]):
        return min(within)[1]
    name = _FULL_NAME.fullmatch(bare)
    return "PERSON" if name is not None and name["first"].casefold() in word_lists().first_names else None


def _fault(name: str, why: str) -> str:
    return (
        f"columns.{name}: {why}, which would stay unchanged; accepted: type text with pii: drop, mask, hash or "
        f"replace, type identifier, or columns.{name}.accept_pii: <reason>"
    )
