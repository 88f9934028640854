"""What the commands share that pay for a result from one table file: options, reading the file, and messages.

What belongs here: `dpsynth synth table`, `synth text` and `query` alike. What does not: what is made (`one_table`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.terminal import TerminalOutput, plain, workspace
from dpsynth_platform.foundation.errors import SchemaMissing, SourceError
from dpsynth_platform.foundation.permissions import no_core_dumps
from dpsynth_platform.foundation.progress import bars

if TYPE_CHECKING:
    from dpsynth_platform.one_table import Synthesis

INTERRUPTED = 130


@dataclass(frozen=True)
class TableRun:
    """The options by the names of `one_table.Options`, with the directory of the result and the sheet of a workbook."""

    out: Annotated[
        Path,
        typer.Option(
            help="Directory of the result; made if it does not exist. Only your user account can read what is written "
            "there (mode 0700)."
        ),
    ]
    epsilon: Annotated[float, typer.Option(help="Epsilon of the guarantee; up to 1 is strong, up to 10 reasonable.")]
    delta: Annotated[
        float | None, typer.Option(help="Delta of the guarantee; default: 1/n^1.1 with n = --expected-units.")
    ] = None
    expected_units: Annotated[
        int | None,
        typer.Option(
            help="A public estimate of the number of owners, or of rows without --owners; default: 1/delta, and none "
            "for texts. The method `auto` depends on it."
        ),
    ] = None
    schema: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `columns:` as in a contract; where declarations are missing, the error prints a draft."
        ),
    ] = None
    owners: Annotated[
        list[str] | None,
        typer.Option(help="The column that names the owner of each row; default: each row is its own unit."),
    ] = None
    contributions: Annotated[int | None, typer.Option(help="The most rows kept of each owner.")] = None
    weighting: Annotated[
        Literal["rows", "owners"],
        typer.Option(help="What is counted: rows, or owners, whose rows together weigh one row, with less noise."),
    ] = "rows"
    format: Annotated[
        Literal["parquet", "csv", "delta"],
        typer.Option(metavar="<name>", help="Format of the table: parquet, csv or delta."),
    ] = "parquet"
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a ledger that several outputs share; default: a ledger for this output alone. A ledger "
            "counts only what is spent through it."
        ),
    ] = None
    cap_epsilon: Annotated[
        float | None,
        typer.Option(help="The ledger's epsilon for its lifetime, sealed by the first run; default: that of this run."),
    ] = None
    assume_public_domain: Annotated[
        bool,
        typer.Option(
            "--assume-public-domain",
            help="Read undeclared domains from the data. The guarantee does not cover that.",
        ),
    ] = False
    accept_weak_guarantee: Annotated[str | None, typer.Option(help="Why epsilon may be above 10.")] = None
    spend_again: Annotated[
        str | None,
        typer.Option(help="Id of a started ledger entry without a result; permits to spend its cost a second time."),
    ] = None
    sheet: Annotated[str | None, typer.Option(help="Excel: the name of the sheet; default: the first one.")] = None

    def made(self, output: TerminalOutput, table: Path, dialect: CsvDialect, **own: Any) -> Synthesis:
        """Makes the result, with a command's `own` options, shows progress, and prints it as JSON where asked."""
        from dpsynth_platform.one_table import Options, synthesize

        if self.owners is not None and len(self.owners) > 1:  # the owners of a second column would not be protected
            raise SourceError(
                f"--owners {' --owners '.join(map(repr, self.owners))}; accepted: one column. For rows with several "
                "owners, use a contract (`privacy.owner_columns`) and `dpsynth run`"
            )
        given = {**vars(self), **vars(dialect), **own, "owners": self.owners[0] if self.owners else None}
        known = {item.name for item in fields(Options)}
        options = Options(**{name: value for name, value in given.items() if name in known})
        no_core_dumps()
        try:
            with bars(output.console) as progress, workspace("dpsynth-synth-") as place:
                file = _as_table(table, self.sheet, place)
                with _named(table, file):
                    made = synthesize(file, self.out, options, progress=progress)
        except SchemaMissing as missing:
            raise draft(output, missing) from None
        except KeyboardInterrupt as stopped:
            output.print(f"Interrupted. {stopped or 'Nothing was spent.'}")
            raise typer.Exit(INTERRUPTED) from None
        output.json(made.to_json())
        return made


def show_guarantee(output: TerminalOutput, made: Synthesis) -> None:
    """Prints what a result costs and promises."""
    paid = "paid now" if made.spent else "was paid before: nothing new was spent"
    output.print(f"{made.guarantee}; method {made.method}: {made.why_method}")
    output.print(
        f"ledger entry {made.entry_id} {paid}; the ledger in {made.ledger} counts only what is spent through it"
    )


def show_limits(output: TerminalOutput, made: Synthesis) -> None:
    """Prints what the guarantee does not cover, and where the statement is."""
    output.print("Not covered by the guarantee:")
    for access in made.not_covered:
        output.print(f"- {access}")
    output.print(f"privacy statement: {made.statement}")


def _as_table(table: Path, sheet: str | None, place: Path) -> Path:
    """The table, or for a workbook a CSV file of its sheet in a temporary directory."""
    from dpsynth_platform.sources.table_files import check_exists
    from dpsynth_platform.sources.workbooks import is_workbook, write_csv

    if not is_workbook(table):
        if sheet is not None:
            raise SourceError(
                f"--sheet {sheet!r}: {table} is no workbook (.xlsx); accepted: that option for one that is"
            )
        return table
    check_exists(table)
    file = place / f"{table.stem}.csv"
    write_csv(table, sheet, file)
    return file


@contextmanager
def _named(table: Path, file: Path) -> Iterator[None]:
    """Lets errors name the workbook, and not the temporary file of its sheet."""
    caught: SchemaMissing | SourceError
    try:
        yield
        return
    except SchemaMissing as missing:
        caught = SchemaMissing(missing.words.replace(str(file), str(table)), missing.draft)
    except SourceError as error:
        caught = SourceError(str(error).replace(str(file), str(table)))
    raise caught


def draft(output: TerminalOutput, missing: SchemaMissing) -> typer.Exit:
    """Prints the schema to fill in on standard output, so that it can be saved, and the message on standard error."""
    output.json({"error": {"code": missing.code, "message": missing.words, "draft": missing.draft}})
    output.print(missing.draft)
    if not output.console.quiet:
        print(plain(missing.words), file=sys.stderr)
    return typer.Exit(1)
