"""The quality report: measured from three tables, shown as JSON, as markdown and as rows for a terminal.

What belongs here: combining the measures, for a dataset with a contract and for tables without one. What does not: the
measures, showing single parts (`report_rows`, `purpose_rows`, `plots`), and any gate. The report compares with real
rows, so it is restricted, and says so in every form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.findings import Finding
from dpsynth_platform.contracts.workload import Workload
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.quality import purpose_rows, report_rows
from dpsynth_platform.quality.closeness import Closeness, measure_closeness
from dpsynth_platform.quality.columns import CELL_BINS, Column, cells, coded, declared, of_tables, row_counts
from dpsynth_platform.quality.conclusions import check_findings
from dpsynth_platform.quality.fairness import Fairness, Protected, measure_fairness
from dpsynth_platform.quality.fidelity import Fidelity, measure_fidelity
from dpsynth_platform.quality.moments import MomentsFidelity, measure_moments, of_domain
from dpsynth_platform.quality.moments import of_tables as moments_of_tables
from dpsynth_platform.quality.one_type import in_one_type
from dpsynth_platform.quality.parity import Parity, measure_parity
from dpsynth_platform.quality.records import RecordMeasures, measure_records
from dpsynth_platform.quality.regression import Regression, measure_regression
from dpsynth_platform.quality.report_rows import HEADER, Row
from dpsynth_platform.quality.similarity import Similarity, measure_similarity
from dpsynth_platform.quality.single_columns import SingleDistance, measure_single_columns
from dpsynth_platform.quality.utility import MOST_CLASSES, Predictions, Utility, measure_utility
from dpsynth_platform.quality.workload_error import WorkloadError, measure_workload
from dpsynth_platform.synth.tabular.domain import Domain, domain_of
from dpsynth_platform.synth.tabular.workload import asked_marginals, workload_of

NOTICE = (
    "Restricted: this report compares with real data and is not covered by the guarantee. It is for reviewers and "
    "the operator, and for no release; no automatic gate reads it."
)
Task = Literal["classification", "regression"]
NOT_MODELLED = "no column is modelled"
"""The `cells` of a table that has ids and texts only."""
MOST_ROWS = 200_000
"""A fixed random sample of so many rows replaces larger tables, except for distances of marginals."""
_NO_CLASSES = "the task is regression"
_DECLARED_CELLS = "the cells that the contract declares, or few equal ones where it declares none"


@dataclass(frozen=True)
class QualityReport:
    """All measures of one synthetic table. Restricted.

    Attributes:
        cells: describes the cells of marginals.
        rows: number of rows of each table.
        fidelity, moments: distances from the mechanism's real rows (or from held-out ones, if those are not given).
        similarity, real_similarity: of synthetic, or the mechanism's real, rows and held-out rows; None if empty.
        closeness: None unless all three kinds of rows are given.
        single_columns: further distances of columns, from the same rows as `fidelity`.
        workload: the error on the declared workload; None without one.
        records: measures of whole rows; None for few rows.
        parity: None unless findings are declared.
        regression: takes the place of `utility` where the task is regression; else None.
    """

    dataset: str | None
    period: str | None
    cells: str
    rows: dict[str, int]
    fidelity: Fidelity
    similarity: Similarity | None = None
    real_similarity: Similarity | None = None
    utility: Utility = field(default_factory=Utility)
    fairness: tuple[Fairness, ...] = ()
    closeness: Closeness | None = None
    moments: MomentsFidelity | None = None
    single_columns: tuple[SingleDistance, ...] = ()
    workload: WorkloadError | None = None
    records: RecordMeasures | None = None
    parity: Parity | None = None
    regression: Regression | None = None
    notice: str = NOTICE
    restricted: bool = True

    def to_json(self) -> dict[str, Any]:
        means = {"mean_column": self.fidelity.mean_column, "mean_pair": self.fidelity.mean_pair}
        shown = {name: None if math.isnan(value) else value for name, value in means.items()}
        similar = {
            name: None if found is None else asdict(found) | {"histogram": found.histogram, "pair": found.pair}
            for name, found in (("similarity", self.similarity), ("real_similarity", self.real_similarity))
        }
        parity = self.parity and asdict(self.parity) | {
            "synthetic": self.parity.synthetic,
            "resampled": self.parity.resampled,
        }
        return asdict(self) | {"fidelity": asdict(self.fidelity) | shown, "parity": parity} | similar

    def table(self) -> list[Row]:
        """Rows with the columns of `HEADER`."""
        if self.cells == NOT_MODELLED:
            return [report_rows.unavailable("columns", NOT_MODELLED)]
        return [
            *report_rows.fidelity_rows(self.fidelity),
            *purpose_rows.workload_rows(self.workload),
            *purpose_rows.single_column_rows(self.single_columns),
            *report_rows.moments_rows(self.moments),
            *report_rows.similarity_rows(self.similarity, self.real_similarity),
            *(purpose_rows.regression_rows(self.regression) or report_rows.utility_rows(self.utility)),
            *report_rows.fairness_rows(self.fairness),
            *purpose_rows.parity_rows(self.parity),
            *purpose_rows.records_rows(self.records),
            *report_rows.closeness_rows(self.closeness),
        ]

    def markdown(self) -> str:
        lines = [f"**{self.notice}**", "", markdown_row(HEADER), markdown_row(["---"] * len(HEADER))]
        return "\n".join([*lines, *(markdown_row(row) for row in self.table())])


def measure_quality(
    contract: DataContract, period: str | None, real: pa.Table, synthetic: pa.Table, holdout: pa.Table
) -> QualityReport:
    """Measures one synthetic table of a dataset.

    `real` are the bounded rows without canaries; `holdout` are rows of owners that the mechanism did not read, or none.
    """
    rows = {"held_out": len(holdout), "synthetic": len(synthetic), "real": len(real)}
    if not contract.modelled:
        fidelity, utility = Fidelity(not_available=NOT_MODELLED), Utility(not_available=NOT_MODELLED)
        return QualityReport(contract.dataset, period, NOT_MODELLED, rows, fidelity, utility=utility)
    domain = _known(domain_of(contract, period, coarse=True), synthetic)
    kept, made = (domain.encode(table.combine_chunks()) for table in (real, synthetic))
    target = contract.quality.target
    numeric = contract.quality.task == "regression" and target is not None
    tables = [_limited(table.select(domain.names)) for table in (holdout, synthetic, real)]
    columns = declared(domain, tables, None if numeric else target)
    utility, predictions = _classified(columns, target, numeric)
    workload = None
    with suppress(ContractError):  # a method without a workload accepts more columns than one has marginals for
        weights = workload_of(contract, domain.names).named
        workload = measure_workload(kept, made, domain.names, domain.sizes, weights)
    outcome, name = _favourable(domain, target)
    protected = [_declared_groups(domain, each, tables[0]) for each in contract.quality.protected]
    learned = "; of values that were learned, those of the synthetic rows"
    return QualityReport(
        dataset=contract.dataset,
        period=period,
        cells=_DECLARED_CELLS + (learned if domain_of(contract, period).unknown else ""),
        rows=rows,
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
        single_columns=_single_columns(of_tables(columns, 2, 1)),
        workload=workload,
        records=measure_records(columns),
        parity=measure_parity(real, synthetic, contract.quality.findings),
        regression=measure_regression(columns, str(target)) if numeric else None,
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
    task: Task = "classification",
    workload: Workload | None = None,
    findings: Sequence[Finding | Callable[[pa.Table], Any]] = (),
    of_rows: bool = True,
) -> QualityReport:
    """Measures a synthetic table against real ones without a contract. All tables have the same columns.

    Args:
        real, train: real rows that the generator did not read, and those that it read.
        target: the column to predict: of any type with few values, or of numbers for the task `regression`.
        protected: columns of categories for fairness.
        categorical: columns whose numbers are codes.
        orders: lists of columns whose values must not decrease from one column to the next.
        workload: marginals that matter, with weights.
        findings: conclusions of an analysis, to be drawn from synthetic rows, too.
        of_rows: measure whole rows and closeness, which takes longest.

    Raises `SourceError` for tables that cannot be compared, a missing or numeric target or protected column, real rows
    with one class or too many, and orders of columns without an order.
    """
    named = {"real": real, "synthetic": synthetic} | ({} if train is None else {"train": train})
    ascending = [name for names in orders for name in names]
    roles = {"target": [target], "protected": protected, "categories": categorical, "ascending": ascending}
    for role, names in roles.items():
        for name in names:
            if name not in real.column_names:
                accepted = ", ".join(real.column_names)
                raise SourceError(f"{role}: no column {name!r} in the real table; accepted: {accepted}")
    named = in_one_type(named, categorical)
    tables = {name: _limited(table) for name, table in named.items()}
    numeric = task == "regression"
    columns = coded(tables, {*categorical} if numeric else {target, *categorical})
    by_name = {column.name: column for column in columns}
    _check_target(by_name[target], numeric)
    codes, sizes = cells(coded(named, categorical))
    kept, made, reference = codes[-1 if train is not None else 0], codes[1], 0 if train is None else 2
    check_findings(findings, kept_rows := named["real" if train is None else "train"])
    weights = {} if workload is None else asked_marginals(workload, _known_columns(workload, [*by_name]))
    moments = measure_moments(
        moments_of_tables(named["real" if train is None else "train"], named["synthetic"]), orders
    )
    utility, predictions = _classified(columns, target, numeric)
    groups = [_groups(by_name[name]) for name in protected]
    return QualityReport(
        dataset=None,
        period=None,
        cells=f"categories, and {CELL_BINS} bins of equal width over all tables for numbers",
        rows={name: len(table) for name, table in named.items()},
        fidelity=measure_fidelity(kept, made, [*by_name], sizes),
        similarity=_similarity(columns, 1),
        real_similarity=_similarity(columns, 2),
        utility=utility,
        fairness=measure_fairness(predictions, groups, None, "the rarer class"),
        closeness=_closeness(columns) if of_rows else None,
        moments=moments,
        single_columns=_single_columns(of_tables(columns, reference, 1)),
        workload=measure_workload(kept, made, [*by_name], sizes, weights),
        records=measure_records(columns) if of_rows else None,
        parity=measure_parity(kept_rows, named["synthetic"], findings),
        regression=measure_regression(columns, target) if numeric else None,
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


def _classified(columns: Sequence[Column], target: str | None, numeric: bool) -> tuple[Utility, Predictions | None]:
    if numeric:
        return Utility(target=target, not_available=_NO_CLASSES), None
    return measure_utility(columns, target)


def _single_columns(columns: Sequence[Column]) -> tuple[SingleDistance, ...]:
    return measure_single_columns(columns) if all(row_counts(columns)) else ()


def _known_columns(workload: Workload, names: list[str]) -> list[str]:
    """The names, all of a workload's own columns being among them. Raises `SourceError` otherwise."""
    asked = [*workload.weights, *(name for query in workload.queries for name in query.columns)]
    if unknown := sorted({*asked, *([] if workload.target is None else [workload.target])} - set(names)):
        raise SourceError(
            f"workload: no column {', '.join(map(repr, unknown))} in the real table; accepted: {', '.join(names)}"
        )
    return names


def _closeness(columns: Sequence[Column]) -> Closeness | None:
    counts = row_counts(columns)
    return measure_closeness(columns) if len(counts) > 2 and all(counts) else None


def _known(domain: Domain, synthetic: pa.Table) -> Domain:
    """The domain with the synthetic rows' values in columns whose values were learned."""
    texts = {index: domain.columns[index].texts(synthetic.column(domain.names[index])) for index in domain.unknown}
    return domain.with_values(
        {index: sorted(pc.unique(values.drop_null()).to_pylist()) for index, values in texts.items()}
    )


def _favourable(domain: Domain, target: str | None) -> tuple[int | None, str]:
    """Code and label of the target's last declared value, if it has any."""
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
    """Groups named by their rank in size, since values of undeclared columns must not be shown."""
    if column.size is None:
        raise SourceError(
            f"protected: column {column.name!r} holds numbers; accepted: columns of categories; to treat it as one: "
            "--categorical"
        )
    sizes = np.bincount(column.parts[0], minlength=column.size)
    rank = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    return Protected(column.name, rank[column.parts[0]], [f"group {number + 1}" for number in range(column.size)])


def _check_target(column: Column, numeric: bool) -> None:
    if numeric:
        if column.size is not None:
            raise SourceError(
                f"target: column {column.name!r} of the real table holds categories; accepted with --task regression: "
                "a column of numbers or dates; do: leave --task out"
            )
        return
    found = np.unique(column.parts[0])
    classes = int((found != (column.size or 0) - 1).sum())
    if not 2 <= classes <= MOST_CLASSES:
        raise SourceError(
            f"target: column {column.name!r} of the real table has {classes} different values; "
            f"accepted: 2 to {MOST_CLASSES}, or numbers with --task regression"
        )


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
