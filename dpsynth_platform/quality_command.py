"""`dpsynth quality table`: how good a synthetic table is, beside real ones, outside of any deployment.

What belongs here: arguments, and showing what the library returns. What does not: reading and measuring (`quality`).
What is shown are aggregates of real rows, for the eyes of whoever may see those; no value of them is ever printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.errors import SourceError
from dpsynth_platform.terminal import SEVERAL, Json, Shown, command, listed, workspace

quality_app = typer.Typer(no_args_is_help=True, help="Quality: how good synthetic tables are, beside real ones.")


@quality_app.callback()
def _quality() -> None:
    """Quality: how good synthetic tables are, beside real ones."""


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
    as_json: Json = False,
) -> None:
    """Fidelity, similarity (HIST, Pair, CorAcc), utility, fairness, closeness. Compares with real data: restricted."""
    from dpsynth_platform.quality.files import read_file
    from dpsynth_platform.quality.report import measure_tables
    from dpsynth_platform.quality.shown import HEADER, LEGEND

    shown = Shown(as_json)
    left_out = _names("--drop", drop)
    judged, coded = _names("--protected", protected), _names("--categorical", categorical)
    with workspace("dpsynth-quality-"):
        tested = read_file(real, without=left_out)
        report = measure_tables(
            tested,
            read_file(synthetic, without=left_out, like=tested.schema),
            target,
            train=None if train is None else read_file(train, without=left_out, like=tested.schema),
            protected=judged,
            categorical=coded,
        )
    shown.json(report.to_json())
    shown.table(HEADER, report.table())
    shown.say()
    shown.say(LEGEND)
    shown.say(f"Rows: {', '.join(f'{count} {name}' for name, count in report.rows.items())}. Cells: {report.cells}.")
    shown.say(report.notice)


def _names(option: str, texts: list[str] | None) -> list[str]:
    names = listed(texts)
    if not all(names) or len(set(names)) < len(names):
        raise SourceError(f"{option} {','.join(names)!r}; accepted: names of different columns, {SEVERAL}")
    return names
