"""`dpsynth audit run|show`: audits of a dataset's line, of a release, and of anything of one's own.

What belongs here: arguments, files, and showing what the library returns. What does not: attacks and judgement
(`audit`), and the asset line, whose audit is one of its steps (`dpsynth run`).
"""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.errors import AccountingError, ReleaseRefused, SourceError, StaleInput, VerificationFailed
from dpsynth_platform.permissions import private_directory, private_files
from dpsynth_platform.settings import Settings
from dpsynth_platform.storage import Place, Storage
from dpsynth_platform.terminal import SEVERAL, Json, Period, Shown, command, listed, workspace

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.audit.attacks import Scored
    from dpsynth_platform.audit.bounds import Coins
    from dpsynth_platform.audit.own import OwnAudit
    from dpsynth_platform.audit.tables.copies import Copies

REPORT, ROC, SCORES = "report.json", "roc.svg", "scores.parquet"

audit_app = typer.Typer(no_args_is_help=True, help="Audits: what attacks prove of a model, a table or a release.")


class DesignName(enum.StrEnum):
    """How those who were in were chosen."""

    coins = "coins"
    runs = "runs"
    groups = "groups"


@audit_app.callback()
def _audit() -> None:
    """Audits: what attacks prove of a model, a table or a release."""


@audit_app.command("run")
@command
def audit_run(
    scores: Annotated[
        Path | None,
        typer.Option(help="Scores of attacks: one row a target, one column an attack (higher: rather in), who was in."),
    ] = None,
    included: Annotated[
        str, typer.Option(help="Column of SCORES that says who was in: true and false, or 1 and 0.")
    ] = "included",
    attack: Annotated[
        list[str] | None, typer.Option(help=f"Columns of scores, or attacks on a table, {SEVERAL}; default: all.")
    ] = None,
    synthetic: Annotated[Path | None, typer.Option(help="Instead of scores: a synthetic table to attack.")] = None,
    members: Annotated[Path | None, typer.Option(help="Rows that its generator had.")] = None,
    non_members: Annotated[Path | None, typer.Option(help="Rows of the same kind that it did not have.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="More rows of the population that it did not have, for stronger attacks.")
    ] = None,
    categorical: Annotated[list[str] | None, typer.Option(help=f"Columns whose numbers are codes, {SEVERAL}.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help=f"Columns to leave out, such as ids, {SEVERAL}.")] = None,
    text: Annotated[
        str | None, typer.Option(help="Column of texts in all tables: attacks on texts, which look at nothing else.")
    ] = None,
    outliers: Annotated[
        float | None, typer.Option(help="With --text: ask only about this share of the texts, the most unusual ones.")
    ] = None,
    design: Annotated[
        DesignName,
        typer.Option(
            help="coins: one run, each row in by a fair coin of its own; runs: each row is a run of its own, with or "
            "without one target; groups: neither, so that no bound on epsilon follows."
        ),
    ] = DesignName.groups,
    canaries: Annotated[
        bool, typer.Option("--canaries", help="The rows are fictional, made without the data; may be published.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="The claim; without it there is no verdict.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of the claim and of the bounds.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Of all bounds together.")] = 0.95,
    guess_in: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the rows guessed in; fix it beforehand.")
    ] = 0.125,
    guess_out: Annotated[float, typer.Option(min=0, max=1, help="Share of the rows guessed out.")] = 0.125,
    output: Annotated[
        Path | None, typer.Option(help="New directory for report, plot and raw scores, for this user alone.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Audits a model or table of your own: by scores of your attacks, or by attacks on a synthetic table or its texts.

    Without --epsilon nothing is judged, and it ends with 0; with it, it ends with 1 unless it passes.
    """
    from dpsynth_platform.audit.own import HEADER, audit_scores

    shown = Shown(as_json)
    if output is not None and output.exists():
        raise SourceError(f"--output {output} is there already; accepted: a directory that is not")
    if outliers is not None and text is None:
        raise SourceError("--outliers without --text; accepted: with the column of texts")
    if text is not None and (scores is not None or categorical or drop):
        raise SourceError("--text with --scores, --categorical or --drop; accepted: with three tables")
    if guess_in + guess_out > 1:
        raise SourceError(f"--guess-in {guess_in:g} and --guess-out {guess_out:g}; accepted: at most 1 together")
    tables = {"--synthetic": synthetic, "--members": members, "--non-members": non_members}
    copies: tuple[Copies, ...] = ()
    with workspace("dpsynth-audit-"):
        if scores is not None:
            if any(tables.values()) or reference is not None:
                raise SourceError("--scores or --synthetic; accepted: one of them")
            scored, was_in = _scores_of(scores, included, attack, guess_in, guess_out)
            of, publishable = f"the scores in {scores.name}", canaries
        else:
            lacking = [name for name, path in tables.items() if path is None]
            if synthetic is None or members is None or non_members is None:
                raise SourceError(f"{', '.join(lacking)}: missing; accepted: --scores FILE, or all three tables")
            paths = {"synthetic table": synthetic, "members": members, "non-members": non_members}
            paths |= {} if reference is None else {"reference": reference}
            if text is None:
                scored, was_in, publishable, copies = _tables_of(paths, attack, categorical, drop, canaries)
                of = f"the synthetic table {synthetic.name}"
            else:
                scored, was_in, publishable, copies = _texts_of(paths, text, attack, outliers, canaries)
                of = f"the texts {text!r} of {synthetic.name}"
        audit = audit_scores(
            of,
            scored,
            was_in,
            design=design.value,
            publishable=publishable,
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            copies=copies,
        )
    shown.json(audit.to_json())
    shown.say(audit.summary)
    shown.say()
    shown.table(HEADER, audit.table())
    if output is not None:
        _write(output, audit, scored, was_in)
        shown.say(f"report, plot and raw scores are in {output}")
    if audit.verdict not in (None, "pass"):
        raise typer.Exit(1)


@audit_app.command("show")
@command
def audit_show(
    what: Annotated[
        str,
        typer.Argument(help="A dataset, the id or directory of a release, or what `dpsynth audit run --output` wrote."),
    ],
    period: Period = None,
    as_json: Json = False,
) -> None:
    """Shows an audit: of a dataset's present candidate, of a release, or one of your own."""
    from dpsynth_platform.audit.own import FORMAT, HEADER, OwnAudit
    from dpsynth_platform.reviewing.decisions import AUDIT_HEADER, attack_row

    shown = Shown(as_json)
    document = _document(what, period)
    if document.get("format") == FORMAT:
        audit = OwnAudit.from_json(document)
        shown.json(audit.to_json())
        shown.say(audit.summary)
        shown.say()
        shown.table(HEADER, audit.table())
        return
    from dpsynth_platform.audit.verdict import AuditReport

    report = AuditReport.from_json(document).to_json()
    shown.json(report)
    shown.say(report["summary"])
    shown.say()
    shown.table(AUDIT_HEADER, [attack_row(item) for item in report["attacks"]])


def _scores_of(
    path: Path, included: str, attacks: list[str] | None, guess_in: float, guess_out: float
) -> tuple[list[Scored], Coins]:
    from dpsynth_platform.audit.scores import read_scores
    from dpsynth_platform.quality.files import read_file

    table = read_file(path)
    return read_scores(table, included=included, names=listed(attacks), share_in=guess_in, share_out=guess_out)


def _tables_of(
    paths: dict[str, Path],
    attacks: list[str] | None,
    categorical: list[str] | None,
    drop: list[str] | None,
    canaries: bool,
) -> tuple[list[Scored], Coins, bool, tuple[Copies, ...]]:
    from dpsynth_platform.audit.own_tables import MEMBERS, copies_of, score_tables, table_evidence, who_was_in
    from dpsynth_platform.quality.files import read_file

    left_out = listed(drop)
    like = read_file(paths[MEMBERS], without=left_out).schema
    tables: dict[str, pa.Table] = {name: read_file(path, without=left_out, like=like) for name, path in paths.items()}
    evidence = table_evidence(tables, listed(categorical), canaries=canaries)
    included = who_was_in(tables)
    return score_tables(evidence, listed(attacks)), included, evidence.publishable, copies_of(evidence, included)


def _texts_of(
    paths: dict[str, Path], column: str, names: list[str] | None, outliers: float | None, canaries: bool
) -> tuple[list[Scored], Coins, bool, tuple[Copies, ...]]:
    from dpsynth_platform.audit.own_tables import MEMBERS
    from dpsynth_platform.audit.own_texts import text_copies_of, text_evidence
    from dpsynth_platform.audit.texts import attacks
    from dpsynth_platform.quality.files import read_file

    like = read_file(paths[MEMBERS]).schema
    tables = {name: read_file(path, like=like) for name, path in paths.items()}
    evidence, included = text_evidence(tables, column, canaries=canaries, share=outliers)
    scored = attacks(evidence, listed(names) or None)
    return scored, included, evidence.publishable, (text_copies_of(evidence, included),)


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
    """The report of a file or directory, of a dataset's audit step, or of a release."""
    from dpsynth_platform.release.evidence import audit_report
    from dpsynth_platform.release.layout import DOSSIER
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
            f"{what}: no file or directory of an audit, no dataset with an audit{' of that period' if period else ''}, "
            "and no release; make one with: dpsynth run, or dpsynth audit run --output"
        ) from None
    dossier = _read(found / DOSSIER)
    report = dossier.get("audit", {}).get("report")
    if not isinstance(report, dict):
        raise ReleaseRefused(f"{found / DOSSIER}: it has no audit report")
    return report


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AccountingError(f"{path}: the report cannot be read ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise AccountingError(f"{path}: the report is no JSON object; accepted: what `dpsynth audit run` wrote")
    return document
