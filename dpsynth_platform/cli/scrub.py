"""`dpsynth scrub`: how well scrubbing finds personal data.

What belongs here: the command's arguments and tables. What does not: finding and measuring (`scrub`). It never prints a
text of a gold set, which may contain personal data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import Commands, TerminalOutput, workspace
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.scrub.evaluation import Evaluation, Score

scrub_app = Commands(no_args_is_help=True, help="Scrubbing: how well it finds personal data.")


@scrub_app.command("evaluate")
def evaluate(
    output: TerminalOutput,
    gold: Annotated[Path, typer.Argument(help="Texts with their personal data marked: Parquet or JSON lines.")],
    text: Annotated[str, typer.Option(help="Key of the text.")] = "text",
    spans: Annotated[str, typer.Option(help="Key of its spans: start, end (characters) and entity_type.")] = "spans",
    dataset: Annotated[str | None, typer.Option(help="Also use the rules of this dataset.")] = None,
) -> None:
    """Measures precision, recall, F1 and F2 by entity type, for exact and for overlapping spans. Prints no text."""
    from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
    from dpsynth_platform.scrub.detection import Document
    from dpsynth_platform.scrub.evaluation import evaluate as measure
    from dpsynth_platform.scrub.evaluation import read_gold
    from dpsynth_platform.scrub.parallel import ParallelDetector
    from dpsynth_platform.scrub.scrub import LIMITS
    from dpsynth_platform.synth.planning import load_dataset

    own = load_dataset(Settings.from_environment(), dataset)[0].scrub if dataset else None
    with workspace("dpsynth-scrub-"):
        texts = read_gold(gold, text=text, spans=spans)
        with ParallelDetector(own) as detector:
            documents = [Document(item.text) for item in texts]
            ((_, found),) = detector.each([documents], lambda item: item)
        own_types = {item.entity for item in own.patterns} | own.deny.keys() if own else set()
        report = measure(texts, found, ENTITY_TYPES.keys() | own_types)
    output.json(report.to_json() | {"limits": LIMITS})
    _show(output, report)
    output.print()
    output.print(LIMITS)


def _show(output: TerminalOutput, report: Evaluation) -> None:
    for rule, words in (("exact", "same type, start and end"), ("overlapping", "same type, at least half in common")):
        output.heading(f"{report.texts} texts, {rule} spans ({words})")
        scores = {"all": report.total(rule)} | dict(getattr(report, rule))
        output.table(
            ("type", "gold", "found", "precision", "recall", "F1", "F2"),
            [(name, *cells(score)) for name, score in scores.items()],
        )
    output.heading("Share of marked characters that would be removed, by any type")
    output.table(
        ("type", "removed", "spans not found"),
        [(name, f"{share:.3f}", report.missed.get(name, 0)) for name, share in report.covered.items()],
    )
    if report.confused:
        output.heading("Found as another type")
        output.table(
            ("type", "found as (times)"),
            [
                (name, ", ".join(f"{other} ({times})" for other, times in others.items()))
                for name, others in report.confused.items()
            ],
        )
    if report.unjudged:
        others = ", ".join(f"{name} ({times})" for name, times in report.unjudged.items())
        output.print(f"not judged, since the gold set marks no such type: {others}")
    if report.merged:
        output.print(
            f"compared as another type: {', '.join(f'{one} as {other}' for one, other in report.merged.items())}"
        )
    if report.unknown:
        output.print(
            f"types of the gold set that scrubbing does not have: {', '.join(report.unknown)}; accepted: the types in "
            "docs/guides/scrubbing.md, and those of a dataset's rules (--dataset)"
        )


def cells(score: Score) -> tuple[str, ...]:
    """Gold, found, precision, recall, F1, F2."""
    measures = (score.precision, score.recall, score.f(1), score.f(2))
    return (str(score.gold), str(score.found), *("-" if value is None else f"{value:.3f}" for value in measures))
