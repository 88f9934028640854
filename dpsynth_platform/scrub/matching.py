"""Columns whose declaration hardly any of their values match.

What belongs here: values in the form in which they are compared with a declared list, a count of whose values match it,
and the refusal where hardly any do. What does not: personal data in such columns (`columns`), and values of a type that
cannot be read at all.

Where a column's declaration is a list of whole numbers, its values are compared as numbers: `4.0`, which pandas writes
where a value is missing, is 4 (`compute.plain_types.whole_texts`). Texts are compared as they are.

A column in which hardly any value is listed, or is a time of day, would be paid for and come out as noise. So the run
stops, under the rule of `owners`: where values that do not match are of at least `LEAST_OWNERS` owners, and values that
do are of fewer. It also stops where at least so many owners have texts that are listed but for blanks or quotes around
them. One owner alone neither stops a run nor lets it proceed, unless all but one are there. Privacy statements list
both stops as looks at the data which are not covered; no value and no count is shown.
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
    """Looks at batch after batch. Holds fingerprints of the few owners who were counted for each column.

    Args:
        contract: declares the columns.
        schema: of the batches.
    """

    def __init__(self, contract: DataContract, schema: pa.Schema) -> None:
        self._dataset = contract.dataset
        modelled = {name: contract.columns[name] for name in contract.modelled}
        listed = {name: column for name, column in modelled.items() if isinstance(column, CategoricalColumn)}
        self._listed = {name: pa.array(column.listed, pa.string()) for name, column in listed.items() if column.listed}
        self._whole = [name for name, column in listed.items() if column.whole_numbers]
        self._times = [
            name
            for name, column in modelled.items()
            if isinstance(column, TimeColumn) and any(check(schema.field(name).type) for check in TEXT)
        ]
        looked_at = (*self._listed, *self._times)
        self._matched = {name: OwnerCount() for name in looked_at}
        self._unmatched = {name: OwnerCount() for name in looked_at}
        texts = [name for name in self._listed if any(check(schema.field(name).type) for check in TEXT)]
        self._nearly = {name: OwnerCount() for name in texts}

    def canonical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with texts of whole numbers in the one form that is compared; numbers keep their type."""
        for name in self._whole:
            place = batch.schema.get_field_index(name)
            item = batch.schema.field(place)
            if any(check(item.type) for check in TEXT):
                batch = batch.set_column(place, item, whole_texts(batch.column(place)))
        return batch

    def look(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> None:
        """Counts the owners of values that match, of those that do not, and of those that nearly do.

        Args:
            batch: canonical.
            owners: of each row.
        """
        for name, matched in self._matched.items():
            if matched.enough and (name not in self._nearly or self._nearly[name].enough):
                continue
            values = batch.column(name)
            known = (
                pc.is_valid(values)
                if not pa.types.is_floating(values.type)
                else pc.invert(pc.is_null(values, nan_is_null=True))
            )
            matches = self._matches(name, values)
            unmatched = pc.indices_nonzero(pc.and_(known, pc.invert(matches)))
            _add(matched, pc.indices_nonzero(pc.and_(known, matches)), owners)
            if not matched.enough:
                _add(self._unmatched[name], unmatched, owners)
            if name in self._nearly and len(unmatched):
                nearly = self._nearly_matches(name, values.take(unmatched))
                _add(self._nearly[name], unmatched.filter(nearly), owners)

    def check(self) -> None:
        """Refuses columns of which values of hardly any owner matched, or values of many nearly did.

        Raises:
            SourceError: one line for each; names columns only.
        """
        faults = [fault for name in self._matched if (fault := self._fault(name))]
        if faults:
            raise SourceError("\n".join(f"{self._dataset}: {fault}" for fault in faults))

    def _matches(self, name: str, values: pa.Array) -> pa.Array:
        """Where a value matches; null only where it is null."""
        if name in self._times:
            return pc.match_substring_regex(values, TIME_OF_DAY)
        texts = whole_texts(values) if pa.types.is_floating(values.type) else values.cast(pa.string())
        return pc.is_in(texts, value_set=self._listed[name])

    def _nearly_matches(self, name: str, values: pa.Array) -> pa.Array:
        """Where a text is listed but for blanks or quotes around it."""
        forms = (bare(values.cast(pa.string()), quote) for quote in ("'", '"'))
        return pc.or_(*(pc.is_in(form, value_set=self._listed[name]) for form in forms))

    def _fault(self, name: str) -> str:
        """What is wrong with a column, and what is accepted; empty: nothing."""
        if name in self._nearly and self._nearly[name].enough:
            return (
                f"columns.{name}.values: some of the column's values are listed but for blanks or quotes around them; "
                "accepted: values as they are spelled in the data, with these; or, of a CSV file, --csv-skip-blanks or "
                "--csv-quote, so that they are no part of values"
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
