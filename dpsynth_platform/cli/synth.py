"""`dpsynth synth`: differentially private synthetic tables from table files, without a deployment.

What belongs here: arguments, progress and output. What does not: the synthesis (`one_table`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.synth_tables import synth_tables
from dpsynth_platform.cli.table_run import TableRun, show_guarantee, show_limits
from dpsynth_platform.cli.terminal import SEVERAL, Commands, TerminalOutput, column_names, workspace
from dpsynth_platform.contracts.methods import TableMethodName, TextMethodName
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.progress import bars

if TYPE_CHECKING:
    from dpsynth_platform.one_table import Synthesis

synth_app = Commands(no_args_is_help=True, help="Synthetic tables and texts from tables, without a deployment.")


def _refuse(asked: bool) -> None:
    """Before `--method` is read, which names one."""
    if asked:
        raise typer.BadParameter(
            "each method reads the table and is paid for, and a choice by what they make is a further loss; accepted: "
            "one --method, such as auto. To compare methods, use a public table like this one: dpsynth compare --public"
        )


@synth_app.command("table")
def synth_table(
    output: TerminalOutput,
    table: Annotated[
        Path,
        typer.Argument(help="Parquet file or a directory of them, Delta table, CSV file, or Excel workbook (.xlsx)."),
    ],
    constraints: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `constraints:` as in a contract, instead of those in --schema. Changing them spends "
            "nothing, except for orders of dates and times."
        ),
    ] = None,
    method: Annotated[
        TableMethodName,
        typer.Option(
            metavar="<name>",  # the list of them would leave no room for the options' names
            help="The generator: aim, mst, mwem, rap, gem, grem, appgm, privsyn, mrf, privbayes, histogram, "
            "independent, arn, tbart, dp_vae, table_diffusion, dp_gan, great, dp_2stage, or with --public also jam; "
            "auto: by public facts, with the reason.",
        ),
    ] = "auto",
    target: Annotated[
        str | None,
        typer.Option(
            help="Column that models of the synthetic rows shall predict well; its correlations have priority."
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            help="A public table with some of the columns, which helps --method aim, jam, mwem, rap or gem; or with "
            "any columns, for dp_2stage. No mechanism protects its rows."
        ),
    ] = None,
    public_why: Annotated[str | None, typer.Option(help="Why --public is public; the statement says it.")] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="The language model of --method great or dp_2stage, by name or path; default: smollm2-135m."),
    ] = None,
    tune: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `tune:` as in a contract's `generate`: settings among which the mechanism chooses by "
            "a noisy score. The guarantee covers all runs and the choice."
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
    learn_values: Annotated[
        bool,
        typer.Option(
            "--learn-values",
            help="Learn the frequent values of undeclared text columns with a part of the budget.",
        ),
    ] = False,
    *,
    compare: Annotated[
        bool, typer.Option("--compare", hidden=True, is_eager=True, callback=_refuse, help="Refused, with the reason.")
    ] = False,
    run: TableRun,
    dialect: CsvDialect,
) -> None:
    """Makes a synthetic table, its privacy statement and a ledger of the spent budget. Repeating it costs nothing."""
    from dpsynth_platform.contracts.methods import TARGET_METHODS, TUNED

    made = run.made(
        output,
        table,
        dialect,
        constraints=constraints,
        method=method,
        target=target,
        public=public,
        public_why=public_why,
        base_model=base_model,
        tune=tune,
        time_limit=time_limit,
        rows=rows,
        learn_values=learn_values,
    )
    _show(output, made)
    if target is not None and made.method not in (*TARGET_METHODS, TUNED):
        output.print(f"--target {target} had no effect on method {made.method}; --method aim uses it")
    if method == "auto" and tune is None and run.expected_units is None:
        output.print("The method was chosen for 1/delta units; declare their number with --expected-units.")


@synth_app.command("text")
def synth_text(
    output: TerminalOutput,
    table: Annotated[
        Path,
        typer.Argument(help="Parquet file or a directory of them, Delta table, CSV file, or Excel workbook (.xlsx)."),
    ],
    text: Annotated[str, typer.Option(help="The column of texts that a language model learns to write.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help=f"The columns that a text is written for, {SEVERAL}; default: all in --schema with a list of values."
        ),
    ] = None,
    about: Annotated[
        str | None,
        typer.Option(help="What the texts are, in public words; --method aug_pe and dp_inference write from them."),
    ] = None,
    method: Annotated[
        TextMethodName,
        typer.Option(
            metavar="<name>",
            help="The generator: dp_finetune, ctcl, aug_pe or dp_inference; auto: by public facts, with the reason.",
        ),
    ] = "auto",
    public: Annotated[
        Path | None,
        typer.Option(
            help="A public table with the column of texts: the first candidates of --method aug_pe, which may come out "
            "as they are. No mechanism protects its rows."
        ),
    ] = None,
    public_why: Annotated[str | None, typer.Option(help="Why --public is public; the statement says it.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The language model, by name or path; default: smollm2-135m.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Number of synthetic rows; default: estimated from the noisy counts of other columns."),
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(help="YAML file with `constraints:` on the other columns, instead of those in --schema."),
    ] = None,
    *,
    run: TableRun,
    dialect: CsvDialect,
) -> None:
    """Makes a synthetic table with a text, its privacy statement and a ledger. Prints no text of the table.

    Columns that are not in --schema nor named by an option are left out. Repeating the command costs nothing.
    """
    named = column_names("--condition", condition, ContractError)
    made = run.made(
        output,
        table,
        dialect,
        text=text,
        condition=named or None,
        about=about,
        method=method,
        public=public,
        public_why=public_why,
        base_model=base_model,
        rows=rows,
        constraints=constraints,
        processes=None,
    )
    _show(output, made)


synth_app.command("tables")(synth_tables)


@synth_app.command("rows")
def synth_rows(
    output: TerminalOutput,
    out: Annotated[
        Path, typer.Argument(help="Directory that --out of an earlier `dpsynth synth table` or `synth text` named.")
    ],
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


@synth_app.command("base-model")
def synth_base_model(
    output: TerminalOutput,
    schema: Annotated[Path, typer.Argument(help="YAML file with `columns:`: a contract, or a --schema of one table.")],
    out: Annotated[Path, typer.Argument(help="New directory for the model.")],
    width: Annotated[int, typer.Option(help="Of its layers, a multiple of 8.")] = 32,
    layers: Annotated[int, typer.Option(help="Their number.")] = 3,
) -> None:
    """Makes a small model for methods great and dp_2stage, with weights at random; reads declarations, and no data."""
    from dpsynth_platform.contracts.validation import validated
    from dpsynth_platform.foundation.yaml_files import read_yaml
    from dpsynth_platform.one_table.declaration import SchemaFile
    from dpsynth_platform.synth.neural.small_model import write_small_model
    from dpsynth_platform.synth.text.base_models import no_bars

    declared = validated(SchemaFile, {"columns": read_yaml(schema).get("columns")}, str(schema))
    with no_bars():
        weights = write_small_model(out, declared.columns, width, layers)
    output.json({"directory": str(out), "weights": weights})
    output.print(f"{out}: a model with {weights:,} weights for the columns of {schema}")
    output.print("For one table: --base-model PATH, from / or ./. In a contract: generate.base_model: PATH, from /.")
    output.print("Clearance accepts it after `dpsynth lineage declare-public`: it has seen no data.")


@synth_app.command("topics")
def synth_topics(
    output: TerminalOutput,
    out: Annotated[Path, typer.Argument(help="New file for the topic model.")],
    phrases: Annotated[
        Path | None,
        typer.Option(
            help="Text file of public words and phrases, one a line; default without --public: those of `universal`."
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="A public table of documents instead: Parquet, Delta, CSV or JSON lines."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of documents of --public.")] = None,
    public_why: Annotated[
        str | None, typer.Option(help="Why --phrases or --public is public; the model's file and lineage say it.")
    ] = None,
    topics: Annotated[
        int,
        typer.Option(
            help="The most topics that a contract can name: 16, 32, 64, 128, 256 or 512; fewer are there, too."
        ),
    ] = 512,
) -> None:
    """Makes a topic model for `text.topics` from public phrases or documents.

    The budget does not cover what the model discloses.
    """
    from dpsynth_platform.one_table.public_topics import make_topics

    with bars(output.console) as progress, workspace("dpsynth-topics-"):
        made = make_topics(
            out, phrases=phrases, table=public, text=text, why=public_why, topics=topics, progress=progress
        )
    output.json({"file": str(out), made.of: made.read, "topics": list(made.levels), "sha256": made.digest})
    output.print(f"{out}: up to {made.levels[-1]} topics of {made.read} {made.of}; SHA-256 {made.digest}")
    for warning in made.warnings:
        output.print(warning)
    output.print("In a contract: generate.text.topics: {model: PATH, public: why it contains nothing of the data}")


@synth_app.command("writer")
def synth_writer(
    output: TerminalOutput,
    public: Annotated[
        Path,
        typer.Option(
            help="A public table of texts: Parquet, Delta, CSV or JSON lines. No mechanism protects its rows."
        ),
    ],
    public_why: Annotated[str, typer.Option(help="Why it is public; the writer's file and lineage say it.")],
    text: Annotated[
        str, typer.Option(help="The column of texts; best named as the private texts' column, which ends each prompt.")
    ],
    out: Annotated[Path, typer.Option(help="New directory for the writer, or that of the same command's earlier run.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(help=f"Columns whose values stand before a text, such as its kind, {SEVERAL}."),
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The language model that learns, by name or path; default: smollm2-135m.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Of the training.")] = 500,
    batch_size: Annotated[int, typer.Option(help="Texts of a step.")] = 16,
    max_tokens: Annotated[
        int, typer.Option(help="Most tokens of a prompt and its text, which is cut off there.")
    ] = 128,
    learning_rate: Annotated[float, typer.Option(help="The highest one.")] = 1e-3,
    rank: Annotated[int, typer.Option(help="Of the adapter that is trained (LoRA).")] = 16,
) -> None:
    """Trains a language model, without privacy, to write public texts from keywords: a base model for private texts.

    The same command continues an interrupted training. The budget covers nothing that the writer discloses.
    """
    from dpsynth_platform.one_table.public_writer import make_writer
    from dpsynth_platform.synth.text.base_models import DEFAULT
    from dpsynth_platform.synth.text.writer import WriterTraining

    with bars(output.console) as progress, workspace("dpsynth-writer-"):
        made = make_writer(
            public,
            public_why,
            text,
            out,
            conditions=column_names("--condition", condition, ContractError),
            base=base_model or DEFAULT,
            training=WriterTraining(steps, batch_size, learning_rate, max_tokens, rank),
            progress=progress,
        )
    texts, judged = made.about["public"]["texts"], made.about["held_out"]
    output.json(made.about | {"directory": str(out), "was_there": made.was_there})
    output.print(f"{out}: a writer, trained on {texts} public texts{' before' if made.was_there else ''}")
    before, after = (judged["nats_a_token"][moment] for moment in ("before", "after"))
    output.print(f"log-likelihood of {judged['texts']} held-out texts: {before:.3f} nats a token, then {after:.3f}")
    for warning in made.warnings:
        output.print(warning)
    output.print("For one table: --base-model PATH, from / or ./. In a contract: generate.base_model: PATH, from /.")


def _show(output: TerminalOutput, made: Synthesis) -> None:
    from dpsynth_platform.one_table.assumed import empty_in_words
    from dpsynth_platform.synth.tabular.domain import filled_in_words

    output.print(f"{made.rows} rows: {made.synthetic}")
    show_guarantee(output, made)
    if made.public is not None:
        output.print(f"The public table that helped: {made.public}.")
    for sentence in made.mostly_missing:
        output.print(sentence)
    if made.filled:
        output.print(filled_in_words(made.filled, made.nullable))
    if made.empty:
        output.print(empty_in_words(made.empty))
    if made.texts:
        output.print(f"{made.texts}.")
    show_limits(output, made)
