"""`dpsynth compare`: methods side by side on a table that is declared public.

What belongs here: arguments and output. What does not: the tries and their measures (`one_table.comparison`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.quality import TargetTask
from dpsynth_platform.cli.terminal import SEVERAL, TerminalOutput, listed, workspace
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import bars


def compare(
    output: TerminalOutput,
    public: Annotated[
        Path,
        typer.Option(
            help="The table: Parquet or CSV file, directory of them, or Delta table. Nothing protects its rows."
        ),
    ],
    public_why: Annotated[str, typer.Option(help="Why the table is public; the result says it.")],
    target: Annotated[str, typer.Option(help="Column that models of the synthetic rows predict.")],
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="<names>", help=f"Methods, {SEVERAL}; default: all that need no second public table."),
    ] = None,
    epsilon: Annotated[
        list[str] | None, typer.Option(metavar="<numbers>", help=f"Epsilons, {SEVERAL}; default: 1.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of each run; default: 1/n^1.1 with n rows.")] = None,
    expected_units: Annotated[
        int | None, typer.Option(help="The number of rows that plans are made for; default: that of the table.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `columns:` as in a contract; default: types and domains are read from the table."
        ),
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help=f"Columns to leave out, such as ids, {SEVERAL}.")] = None,
    workload: Annotated[
        Path | None,
        typer.Option(help="YAML file with `workload:` as in a contract's `generate`: the marginals that matter."),
    ] = None,
    time_limit: Annotated[str | None, typer.Option(help="About how long each run may take, such as 90s or 2m.")] = None,
    task: Annotated[
        TargetTask, typer.Option(help="What is done with the target: classification or regression.")
    ] = TargetTask.classification,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the result with charts and for each synthetic table; default: not kept."),
    ] = None,
) -> None:
    """Compares methods on a public table: quality, time and memory. No budget is spent.

    A fifth of the rows is held out for the measures. On a private table each method would be paid for, and so would
    the choice: there, take the method that does best on a public table like it.
    """
    from dpsynth_platform.contracts.workload import read_workload
    from dpsynth_platform.one_table import Options
    from dpsynth_platform.one_table.comparison import LEGEND, METHODS, NOTICE
    from dpsynth_platform.one_table.comparison import compare as compared

    options = Options(epsilon=1.0, delta=delta, expected_units=expected_units, schema=schema, time_limit=time_limit)
    with bars(output.console) as progress, workspace("dpsynth-compare-"):
        found = compared(
            public,
            public_why,
            target,
            options,
            out=out,
            drop=listed(drop),
            methods=listed(method) or METHODS,
            epsilons=numbers(listed(epsilon)) or (1.0,),
            task=task.value,
            workload=None if workload is None else read_workload(workload),
            progress=progress,
        )
    output.json(found.to_json())
    output.print(found.about)
    output.table(found.header, found.table())
    for line in found.refused:
        output.print(f"no rows: {line}")
    output.print()
    output.print(LEGEND)
    output.print(NOTICE)
    if out is not None:
        output.print(f"result, charts and synthetic tables: {out}")


def numbers(texts: list[str]) -> list[float]:
    """The numbers of `--epsilon`. Raises `ContractError` for other words."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        raise ContractError(f"--epsilon {', '.join(texts)}; accepted: numbers above 0") from None
