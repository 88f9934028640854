"""`dpsynth query`: differentially private answers about a table file, without a deployment.

What belongs here: arguments and output. What does not: answering (`one_table`, `synth.answers`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.table_run import TableRun, show_guarantee, show_limits
from dpsynth_platform.cli.terminal import TerminalOutput, plain
from dpsynth_platform.foundation.errors import ContractError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SHOWN = 40
"""Answers that are printed; the file has all."""


def query(
    output: TerminalOutput,
    table: Annotated[
        Path,
        typer.Argument(help="Parquet file or a directory of them, Delta table, CSV file, or Excel workbook (.xlsx)."),
    ],
    select: Annotated[
        list[str] | None,
        typer.Argument(
            help="Queries, such as 'SELECT city, COUNT(*), AVG(age) FROM t WHERE age >= 18 GROUP BY city'. All of one "
            "command share its budget.",
            show_default=False,
        ),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="YAML file with `queries:` as in a contract, instead of arguments.")
    ] = None,
    *,
    run: TableRun,
    dialect: CsvDialect,
) -> None:
    """Answers counts, sums, means and quantiles of a table with differential privacy, each with its 95% interval.

    Repeating a command costs nothing. Another query is another spend: give the ledger a cap for all of them
    (--cap-epsilon).
    """
    made = run.made(output, table, dialect, queries=_queries(select, queries))
    if run.format == "parquet":
        import pyarrow.parquet as pq

        _show(output, pq.read_table(made.synthetic))
    output.print(f"{made.rows} answers: {made.synthetic}")
    show_guarantee(output, made)
    show_limits(output, made)


def _queries(select: list[str] | None, file: Path | None) -> dict[str, Any]:
    from dpsynth_platform.foundation.yaml_files import read_yaml

    if (select is None) == (file is None):
        raise ContractError("queries: accepted: SELECT statements as arguments, or --queries with a file; one of both")
    if file is None:
        return {f"q{number}": text for number, text in enumerate(select or (), 1)}
    document = read_yaml(file)
    found = document.get("queries")
    if not isinstance(found, dict) or len(document) > 1:
        raise ContractError(f"{file}: accepted: the key queries alone, with a query for each name")
    return found


def _show(output: TerminalOutput, answers: pa.Table) -> None:
    """Prints the first answers as a table."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    for name in answers.column_names:
        shown.add_column(
            Text(plain(name)), justify="right" if str(answers.schema.field(name).type) == "double" else "left"
        )
    for row in answers.slice(0, MOST_SHOWN).to_pylist():
        shown.add_row(
            *(
                Text("" if value is None else f"{value:,.6g}" if isinstance(value, float) else plain(value))
                for value in row.values()
            )
        )
    output.console.print(shown)
    if answers.num_rows > MOST_SHOWN:
        output.print(f"... and {answers.num_rows - MOST_SHOWN} more")
