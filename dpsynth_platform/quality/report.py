"""The quality report as a whole: made from three tables, shown as JSON, as markdown and as rows for a terminal.

What belongs here: putting the parts together, for a dataset that has a contract and for tables that have none. What
does not: measuring, showing single parts (`shown`, `plots`), and any gate. The report compares with real rows, so it is
restricted and says so wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.closeness import Closeness, measure_closeness
from dpsynth_platform.quality.columns import CELL_BINS, Column, cells, coded, declared, of_tables, row_counts
from dpsynth_platform.quality.fairness import Fairness, Protected, measure_fairness
from dpsynth_platform.quality.fidelity import Fidelity, measure_fidelity
from dpsynth_platform.quality.moments import MomentsFidelity, measure_moments, of_domain
from dpsynth_platform.quality.moments import of_tables as moments_of_tables
from dpsynth_platform.quality.one_type import in_one_type
from dpsynth_platform.quality.report_rows import (
    HEADER,
    Row,
    closeness_rows,
    fairness_rows,
    fidelity_rows,
    moments_rows,
    similarity_rows,
    unavailable,
    utility_rows,
)
from dpsynth_platform.quality.similarity import Similarity, measure_similarity
from dpsynth_platform.quality.utility import MOST_CLASSES, Utility, measure_utility
from dpsynth_platform.synth.tabular.domain import Domain, domain_of

NOTICE = (
    "Restricted: this report compares with real data and is not covered by the guarantee. It is for reviewers only; "
    "no automatic gate reads it."
)
NOT_MODELLED = "no column is modelled"
"""In place of the cells, of a table of ids and texts alone."""
MOST_ROWS = 200_000
"""Of larger tables, so many rows are drawn at random for all but the distances of marginals; always the same."""


@dataclass(frozen=True)
class QualityReport:
    """Fidelity, similarity, utility, fairness and closeness of one synthetic table. Restricted.

    Attributes:
        cells: the cells that distances of marginals are on, in words.
        rows: number of rows of each table.
        fidelity: distances from the real rows that the mechanism had (or the held-out ones, where those are not given).
        similarity: of synthetic and held-out rows; None where one of them is empty.
        real_similarity: of the real rows that the mechanism had and held-out rows.
        closeness: None unless there are rows of all three kinds.
        moments: hours, weekdays and gaps, from the same rows as `fidelity`; None where there are no moments.
    """

    dataset: str | None
    period: str | None
    cells: str
    rows: dict[str, int]
    fidelity: Fidelity
    similarity: Similarity | None
    real_similarity: Similarity | None
    utility: Utility
    fairness: tuple[Fairness, ...]
    closeness: Closeness | None
    moments: MomentsFidelity | None = None
    notice: str = NOTICE
    restricted: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        means = {"mean_column": self.fidelity.mean_column, "mean_pair": self.fidelity.mean_pair}
        shown = {name: None if math.isnan(value) else value for name, value in means.items()}
        similar = {
            name: None if found is None else asdict(found) | {"histogram": found.histogram, "pair": found.pair}
            for name, found in (("similarity", self.similarity), ("real_similarity", self.real_similarity))
        }
        return asdict(self) | {"fidelity": asdict(self.fidelity) | shown} | similar

    def table(self) -> list[Row]:
        """The report as a table of four columns, see `HEADER`."""
        if self.cells == NOT_MODELLED:
            return [unavailable("columns", NOT_MODELLED)]
        return [
            *fidelity_rows(self.fidelity),
            *moments_rows(self.moments),
            *similarity_rows(self.similarity, self.real_similarity),
            *utility_rows(self.utility),
            *fairness_rows(self.fairness),
            *closeness_rows(self.closeness),
        ]

    def markdown(self) -> str:
        """The notice, and the rows as a markdown table."""
        lines = [f"**{self.notice}**", "", markdown_row(HEADER), markdown_row(["---"] * len(HEADER))]
        return "\n".join([*lines, *(markdown_row(row) for row in self.table())])


def measure_quality(
    contract: DataContract, period: str | None, real: pa.Table, synthetic: pa.Table, holdout: pa.Table
) -> QualityReport:
    """Measures one synthetic table of a dataset.

    Args:
        contract: declares the columns, the target and the protected columns.
        period: the line's period.
        real: the bounded rows of real owners, without canaries.
        synthetic: the synthetic rows.
        holdout: real rows of owners that were kept from the mechanism; may be empty.
    """
    if not contract.modelled:
        return _without_columns(contract, period, real, synthetic, holdout)
    domain = _known(domain_of(contract, period, coarse=True), synthetic)
    kept, made = (domain.encode(table.combine_chunks()) for table in (real, synthetic))
    target = contract.quality.target
    tables = [_limited(table.select(domain.names)) for table in (holdout, synthetic, real)]
    columns = declared(domain, tables, target)
    utility, predictions = measure_utility(columns, target)
    outcome, name = _favourable(domain, target)
    protected = [_declared_groups(domain, each, tables[0]) for each in contract.quality.protected]
    return QualityReport(
        dataset=contract.dataset,
        period=period,
        cells=(
            "the cells that the contract declares, or few equal ones where it declares none; of values that were "
            "learned, those of the synthetic rows"
            if domain_of(contract, period).unknown
            else "the cells that the contract declares, or few equal ones where it declares none"
        ),
        rows={"held_out": len(holdout), "synthetic": len(synthetic), "real": len(real)},
        fidelity=measure_fidelity(kept, made, domain.names, domain.sizes),
        similarity=_similarity(columns, 1),
        real_similarity=_similarity(columns, 2),
        utility=utility,
        fairness=measure_fairness(predictions, protected, outcome, name),
        closeness=_closeness(columns),
        moments=measure_moments(
            of_domain(domain, real, synthetic),
            [constraint.ascending for constraint in contract.generate.constraints if constraint.ascending],
        ),
    )


def _without_columns(
    contract: DataContract, period: str | None, real: pa.Table, synthetic: pa.Table, holdout: pa.Table
) -> QualityReport:
    """The report of a table of which no column is modelled: figures of its texts stand beside it."""
    return QualityReport(
        dataset=contract.dataset,
        period=period,
        cells=NOT_MODELLED,
        rows={"held_out": len(holdout), "synthetic": len(synthetic), "real": len(real)},
        fidelity=Fidelity(not_available=NOT_MODELLED),
        similarity=None,
        real_similarity=None,
        utility=Utility(target=None, not_available=NOT_MODELLED),
        fairness=(),
        closeness=None,
    )


def measure_tables(
    real: pa.Table,
    synthetic: pa.Table,
    target: str,
    *,
    train: pa.Table | None = None,
    protected: Sequence[str] = (),
    categorical: Collection[str] = (),
    orders: Sequence[Sequence[str]] = (),
) -> QualityReport:
    """Measures a synthetic table beside real ones that no contract declares.

    Args:
        real: real rows that the generator never saw.
        synthetic: the synthetic rows, of the same columns.
        target: the column to predict, of any type with few values.
        train: the real rows that the generator had, of the same columns.
        protected: columns of categories to judge fairness by.
        categorical: columns whose numbers are codes.
        orders: names of columns whose values do not decrease from one to the next.

    Raises:
        SourceError: the tables cannot be compared, the target or a protected column is not there or has numbers, the
            real rows' target has one class only, or too many, or an order is not of columns that have one.
    """
    named = {"real": real, "synthetic": synthetic} | ({} if train is None else {"train": train})
    named_in_orders = [name for names in orders for name in names]
    for role, names in (
        ("target", [target]),
        ("protected", protected),
        ("categories", categorical),
        ("ascending", named_in_orders),
    ):
        _check_there(role, names, real.column_names)
    named = in_one_type(named, categorical)
    tables = {name: _limited(table) for name, table in named.items()}
    columns = coded(tables, {target, *categorical})
    by_name = {column.name: column for column in columns}
    _check_target(by_name[target])
    codes, sizes = cells(coded(named, categorical))
    moments = measure_moments(
        moments_of_tables(named["real" if train is None else "train"], named["synthetic"]), orders
    )
    utility, predictions = measure_utility(columns, target)
    groups = [_groups(by_name[name]) for name in protected]
    return QualityReport(
        dataset=None,
        period=None,
        cells=f"categories, and {CELL_BINS} bins of equal width over all tables for numbers",
        rows={name: len(table) for name, table in named.items()},
        fidelity=measure_fidelity(codes[-1 if train is not None else 0], codes[1], [*by_name], sizes),
        similarity=_similarity(columns, 1),
        real_similarity=_similarity(columns, 2),
        utility=utility,
        fairness=measure_fairness(predictions, groups, None, "the rarer class"),
        closeness=_closeness(columns),
        moments=moments,
    )


def _limited(table: pa.Table) -> pa.Table:
    if table.num_rows <= MOST_ROWS:
        return table
    drawn = np.random.default_rng(0).choice(table.num_rows, MOST_ROWS, replace=False)
    return table.take(pa.array(np.sort(drawn)))


def _similarity(columns: Sequence[Column], table: int) -> Similarity | None:
    counts = row_counts(columns)
    if table >= len(counts) or not counts[0] or not counts[table]:
        return None
    return measure_similarity(of_tables(columns, 0, table))


def _closeness(columns: Sequence[Column]) -> Closeness | None:
    counts = row_counts(columns)
    return measure_closeness(columns) if len(counts) > 2 and all(counts) else None


def _known(domain: Domain, synthetic: pa.Table) -> Domain:
    """The domain with the values that the synthetic rows have, where they were learned."""
    texts = {index: domain.columns[index].texts(synthetic.column(domain.names[index])) for index in domain.unknown}
    return domain.with_values(
        {index: sorted(pc.unique(values.drop_null()).to_pylist()) for index, values in texts.items()}
    )


def _favourable(domain: Domain, target: str | None) -> tuple[int | None, str]:
    """The last declared value of the target, if it has any."""
    if target is None or target not in domain.names:
        return None, ""
    goal = domain.columns[domain.names.index(target)]
    if not goal.missing:
        return None, ""
    return goal.missing - 1, goal.label(goal.missing - 1)


def _declared_groups(domain: Domain, name: str, holdout: pa.Table) -> Protected:
    column = domain.columns[domain.names.index(name)]
    codes = column.encode(holdout.column(name)).astype(np.int64)
    return Protected(name, codes, [column.label(code) for code in range(column.size)])


def _groups(column: Column) -> Protected:
    """Groups by size: values of undeclared columns are nobody's to see."""
    if column.size is None:
        raise SourceError(
            f"protected: column {column.name!r} holds numbers; accepted: columns of categories, or to take it as such "
            "(--categorical)"
        )
    sizes = np.bincount(column.parts[0], minlength=column.size)
    rank = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    return Protected(column.name, rank[column.parts[0]], [f"group {number + 1}" for number in range(column.size)])


def _check_there(role: str, names: Collection[str], there: Sequence[str]) -> None:
    for name in names:
        if name not in there:
            raise SourceError(f"{role}: no column {name!r} in the real table; accepted: {', '.join(there)}")


def _check_target(column: Column) -> None:
    found = np.unique(column.parts[0])
    classes = int((found != (column.size or 0) - 1).sum())
    if not 2 <= classes <= MOST_CLASSES:
        raise SourceError(
            f"target: column {column.name!r} of the real table has {classes} different values; "
            f"accepted: 2 to {MOST_CLASSES}"
        )


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
