"""`dpsynth synth`: differentially private synthetic tables from table files, without a deployment.

What belongs here: arguments, progress and output. What does not: the synthesis (`one_table`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.terminal import Commands, TerminalOutput, plain, workspace
from dpsynth_platform.foundation.errors import SchemaMissing, SourceError
from dpsynth_platform.foundation.permissions import no_core_dumps
from dpsynth_platform.foundation.progress import bars

if TYPE_CHECKING:
    from dpsynth_platform.one_table import Synthesis

INTERRUPTED = 130

synth_app = Commands(no_args_is_help=True, help="Synthetic tables from single tables, without a deployment.")


MethodName = Literal["auto", "aim", "mst", "mwem", "privsyn", "privbayes", "independent"]


@synth_app.command("table")
def synth_table(
    output: TerminalOutput,
    table: Annotated[
        Path,
        typer.Argument(help="Parquet file or a directory of them, Delta table, CSV file, or Excel workbook (.xlsx)."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Directory of the result; made if it does not exist. Only your user account can read what is written "
            "there (mode 0700)."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Epsilon of the guarantee; up to 1 is strong, up to 10 reasonable.")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the guarantee; default: 1/n^1.1 with n = --expected-units.")
    ] = None,
    expected_units: Annotated[
        int | None,
        typer.Option(
            help="A public estimate of the number of owners, or of rows without --owners; default: 1/delta. --method "
            "auto depends on it."
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="YAML file with `columns:` as in a contract; without it, the error prints a draft."),
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `constraints:` as in a contract, instead of those in --schema. Changing them spends "
            "nothing, except for orders of dates and times."
        ),
    ] = None,
    owners: Annotated[
        list[str] | None,
        typer.Option(help="The column that names the owner of each row; default: each row is its own unit."),
    ] = None,
    contributions: Annotated[int | None, typer.Option(help="The most rows kept of each owner.")] = None,
    weighting: Annotated[
        Literal["rows", "owners"],
        typer.Option(help="What is counted: rows, or owners, whose rows together weigh one row, with less noise."),
    ] = "rows",
    method: Annotated[
        MethodName,
        typer.Option(
            metavar="<name>",  # the list of them would leave no room for the options' names
            help="The generator: aim, mst, mwem, privsyn, privbayes or independent; auto: chosen by public facts, "
            "with the reason.",
        ),
    ] = "auto",
    target: Annotated[
        str | None,
        typer.Option(
            help="Column that models of the synthetic rows shall predict well; its correlations have priority."
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="About how long measuring, fitting and drawing may take, such as 90s, 2m or 1h; limits the model's "
            "size."
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Number of synthetic rows; default: estimated from the noisy counts.")
    ] = None,
    format: Annotated[  # noqa: A002
        Literal["parquet", "csv", "delta"],
        typer.Option(metavar="<name>", help="Format of the synthetic table: parquet, csv or delta."),
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
    learn_values: Annotated[
        bool,
        typer.Option(
            "--learn-values",
            help="Learn the frequent values of undeclared text columns with a part of the budget.",
        ),
    ] = False,
    assume_public_domain: Annotated[
        bool,
        typer.Option(
            "--assume-public-domain",
            help="Read undeclared domains from the data. The guarantee does not cover that.",
        ),
    ] = False,
    accept_weak_guarantee: Annotated[str | None, typer.Option(help="Why epsilon may be above 10.")] = None,
    spend_again: Annotated[
        str | None,
        typer.Option(help="Id of a started ledger entry without a result; permits to spend its cost a second time."),
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Excel: the name of the sheet; default: the first one.")] = None,
    *,
    dialect: CsvDialect,
) -> None:
    """Makes a synthetic table, its privacy statement and a ledger of the spent budget. Repeating it costs nothing."""
    given = {**locals(), **vars(dialect)}  # by the names of `Options`
    from dpsynth_platform.one_table import Options, synthesize

    if owners is not None and len(owners) > 1:  # the owners of a second column would not be protected
        raise SourceError(
            f"--owners {' --owners '.join(map(repr, owners))}; accepted: one column. For rows with several owners, use "
            "a contract (`privacy.owner_columns`) and `dpsynth run`"
        )
    given["owners"] = owners[0] if owners else None
    options = Options(**{item.name: given[item.name] for item in fields(Options) if item.name != "runner"})
    no_core_dumps()
    try:
        with bars(output.console) as progress, workspace("dpsynth-synth-") as place:
            file = _as_table(table, sheet, place)
            with _named(table, file):
                made = synthesize(file, out, options, progress=progress)
    except SchemaMissing as missing:
        raise _draft(output, missing) from None
    except KeyboardInterrupt as stopped:
        output.print(f"Interrupted. {stopped or 'Nothing was spent.'}")
        raise typer.Exit(INTERRUPTED) from None
    output.json(made.to_json())
    _show(output, made)
    if target is not None and made.method != "aim":
        output.print(f"--target {target} had no effect on method {made.method}; --method aim uses it")
    if method == "auto" and expected_units is None:
        output.print("The method was chosen for 1/delta units; declare their number with --expected-units.")


@synth_app.command("rows")
def synth_rows(
    output: TerminalOutput,
    out: Annotated[Path, typer.Argument(help="Directory that --out of an earlier `dpsynth synth table` named.")],
    rows: Annotated[int, typer.Option(help="Number of rows.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            help="A condition on all rows: COLUMN=VALUE, COLUMN=LOW..HIGH, or COLUMN= for a missing value. Repeatable: "
            "rows have one of the values given for a column, and meet the conditions of all columns."
        ),
    ] = None,
    constraints: Annotated[
        Path | None, typer.Option(help="YAML file with `constraints:` instead of those of the earlier run.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="File (.parquet or .csv) or Delta table to write; default: OUT/rows.parquet."),
    ] = None,
) -> None:
    """Draws further rows from the model of an earlier run. Spends nothing and reads no data: that run has paid."""
    from dpsynth_platform.one_table.more_rows import more_rows, read_given

    with bars(output.console) as progress, workspace("dpsynth-synth-"):
        made = more_rows(out, rows, given=read_given(given or []), constraints=constraints, to=to, progress=progress)
    output.json(made.to_json())
    output.print(f"{made.rows} rows: {made.synthetic}")
    output.print(f"ledger entry {made.entry_id} had paid: nothing new was spent")
    output.print(f"privacy statement: {made.statement}")


@synth_app.command("encoder")
def synth_encoder(
    output: TerminalOutput,
    dataset: Annotated[str, typer.Argument(help="A dataset whose contract declares generate.image.evolution.")],
    out: Annotated[Path, typer.Argument(help="New file for the network.")],
) -> None:
    """Trains a network for method image_pe that tells the public candidates of each class apart; reads no data."""
    from dpsynth_platform.foundation.settings import Settings
    from dpsynth_platform.synth.images.declared_foundations import train_encoder
    from dpsynth_platform.synth.planning import load_dataset

    if out.exists():
        raise SourceError(f"{out}: exists; accepted: a new file")
    contract, _ = load_dataset(Settings.from_environment(), dataset)
    encoder = train_encoder(contract)
    encoder.save(out)
    output.json({"file": str(out), "sha256": encoder.digest})
    output.print(f"{out}: a network for {dataset}; digest {encoder.digest}")
    output.print("In the contract: generate.image.evolution: {encoder: PATH}")


@synth_app.command("topics")
def synth_topics(
    output: TerminalOutput,
    out: Annotated[Path, typer.Argument(help="New file for the topic model.")],
    phrases: Annotated[
        Path | None,
        typer.Option(help="Text file of public words and phrases, one a line; default: those of `universal`."),
    ] = None,
) -> None:
    """Makes a topic model for method ctcl from public phrases. The budget does not cover what the model discloses."""
    from dpsynth_platform.synth.text.topic_building import UNIVERSAL_MATERIAL, build_topics, read_phrases
    from dpsynth_platform.synth.text.topic_building import universal_phrases as universal

    with bars(output.console) as progress, workspace("dpsynth-topics-"):
        found = universal() if phrases is None else read_phrases(phrases)
        material = UNIVERSAL_MATERIAL if phrases is None else phrases.name
        digest = build_topics(found, out, material=material, progress=progress)
    output.json({"file": str(out), "phrases": len(found), "sha256": digest})
    output.print(f"{out}: topics of {len(found)} phrases; SHA-256 {digest}")
    output.print("In a contract: generate.text.topics: {model: PATH, public: why it contains nothing of the data}")


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


def _draft(output: TerminalOutput, missing: SchemaMissing) -> typer.Exit:
    """Prints the schema to fill in on standard output, so that it can be saved, and the message on standard error."""
    output.json({"error": {"code": missing.code, "message": missing.words, "draft": missing.draft}})
    output.print(missing.draft)
    if not output.console.quiet:
        print(plain(missing.words), file=sys.stderr)
    return typer.Exit(1)


def _show(output: TerminalOutput, made: Synthesis) -> None:
    from dpsynth_platform.synth.tabular.domain import filled_in_words

    paid = "paid now" if made.spent else "was paid before: nothing new was spent"
    output.print(f"{made.rows} rows: {made.synthetic}")
    output.print(f"{made.guarantee}; method {made.method}: {made.why_method}")
    output.print(
        f"ledger entry {made.entry_id} {paid}; the ledger in {made.ledger} counts only what is spent through it"
    )
    for sentence in made.mostly_missing:
        output.print(sentence)
    if made.filled:
        output.print(filled_in_words(made.filled, made.nullable))
    output.print("Not covered by the guarantee:")
    for access in made.not_covered:
        output.print(f"- {access}")
    output.print(f"privacy statement: {made.statement}")
