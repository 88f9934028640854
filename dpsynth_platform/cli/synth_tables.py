"""`dpsynth synth tables`: differentially private synthetic tables that join, without a deployment.

What belongs here: arguments, progress and output. What does not: the synthesis (`linked_tables`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.table_run import INTERRUPTED, draft
from dpsynth_platform.cli.terminal import TerminalOutput, workspace
from dpsynth_platform.foundation.errors import SchemaMissing
from dpsynth_platform.foundation.permissions import no_core_dumps
from dpsynth_platform.foundation.progress import bars


def synth_tables(
    output: TerminalOutput,
    data: Annotated[
        Path,
        typer.Argument(
            help="Directory with a Parquet or CSV file or a Delta table for each table, named as the table; or a "
            "database file (SQLite, DuckDB)."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Directory of the result; made if it does not exist. Only your user account can read what is written "
            "there (mode 0700)."
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(help="Epsilon of the guarantee for one owner of a root's row and all that belongs to it."),
    ],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the guarantee; default: 1/n^1.1 with n = --expected-units.")
    ] = None,
    expected_units: Annotated[
        int | None, typer.Option(help="A public estimate of the number of owners; default: 1/delta.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `tables:`: keys, parents, bounds and columns; without it, the error prints a draft."
        ),
    ] = None,
    method: Annotated[
        Literal["aim", "mst", "mwem", "independent", "arn", "tbart"],
        typer.Option(metavar="<name>", help="The generator of each table: aim, mst, mwem, independent, arn or tbart."),
    ] = "aim",
    roots: Annotated[
        int | None, typer.Option(help="Number of rows of the root; default: estimated from the noisy counts.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(help="A condition on all rows of the root: COLUMN=VALUE or COLUMN=LOW..HIGH. Repeatable."),
    ] = None,
    format_: Annotated[
        Literal["parquet", "csv", "delta"],
        typer.Option("--format", metavar="<name>", help="Format of the tables: parquet, csv or delta."),
    ] = "parquet",
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a ledger that several outputs share; default: a ledger for this output alone. A ledger "
            "counts only what is spent through it."
        ),
    ] = None,
    cap_epsilon: Annotated[
        float | None,
        typer.Option(help="The ledger's epsilon for its lifetime, sealed by the first run; default: that of this run."),
    ] = None,
    accept_weak_guarantee: Annotated[str | None, typer.Option(help="Why epsilon may be above 10.")] = None,
    spend_again: Annotated[
        str | None,
        typer.Option(help="Id of a started ledger entry without a result; permits to spend its cost a second time."),
    ] = None,
    *,
    dialect: CsvDialect,
) -> None:
    """Makes synthetic tables that join, with one guarantee for each owner. Repeating it draws again, at no cost."""
    from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
    from dpsynth_platform.one_table.more_rows import read_given

    options = TablesOptions(
        epsilon=epsilon,
        delta=delta,
        expected_units=expected_units,
        schema=schema,
        method=method,
        roots=roots,
        given=read_given(given or []),
        format=format_,
        ledger=ledger,
        cap_epsilon=cap_epsilon,
        accept_weak_guarantee=accept_weak_guarantee,
        spend_again=spend_again,
        dialect=dialect.as_dialect(),
    )
    no_core_dumps()
    try:
        with bars(output.console) as progress, workspace("dpsynth-synth-"):
            made = synthesize_tables(data, out, options, progress=progress)
    except SchemaMissing as missing:
        raise draft(output, missing) from None
    except KeyboardInterrupt as stopped:
        output.print(f"Interrupted. {stopped or 'Nothing was spent.'}")
        raise typer.Exit(INTERRUPTED) from None
    output.json(made.to_json())
    for name, found in made.rows.items():
        left = (
            f"; {found.left_out} more left out: they could not keep the constraints or the order"
            if found.left_out
            else ""
        )
        empty = "" if found.rows else "; if there should be some, compare the keys with those of its parent"
        types = found.types and f"; {found.types}"
        output.print(f"{name}: {found.rows} rows{types}{left}{empty}")
    output.print(f"tables: {made.synthetic}")
    paid = "paid now" if made.spent else "was paid before: nothing new was spent"
    output.print(f"{made.guarantee}")
    output.print(
        f"ledger entry {made.entry_id} {paid}; the ledger in {made.ledger} counts only what is spent through it"
    )
    output.print("Not covered by the guarantee:")
    for access in made.not_covered:
        output.print(f"- {access}")
    output.print(f"privacy statement: {made.statement}")
