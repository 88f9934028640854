"""The order in which an owner's records are kept.

What belongs here: the orders' names, their form on the command line and in contracts, and the SQL of a declared weight.
What does not: the choice itself (`single_owner`, `rounds`).

Ties are broken by SHA-256(key || record id), which all engines compute alike; the key is a bound parameter.

| order | comes first |
| --- | --- |
| random | the smallest keyed hash |
| fewest-owners-first | records with fewer owners: each takes up less room (only if records have several owners) |
| weight:COLUMN | larger values of a declared column; null comes last |

If records have several owners, the records that one owner keeps depend on those of all others. The guarantee (fixed
ownership graph, Ganesh et al. 2025) then holds only if the order is a function of that graph: a weight is part of it
and so is *not* protected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from dpsynth_platform.compute.engine import quoted
from dpsynth_platform.foundation.errors import BoundingError

OrderName = Literal["random", "fewest-owners-first", "weight"]
ORDER_NAMES: tuple[str, ...] = get_args(OrderName)

_RANKED = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal, pa.types.is_boolean)


@dataclass(frozen=True)
class Order:
    """An order of records; `column` is the weight's. Raises `BoundingError` for an impossible one."""

    name: OrderName = "random"
    column: str | None = None

    def __post_init__(self) -> None:
        if self.name not in ORDER_NAMES or (self.name == "weight") != bool(self.column):
            raise BoundingError(f"order {str(self)!r}; accepted: random, fewest-owners-first, weight:COLUMN")

    def __str__(self) -> str:
        return self.name if self.column is None else f"{self.name}:{self.column}"

    @classmethod
    def parse(cls, text: str) -> Order:
        """Reads `random`, `fewest-owners-first` or `weight:COLUMN`. Raises `BoundingError` for anything else."""
        name, _, column = text.partition(":")
        return cls(name, column or None)  # type: ignore[arg-type]  # checked above

    def weight_sql(self, schema: pa.Schema) -> str:
        """The weight as SQL over a table of that schema.

        Raises:
            BoundingError: the table has no such column, or its values have no order that all engines share.
        """
        if self.column is None or self.column not in schema.names:
            raise BoundingError(f"order {self}: there is no column {self.column!r}; accepted: a column of the table")
        kind = schema.field(self.column).type
        if not any(fits(kind) for fits in _RANKED):
            raise BoundingError(f"order {self}: a column of type {kind}; accepted: numbers, dates, times, truth values")
        # 0.0 and -0.0 are one weight.
        return f"{quoted(self.column)} + 0.0" if pa.types.is_floating(kind) else quoted(self.column)


RANDOM = Order()
