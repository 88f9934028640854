"""`dpsynth audit run|show`: audits of models and tables outside of a deployment, and all audit reports.

What belongs here: arguments, files and output. What does not: attacks and verdicts (`audit`), and the audit step of the
asset line (`dpsynth run`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpsynth_platform.cli.terminal import SEVERAL, Commands, Period, TerminalOutput, listed, workspace
from dpsynth_platform.foundation.errors import (
    AccountingError,
    ReleaseRefused,
    SourceError,
    StaleInput,
    VerificationFailed,
)
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import bars
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.audit.adhoc.outcomes import OwnAudit
    from dpsynth_platform.audit.attacks import Scored
    from dpsynth_platform.audit.bounds import Coins
    from dpsynth_platform.audit.risk import Reconstructed
    from dpsynth_platform.audit.tables import Evidence
    from dpsynth_platform.audit.tables.attributes import Inferred
    from dpsynth_platform.audit.tables.copies import Copies
    from dpsynth_platform.foundation.progress import Progress

REPORT, ROC, SCORES = "report.json", "roc.svg", "scores.parquet"

audit_app = Commands(no_args_is_help=True, help="Audits: what attacks prove about a model, a table or a release.")


@audit_app.command("run")
def audit_run(
    terminal: TerminalOutput,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="Attack scores: a row for each target, a column for each attack (higher: more likely a member), and a "
            "column of membership."
        ),
    ] = None,
    included: Annotated[
        str, typer.Option(help="Column of SCORES for membership: true and false, or 1 and 0.")
    ] = "included",
    attack: Annotated[
        list[str] | None, typer.Option(help=f"Columns of scores, or attacks on a table, {SEVERAL}; default: all.")
    ] = None,
    synthetic: Annotated[Path | None, typer.Option(help="Instead of scores: a synthetic table to attack.")] = None,
    synthesis: Annotated[
        Path | None,
        typer.Option(help="With --synthetic: the --out directory of `dpsynth synth table`; attacks its model, too."),
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(min=4, help="With --synthesis: number of shadow models, such as 16, for attacks that need them."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Instead of scores: a language model to attack; a directory with safetensors, or a .gguf file."
        ),
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The model from which the training of --model started.")
    ] = None,
    members: Annotated[Path | None, typer.Option(help="Rows that the generator used.")] = None,
    non_members: Annotated[Path | None, typer.Option(help="Rows of the same population that it did not use.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="More rows of the population that it did not use, for stronger attacks.")
    ] = None,
    categorical: Annotated[list[str] | None, typer.Option(help=f"Columns whose numbers are codes, {SEVERAL}.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help=f"Columns to leave out, such as ids, {SEVERAL}.")] = None,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(help=f"With --reference: columns to infer from the others, {SEVERAL}."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Column of texts in all tables: attacks on texts, which read no other column.")
    ] = None,
    outliers: Annotated[
        float | None, typer.Option(help="With --text: attack only this share of the texts, the most unusual ones.")
    ] = None,
    design: Annotated[
        Literal["coins", "runs", "groups"],
        typer.Option(
            help="How members were chosen. coins: one run, a fair coin for each row; runs: each row is a separate run, "
            "with or without one target; groups: neither, so that no bound on epsilon follows."
        ),
    ] = "groups",
    canaries: Annotated[
        bool, typer.Option("--canaries", help="The rows are fictional, made without the data, and may be published.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="The claimed epsilon; without it there is no verdict.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of the claim and of the bounds.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Confidence of all bounds together.")] = 0.95,
    guess_in: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the rows guessed to be members; choose it before the audit.")
    ] = 0.125,
    guess_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the rows guessed to be non-members.")
    ] = 0.125,
    output: Annotated[
        Path | None, typer.Option(help="New directory for report, plot and raw scores, for this user alone.")
    ] = None,
) -> None:
    """Audits your own model or table: by scores of your attacks, or by attacks on rows, texts or a language model.

    With --epsilon there is a verdict, and exit status 1 unless the audit passes.
    """
    given = dict(locals())
    from dpsynth_platform.audit.adhoc.outcomes import HEADER, audit_scores
    from dpsynth_platform.sources.table_files import check_exists

    if output is not None and output.exists():
        raise SourceError(f"--output {output} exists; accepted: a new directory")
    if guess_in + guess_out > 1:
        raise SourceError(f"--guess-in {guess_in:g} and --guess-out {guess_out:g}; accepted: at most 1 together")
    named = {"synthetic table": synthetic, "members": members, "non-members": non_members, "reference": reference}
    paths = {name: path for name, path in named.items() if path is not None}
    for path in paths.values():
        check_exists(path)
    _check_together(given)
    with bars(terminal.console) as progress, workspace("dpsynth-audit-"):
        if scores is not None:
            attacked = _scores_of(scores, included, attack, guess_in, guess_out, canaries)
        elif model is not None and text is not None:
            attacked = _model_of(model, base_model, paths, text, outliers, canaries)
        elif text is not None:
            attacked = _texts_of(paths, text, attack, outliers, canaries)
        elif synthesis is not None:
            attacked = _synthesis_of(synthesis, paths, attack, shadows or 0, canaries, progress)
        else:
            attacked = _tables_of(paths, attack, categorical, drop, sensitive, canaries)
        audit = audit_scores(**vars(attacked), design=design, epsilon=epsilon, delta=delta, confidence=confidence)
    terminal.json(audit.to_json())
    terminal.print(audit.summary)
    terminal.print()
    terminal.table(HEADER, audit.table())
    if output is not None:
        _write(output, audit, attacked.scored, attacked.included)
        terminal.print(f"report, plot and raw scores are in {output}")
    if audit.verdict not in (None, "pass"):
        raise typer.Exit(1)


@audit_app.command("show")
def audit_show(
    output: TerminalOutput,
    what: Annotated[
        str,
        typer.Argument(help="A dataset, the id or directory of a release, or the output of `dpsynth audit run`."),
    ],
    period: Period = None,
) -> None:
    """Shows the audit of a dataset's current candidate, of a release, or from `dpsynth audit run`."""
    from dpsynth_platform.audit.adhoc.outcomes import FORMAT, HEADER, OwnAudit
    from dpsynth_platform.reviewing.decisions import AUDIT_HEADER, AUDIT_LEGEND, attack_rows

    document = _document(what, period)
    if document.get("format") == FORMAT:
        audit = OwnAudit.from_json(document)
        output.json(audit.to_json())
        output.print(audit.summary)
        output.print()
        output.table(HEADER, audit.table())
        return
    from dpsynth_platform.audit.canary_cost import COST_HEADER, cost_rows
    from dpsynth_platform.audit.verdict import KINDS_HEADER, AuditReport, kind_row

    report = AuditReport.from_json(document).to_json()
    output.json(report)
    output.print(report["summary"])
    output.print()
    output.table(AUDIT_HEADER, attack_rows(report))
    output.print(AUDIT_LEGEND)
    if report["of_kinds"]:
        output.print()
        output.table(KINDS_HEADER, [kind_row(item) for item in report["of_kinds"]])
    if report["cost"] is not None and (columns := cost_rows(report["cost"])):  # of linked tables, none
        output.print()
        output.table(COST_HEADER, columns)


@dataclass(frozen=True)
class _Attacked:
    """What `audit_scores` needs to know of the attacks."""

    of: str
    scored: list[Scored]
    included: Coins
    publishable: bool
    copies: tuple[Copies, ...] = ()
    reconstructed: tuple[Reconstructed, ...] = ()
    inferred: tuple[Inferred, ...] = ()


_TABLES = frozenset(["synthetic", "members", "non_members"])
_TOGETHER = {
    "scores": (frozenset(["scores"]), frozenset(["attack"])),
    "rows": (_TABLES, frozenset(["attack", "reference", "categorical", "drop", "sensitive"])),
    "synthesis": (_TABLES | {"synthesis"}, frozenset(["attack", "reference", "shadows"])),
    "texts": (_TABLES | {"text"}, frozenset(["attack", "reference", "outliers"])),
    "model": (frozenset(["model", "members", "non_members", "text"]), frozenset(["base_model", "outliers"])),
}
"""For each kind of target: the options that it needs, and further ones that it accepts."""


def _check_together(options: Mapping[str, Any]) -> None:
    """Refuses options that do not belong together. Raises `SourceError`."""
    known = frozenset[str]().union(*(names for kinds in _TOGETHER.values() for names in kinds))
    given = {name for name in known if options[name] not in (None, [])}
    if len(given & {"scores", "synthetic", "model"}) > 1:
        raise SourceError("--scores, --synthetic, --model; accepted: one of them")
    tables = "texts" if "text" in given else "rows"
    kind = next((name for name in ("scores", "model", "synthesis") if name in given), tables)
    needed, besides = _TOGETHER[kind]
    if lacking := needed - given:
        raise SourceError(
            f"{_options(lacking)}: missing; accepted: --scores FILE, or all three tables, or --model with --members, "
            "--non-members and --text"
        )
    if wrong := given - needed - besides:
        raise SourceError(f"{_options(wrong)} beside {_options(needed)}; accepted: {_options(besides)}")


def _options(names: Collection[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _scores_of(
    path: Path, included: str, attacks: list[str] | None, guess_in: float, guess_out: float, canaries: bool
) -> _Attacked:
    from dpsynth_platform.audit.scores import read_scores
    from dpsynth_platform.quality.files import read_file

    table = read_file(path)
    scored, was_in = read_scores(
        table, included=included, names=listed(attacks), share_in=guess_in, share_out=guess_out
    )
    return _Attacked(f"the scores in {path.name}", scored, was_in, canaries)


def _tables_of(
    paths: dict[str, Path],
    attacks: list[str] | None,
    categorical: list[str] | None,
    drop: list[str] | None,
    sensitive: list[str] | None,
    canaries: bool,
) -> _Attacked:
    from dpsynth_platform.audit.adhoc.tables import MEMBERS, SYNTHETIC, membership, table_evidence
    from dpsynth_platform.quality.one_type import read_tables

    members_first = {MEMBERS: paths[MEMBERS]} | paths
    tables = read_tables(members_first, without=listed(drop), categorical=listed(categorical))
    evidence = table_evidence(tables, listed(categorical), canaries=canaries)
    of = f"the synthetic table {paths[SYNTHETIC].name}"
    return _rows_attacked(of, evidence, membership(tables), attacks, listed(sensitive))


def _synthesis_of(
    out: Path, paths: dict[str, Path], attacks: list[str] | None, shadows: int, canaries: bool, progress: Progress
) -> _Attacked:
    from dpsynth_platform.audit.adhoc.tables import SYNTHETIC, membership
    from dpsynth_platform.one_table.audit import synthesis_evidence, with_shadows

    tables = _read_tables(paths)
    evidence = with_shadows(synthesis_evidence(out, tables, canaries=canaries), shadows, progress=progress)
    of = f"the synthetic table {paths[SYNTHETIC].name} and the model in {out.name}"
    return _rows_attacked(of, evidence, membership(tables), attacks)


def _rows_attacked(
    of: str, evidence: Evidence, included: Coins, attacks: list[str] | None, sensitive: Collection[str] = ()
) -> _Attacked:
    from dpsynth_platform.audit.adhoc.tables import copies_of, score_tables
    from dpsynth_platform.audit.tables.attributes import count_inferred

    return _Attacked(
        of,
        score_tables(evidence, listed(attacks)),
        included,
        evidence.publishable,
        copies_of(evidence, included),
        inferred=tuple(count_inferred(evidence, included, column) for column in sensitive),
    )


def _texts_of(
    paths: dict[str, Path], column: str, names: list[str] | None, outliers: float | None, canaries: bool
) -> _Attacked:
    from dpsynth_platform.audit.adhoc.tables import SYNTHETIC
    from dpsynth_platform.audit.adhoc.texts import text_copies_of, text_evidence
    from dpsynth_platform.audit.texts import attacks

    evidence, included = text_evidence(_read_tables(paths), column, canaries=canaries, share=outliers)
    of = f"the texts {column!r} of {paths[SYNTHETIC].name}"
    scored = attacks(evidence, listed(names) or None)
    return _Attacked(of, scored, included, evidence.publishable, (text_copies_of(evidence, included),))


def _model_of(
    model: str, base: str | None, paths: dict[str, Path], column: str, outliers: float | None, canaries: bool
) -> _Attacked:
    from dpsynth_platform.audit.adhoc.language_model import score_model
    from dpsynth_platform.audit.adhoc.texts import text_targets

    settings = Settings.from_environment()
    targets, included = text_targets(_read_tables(paths), column, outliers)
    scored, reconstructed = score_model(
        model, base, targets, included, cache=settings.base_models, hub=settings.model_hub
    )
    of = f"the language model {Path(model).name}"
    return _Attacked(of, scored, included, canaries, reconstructed=reconstructed)


def _read_tables(paths: dict[str, Path]) -> dict[str, pa.Table]:
    """All tables; text columns of the members are text in the others, too."""
    from dpsynth_platform.audit.adhoc.tables import MEMBERS
    from dpsynth_platform.quality.files import read_file

    like = read_file(paths[MEMBERS]).schema
    return {name: read_file(path, like=like) for name, path in paths.items()}


def _write(directory: Path, audit: OwnAudit, scored: list[Scored], included: Coins) -> None:
    import pyarrow.parquet as pq

    from dpsynth_platform.audit.plots import roc_plot
    from dpsynth_platform.audit.scores import scores_table

    private_directory(directory)
    with private_files():
        (directory / REPORT).write_text(json.dumps(audit.to_json(), indent=1), encoding="utf-8")
        plot = roc_plot(scored, included, epsilon=audit.claimed_epsilon, delta=audit.delta)
        (directory / ROC).write_text(plot, encoding="utf-8")
        pq.write_table(scores_table(scored, included), directory / SCORES)


def _document(what: str, period: str | None) -> dict[str, Any]:
    """The report in a file or directory, of a dataset's audit step, or of a release."""
    from dpsynth_platform.foundation.release_layout import DOSSIER
    from dpsynth_platform.foundation.storage import Place, Storage
    from dpsynth_platform.release.evidence import audit_report
    from dpsynth_platform.reviewing.verification import find_release

    path = Path(what)
    if path.is_file():
        return _read(path)
    if (path / REPORT).is_file():
        return _read(path / REPORT)
    settings = Settings.from_environment()
    place = Place(what, period)
    record = Storage(settings.restricted).read(place, "audit") if path.name == what else None
    if record is not None:
        return audit_report(place, record)
    try:
        found = find_release(settings, what)
    except VerificationFailed:
        raise StaleInput(
            f"{what}: not an audit report, a dataset with an audit{' of that period' if period else ''}, or a release; "
            "make an audit with: dpsynth run, or dpsynth audit run --output"
        ) from None
    dossier = _read(found / DOSSIER)
    report = dossier.get("audit", {}).get("report")
    if not isinstance(report, dict):
        raise ReleaseRefused(f"{found / DOSSIER}: contains no audit report")
    return report


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise AccountingError(f"{path}: the report cannot be read ({reason_of(error)})") from None
    if not isinstance(document, dict):
        raise AccountingError(f"{path}: the report is not a JSON object; accepted: the output of `dpsynth audit run`")
    return document
