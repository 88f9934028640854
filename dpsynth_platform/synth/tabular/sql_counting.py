"""Exact counts by a SQL engine: DuckDB in process, Spark where rows outgrow one machine. Sensitive, as `counting`.

What belongs here: the SQL of marginal counts, one text for both engines. What does not: the cells of records
(`coding`), and when an engine is used (`counting`). Sums are of whole numbers, so that both engines count the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import EngineError
from dpsynth_platform.foundation.storage import count_rows
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.tabular.coding import Coding
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts

TABLES_AT_ONCE = 16
"""Tables of counts in one query: enough for all workers, and few enough for memory."""

# `/` is a fraction; with up to 65536 rows an owner, flooring it in double precision is exact (`units.row_weight`).
_WEIGHED_SQL = """
SELECT {cells}, weights.weight FROM coded JOIN (
    SELECT "{owner}", CAST(floor({parts} / count(*)) AS BIGINT) AS weight FROM coded GROUP BY "{owner}"
) AS weights ON coded."{owner}" = weights."{owner}"
"""
_MERGED_SQL = "SELECT {columns} FROM {source} {joins}"
_TABLE_SQL = """
SELECT {number} AS _table, _cell, {total} AS _total
FROM (SELECT {cell} AS _cell{weight} FROM {source}) AS cells_{number} GROUP BY _cell
"""


class SqlCounter:
    """Counts one bounded table in an open engine, in its tables `bounded`, `coded`, `merged`, `values_*`, `states_*`.

    With `owners`, each owner's rows weigh one record together, and the coding has the owners' column. Raises
    `EngineError` if the engine stops, or duplicates records.
    """

    def __init__(self, engine: Engine, bounded: Path, domain: Domain, coding: Coding, *, owners: bool) -> None:
        self._engine = engine
        self._sizes = domain.sizes
        self._owners = owners
        columns = [*domain.reads, *([OWNER_COLUMN] if owners else [])]
        engine.register_delta("bounded", bounded, columns=columns)
        for name, table in coding.tables.items():
            engine.register(name, table)
        engine.materialize("coded", coding.sql)
        if engine.scalar("SELECT count(*) AS number FROM coded") != count_rows(bounded):
            # A text that an engine finds in a list more than once would duplicate its record.
            raise EngineError("the engine does not compare texts byte by byte")
        if owners:
            cells = ", ".join(f"coded._{index}" for index in range(len(domain)))
            weighed = _WEIGHED_SQL.format(cells=cells, owner=OWNER_COLUMN, parts=RECORD_PARTS)
            engine.materialize("weighed", weighed)
        self._coded = "weighed" if owners else "coded"

    def one_way(self) -> list[Counts]:
        """Records in every cell of every column. Raises `EngineError`."""
        columns: list[Clique] = [(index,) for index in range(len(self._sizes))]
        found = self._tables(self._coded, self._sizes, columns)
        return [found[column] for column in columns]

    def cliques(self, states: Sequence[ColumnStates], cliques: Sequence[Clique]) -> dict[Clique, Counts]:
        """Records in every cell of every clique, over states; each of their shape. Raises `EngineError`."""
        columns, joins = [], []
        for index, column in enumerate(states):
            if np.array_equal(column.state_of, np.arange(column.state_of.size)):
                columns.append(f"{self._coded}._{index}")
                continue
            cells = pa.array(np.arange(column.state_of.size, dtype=np.int32))
            self._engine.register(f"states_{index}", pa.table({"cell": cells, "state": pa.array(column.state_of)}))
            columns.append(f"states_{index}.state AS _{index}")
            joins.append(f"JOIN states_{index} ON {self._coded}._{index} = states_{index}.cell")
        source = self._coded
        if joins:
            weight = [f"{self._coded}.weight"] if self._owners else []
            merged = {"columns": ", ".join([*columns, *weight]), "source": self._coded, "joins": " ".join(joins)}
            self._engine.materialize("merged", _MERGED_SQL.format(**merged))
            source = "merged"
        return self._tables(source, [column.size for column in states], cliques)

    def _tables(self, source: str, sizes: Sequence[int], cliques: Sequence[Clique]) -> dict[Clique, Counts]:
        shapes = {clique: tuple(sizes[index] for index in clique) for clique in cliques}
        counts = {clique: np.zeros(math.prod(shape), dtype=np.int64) for clique, shape in shapes.items()}
        total = "CAST(sum(weight) AS BIGINT)" if self._owners else "count(*)"
        weight = ", weight" if self._owners else ""
        for first in range(0, len(cliques), TABLES_AT_ONCE):
            some = cliques[first : first + TABLES_AT_ONCE]
            tables = (
                _TABLE_SQL.format(
                    number=number, cell=_flat(clique, shapes[clique]), total=total, weight=weight, source=source
                )
                for number, clique in enumerate(some)
            )
            for batch in self._engine.stream(" UNION ALL ".join(tables)):
                table, cell, found = (batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names)
                for number in np.unique(table):
                    mine = table == number
                    counts[some[number]][cell[mine]] = found[mine]
        return {clique: total.reshape(shapes[clique]) for clique, total in counts.items()}


def _flat(clique: Clique, shape: Sequence[int]) -> str:
    """The row-major flat index of a cell in the clique's table."""
    steps = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return " + ".join(
        f"CAST(_{index} AS BIGINT)" + (f" * {step}" if step > 1 else "")
        for index, step in zip(clique, steps, strict=True)
    )
