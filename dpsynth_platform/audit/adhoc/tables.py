"""Attacks on any synthetic table, with tables of members and of non-members.

What belongs here: encoding such tables into common cells, without a contract, and running the possible attacks. What
does not: the attacks (`attacks`, `tables`), and conclusions (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.tables import Evidence, attacks
from dpsynth_platform.audit.tables.copies import Copies, count_copies
from dpsynth_platform.quality.columns import CELL_BINS, Column, align, cells
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain, Domain

MEMBERS, OTHERS, SYNTHETIC, REFERENCE = "members", "non-members", "synthetic table", "reference"


def table_evidence(tables: Mapping[str, pa.Table], categorical: Collection[str], *, canaries: bool) -> Evidence:
    """An attacker's evidence: members and non-members as targets, the release, perhaps a reference.

    The ranges of all tables together define the cells, so the evidence depends on all of them.

    Args:
        tables: by `MEMBERS`, `OTHERS`, `SYNTHETIC` and, if there is one, `REFERENCE`; of the same columns.
        categorical: columns whose numbers are codes.
        canaries: whether members and non-members are fictional, made without the data.

    Raises:
        SourceError: a table has no rows or no columns, the columns differ, or one has a type that cannot be compared.
    """
    ordered = {name: tables[name] for name in (SYNTHETIC, MEMBERS, OTHERS, REFERENCE) if name in tables}
    columns = align(ordered, categorical)
    coded, sizes = cells(columns)
    domain = Domain(tuple(_domain(column, size) for column, size in zip(columns, sizes, strict=True)))
    parts = dict(zip(ordered, (_as_table(domain, codes.astype(np.int32)) for codes in coded), strict=True))
    return Evidence(
        domain=domain,
        targets=pa.concat_tables([parts[MEMBERS], parts[OTHERS]]).combine_chunks(),
        synthetic=parts[SYNTHETIC],
        reference=parts.get(REFERENCE),
        canaries=canaries,
    )


def membership(tables: Mapping[str, pa.Table]) -> Coins:
    """Whether each target is a member, in the order of `table_evidence`."""
    return np.repeat([True, False], [tables[MEMBERS].num_rows, tables[OTHERS].num_rows])


def score_tables(evidence: Evidence, names: Sequence[str] = ()) -> list[Scored]:
    """Scores of the named attacks, or of all that the evidence allows (`registry.run_attacks`)."""
    return attacks(evidence, list(names) or None)


def copies_of(evidence: Evidence, included: Coins) -> tuple[Copies, ...]:
    """Copies of members and of non-members, in all columns and in all but one (`count_copies`)."""
    inside, outside = evidence.target_codes[included], evidence.target_codes[~included]
    return tuple(count_copies(inside, outside, evidence.synthetic_codes, columns_off=off) for off in (0, 1))


def _domain(column: Column, size: int) -> ColumnDomain:
    if column.size is None:
        return ColumnDomain(column.name, "integer", True, edges=tuple(map(float, range(CELL_BINS + 1))))
    return ColumnDomain(column.name, "categorical", True, values=tuple(map(str, range(size))))


def _as_table(domain: Domain, codes: Codes) -> pa.Table:
    """Cells as values of the domain: numbers of cells, as text where cells have no order, null where missing."""
    arrays = {}
    for index, column in enumerate(domain):
        held = codes[:, index]
        values = pa.array(held, pa.int64(), mask=held >= column.missing)
        arrays[column.name] = values if column.ordered else values.cast(pa.string())
    return pa.table(arrays)
