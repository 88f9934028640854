"""`dpsynth quality`: how good a synthetic table, or synthetic texts are, beside real ones, outside of any deployment.

What belongs here: arguments, and showing what the library returns. What does not: reading and measuring (`quality`).
What is shown are aggregates of real rows, for the eyes of whoever may see those; no value of them is ever printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.terminal import SEVERAL, Json, TerminalOutput, command, listed, stages, workspace
from dpsynth_platform.foundation.errors import SourceError

quality_app = typer.Typer(no_args_is_help=True, help="Quality: how good synthetic data is, beside real data.")


@quality_app.callback()
def _quality() -> None:
    """Quality: how good synthetic data is, beside real data."""


@quality_app.command("table")
@command
def quality_table(
    real: Annotated[Path, typer.Option(help="Real rows that the generator never saw: Delta, Parquet or CSV.")],
    synthetic: Annotated[Path, typer.Option(help="The synthetic table, of the same columns.")],
    target: Annotated[str, typer.Option(help="Column that classifiers predict; at most 50 different values.")],
    train: Annotated[
        Path | None, typer.Option(help="The real rows that the generator had: the best possible, and distances.")
    ] = None,
    protected: Annotated[list[str] | None, typer.Option(help=f"Columns to judge fairness by, {SEVERAL}.")] = None,
    categorical: Annotated[list[str] | None, typer.Option(help=f"Columns whose numbers are codes, {SEVERAL}.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help=f"Columns to leave out, such as ids, {SEVERAL}.")] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `columns:` as in a contract: what each holds; without ids, texts and what is ignored."
        ),
    ] = None,
    ascending: Annotated[
        list[str] | None,
        typer.Option(help="Columns whose values do not decrease, with commas: gaps are compared; once for each order."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fidelity, hours and gaps, similarity (HIST, Pair, CorAcc), utility, fairness, closeness.

    Compares with real data: restricted.
    """
    from dpsynth_platform.one_table.declaration import read_declared
    from dpsynth_platform.quality.one_type import read_tables
    from dpsynth_platform.quality.report import measure_tables
    from dpsynth_platform.quality.report_rows import HEADER, LEGEND

    output = TerminalOutput(as_json)
    left_out = _names("--drop", drop)
    judged, coded = _names("--protected", protected), _names("--categorical", categorical)
    with workspace("dpsynth-quality-"):
        known = {} if schema is None else read_declared(schema, None).columns
        coded += [name for name, item in known.items() if item.type == "categorical" and name not in coded]
        paths = {"real": real} | ({} if train is None else {"train": train}) | {"synthetic": synthetic}
        tables = read_tables(paths, without=left_out, categorical=coded, declared=known)
        report = measure_tables(
            tables["real"],
            tables["synthetic"],
            target,
            train=tables.get("train"),
            protected=judged,
            categorical=coded,
            orders=[_names("--ascending", [names]) for names in ascending or []],
        )
    output.json(report.to_json())
    output.table(HEADER, report.table())
    output.print()
    output.print(LEGEND)
    output.print(f"Rows: {', '.join(f'{count} {name}' for name, count in report.rows.items())}. Cells: {report.cells}.")
    output.print(report.notice)


@quality_app.command("text")
@command
def quality_text(
    real: Annotated[
        Path, typer.Argument(help="Real texts that the generator had: Delta, Parquet, CSV or JSON lines (.jsonl).")
    ],
    synthetic: Annotated[Path, typer.Argument(help="The synthetic texts, in a column of the same name.")],
    text: Annotated[str, typer.Option(help="Column of the texts.")],
    label: Annotated[str | None, typer.Option(help="Column of classes: classifiers of it are compared.")] = None,
    holdout: Annotated[
        Path | None,
        typer.Option(help="Real texts that the generator never saw; default: REAL is split in two, which flatters."),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Column of REAL (and --holdout) that says whose a text is: held out by owner.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=1000, help="Draws of texts; figures are means over them.")] = 5,
    sample: Annotated[
        int, typer.Option(min=50, help="Of larger tables so many texts are drawn; more take longer.")
    ] = 1000,
    clusters: Annotated[
        int | None, typer.Option(help="Clusters of MAUVE; default: a tenth of the texts of a trial.")
    ] = None,
    as_json: Json = False,
) -> None:
    """MAUVE, classifiers, divergences, diversity, verbatim runs, next tokens. Compares with real data: restricted."""
    import pyarrow as pa

    from dpsynth_platform.quality.files import read_file
    from dpsynth_platform.quality.text.corpora import HELD_OUT, check_apart, corpus_of, halves
    from dpsynth_platform.quality.text.report import HEADER, SPLIT, measure_texts

    output = TerminalOutput(as_json)
    with stages(output) as progress, workspace("dpsynth-quality-"):
        # In CSV, all three are read as text, whatever they look like.
        like = pa.schema([(name, pa.large_string()) for name in dict.fromkeys([text, label, owner]) if name])
        had = corpus_of("real", read_file(real, like=like), text, label, owner)
        if holdout is None:
            had, unseen = halves(had)
        else:
            unseen = corpus_of(HELD_OUT, read_file(holdout, like=like), text, label, owner)
            check_apart(had, unseen)
        report = measure_texts(
            had,
            unseen,
            corpus_of("synthetic", read_file(synthetic, like=like), text, label),
            trials=trials,
            most=sample,
            clusters=clusters,
            remarks=[SPLIT] if holdout is None else [],
            progress=progress,
        )
    output.json(report.to_json())
    output.print(report.notice)
    output.print()
    output.table(HEADER, report.table())
    output.print()
    for sentence in report.remarks_for_people():
        output.print(sentence)


def _names(option: str, texts: list[str] | None) -> list[str]:
    names = listed(texts)
    if not all(names) or len(set(names)) < len(names):
        raise SourceError(f"{option} {','.join(names)!r}; accepted: names of different columns, {SEVERAL}")
    return names
