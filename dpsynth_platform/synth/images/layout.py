"""Which column holds pictures, of which form, and the classes by which they are made.

What belongs here: the public layout, and reading the pictures and classes of the bounded table. What does not: what a
method does with them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.columns import conditioning_values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, StaleInput
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.conditions import Condition, Given, text_of

Classes = npt.NDArray[np.int64]
NO_CLASS = -1
"""The class of a record whose values are not declared: no method learns from it."""


@dataclass(frozen=True)
class Pictures:
    """Some records with a class. Sensitive, including their number.

    Attributes:
        pixels: shape (records, height, width, channels).
        classes: numbers of classes; shape (records,).
        owners: of each record, where they were read; shape (records,).
    """

    pixels: Pixels = field(repr=False)
    classes: Classes = field(repr=False)
    owners: Sequence[str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ImageLayout:
    """The column of pictures and what they are conditioned by. Public.

    A class is a combination of the conditions' values; without conditions there is one class.
    """

    column: str
    form: ImageForm
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, contract: DataContract) -> ImageLayout:
        """The layout of a contract with pictures."""
        names = contract.conditioning_columns
        conditions = tuple(Condition(name, conditioning_values(contract.columns[name])) for name in names)
        return cls(str(contract.image_column), contract.image.form, conditions)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ImageLayout:
        """Reads the JSON of `asdict` back. Raises `ContractError`."""
        try:
            conditions = tuple(Condition(part["column"], tuple(part["values"])) for part in document["conditions"])
            return cls(document["column"], ImageForm(**document["form"]), conditions)
        except (KeyError, TypeError, ValueError):
            raise ContractError("generate: no layout of pictures; materialize the line from raw again") from None

    @property
    def number(self) -> int:
        """How many classes there are."""
        return math.prod(len(condition.values) for condition in self.conditions)

    @cached_property
    def classes(self) -> tuple[Given, ...]:
        """The values of each class, in the order of its number."""
        return tuple(itertools.product(*(condition.values for condition in self.conditions)))

    @property
    def names(self) -> tuple[str, ...]:
        """A public name of each class: its values."""
        return tuple(", ".join("missing" if value is None else value for value in given) for given in self.classes)

    def classes_of(self, rows: pa.RecordBatch | pa.Table) -> Classes:
        """The class of each row; `NO_CLASS` for values that are not declared. Shape (rows,)."""
        found = np.zeros(rows.num_rows, dtype=np.int64)
        for condition in self.conditions:
            places = {value: place for place, value in enumerate(condition.values)}
            column = rows.column(condition.column)
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            coded = column.dictionary_encode(null_encoding="encode")
            known = [places.get(text_of(value), NO_CLASS) for value in coded.dictionary.to_pylist()]
            mine = np.array([*known, NO_CLASS], dtype=np.int64)[coded.indices.to_numpy(zero_copy_only=False)]
            found = np.where((found == NO_CLASS) | (mine == NO_CLASS), NO_CLASS, found * len(condition.values) + mine)
        return found

    def read(self, bounded: Path | pa.Table, *, owners: bool = False) -> Iterator[Pictures]:
        """The records of the bounded table, on disk or in memory, that have a class, batch by batch.

        Raises:
            StaleInput: the table lacks a column, or its pictures have another form.
        """
        conditions = [condition.column for condition in self.conditions]
        names = [*conditions, self.column, *([OWNER_COLUMN] if owners else [])]
        held = bounded if isinstance(bounded, pa.Table) else None
        schema = table_schema(bounded) if held is None else held.schema
        lacking = [name for name in names if name not in schema.names]
        if lacking:
            raise StaleInput(f"the bounded table lacks column {lacking[0]!r}; materialize bounded again")
        for batch in read_table(bounded, columns=names) if held is None else held.select(names).to_batches():
            classes = self.classes_of(batch)
            known = np.flatnonzero((classes != NO_CLASS) & batch.column(self.column).is_valid().to_numpy(False))
            rows = batch.take(pa.array(known))
            try:
                pixels = self.form.read(rows.column(self.column))
            except ValueError:
                pixels = None
            if pixels is None:
                raise StaleInput("the bounded table has pictures of another form; materialize scrubbed again")
            mine = rows.column(OWNER_COLUMN).to_pylist() if owners else None
            yield Pictures(pixels, classes[known], mine)
