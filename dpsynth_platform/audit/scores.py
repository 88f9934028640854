"""Raw scores as a table: one row a canary, one column an attack, and the coin.

What belongs here: the form in which scores are kept and read, also those of other people's attacks. What does not:
where they lie and for how long (the audit step, `retention`), and what follows from them. Whoever knows the coins can
no longer be surprised by an audit, so the table stays restricted, although canaries are nobody.
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
    """The scores of every attack, by its name, in the canaries' order, and the column `included`."""
    columns = {item.attack.name: pa.array(item.scores, pa.float64()) for item in scored}
    return pa.table({INCLUDED: pa.array(included, pa.bool_()), **columns})


def read_scores(
    table: pa.Table, *, included: str, names: Sequence[str], share_in: float, share_out: float
) -> tuple[list[Scored], Coins]:
    """The scores of a table, one attack a column, and who was in.

    Args:
        table: one row a target; a missing score is no number, and stays none.
        included: name of the column that says who was in: booleans, or 0 and 1.
        names: of the columns of scores; none: all columns of numbers but that one.
        share_in: share of the targets that each attack guesses in.
        share_out: share of the targets that each attack guesses out.

    Raises:
        SourceError: there are no rows, a column is missing or of another type, or somebody's inclusion is unknown.
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
            accepted = ", ".join(numbers) or "a column of numbers, and there is none"
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
        raise SourceError(f"scores: column {name!r} must say of everybody who was in; accepted: true, false, 1 and 0")
    return np.asarray(values, dtype=bool)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
