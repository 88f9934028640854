"""The quality report of a dataset with linked tables: as JSON, as rows and as charts. Restricted, like all of them.

What belongs here: what a contract with `tables` asks to be measured, and how it is shown. What does not: measuring
(`linked`, `linked_queries`), and reading the steps' outputs (`operations.linked_rows`).

A bootstrap of the real owners stands beside each distance: what sampling alone makes. Nothing can be much better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.quality.linked import LinkedQuality, Tables, as_json, measure_linked
from dpsynth_platform.quality.linked_queries import QueryError, named_query_errors
from dpsynth_platform.quality.plots import Chart, classifiers_chart
from dpsynth_platform.quality.purpose_rows import regression_rows
from dpsynth_platform.quality.regression import Regression
from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.report_rows import Row, mean_of, shown_number, unavailable, utility_rows
from dpsynth_platform.quality.utility import Utility

_TABLE = {
    "one_way": "one-way distance, mean",
    "two_way": "two-way distance, mean",
    "keys_distinct": "distinct keys, share",
}
_EDGE = {
    "references": "rows that have a row of the parent, share",
    "children": "distance of the numbers of children",
    "children_by_parent": "distance of numbers of children with the parent's columns, mean",
    "in_sequence": "distance of a row's columns with those of the row before, mean",
    "gaps": "distance of the gaps to the row before",
    "out_of_order": "rows out of order, share",
}
_RIGHT = {"keys_distinct": 1.0, "references": 1.0, "out_of_order": 0.0}
_DRAWN = {"children": "children", "children_by_parent": "children by parent", "in_sequence": "sequence", "gaps": "gaps"}


@dataclass(frozen=True)
class LinkedReport:
    """All measures of a dataset's synthetic tables. Restricted.

    Attributes:
        rows: number of rows of each side, in all private tables together.
        queries: the errors of the contract's queries, by name.
        queries_not_available: why others have none.
    """

    dataset: str
    rows: Mapping[str, int]
    quality: LinkedQuality
    queries: Mapping[str, QueryError] = field(default_factory=dict)
    queries_not_available: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Figures that single tables have, too, are where `QualityReport` has them."""
        found, root, best = self.quality, self.quality.root, _columns(self.quality, resampled=True)
        whole = found.to_json()
        links = {key: whole[key] for key in ("tables", "edges", "resampled_tables", "resampled_edges")}
        edges = found.edges.values()
        means = {
            "mean_children": _mean(edge.children for edge in edges),
            "mean_across": _mean(edge.across.get(edge.parent) for edge in edges),
            "query_error": _mean(each.mean for each in self.queries.values()),
        }
        queries = {name: asdict(each) for name, each in self.queries.items()}
        queries |= {name: {"not_available": reason} for name, reason in self.queries_not_available.items()}
        models = (
            {} if root is None else {"utility" if isinstance(root, Utility) else "regression": as_json(asdict(root))}
        )
        return {
            "dataset": self.dataset,
            "period": None,
            "notice": NOTICE,
            "restricted": True,
            "rows": dict(self.rows),
            "fidelity": {
                "mean_column": _mean(each.one_way for each in found.tables.values()),
                "mean_pair": _mean(each.two_way for each in found.tables.values()),
                "columns": [
                    {"column": name, "synthetic": distance, "resampled": best.get(name)}
                    for name, distance in _columns(found, resampled=False).items()
                ],
            },
            "linked": links | means | {"queries": queries},
            **models,
        }

    def table(self) -> list[Row]:
        """Rows with the columns of `report_rows.HEADER`."""
        return list(self._rows())

    def plots(self) -> dict[str, str]:
        """The available charts by name, as SVG."""
        root = self.quality.root
        found = {
            "marginals": self._marginals(),
            "links": self._links(),
            "queries": self._queries(),
            "classifiers": classifiers_chart(root) if isinstance(root, Utility) else None,
        }
        return {name: chart.svg for name, chart in found.items() if chart is not None}

    def _rows(self) -> Iterator[Row]:
        found = self.quality
        for name, table in found.tables.items():
            yield from _figures(name, _TABLE, table, found.resampled_tables[name])
            for column, share in table.lookups.items():
                yield (f"{dotted(name, column)}: values of the public table, share", shown_number(share), "1.000", "")
        for name, edge in found.edges.items():
            drawn = found.resampled_edges[name]
            yield from _figures(name, _EDGE, edge, drawn)
            for other, distance in edge.across.items():
                best = shown_number(drawn.across.get(other))
                yield (f"{name}: distance of columns with those of {other}, mean", shown_number(distance), best, "")
            if edge.next_row is not None:
                for first, *others in utility_rows(edge.next_row):
                    yield (f"{name}, next row: {first}", *others)  # type: ignore[misc]
        if isinstance(found.root, Regression):
            yield from regression_rows(found.root)
        elif found.root is not None:
            yield from utility_rows(found.root)
        for query, error in self.queries.items():
            yield (f"query {query}: relative error, mean of {error.numbers}", shown_number(error.mean), "", "")
            yield (f"query {query}: relative error, largest", shown_number(error.largest), "", "")
        for query, reason in self.queries_not_available.items():
            yield unavailable(f"query {query}", reason)

    def _marginals(self) -> Chart | None:
        return _bars(
            "One-way distances",
            "Total variation distance of each column from the real rows.",
            ("column", "total variation distance"),
            _columns(self.quality, resampled=False),
            _columns(self.quality, resampled=True),
        )

    def _links(self) -> Chart | None:
        sides = []
        for edges in (self.quality.edges, self.quality.resampled_edges):
            found: dict[str, float] = {}
            for name, edge in edges.items():
                figures = {label: getattr(edge, key) for key, label in _DRAWN.items()}
                figures["with parent"] = edge.across.get(edge.parent)
                found |= {f"{name}: {label}": value for label, value in figures.items() if value is not None}
            sides.append(found)
        return _bars(
            "Links between tables",
            "Total variation distances of numbers of children, of children with parents, and of rows in sequence.",
            ("table", "total variation distance"),
            *sides,
        )

    def _queries(self) -> Chart | None:
        return _bars(
            "Errors of queries",
            "Mean relative error of each query's numbers.",
            ("query", "relative error"),
            {name: each.mean for name, each in self.queries.items()},
            {},
        )


def measure_linked_contract(
    contract: DataContract, real: Tables, synthetic: Tables, held_out: Tables, work: Path
) -> LinkedReport:
    """Measures the synthetic tables of a dataset.

    Args:
        real: the rows of the owners that the mechanism read, without canaries, by the source's names of columns.
        synthetic: all tables as they are released, public ones included.
        held_out: rows of owners that the mechanism did not read, or none.
        work: a restricted directory: bounded rows are in files below it meanwhile.

    Raises:
        BoundingError, EngineError: as `measure_linked`.
    """
    tables = contract.linked
    public = {name: synthetic[name] for name in tables.lookups}
    sides = {"held_out": held_out, "synthetic": synthetic, "real": real}
    rows = {side: sum(found[name].num_rows for name in tables.private) for side, found in sides.items()}
    target = contract.quality.target
    return LinkedReport(
        contract.dataset,
        rows,
        measure_linked(
            tables,
            {**real, **public},
            synthetic,
            work,
            holdout=held_out if held_out[tables.root].num_rows else None,
            next_row=_next_rows(tables),
            root_target=None if target is None else target.partition(".")[2],
        ),
        *named_query_errors(contract.quality.queries, {**real, **public}, synthetic),
    )


def _next_rows(tables: LinkedTables) -> dict[str, str]:
    """Of each table in order, the first declared column of categories."""
    found = {}
    for name in tables.private:
        table = tables.tables[name]
        fits = [each for each in table.modelled if table.columns[each].type in ("categorical", "boolean")]
        if table.order_by and tables.most(name) > 1 and fits:
            found[name] = fits[0]
    return found


def _figures(name: str, labels: Mapping[str, str], made: Any, drawn: Any) -> Iterator[Row]:
    for key, label in labels.items():
        value = getattr(made, key)
        if value is not None:
            best = _RIGHT[key] if key in _RIGHT else getattr(drawn, key)
            yield (f"{name}: {label}", shown_number(value), shown_number(best), "")


def _columns(found: LinkedQuality, *, resampled: bool) -> dict[str, float]:
    tables = found.resampled_tables if resampled else found.tables
    return {dotted(name, column): value for name, each in tables.items() for column, value in each.columns.items()}


def _bars(
    title: str, description: str, axes: tuple[str, str], made: Mapping[str, float], drawn: Mapping[str, float]
) -> Chart | None:
    """Bars of the synthetic rows' figures, and of those of a bootstrap where all are known."""
    if not made:
        return None
    series = {"synthetic": ([*made], [*made.values()])}
    if all(name in drawn for name in made):
        series["fresh sample of real owners"] = ([*made], [drawn[name] for name in made])
    return Chart(title, description, *axes, series=series, bars=True)


def _mean(values: Iterator[float | None]) -> float | None:
    return mean_of([value for value in values if value is not None])
