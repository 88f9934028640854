"""Columns whose declaration none of their values match.

What belongs here: values in the form in which they are compared with a declared list, a count of what matches it, and
the refusal where nothing does. What does not: personal data in such columns (`columns`), and values of a type that
cannot be read at all.

Where a column's declaration is a list of whole numbers, its values are compared as numbers: `4.0`, which pandas writes
where a value is missing, is 4 (`compute.plain_types.whole_texts`). Texts are compared as they are.

A column in which no value is listed, or is a time of day, would be paid for and come out as noise. So the run stops,
under the rule of `owners`: where such values are of at least `LEAST_OWNERS` owners. One value that matches lets the run
proceed. Privacy statements list that stop as a look at the data which is not covered; no value and no count is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import TIME_OF_DAY, whole_texts
from dpsynth_platform.contracts import CategoricalColumn, DataContract, TimeColumn
from dpsynth_platform.errors import SourceError
from dpsynth_platform.scrub.fitting import TEXT
from dpsynth_platform.scrub.owners import OwnerCount, RowOwners


class MatchCheck:
    """Looks at batch after batch. Holds a flag for each column, and fingerprints of the few owners who were counted.

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
        self._unmatched = {name: OwnerCount() for name in (*self._listed, *self._times)}

    def canonical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with texts of whole numbers in the one form that is compared; numbers keep their type."""
        for name in self._whole:
            place = batch.schema.get_field_index(name)
            item = batch.schema.field(place)
            if any(check(item.type) for check in TEXT):
                batch = batch.set_column(place, item, whole_texts(batch.column(place)))
        return batch

    def look(self, batch: pa.RecordBatch, owners: Sequence[RowOwners]) -> None:
        """Counts the owners of values that match nothing, in columns of which no value matched yet.

        Args:
            batch: canonical.
            owners: of each row.
        """
        for name in list(self._unmatched):
            values = batch.column(name)
            known = (
                pc.is_valid(values)
                if not pa.types.is_floating(values.type)
                else pc.invert(pc.is_null(values, nan_is_null=True))
            )
            if pc.any(pc.and_(known, self._matches(name, values))).as_py():
                del self._unmatched[name]
                continue
            count = self._unmatched[name]
            for row in pc.indices_nonzero(known).to_pylist():
                if count.enough:
                    break
                count.add(owners[row])

    def check(self) -> None:
        """Refuses columns of which no value matched.

        Raises:
            SourceError: one line for each; names columns only.
        """
        wrong = [name for name, count in self._unmatched.items() if count.enough]
        if wrong:
            raise SourceError("\n".join(f"{self._dataset}: {self._fault(name)}" for name in wrong))

    def _matches(self, name: str, values: pa.Array) -> pa.Array:
        """Where a value matches; null only where it is null."""
        if name in self._times:
            return pc.match_substring_regex(values, TIME_OF_DAY)
        texts = whole_texts(values) if pa.types.is_floating(values.type) else values.cast(pa.string())
        return pc.is_in(texts, value_set=self._listed[name])

    def _fault(self, name: str) -> str:
        if name in self._times:
            return f"columns.{name}: none of its values is a time of day; accepted: texts such as 07:30 or 07:30:00"
        return (
            f"columns.{name}.values: none of the column's values is listed, so it would come out as noise; accepted: "
            "the values as they are spelled in the data (whole numbers also with a point and zeros), or values: learned"
        )
