"""The parts of a dossier as pages show them: guarantee, audit, verification, columns, counts, quality.

What belongs here: read models of what one release or candidate says, and making them of the library's values. What does
not: finding releases (`listing`), and pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import View, part
from dpsynth_platform.contracts.family import leaves_out_in_silence
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import Decision
from dpsynth_platform.lineage.clearance import SAID
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.report_rows import LEGEND
from dpsynth_platform.release.dossier import check_svg
from dpsynth_platform.release.drawing import lineage_graph, sparkline, sparkline_text
from dpsynth_platform.release.evidence import APPROVE, REFUSE, WITHDRAW
from dpsynth_platform.release.page import TREATMENTS
from dpsynth_platform.release.verify import KIND_WORDS
from dpsynth_platform.reviewing import decisions, verification


@dataclass(frozen=True)
class GuaranteeView(View):
    """A guarantee with all that it means nothing without.

    Attributes:
        tier: `strong`, `reasonable` or `weak`; None where it is of each of two mechanisms that are released together.
        words: epsilon and delta in one short phrase, rounded up.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    max_contributions: int
    weighting: str
    tier: str | None
    words: str


@dataclass(frozen=True)
class DecisionView(View):
    """Somebody's word on a candidate or a release.

    Attributes:
        decision: `approved`, `refused` or `withdrawn`.
        at: ISO 8601, UTC.
        reason: their words; may be empty for an approval.
        sequence: number of the event in the ledger's chain.
        release: id of the release that was withdrawn, else None.
    """

    decision: str
    by: str
    at: str
    reason: str
    sequence: int
    release: str | None


@dataclass(frozen=True)
class ProblemView(View):
    """One thing that is not as it was signed.

    Attributes:
        kind: `signature`, `missing`, `unlisted`, `hash`, `schema`, `chain-head`, `table` or `withdrawn`.
        meaning: the kind in words.
        file: relative name of the file.
        where: JSON path inside of it, where one can be told.
    """

    kind: str
    meaning: str
    file: str
    message: str
    where: str | None


@dataclass(frozen=True)
class VerificationView(View):
    """What verifying a release found.

    Attributes:
        at: when its files were last read for it, ISO 8601, UTC. They are read again when any of them changes.
        words: the whole report in sentences.
        files: how many listed files were compared.
        rows: of the published table, where it could be opened.
    """

    ok: bool
    at: str
    words: str
    key_note: str
    problems: tuple[ProblemView, ...]
    files: int
    rows: int | None


@dataclass(frozen=True)
class AuditView(View):
    """An audit on fictional canaries: publishable.

    Attributes:
        verdict: `pass`, `fail` or `inconclusive`.
        header, rows: the table of attacks.
        plots: SVG by title.
    """

    verdict: str
    summary: str
    epsilon_lower_bound: float
    highest_bound: float
    confidence: float
    canaries: int
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plots: dict[str, str]


@dataclass(frozen=True)
class CountView(View):
    """One exact count along the line: the operator's, covered by no guarantee."""

    step: str
    what: str
    count: int


@dataclass(frozen=True)
class QualityView(View):
    """Comparison with real rows: restricted, for those who may `READ_QUALITY`.

    Attributes:
        legend: the measures' names in words.
        plots: SVG by title.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: str
    plots: dict[str, str]


@dataclass(frozen=True)
class ColumnView(View):
    """A column of the published table.

    Attributes:
        treatment: what became of it, in words.
        values: its synthetic values in words; empty where nothing is shown.
        plot: SVG of its synthetic values, or None.
    """

    name: str
    type: str | None
    treatment: str
    values: str
    plot: str | None


@dataclass(frozen=True)
class ClearanceView(View):
    """What was known of mechanisms on the same people: public.

    Attributes:
        findings: what the release adds to, a line each.
        together: what all of it promises together, in sentences.
    """

    policy: str
    findings: tuple[str, ...]
    together: tuple[str, ...]


@dataclass(frozen=True)
class DossierView(View):
    """A public dossier as it was signed.

    Attributes:
        guarantee: what it promises: the smaller of two proven bounds.
        plain_words: that in sentences, the most important first.
        covered, not_covered: data accesses that the guarantee holds for, and those that it does not.
        assumptions: what it rests on: each with whether it holds, and what makes it hold.
        figures: quality that follows from the plan alone, by name.
        graph: SVG of the steps that led to it.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
        contacts: people to ask.
    """

    description: str
    demonstration: bool
    created_at: str
    license: str | None
    contacts: tuple[str, ...]
    guarantee: GuaranteeView
    accounting: str
    why_weak: str | None
    plain_words: tuple[str, ...]
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    assumptions: tuple[tuple[str, str, str], ...]
    method: str
    why_method: str
    rows: int
    columns: tuple[ColumnView, ...]
    scrubbing: str
    bounding: str
    figures: dict[str, float]
    audit: AuditView
    clearance: ClearanceView
    budget: str
    approvals_needed: int
    graph: str
    mostly_missing: tuple[str, ...] = ()


DECIDED = {APPROVE: "approved", REFUSE: "refused", WITHDRAW: "withdrawn"}


def guarantee_view(guarantee: Guarantee, *, of_each: bool = False) -> GuaranteeView:
    """A guarantee as pages show it.

    Args:
        of_each: whether it is of each of two mechanisms, and a release promises both together.
    """
    words = f"epsilon {upper_bound(guarantee.epsilon)}, delta {upper_bound(guarantee.delta)} for one {guarantee.unit}"
    return GuaranteeView(
        **asdict(guarantee),
        tier=None if of_each else guarantee.tier,
        words=f"{words}, by each of two mechanisms" if of_each else words,
    )


def decision_view(decision: Decision) -> DecisionView:
    """A decision as pages show it."""
    return DecisionView(
        decision=DECIDED[decision.decision],
        by=decision.by,
        at=decision.at,
        reason=decision.reason,
        sequence=decision.sequence,
        release=decision.release,
    )


def verification_view(settings: Settings, checked: verification.Checked) -> VerificationView:
    """A verification of a release of this deployment."""
    report = checked.report
    own = report.ok and report.key_trusted
    note = f"Signed by this deployment's own key (fingerprint {report.key_fingerprint})." if own else report.key_note
    return VerificationView(
        ok=report.ok,
        at=checked.at,
        words=settings.shown(report.words_with(note)),
        key_note=note,
        problems=tuple(
            ProblemView(item.kind, KIND_WORDS[item.kind], item.file, item.message, item.where)
            for item in report.problems
        ),
        files=report.files,
        rows=report.rows,
    )


def dossier_view(dossier: Mapping[str, Any]) -> DossierView:
    """A public dossier that is as it was signed."""
    release, guarantee, statement = dossier["release"], dossier["guarantee"], dossier["statement"]
    budget, mechanism = dossier["ledger"], dossier["mechanism"]
    whose = "each person" if budget["mode"] == "per-owner" else "everyone in it"
    return DossierView(
        description=release["description"],
        demonstration=release["demonstration"],
        created_at=release["created_at"],
        license=release["license"],
        contacts=tuple(release["owners"]),
        guarantee=_signed_guarantee(guarantee),
        accounting=guarantee["accounting"],
        why_weak=guarantee["why_weak"],
        plain_words=tuple(guarantee["plain_words"]),
        covered=tuple(statement["covered"]),
        not_covered=tuple(statement["not_covered"]),
        assumptions=tuple((item["assumption"], item["holds"], item["because"]) for item in statement["assumptions"]),
        method=mechanism["method"],
        why_method=mechanism["why"],
        rows=dossier["synthetic"]["rows"],
        columns=tuple(_column(item) for item in dossier["synthetic"]["columns"]),
        scrubbing=dossier["scrubbing"]["note"],
        bounding=dossier["bounding"]["note"],
        figures=dict(dossier["quality"]["figures"]),
        audit=audit_view(dossier["audit"]["report"], dossier["audit"]["plots"]),
        clearance=clearance_view(dossier["clearance"]),
        budget=(
            f"All releases from the family {budget['family']} together may cost {whose} at most epsilon "
            f"{budget['cap']['epsilon']:g} and delta {budget['cap']['delta']:g}, for life. {budget['claim']}"
        ),
        approvals_needed=dossier["approvals_needed"],
        graph=lineage_graph(dossier["lineage"]["steps"], dossier["lineage"]["upstream"]),
        mostly_missing=tuple(dossier["synthetic"].get("mostly_missing", ())),
    )


def _signed_guarantee(part: Mapping[str, Any]) -> GuaranteeView:
    names = ("epsilon", "delta", "unit", "adjacency", "max_contributions", "weighting")
    return guarantee_view(Guarantee.from_json({name: part[name] for name in names if name in part}))


def audit_view(report: Mapping[str, Any], plots: Mapping[str, str]) -> AuditView:
    """An audit's report as JSON, with its drawings as SVG by title."""
    return AuditView(
        verdict=report["verdict"],
        summary=report["summary"],
        epsilon_lower_bound=report["epsilon_lower_bound"],
        highest_bound=report["highest_bound"],
        confidence=report["confidence"],
        canaries=report["canaries"],
        header=decisions.AUDIT_HEADER,
        rows=tuple(decisions.attack_row(item) for item in report["attacks"]),
        plots=drawings(plots),
    )


def clearance_view(summary: Mapping[str, Any]) -> ClearanceView:
    """What a clearance found, as it may be published."""
    return ClearanceView(
        policy=summary["policy"],
        findings=tuple(_finding(item) for item in summary["findings"]),
        together=tuple(summary["in_words"]),
    )


def restricted_parts(
    settings: Settings, allowed: Collection[Action], gathered: decisions.Gathered | None
) -> tuple[tuple[CountView, ...] | None, QualityView | None]:
    """Exact counts and the comparison with real rows, each for those who may see it."""
    if gathered is None or not {Action.READ_SPEND, Action.READ_QUALITY} & set(allowed):
        return None, None
    try:
        document = decisions.reviewers_document_of(settings, gathered)
    except ReleaseRefused:
        return None, None
    silent = leaves_out_in_silence(gathered.contract, gathered.family)
    counts = tuple(
        CountView(item["step"], item["what"], item["count"])
        for item in document["counts"]
        if may_see_counts(allowed, item["step"], silent=silent)
    )
    return (
        part(allowed, Action.READ_SPEND, lambda: counts),
        part(allowed, Action.READ_QUALITY, lambda: _quality(document)),
    )


_TELLING = ("clearance", "bounded")
"""Steps whose counts tell how many people were left out."""


def may_see_counts(allowed: Collection[Action], step: str, *, silent: bool) -> bool:
    """Whether somebody may see what a step counted.

    Exact counts are the operator's: for `READ_SPEND`. Where people are left out in silence for what they took part in
    before, how many must show to nobody but those who see the reviewers' dossier: for `READ_QUALITY`, too.

    Args:
        silent: whether they are (`contracts.leaves_out_in_silence`).
    """
    restricted = silent and step in _TELLING
    return Action.READ_SPEND in allowed and (Action.READ_QUALITY in allowed or not restricted)


def _column(item: Mapping[str, Any]) -> ColumnView:
    histogram = item.get("histogram")
    return ColumnView(
        name=item["name"],
        type=item["type"] or item["declared_type"],
        treatment=TREATMENTS[item["treatment"]],
        values=sparkline_text(histogram) if histogram else "",
        plot=sparkline(histogram) if histogram else None,
    )


def drawings(plots: Mapping[str, str]) -> dict[str, str]:
    """Those that are shapes and text alone."""
    found = {}
    for title, svg in plots.items():
        with suppress(ReleaseRefused):
            check_svg(title, svg)
            found[title] = svg
    return found


def _finding(item: Mapping[str, Any]) -> str:
    of = f" of {item['place']}" if item["place"] else ""
    entry = f": ledger entry {item['entry']}{of}" if item["entry"] else ""
    apart = "" if item["comparable"] else "; its people cannot be compared with these"
    return f"{SAID[item['kind']]}{entry}{apart}"


def _quality(document: Mapping[str, Any]) -> QualityView | None:
    found = document["quality"]
    if found is None:
        return None
    return QualityView(
        header=tuple(found["header"]),
        rows=tuple(tuple(row) for row in found["rows"]),
        legend=LEGEND,
        plots=drawings(found["plots"]),
    )
