"""`dpsynth bench`: methods that write texts, compared on texts that are declared public.

What belongs here: arguments and output. What does not: the cells (`one_table.text_comparison`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.compare import numbers
from dpsynth_platform.cli.terminal import SEVERAL, Commands, TerminalOutput, listed, workspace
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import bars

bench_app = Commands(no_args_is_help=True, help="Benchmarks of methods on public data.")


@bench_app.callback()
def _of_public_data() -> None:
    """Benchmarks of methods on public data."""


@bench_app.command("text")
def bench_text(
    output: TerminalOutput,
    public: Annotated[
        Path,
        typer.Option(
            help="The texts: Parquet, CSV or JSON lines (.jsonl) file, or Delta table. Nothing protects them."
        ),
    ],
    public_why: Annotated[str, typer.Option(help="Why the texts are public; the result says it.")],
    out: Annotated[
        Path, typer.Option(help="Directory of the result; the same command again does only what is missing there.")
    ],
    set_: Annotated[
        str | None,
        typer.Option("--set", metavar="<name>", help="The set of SynBench that the texts are, such as zstfns or hoc."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Column of the texts; default: that of --set, if it is known.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of labels or of lists of labels; default: that of --set.")
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="What divides several labels in one value; default: a value is one label.")
    ] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="Real texts that methods never see; default: a fifth of the texts.")
    ] = None,
    about: Annotated[
        str | None,
        typer.Option(
            help="What the texts are, in public words; aug_pe and dp_inference need them. Default: those of --set."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<names>",
            help=f"dp_finetune, ctcl, aug_pe, dp_inference, {SEVERAL}; default: dp_finetune and aug_pe.",
        ),
    ] = None,
    epsilon: Annotated[
        list[str] | None, typer.Option(metavar="<numbers>", help=f"Epsilons, {SEVERAL}; default: 0.5, 1, 2 and 4.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of each run; default: 1/n^1.1 with n texts.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=50, help="Synthetic texts of each run; default: as many as are read.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The language model of all methods, by name or path; default: smollm2-135m.")
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            help="YAML file: by method (or `all`), `text`, `training` and `scrub` as in a schema of `synth text`."
        ),
    ] = None,
    membership: Annotated[
        int,
        typer.Option(
            min=0,
            help="Releases of SynBench's membership attack for each method and epsilon, each a run; the paper has 100. "
            "Default: no attack.",
        ),
    ] = 0,
    pretraining: Annotated[
        bool,
        typer.Option(
            "--pretraining", help="Test whether the base model prefers the order of the file, as if it had read it."
        ),
    ] = False,
    trials: Annotated[int, typer.Option(min=1, max=1000, help="Draws of texts for fidelity.")] = 3,
    sample: Annotated[int, typer.Option(min=50, help="Most texts of each table for fidelity.")] = 1000,
) -> None:
    """Compares methods that write texts, on public texts: utility, fidelity and membership. No budget is spent.

    Every method and epsilon is a run of `dpsynth synth text`, which trains or asks a language model: minutes to hours.
    On a private table each would be paid for, and so would the choice.
    """
    from dpsynth_platform.foundation.yaml_files import read_yaml
    from dpsynth_platform.one_table.text_comparison import EPSILONS, METHODS, TextBench, compare_texts
    from dpsynth_platform.one_table.text_result import LEGEND, NOTICE
    from dpsynth_platform.one_table.text_sources import named_set
    from dpsynth_platform.synth.text.base_models import DEFAULT

    known = named_set(set_)
    if known is not None:
        text, label = text or known.text, label or known.label
    if text is None or label is None:
        why = "missing" if known is None else f"missing, and those of the set {set_} are not known"
        raise ContractError(f"--text and --label: {why}; accepted: the columns of the texts and their labels")
    bench = TextBench(
        table=public,
        why=public_why,
        text=text,
        label=label,
        separator=separator,
        held_out=holdout,
        about=about,
        delta=delta,
        rows=rows,
        base_model=base_model or DEFAULT,
        settings=None if settings is None else read_yaml(settings),
        membership=membership,
        pretraining=pretraining,
        trials=trials,
        sample=sample,
        known=known,
    )
    with bars(output.console) as progress, workspace("dpsynth-bench-"):
        found = compare_texts(
            bench,
            out,
            methods=listed(method) or METHODS,
            epsilons=numbers(listed(epsilon)) or EPSILONS,
            progress=progress,
        )
    output.json(found.to_json())
    output.print(found.about)
    for group, (header, *lines) in found.tables().items():
        output.heading(group)
        output.table(header, lines)
    for line in found.refused:
        output.print(f"no figures: {line}")
    output.print()
    output.print(LEGEND)
    output.print(NOTICE)
    output.print(f"result, figures and synthetic texts: {out}")
