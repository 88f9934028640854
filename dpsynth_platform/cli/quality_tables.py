"""`dpsynth quality tables`: synthetic linked tables compared with real ones, without a deployment.

What belongs here: arguments and output. What does not: measuring (`quality.linked`). The output contains aggregates of
real rows, for people who may see those, and never a value of them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.terminal import TerminalOutput, workspace
from dpsynth_platform.foundation.errors import ContractError

if TYPE_CHECKING:
    from dpsynth_platform.quality.linked import LinkedQuality
    from dpsynth_platform.quality.regression import Regression
    from dpsynth_platform.quality.utility import Utility


def quality_tables(
    output: TerminalOutput,
    real: Annotated[
        Path,
        typer.Option(help="The real tables that the generator read: a directory of files, or a database file."),
    ],
    synthetic: Annotated[Path, typer.Option(help="The synthetic tables: such as OUT/synthetic.")],
    schema: Annotated[Path, typer.Option(help="The YAML file with `tables:` of `dpsynth synth tables`.")],
    holdout: Annotated[
        Path | None, typer.Option(help="Real tables of other owners: test models of --next-row and --target.")
    ] = None,
    next_row: Annotated[
        list[str] | None,
        typer.Option(
            help="TABLE.COLUMN of categories, of a table with `order_by`: predicts the next row's. Repeatable."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="A column of the root: predicted from features of all that belongs to a row.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="SQL file with SELECT statements: the errors of their answers.")
    ] = None,
    *,
    dialect: CsvDialect,
) -> None:
    """Measures tables alone, numbers of children, parents with children, order, joins, queries and models.

    Compares with real data: restricted.
    """
    from dpsynth_platform.contracts.tables import LinkedTables
    from dpsynth_platform.contracts.validation import validated
    from dpsynth_platform.foundation.yaml_files import read_yaml
    from dpsynth_platform.linked_rows.reading import whole_tables
    from dpsynth_platform.quality.linked import measure_linked
    from dpsynth_platform.quality.linked_queries import read_queries
    from dpsynth_platform.sources.dialect import Dialect

    if holdout is None and (next_row or target):
        raise ContractError("--holdout: missing with --next-row or --target; accepted: real tables of other owners")
    tables, csv = validated(LinkedTables, read_yaml(schema), str(schema)), dialect.as_dialect()
    with workspace("dpsynth-quality-") as work:
        found = measure_linked(
            tables,
            whole_tables(tables, real, csv),
            whole_tables(tables, synthetic, Dialect()),
            work,
            holdout=None if holdout is None else whole_tables(tables, holdout, csv),
            next_row=dict(map(_next_row, next_row or [])),
            root_target=target,
            queries=[] if queries is None else read_queries(queries),
        )
    output.json(found.to_json())
    _show(output, found)


def _next_row(text: str) -> tuple[str, str]:
    table, sign, column = text.partition(".")
    if not sign or not table or not column:
        raise ContractError(f"--next-row {text!r}; accepted: TABLE.COLUMN")
    return table, column


def _show(output: TerminalOutput, found: LinkedQuality) -> None:
    output.table(
        ("table", "1-way error", "2-way error", "distinct keys"),
        [
            (name, _number(each.one_way), _number(each.two_way), _number(each.keys_distinct))
            for name, each in found.tables.items()
        ],
    )
    output.print()
    header = ("table", "parent", "joins", "children", "by parent", "with parent", "in sequence", "gaps", "out of order")
    rows = []
    for name, edge in found.edges.items():
        numbers = (
            edge.references,
            edge.children,
            edge.children_by_parent,
            edge.across.get(edge.parent),
            edge.in_sequence,
            edge.gaps,
            edge.out_of_order,
        )
        rows.append((name, edge.parent, *map(_number, numbers)))
    if rows:
        output.table(header, rows)
        output.print()
    for name, edge in found.edges.items():
        if edge.next_row is not None:
            output.print(f"next row of {name}: {_predicted(edge.next_row)}")
    if found.root is not None:
        output.print(f"the root: {_predicted(found.root)}")
    for each in found.queries:
        output.print(
            f"relative error {each.mean:.3f} (median {each.median:.3f}) of {each.numbers} numbers: {each.query}"
        )
    output.print(
        "Errors are total variation distances in [0, 1], 0 the same: of single columns, pairs, numbers of children, "
        "these with the parent's columns, columns of parent and child, of a row and the one before, and gaps. "
        "Joins and distinct keys are shares, 1 is right; out of order is a share, 0 is right."
    )
    output.print(found.notice)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _predicted(found: Utility | Regression) -> str:
    """How well models predict, trained on synthetic rows and on real ones."""
    shown = []
    for kind, trained in (("synthetic", found.synthetic), ("real", found.real)):
        if trained is not None:
            scores = {} if trained.mean is None else asdict(trained.mean)
            named = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items())
            shown.append(f"trained on {kind} rows: {named or trained.not_available}")
    return "; ".join(shown) or str(found.not_available)
