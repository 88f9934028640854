"""`dpsynth quality`: synthetic tables and texts compared with real ones, without a deployment.

What belongs here: arguments and output. What does not: reading and measuring (`quality`). The output contains
aggregates of real rows, for people who may see those, and never a value of them.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.quality_tables import quality_tables
from dpsynth_platform.cli.terminal import SEVERAL, Commands, TerminalOutput, column_names, workspace
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import bars


class TargetTask(StrEnum):
    """What is done with the target."""

    classification = "classification"
    regression = "regression"


quality_app = Commands(no_args_is_help=True, help="Quality of synthetic data, compared with real data.")


@quality_app.command("table")
def quality_table(
    output: TerminalOutput,
    real: Annotated[Path, typer.Option(help="Real rows that the generator never saw: Delta, Parquet or CSV.")],
    synthetic: Annotated[Path, typer.Option(help="The synthetic table, with the same columns.")],
    target: Annotated[
        str,
        typer.Option(
            help="Column that classifiers predict; at most 50 different values. With --task regression, numbers."
        ),
    ],
    train: Annotated[
        Path | None,
        typer.Option(help="The real rows that the generator used: the best possible result, and distances."),
    ] = None,
    protected: Annotated[list[str] | None, typer.Option(help=f"Columns to judge fairness by, {SEVERAL}.")] = None,
    categorical: Annotated[list[str] | None, typer.Option(help=f"Columns whose numbers are codes, {SEVERAL}.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help=f"Columns to leave out, such as ids, {SEVERAL}.")] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `columns:` as in a contract, for the types; without ids, texts and ignored columns."
        ),
    ] = None,
    ascending: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns, separated by commas, whose values do not decrease: compares gaps. Repeat it for each order."
        ),
    ] = None,
    task: Annotated[
        TargetTask, typer.Option(help="What is done with the target: classification or regression.")
    ] = TargetTask.classification,
    workload: Annotated[
        Path | None,
        typer.Option(help="YAML file with `workload:` as in a contract's `generate`: the marginals that matter."),
    ] = None,
    findings: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with `findings:` as in a contract's `quality`: conclusions to draw from synthetic rows."
        ),
    ] = None,
) -> None:
    """Measures fidelity, error on a workload, similarity (HIST, Pair, CorAcc), utility, findings, fairness, closeness.

    Also of single columns (Kolmogorov-Smirnov, Wasserstein, chi-squared), of months, hours and gaps, and of whole rows
    (detection, mean discrepancy, precision, recall, authenticity, faithfulness).

    Compares with real data: restricted.
    """
    from dpsynth_platform.contracts.findings import read_findings
    from dpsynth_platform.contracts.workload import read_workload
    from dpsynth_platform.one_table.declaration import read_declared
    from dpsynth_platform.quality.one_type import read_tables
    from dpsynth_platform.quality.report import measure_tables
    from dpsynth_platform.quality.report_rows import HEADER, LEGEND

    left_out, judged = _columns("--drop", drop), _columns("--protected", protected)
    coded = _columns("--categorical", categorical)
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
            orders=[_columns("--ascending", [names]) for names in ascending or []],
            task=task.value,
            workload=None if workload is None else read_workload(workload),
            findings=() if findings is None else read_findings(findings),
        )
    output.json(report.to_json())
    output.table(HEADER, report.table())
    output.print()
    output.print(LEGEND)
    output.print(f"Rows: {', '.join(f'{count} {name}' for name, count in report.rows.items())}. Cells: {report.cells}.")
    output.print(report.notice)


quality_app.command("tables")(quality_tables)


@quality_app.command("text")
def quality_text(
    output: TerminalOutput,
    real: Annotated[
        Path, typer.Argument(help="Real texts that the generator used: Delta, Parquet, CSV or JSON lines (.jsonl).")
    ],
    synthetic: Annotated[Path, typer.Argument(help="The synthetic texts, in a column of the same name.")],
    text: Annotated[str, typer.Option(help="Column of the texts.")],
    label: Annotated[str | None, typer.Option(help="Column of classes, to compare classifiers of it.")] = None,
    holdout: Annotated[
        Path | None,
        typer.Option(
            help="Real texts that the generator never saw; default: one half of REAL, which gives better figures."
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(help="Column of REAL (and --holdout) with the owner of each text, to hold out by owner."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=1000, help="Draws of texts; figures are means over them.")] = 5,
    sample: Annotated[int, typer.Option(min=50, help="Texts drawn from each larger table; more take longer.")] = 1000,
    clusters: Annotated[
        int | None, typer.Option(help="Clusters of MAUVE; default: a tenth of the texts of a trial.")
    ] = None,
) -> None:
    """Measures MAUVE, classifiers, divergences, diversity, verbatim runs and next tokens.

    Compares with real data: restricted.
    """
    import pyarrow as pa

    from dpsynth_platform.quality.figures import HEADER
    from dpsynth_platform.quality.files import read_file
    from dpsynth_platform.quality.text.corpora import HELD_OUT, check_apart, corpus_of, halves
    from dpsynth_platform.quality.text.report import SPLIT, measure_texts

    with bars(output.console) as progress, workspace("dpsynth-quality-"):
        # In CSV files, these columns are text even where their values look like numbers.
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


def _columns(option: str, texts: list[str] | None) -> list[str]:
    return column_names(option, texts, SourceError)
