"""`dpsynth scrub`: scrubbing of one file, how well it finds personal data, and rules of Presidio.

What belongs here: the commands' arguments and tables. What does not: finding and measuring (`scrub`), reading and
writing a file (`one_table.scrubbing`). No text of a file is printed, since it may contain personal data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.terminal import SEVERAL, Commands, TerminalOutput, column_names, workspace
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import bars
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.scrub.evaluation import Evaluation, Score

scrub_app = Commands(no_args_is_help=True, help="Scrubbing: removes personal data from texts, as far as it finds it.")
_RULES = (
    "YAML file with rules: `scrub:` as in a contract, or a recognizer registry of Presidio. What of the latter has no "
    "counterpart is printed."
)


@scrub_app.command("run")
def run(
    output: TerminalOutput,
    file: Annotated[
        Path,
        typer.Argument(help="Parquet file or a directory of them, Delta table, CSV file, or text file (.txt)."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="New file (.parquet, .csv, .txt) or Delta table (no suffix). Only your user account can read it."
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(help=f"The columns of texts to scrub, {SEVERAL}; default: all columns of texts."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help=f"Columns that stay as they are, without a check, {SEVERAL}."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help=f"Columns to leave out, {SEVERAL}. Their values are found in the row's texts."),
    ] = None,
    action: Annotated[
        Literal["replace", "mask", "hash", "drop"],
        typer.Option(
            metavar="<name>",
            help="What findings become: replace (fictional), mask (their type), hash (needs --key), or drop (nothing).",
        ),
    ] = "replace",
    rules: Annotated[Path | None, typer.Option(help=_RULES)] = None,
    dataset: Annotated[str | None, typer.Option(help="Use the rules of this dataset's contract.")] = None,
    owner: Annotated[
        str | None,
        typer.Option(help="The column that names the owner of a row: an original gets one fictional value per owner."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="File of the secret key for hash, and with --owner for the same values in several files; made if it "
            "does not exist. With it, guesses of originals can be tested."
        ),
    ] = None,
    *,
    dialect: CsvDialect,
) -> None:
    """Scrubs the texts of a file into a new file. Best effort, and no guarantee of privacy. Prints no text."""
    from dpsynth_platform.foundation.permissions import no_core_dumps
    from dpsynth_platform.one_table.scrubbing import scrub_file
    from dpsynth_platform.scrub.alone import ScrubChoice

    names = {
        option: tuple(column_names(f"--{option}", listed, ContractError))
        for option, listed in (("columns", columns), ("keep", keep), ("drop", drop))
    }
    own, notes = _rules(rules, dataset)
    choice = ScrubChoice(
        columns=names["columns"] or None,
        keep=names["keep"],
        drop=names["drop"],
        action=action,
        rules=own or Scrub(),
        owner=owner,
    )
    no_core_dumps()
    with bars(output.console) as progress, workspace("dpsynth-scrub-"):
        made = scrub_file(file, out, choice, dialect=dialect.as_dialect(), key=key, progress=progress)
    output.json(made.to_json() | {"rules_left_out": notes})
    _show_run(output, made.report, notes)
    output.print(f"{made.report['rows']} rows: {made.out}")
    for words in (made.report["limits"], made.report["no_guarantee"]):
        output.print()
        output.print(words)


@scrub_app.command("convert")
def convert(
    output: TerminalOutput,
    file: Annotated[Path, typer.Argument(help="YAML file with a recognizer registry of Presidio.")],
) -> None:
    """Prints the rules of a Presidio registry as `scrub:` of a contract, with what has no counterpart as comments."""
    from dpsynth_platform.foundation.yaml_files import dump
    from dpsynth_platform.scrub.rules_file import read_rules

    found = read_rules(file)
    document = {"scrub": found.rules.model_dump(exclude_defaults=True)}
    output.json(document | {"left_out": list(found.notes)})
    for note in found.notes:
        output.print(f"# {note}")
    output.print(dump(document))


@scrub_app.command("evaluate")
def evaluate(
    output: TerminalOutput,
    gold: Annotated[Path, typer.Argument(help="Texts with their personal data marked: Parquet or JSON lines.")],
    text: Annotated[str, typer.Option(help="Key of the text.")] = "text",
    spans: Annotated[str, typer.Option(help="Key of its spans: start, end (characters) and entity_type.")] = "spans",
    dataset: Annotated[str | None, typer.Option(help="Also use the rules of this dataset.")] = None,
    rules: Annotated[Path | None, typer.Option(help=_RULES)] = None,
) -> None:
    """Measures precision, recall, F1 and F2 by entity type, for exact and for overlapping spans. Prints no text."""
    from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
    from dpsynth_platform.scrub.detection import Document
    from dpsynth_platform.scrub.evaluation import evaluate as measure
    from dpsynth_platform.scrub.evaluation import read_gold
    from dpsynth_platform.scrub.parallel import ParallelDetector
    from dpsynth_platform.scrub.scrub import LIMITS

    own, notes = _rules(rules, dataset)
    with workspace("dpsynth-scrub-"):
        texts = read_gold(gold, text=text, spans=spans)
        with ParallelDetector(own) as detector:
            documents = [Document(item.text) for item in texts]
            ((_, found),) = detector.each([documents], lambda item: item)
        own_types = {item.entity for item in own.patterns} | own.deny.keys() if own else set()
        report = measure(texts, found, ENTITY_TYPES.keys() | own_types)
    output.json(report.to_json() | {"limits": LIMITS, "rules_left_out": notes})
    _show(output, report)
    _show_notes(output, notes)
    output.print()
    output.print(LIMITS)


def _rules(file: Path | None, dataset: str | None) -> tuple[Scrub | None, list[str]]:
    """The rules of a file or dataset, and what of them has no counterpart."""
    from dpsynth_platform.scrub.rules_file import read_rules
    from dpsynth_platform.synth.planning import load_dataset

    if file is not None and dataset is not None:
        raise ContractError("--rules and --dataset; accepted: one of them")
    if file is not None:
        found = read_rules(file)
        return found.rules, list(found.notes)
    return (load_dataset(Settings.from_environment(), dataset)[0].scrub if dataset else None), []


def _show_notes(output: TerminalOutput, notes: Sequence[str]) -> None:
    if notes:
        output.print("Of the rules:")
        for note in notes:
            output.print(f"- {note}")


def _show_run(output: TerminalOutput, report: Mapping[str, Any], notes: Sequence[str]) -> None:
    treated = [(name, "free text", _counts(report["findings"][name])) for name in report["free_text"]]
    treated += [(name, f"{kind}, each value", "") for name, kind in report["kinds"].items()]
    output.table(("column", f"scrubbed ({report['action']}) as", "found"), treated)
    for words, names in (
        ("kept without a check", report["kept"]),
        ("left out", report["dropped"]),
        ("unchanged; no value looks like personal data", report["checked"]),
    ):
        if names:
            output.print(f"{words}: {', '.join(names)}")
    if report["damaged"]:
        output.print(f"not UTF-8, with U+FFFD for invalid bytes: {_counts(report['damaged'])}")
    _show_notes(output, notes)


def _counts(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing"


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
