"""`dpsynth synth`: a differentially private synthetic table from one that lies in files, without a deployment.

What belongs here: arguments, progress, and showing what the library returns. What does not: doing anything
(`synthesis`).
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import Json, TerminalOutput, command, plain, stages, workspace
from dpsynth_platform.foundation.errors import SchemaMissing, SourceError
from dpsynth_platform.foundation.permissions import no_core_dumps

if TYPE_CHECKING:
    from dpsynth_platform.one_table import Synthesis

INTERRUPTED = 130

synth_app = typer.Typer(no_args_is_help=True, help="Synthetic tables from single tables, without a deployment.")


class MethodName(enum.StrEnum):
    """The generators."""

    auto = "auto"
    aim = "aim"
    mst = "mst"
    mwem = "mwem"
    privbayes = "privbayes"
    independent = "independent"


class WeightingName(enum.StrEnum):
    """What is counted."""

    rows = "rows"
    owners = "owners"


class FormatName(enum.StrEnum):
    """What synthetic tables are written as."""

    parquet = "parquet"
    csv = "csv"
    delta = "delta"


@synth_app.callback()
def _synth() -> None:
    """Synthetic tables from single tables, without a deployment."""


@synth_app.command("table")
@command
def synth_table(
    table: Annotated[Path, typer.Argument(help="Parquet file or a directory of them, Delta table, or CSV file.")],
    out: Annotated[Path, typer.Option(help="Directory of the result, made where it is missing, for you alone.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of the guarantee; up to 1 is strong, up to 10 reasonable.")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the guarantee; default: 1/n^1.1 with n = --expected-units.")
    ] = None,
    expected_units: Annotated[
        int | None,
        typer.Option(
            help="A public estimate of the number of owners, or of rows without --owners; default: 1/delta. --method "
            "auto goes by it."
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="YAML file with `columns:` as in a contract; without one, a refusal prints it.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `constraints:` as in a contract, in place of the schema's; other ones spend nothing, "
            "but for orders of dates and times."
        ),
    ] = None,
    owners: Annotated[
        list[str] | None,
        typer.Option(help="The one column that says whose a row is; default: each row is a unit of its own."),
    ] = None,
    contributions: Annotated[int | None, typer.Option(help="The most rows that each owner keeps.")] = None,
    weighting: Annotated[
        WeightingName,
        typer.Option(help="What is counted: rows, or owners, whose rows weigh one row together, with less noise."),
    ] = WeightingName.rows,
    method: Annotated[
        MethodName, typer.Option(help="The generator; auto: chosen by public facts, with the reason.")
    ] = MethodName.auto,
    target: Annotated[
        str | None, typer.Option(help="Column that the synthetic rows shall predict well; its links come first.")
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="About how long measuring, fitting and drawing may take, such as 90s, 2m or 1h: a smaller model is "
            "made then."
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Number of synthetic rows; default: what the noisy counts say that there are.")
    ] = None,
    format: Annotated[FormatName, typer.Option(help="What the synthetic table is written as.")] = (  # noqa: A002
        FormatName.parquet
    ),
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a ledger that several outputs share; default: one of this output's own. A ledger knows "
            "only what is spent through it."
        ),
    ] = None,
    cap_epsilon: Annotated[
        float | None,
        typer.Option(help="What the ledger may ever pay for, sealed by the first spend; default: this run alone."),
    ] = None,
    learn_values: Annotated[
        bool,
        typer.Option(
            "--learn-values",
            help="Learn the values of text columns that are not declared: those that many rows have, with a part of "
            "the budget.",
        ),
    ] = False,
    assume_public_domain: Annotated[
        bool,
        typer.Option(
            "--assume-public-domain",
            help="Read domains that are not declared off the data. The guarantee does not cover that.",
        ),
    ] = False,
    csv_separator: Annotated[
        str | None,
        typer.Option(help="Of a CSV file: what stands between fields, such as ';', or tab; default: a comma."),
    ] = None,
    csv_quote: Annotated[str, typer.Option(help="Of a CSV file: the quote around fields; '' for none.")] = '"',
    csv_decimal: Annotated[str, typer.Option(help="Of a CSV file: the decimal mark, '.' or ','.")] = ".",
    csv_encoding: Annotated[str, typer.Option(help="Of a CSV file: its encoding, such as cp1252.")] = "utf-8",
    csv_skip_blanks: Annotated[
        bool | None,
        typer.Option(
            "--csv-skip-blanks/--csv-keep-blanks",
            help="Of a CSV file: whether blanks around fields are skipped, or belong to them.",
        ),
    ] = None,
    csv_header: Annotated[
        bool,
        typer.Option(
            "--csv-header",
            help="Of a CSV file: its first line holds the names of the columns; for files of which none is declared or "
            "given.",
        ),
    ] = False,
    accept_weak_guarantee: Annotated[str | None, typer.Option(help="Why epsilon may be above 10.")] = None,
    spend_again: Annotated[
        str | None,
        typer.Option(help="Id of a started ledger entry that left nothing: the explicit word for a second spend."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Makes a synthetic table, its privacy statement and a ledger of what was spent. Run again, it costs nothing."""
    from dpsynth_platform.one_table import Options, synthesize

    output = TerminalOutput(as_json)
    options = Options(
        epsilon=epsilon,
        delta=delta,
        expected_units=expected_units,
        method=method.value,
        schema=schema,
        constraints=constraints,
        owners=_one_column(owners),
        contributions=contributions,
        weighting=weighting.value,
        target=target,
        time_limit=time_limit,
        rows=rows,
        format=format.value,
        ledger=ledger,
        cap_epsilon=cap_epsilon,
        learn_values=learn_values,
        assume_public_domain=assume_public_domain,
        csv_separator=csv_separator,
        csv_quote=csv_quote,
        csv_decimal=csv_decimal,
        csv_encoding=csv_encoding,
        csv_skip_blanks=csv_skip_blanks,
        csv_header=csv_header,
        accept_weak_guarantee=accept_weak_guarantee,
        spend_again=spend_again,
    )
    no_core_dumps()
    try:
        with stages(output) as progress, workspace("dpsynth-synth-"):
            made = synthesize(table, out, options, progress=progress)
    except SchemaMissing as missing:
        raise _draft(output, missing) from None
    except KeyboardInterrupt as stopped:
        output.print(f"Interrupted. {stopped or 'Nothing was spent.'}")
        raise typer.Exit(INTERRUPTED) from None
    output.json(made.to_json())
    _show(output, made)
    if target is not None and made.method != "aim":
        output.print(
            f"--target {target} has had no effect, by method {made.method}; method aim goes by it (--method aim)"
        )
    if method is MethodName.auto and expected_units is None:
        output.print("The method was chosen as if there were 1/delta units; --expected-units says how many there are.")


@synth_app.command("rows")
@command
def synth_rows(
    out: Annotated[Path, typer.Argument(help="Directory that --out of an earlier `dpsynth synth table` named.")],
    rows: Annotated[int, typer.Option(help="Number of rows.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            help="What all rows have: COLUMN=VALUE, COLUMN=LOW..HIGH, or COLUMN= for a missing value. May be repeated: "
            "several values of one column are any of them, several columns all of them."
        ),
    ] = None,
    constraints: Annotated[
        Path | None, typer.Option(help="YAML file with `constraints:` in place of those of the earlier run.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Where to: a name with .parquet or .csv, or a Delta table's; default: OUT/rows.parquet."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draws further rows from the model of an earlier run, which has paid for them: nothing is spent, no data read."""
    from dpsynth_platform.one_table.more_rows import more_rows, read_given

    output = TerminalOutput(as_json)
    with stages(output) as progress, workspace("dpsynth-synth-"):
        made = more_rows(out, rows, given=read_given(given or []), constraints=constraints, to=to, progress=progress)
    output.json(made.to_json())
    output.print(f"{made.rows} rows: {made.synthetic}")
    output.print(f"ledger entry {made.entry_id} had paid: nothing new was spent")
    output.print(f"What they are: {made.statement}")


@synth_app.command("topics")
@command
def synth_topics(
    out: Annotated[Path, typer.Argument(help="File of the topic model, a new one.")],
    phrases: Annotated[
        Path | None,
        typer.Option(help="Text file of public words and phrases, one a line; by default those of `universal`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Makes a topic model for method ctcl from public phrases. What it knows is released with every text, unpaid."""
    from dpsynth_platform.synth.text.topic_building import UNIVERSAL_MATERIAL, build_topics, read_phrases
    from dpsynth_platform.synth.text.topic_building import universal_phrases as universal

    output = TerminalOutput(as_json)
    with stages(output) as progress, workspace("dpsynth-topics-"):
        found = universal() if phrases is None else read_phrases(phrases)
        material = UNIVERSAL_MATERIAL if phrases is None else phrases.name
        digest = build_topics(found, out, material=material, progress=progress)
    output.json({"file": str(out), "phrases": len(found), "sha256": digest})
    output.print(f"{out}: topics of {len(found)} phrases; SHA-256 {digest}")
    output.print("In a contract: generate.text.topics: {model: PATH, public: why it knows nothing of the data}")


def _draft(output: TerminalOutput, missing: SchemaMissing) -> typer.Exit:
    """The file to fill in, alone on standard output, so that it can be kept; what else is said goes beside it."""
    output.json({"error": {"code": missing.code, "message": missing.words, "draft": missing.draft}})
    output.print(missing.draft)
    if not output.console.quiet:
        print(plain(missing.words), file=sys.stderr)
    return typer.Exit(1)


def _one_column(owners: list[str] | None) -> str | None:
    """The column of owners. A second one must not be passed over: nobody in the other would be protected."""
    if owners is not None and len(owners) > 1:
        raise SourceError(
            f"--owners {' --owners '.join(map(repr, owners))}; accepted: one column. Rows with several owners each are "
            "for a contract (`privacy.owner_columns`) and `dpsynth run`"
        )
    return owners[0] if owners else None


def _show(output: TerminalOutput, made: Synthesis) -> None:
    from dpsynth_platform.synth.tabular.domain import filled_in_words

    paid = "paid now" if made.spent else "was paid before: nothing new was spent"
    output.print(f"{made.rows} rows: {made.synthetic}")
    output.print(f"{made.guarantee}; method {made.method}: {made.why_method}")
    output.print(
        f"ledger entry {made.entry_id} {paid}; the ledger in {made.ledger} knows only what is spent through it"
    )
    for sentence in made.mostly_missing:
        output.print(sentence)
    if made.filled:
        output.print(filled_in_words(made.filled, made.nullable))
    output.print("Not covered by the guarantee:")
    for access in made.not_covered:
        output.print(f"- {access}")
    output.print(f"All of it in words: {made.statement}")
