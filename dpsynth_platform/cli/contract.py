"""`dpsynth contract init`: a draft of a contract for a table, with questions on a terminal.

What belongs here: arguments, questions, and showing what is still open. What does not: drafting (`drafting`),
checking (`planning`), nor what is asked (`draft_questions`). The command line adds `draft_app` to its `contract` group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.terminal import Json, TerminalOutput, command, plain
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import Settings

draft_app = typer.Typer()


@draft_app.command("init")
@command
def contract_init(
    table: Annotated[Path, typer.Argument(help="Parquet file or a directory of them, Delta table, or CSV file.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The contract's file; default: in the deployment's contracts/, by the table's name."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(help="The family whose budget pays; a new one gets a draft of its file in families/, too."),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Ask for what must not be guessed; Enter leaves a gap, Ctrl-D all that follow."),
    ] = False,
    csv_header: Annotated[
        bool,
        typer.Option("--csv-header", help="Of a CSV file: its first line holds the names of the columns."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Drafts a contract from the names and types of a table's columns. What must not be guessed is left open.

    No value, range, count or category is looked at. No file is ever overwritten.
    """
    from dpsynth_platform.drafting.draft import check_free, dataset_of, drafted, write
    from dpsynth_platform.drafting.questions import asked
    from dpsynth_platform.synth.planning import check_contract

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    target = settings.contracts / f"{dataset_of(table)}.yaml" if out is None else out
    check_free(target)
    draft = drafted(settings, table, dataset_of(target), family, csv_header=csv_header)
    if ask:
        draft = asked(settings, draft, _answer, lambda problem: typer.echo(plain(problem), err=True))
    written = write(settings, draft, target)
    gaps: list[str] = []
    try:
        check_contract(settings, written.contract)
    except ContractError as error:
        gaps = str(error).split("\n")
    output.json({"contract": str(written.contract), "family": str(written.family or ""), "open": gaps})
    output.print(f"drafted: {written.contract}")
    if written.family is not None:
        output.print(f"budget:  {written.family}")
    for gap in gaps:
        output.print(f"  {gap}")
    output.print(
        f"{len(gaps)} to fill in; then: dpsynth contract check {written.contract}" if gaps else "nothing is open"
    )


def _answer(question: str) -> str:
    """What somebody types, which may be nothing. Questions go beside the output."""
    from dpsynth_platform.drafting.questions import NoAnswer

    try:
        return str(typer.prompt(plain(f"\n{question}"), default="", show_default=False, err=True))
    except typer.Abort:
        raise NoAnswer from None
