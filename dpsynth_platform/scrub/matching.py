"""Refuses columns whose values hardly ever match their declaration.

What belongs here: normalizing values for the comparison with a declared list, counting owners of matching values, and
the refusal. What does not: personal data in such columns (`columns`), and types that no declaration reads (`fitting`).

If the declared values are whole numbers, values are compared as numbers: `4.0`, which pandas writes in columns with
missing values, is 4 (`compute.plain_types.whole_texts`). Texts are compared unchanged.

A column without matching values would be paid for and consist of noise. So the run stops if at least `LEAST_OWNERS`
owners have values that do not match, and fewer have values that do. It also stops if at least so many owners have texts
that match except for surrounding spaces or quotes. A single owner decides only as the last of so many (`owners`).
Privacy statements list both stops as accesses that are not covered. No value and no count is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import TIME_OF_DAY, bare, whole_texts
from dpsynth_platform.contracts.columns import CategoricalColumn, TimeColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.fitting import TEXT
from dpsynth_platform.scrub.owners import OwnerCount, RowOwners


class MatchCheck:
    """Counts owners of matching values, batch by batch. Holds fingerprints of the few counted owners only."""

    def __init__(self, contract: DataContract, schema: pa.Schema) -> None:
        self._dataset = contract.dataset
        modelled = {name: contract.columns[name] for name in contract.modelled}
        listed = {name: column for name, column in modelled.items() if isinstance(column, CategoricalColumn)}
        self._listed = {name: pa.array(column.listed, pa.string()) for name, column in listed.items() if column.listed}
        self._whole = [name for name, column in listed.items() if column.whole_numbers]
        texts = {name for name in modelled if any(check(schema.field(name).type) for check in TEXT)}
        self._times = [name for name, column in modelled.items() if isinstance(column, TimeColumn) and name in texts]
        checked = (*self._listed, *self._times)
        self._matched = {name: OwnerCount() for name in checked}
        self._unmatched = {name: OwnerCount() for name in checked}
        self._nearly = {name: OwnerCount() for name in self._listed if name in texts}

    def canonical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with texts of whole numbers in one form; numbers keep their type."""
        for name in self._whole:
            place = batch.schema.get_field_index(name)
            item = batch.schema.field(place)
            if any(check(item.type) for check in TEXT):
                batch = batch.set_column(place, item, whole_texts(batch.column(place)))
        return batch

    def look(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> None:
        """Counts a `canonical` batch, given each row's owners."""
        for name, matched in self._matched.items():
            if matched.enough and (name not in self._nearly or self._nearly[name].enough):
                continue
            values = batch.column(name)
            known = pc.invert(pc.is_null(values, nan_is_null=True))
            matches = self._matches(name, values)
            unmatched = pc.indices_nonzero(pc.and_(known, pc.invert(matches)))
            _add(matched, pc.indices_nonzero(pc.and_(known, matches)), owners)
            if not matched.enough:
                _add(self._unmatched[name], unmatched, owners)
            if name in self._nearly and len(unmatched):
                nearly = self._nearly_matches(name, values.take(unmatched))
                _add(self._nearly[name], unmatched.filter(nearly), owners)

    def check(self) -> None:
        """Raises `SourceError` with one line for each refused column, without values."""
        faults = [fault for name in self._matched if (fault := self._fault(name))]
        if faults:
            raise SourceError("\n".join(f"{self._dataset}: {fault}" for fault in faults))

    def _matches(self, name: str, values: pa.Array) -> pa.Array:
        """Which values match; null for null."""
        if name in self._times:
            return pc.match_substring_regex(values, TIME_OF_DAY)
        texts = whole_texts(values) if pa.types.is_floating(values.type) else values.cast(pa.string())
        return pc.is_in(texts, value_set=self._listed[name])

    def _nearly_matches(self, name: str, values: pa.Array) -> pa.Array:
        """Which texts are listed except for surrounding spaces or quotes."""
        forms = (bare(values.cast(pa.string()), quote) for quote in ("'", '"'))
        return pc.or_(*(pc.is_in(form, value_set=self._listed[name]) for form in forms))

    def _fault(self, name: str) -> str:
        """A column's problem, or an empty text."""
        if name in self._nearly and self._nearly[name].enough:
            return (
                f"columns.{name}.values: some of the column's values match except for spaces or quotes around them; "
                "accepted: values as they are spelled in the data; or, for a CSV file, --csv-skip-blanks or "
                "--csv-quote, which remove these"
            )
        if self._matched[name].enough or not self._unmatched[name].enough:
            return ""
        if name in self._times:
            return (
                f"columns.{name}: none, or hardly any, of its values is a time of day; accepted: texts such as 07:30 "
                "or 07:30:00"
            )
        return (
            f"columns.{name}.values: none, or hardly any, of the column's values is listed, so it would come out as "
            "noise; accepted: the values as they are spelled in the data (whole numbers also with a point and zeros), "
            "or values: learned"
        )


def _add(count: OwnerCount, rows: pa.Array, owners: Sequence[RowOwners]) -> None:
    for row in rows:
        if count.enough:
            break
        count.add(owners[row.as_py()])
