"""The table of attack scores: one row for each canary, a score for each attack, and whether the canary was included.

What belongs here: the format of stored scores, also of external attacks. What does not: where and how long they are
kept (the audit step, `retention`), and conclusions from them. The table stays restricted although canaries are
fictional, since an audit proves nothing to a reader who knows which canaries were included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.audit.attacks import Attack, Scored
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.foundation.errors import SourceError

INCLUDED = "included"


def scores_table(scored: Sequence[Scored], included: Coins) -> pa.Table:
    """One column of scores for every attack, in the canaries' order, and the column `included`."""
    columns = {item.attack.name: pa.array(item.scores, pa.float64()) for item in scored}
    return pa.table({INCLUDED: pa.array(included, pa.bool_()), **columns})


def read_scores(
    table: pa.Table, *, included: str, names: Sequence[str], share_in: float, share_out: float
) -> tuple[list[Scored], Coins]:
    """The scores of a table with one row a target, and the coins.

    `included` names the column of coins: booleans, or 0 and 1. `names` are the columns of scores, one an attack, by
    default all other columns of numbers; a missing score becomes NaN.

    Raises:
        SourceError: there are no rows, a column is missing or of another type, or a target's inclusion is unknown.
    """
    if not table.num_rows:
        raise SourceError("scores: the table has no rows; accepted: one row a target")
    numbers = [field.name for field in table.schema if _is_number(field.type) and field.name != included]
    chosen = list(names) or numbers
    for name in (included, *chosen):
        if name not in table.column_names:
            raise SourceError(f"scores: no column {name!r}; accepted: {', '.join(table.column_names)}")
    if not chosen:
        raise SourceError("scores: no column holds numbers; accepted: one column of scores an attack")
    for name in chosen:
        if not _is_number(table.schema.field(name).type):
            accepted = ", ".join(numbers) or "a column of numbers, and the table has none"
            raise SourceError(f"scores: column {name!r} holds no numbers; accepted: {accepted}")
    scored = [
        Scored(
            Attack(name, "file", f"the column {name} of a table of scores", share_in, share_out),
            np.asarray(pc.cast(table[name], pa.float64()).to_numpy(), dtype=np.float64),
        )
        for name in chosen
    ]
    return scored, _coins(table[included], included)


def _coins(column: pa.ChunkedArray, name: str) -> Coins:
    values = column.to_numpy()
    if column.null_count or not np.isin(values, (0, 1)).all():
        raise SourceError(
            f"scores: column {name!r} has other values or gaps; accepted: true, false, 1 and 0 in each row"
        )
    return np.asarray(values, dtype=bool)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
