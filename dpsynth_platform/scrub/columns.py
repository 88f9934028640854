"""Columns that are declared as ordinary values and hold personal data all the same.

What belongs here: a look at every value of the columns that scrubbing passes on as they are (categorical, integer,
float), and the refusal. What does not: text columns, of which the contract says what becomes (`scrub`); identifiers,
which leave the table whatever they are; undeclared columns, which are refused unseen.

A categorical column's declared values are public by the contract's word; only others are looked at, all where values
are learned. Of numbers, only valid card numbers are told from quantities by their value; a name such as `ssn` tells the
rest, without any look.

Whether a run stops here depends on the data, which the privacy statement lists as an access that is not covered. So
that it tells as little as can be, one rule decides: of one column, values of at least `owners.LEAST_OWNERS` different
owners look like one type. No one person's values are enough; but beside those of others, the last one's decide, so the
rule bounds what a stop tells and hides nobody as noise would. Neither their number nor a value is shown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import whole_texts
from dpsynth_platform.contracts.columns import CategoricalColumn, FloatColumn, IntegerColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.clues import name_words
from dpsynth_platform.scrub.letters import LOWER, UPPER
from dpsynth_platform.scrub.owners import OwnerCount, RowOwners

# Longer values are texts, and a list of values that are texts is a mistake that shows elsewhere.
_LONGEST = 200
_TELLING_TYPES = ("EMAIL_ADDRESS", "PHONE_NUMBER", "US_SSN", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "URL")
_DATE = "DATE_TIME"
"""Tells nobody by itself; but digits that read as a date in full are no telephone number."""
_FULL_NAME = re.compile(rf"(?P<first>[{UPPER}][{LOWER}]+),? (?:[{UPPER}]\. )?[{UPPER}][{UPPER}{LOWER}'\u2019-]+")
_NUMBER_NAMES = {
    "US_SSN": {"ssn"},
    "PHONE_NUMBER": {"phone", "telephone", "mobile", "fax"},
    "CREDIT_CARD": {"creditcard"},
    "IBAN_CODE": {"iban"},
}
_LEAST_CARD, _MOST_CARD = 10**12, 2**63 - 1
_MOST_EXACT_FLOAT = 2**53


def named_faults(contract: DataContract) -> list[str]:
    """Numeric columns whose names say that they hold somebody's number; the data is not looked at."""
    faults = []
    for name, column in contract.columns.items():
        if isinstance(column, (IntegerColumn, FloatColumn)) and column.accept_pii is None:
            kinds = [kind for kind, words in _NUMBER_NAMES.items() if words & name_words(name)]
            faults += [_fault(name, f"the name says {kind}") for kind in kinds]
    return faults


class ColumnScan:
    """Looks at batch after batch. Holds counts, and fingerprints of the few owners who were counted."""

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
        self._numbers = [name for name in scanned if name not in self._declared]
        self._counts: defaultdict[tuple[str, str], OwnerCount] = defaultdict(OwnerCount)

    def look(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> None:
        """Counts whose values look like personal data.

        Args:
            owners: of each row.

        Raises:
            SourceError: a column has such values of at least `LEAST_OWNERS` owners by now; names columns and types.
        """
        for name, declared in self._declared.items():
            self._look_at_texts(name, _texts(batch.column(name)), declared, owners)
        for name in self._numbers:
            self._look_at_numbers(name, batch.column(name), owners)
        found = sorted(key for key, count in self._counts.items() if count.enough)
        if found:
            raise SourceError("\n".join(f"{self._dataset}: {self._fault_of(name, entity)}" for name, entity in found))

    def _fault_of(self, name: str, entity: str) -> str:
        listed = "; where they are public, all of them listed in values" if name in self._declared else ""
        return _fault(name, f"values look like {entity}") + listed

    def _look_at_texts(self, name: str, values: pa.Array, declared: pa.Array, owners: Sequence[RowOwners]) -> None:
        others = values.filter(pc.invert(pc.is_in(values, value_set=declared))).drop_null()
        for value in pc.unique(others).to_pylist():
            if (entity := looks_like(value)) is not None:
                self._count(name, entity, pc.equal(values, value), owners)

    def _count(self, name: str, entity: str, marked: pa.Array, owners: Sequence[RowOwners]) -> None:
        for row in pc.indices_nonzero(marked).to_pylist():
            self._counts[name, entity].add(owners[row])

    def _look_at_numbers(self, name: str, values: pa.Array, owners: Sequence[RowOwners]) -> None:
        from dpsynth_platform.scrub.rules import is_card

        if values.type.bit_width < 64:  # too small for a card number, or for all of its digits
            return
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        highest = _MOST_EXACT_FLOAT if pa.types.is_floating(values.type) else _MOST_CARD
        within = pc.and_(
            pc.greater_equal(values, pa.scalar(_LEAST_CARD, values.type)),
            pc.less_equal(values, pa.scalar(highest, values.type)),
        )
        large = pc.if_else(within, values, None).to_pylist()
        cards = [value is not None and value == int(value) and is_card(str(int(value))) for value in large]
        self._count(name, "CREDIT_CARD", pa.array(cards, pa.bool_()), owners)


def _texts(values: pa.Array) -> pa.Array:
    """Categories as texts; a number in floating point as the whole one that it is, or as it stands."""
    if pa.types.is_floating(values.type):
        values = pc.coalesce(whole_texts(values), values.cast(pa.string()))
    return values.cast(pa.large_string())


def looks_like(text: str) -> str | None:
    """The entity type that the whole of a value looks like, or None."""
    from dpsynth_platform.scrub.lists import word_lists
    from dpsynth_platform.scrub.rules import rules

    bare = text.strip()
    if not bare or len(bare) > _LONGEST:
        return None
    found = [
        (item.trust, item.entity)
        for rule in rules()
        if rule.entity in (*_TELLING_TYPES, _DATE)
        for item in rule.find(bare)
        if (item.start, item.end) == (0, len(bare))
    ]
    if found:
        surest = min(found)[1]
        return None if surest == _DATE else surest
    name = _FULL_NAME.fullmatch(bare)
    return "PERSON" if name is not None and name["first"].casefold() in word_lists().first_names else None


def _fault(name: str, why: str) -> str:
    return (
        f"columns.{name}: {why}, which would be passed on as it is; accepted: type text with pii: drop, mask, hash or "
        f"replace, type identifier, or columns.{name}.accept_pii: <reason>"
    )
