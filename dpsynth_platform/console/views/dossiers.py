"""The parts of a dossier as pages show them: guarantee, audit, verification, columns, counts, quality.

What belongs here: views of one release's or candidate's evidence, made from the library's values. What does not:
finding releases (`listing`), and pages.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import part, view_of
from dpsynth_platform.console.views.drift import CopiesView, DriftView, Measure, copies, drift, measures
from dpsynth_platform.contracts.family import leaves_out_in_silence
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.ledger.records import Decision
from dpsynth_platform.lineage.clearance import DESCRIPTIONS
from dpsynth_platform.privacy.federated_words import ProtectionInWords
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.report_rows import legend_of
from dpsynth_platform.release.dossier import check_svg
from dpsynth_platform.release.drawing import lineage_graph, sparkline, sparkline_text
from dpsynth_platform.release.page import TREATMENTS, table_in_words
from dpsynth_platform.release.paid import in_words
from dpsynth_platform.release.reviewers import nearest_sheet
from dpsynth_platform.release.verify import KIND_WORDS
from dpsynth_platform.reviewing import decisions, verification
from dpsynth_platform.reviewing.chronicle import Publication
from dpsynth_platform.synth.automatic import why_in_words


@dataclass(frozen=True)
class GuaranteeView:
    """A guarantee with the terms without which it means nothing, and in words with epsilon and delta rounded up.

    `tier` is None if the guarantee is that of each of two mechanisms released together.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    max_contributions: int
    weighting: str
    tier: str | None
    words: str

    @property
    def factor(self) -> float:
        """By how much one unit's data can change the chance of any conclusion, up to `delta`."""
        return math.exp(self.epsilon)


@dataclass(frozen=True)
class DecisionView:
    """A decision (`approved`, `refused` or `withdrawn`) on a candidate or a release, with its event in the chain.

    `reason` may be empty for an approval; `release` is the id of the withdrawn release, else None.
    """

    decision: str
    by: str
    at: str
    reason: str
    sequence: int
    release: str | None


@dataclass(frozen=True)
class ProblemView:
    """One difference from what was signed; `where` is the JSON path inside the file, if known.

    `kind` is `signature`, `missing`, `unlisted`, `hash`, `schema`, `chain-head`, `table` or `withdrawn`.
    """

    kind: str
    meaning: str
    file: str
    message: str
    where: str | None


@dataclass(frozen=True)
class VerificationView:
    """The result of verifying a release.

    Attributes:
        at: when its files were last read. They are read again when any of them changes.
        words: the whole report in sentences.
        files: how many listed files were compared.
        rows: of the published table, if it could be opened.
    """

    ok: bool
    at: str
    words: str
    key_note: str
    problems: tuple[ProblemView, ...]
    files: int
    rows: int | None


@dataclass(frozen=True)
class FoundView:
    """What the best attack found at one false alarm in a hundred: a share of participants, its interval, the limit.

    `allowed` is what the guarantee allows in general; `attacks` is how many attacks it is the best of.
    """

    attack: str
    attacks: int
    found: float
    low: float
    high: float
    allowed: float


@dataclass(frozen=True)
class AuditView:
    """An audit on fictional canaries with its verdict, its table of attacks, and plots as SVG by title: publishable.

    `best` is None in reports of earlier versions, which did not measure it.
    """

    verdict: str
    summary: str
    epsilon_lower_bound: float
    highest_bound: float
    confidence: float
    claimed_epsilon: float
    canaries: int
    legend: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plots: dict[str, str]
    best: FoundView | None = None


@dataclass(frozen=True)
class CountView:
    """One exact count of a step: for the operator, covered by no guarantee."""

    step: str
    what: str
    count: int


@dataclass(frozen=True)
class QualityView:
    """Comparison with real rows, with plots as SVG by title: restricted, for `READ_QUALITY`.

    `measures` are the few numbers that stand for it; `copies` is None where exact copies were not counted.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: str
    plots: dict[str, str]
    measures: tuple[Measure, ...] = ()
    copies: CopiesView | None = None
    drift: DriftView | None = None


@dataclass(frozen=True)
class ColumnView:
    """A column of the published table: its treatment and its synthetic values in words, and these as SVG, if shown."""

    name: str
    type: str | None
    treatment: str
    values: str
    plot: str | None


@dataclass(frozen=True)
class TableView:
    """One of several linked tables: what it is, in words."""

    name: str
    rows: int
    words: str


@dataclass(frozen=True)
class ClearanceView:
    """Known mechanisms on the same people: public.

    `findings` are what the release adds to, a line each; `together` is what all of them promise, in sentences.
    """

    policy: str
    findings: tuple[str, ...]
    together: tuple[str, ...]


Against = tuple[tuple[str, str, str, str], ...]


def against_of(found: Iterable[ProtectionInWords]) -> Against:
    """The guarantee against each party of a federated run."""
    return tuple((item.party, *item.numbers, item.rests_on) for item in found)


@dataclass(frozen=True)
class DossierView:
    """A public dossier as it was signed.

    Attributes:
        guarantee: the smaller of two proven bounds; `plain_words` say it in sentences, the most important first.
        covered, not_covered: data accesses that the guarantee covers, and those that it does not.
        assumptions: (assumption, whether it holds, why).
        against: of a federated run (party, epsilon, delta, what the guarantee rests on); empty of another.
        figures: quality that follows from the plan alone, by name.
        paid: measures that were bought, in sentences.
        graph: SVG of the steps that led to it.
        mostly_missing: columns with hardly any usable value by the noisy counts, in words.
        kept_setting: which declared setting the mechanism kept, where it chose one.
        tables: the linked tables, parents first; empty for a single table. `columns` are then `table.column`.
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
    paid: tuple[str, ...]
    audit: AuditView
    clearance: ClearanceView
    budget: str
    approvals_needed: int
    graph: str
    mostly_missing: tuple[str, ...] = ()
    kept_setting: str | None = None
    tables: tuple[TableView, ...] = ()
    against: Against = ()


def guarantee_view(guarantee: Guarantee, *, of_each: bool = False) -> GuaranteeView:
    """A guarantee as pages show it; `of_each` if two mechanisms each have it and a release promises both."""
    words = f"epsilon {upper_bound(guarantee.epsilon)}, delta {upper_bound(guarantee.delta)} for one {guarantee.unit}"
    return GuaranteeView(
        **asdict(guarantee),
        tier=None if of_each else guarantee.tier,
        words=f"{words}, by each of two mechanisms" if of_each else words,
    )


def decision_view(decision: Decision) -> DecisionView:
    """The decision without candidate and entry."""
    return view_of(DecisionView, decision, decision=decisions.DECIDED[decision.decision])


def verification_view(settings: Settings, checked: verification.Checked) -> VerificationView:
    """A verification of a release of this deployment."""
    report = checked.report
    own = report.ok and report.key_trusted
    note = f"Signed by this deployment's own key (fingerprint {report.key_fingerprint})." if own else report.key_note
    return view_of(
        VerificationView,
        checked,
        report,
        words=settings.shown(report.words_with(note)),
        key_note=note,
        problems=tuple(view_of(ProblemView, item, meaning=KIND_WORDS[item.kind]) for item in report.problems),
    )


def dossier_view(dossier: Mapping[str, Any]) -> DossierView:
    """The parts of a public dossier; call it only for one that is as it was signed."""
    release, guarantee, statement = dossier["release"], dossier["guarantee"], dossier["statement"]
    budget, mechanism = dossier["ledger"], dossier["mechanism"]
    charged = "each person" if budget["mode"] == "per-owner" else "everyone in it"
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
        against=against_of(ProtectionInWords(**item) for item in statement.get("against", ())),
        method=mechanism["method"],
        why_method=why_in_words(mechanism["why"], "among the figures of quality that follow from the plan"),
        rows=dossier["synthetic"]["rows"],
        columns=tuple(_column(item) for item in dossier["synthetic"]["columns"]),
        scrubbing=dossier["scrubbing"]["note"],
        bounding=dossier["bounding"]["note"],
        figures=dict(dossier["quality"]["figures"]),
        paid=in_words(dossier["quality"].get("paid")),
        audit=audit_view(dossier["audit"]["report"], dossier["audit"]["plots"]),
        clearance=clearance_view(dossier["clearance"]),
        budget=(
            f"All releases from the family {budget['family']} together may cost {charged} at most epsilon "
            f"{budget['cap']['epsilon']:g} and delta {budget['cap']['delta']:g}, for life. {budget['claim']}"
        ),
        approvals_needed=dossier["approvals_needed"],
        graph=lineage_graph(dossier["lineage"]["steps"], dossier["lineage"]["upstream"]),
        mostly_missing=tuple(dossier["synthetic"].get("mostly_missing", ())),
        kept_setting=mechanism.get("setting", {}).get("in_words"),
        tables=tuple(
            TableView(table["name"], table["rows"], table_in_words(table))
            for table in dossier["synthetic"].get("tables", ())
        ),
    )


def _signed_guarantee(part: Mapping[str, Any]) -> GuaranteeView:
    names = ("epsilon", "delta", "unit", "adjacency", "max_contributions", "weighting")
    return guarantee_view(Guarantee.from_json({name: part[name] for name in names if name in part}))


def audit_view(report: Mapping[str, Any], plots: Mapping[str, str]) -> AuditView:
    """An audit's JSON report, with its plots as SVG by title."""
    same = ("verdict", "summary", "epsilon_lower_bound", "highest_bound", "confidence", "claimed_epsilon", "canaries")
    return AuditView(
        best=_best_attack(report),
        **{name: report[name] for name in same},
        header=decisions.AUDIT_HEADER,
        legend=decisions.AUDIT_LEGEND,
        rows=tuple(decisions.attack_rows(report)),
        plots=safe_plots(plots),
    )


def _best_attack(report: Mapping[str, Any]) -> FoundView | None:
    """Of the deciding attacks, the one that the report's summary names."""
    from dpsynth_platform.audit.risk import frontier  # it imports numerical libraries

    deciding = [item for item in report["attacks"] if item.get("decides", True) and item.get("risk")]
    if not deciding:
        return None
    best = max(deciding, key=lambda item: float(item["risk"]["rates"][1]["found"]["value"]))
    rate = best["risk"]["rates"][1]
    found, allowed = rate["found"], frontier(rate["false_positive_rate"], report["claimed_epsilon"], report["delta"])
    return FoundView(best["name"], len(deciding), found["value"], found["low"], found["high"], allowed)


def clearance_view(summary: Mapping[str, Any]) -> ClearanceView:
    """The public findings of a clearance."""
    return ClearanceView(
        policy=summary["policy"],
        findings=tuple(_finding(item) for item in summary["findings"]),
        together=tuple(summary["in_words"]),
    )


def restricted_parts(
    settings: Settings,
    allowed: Collection[Action],
    gathered: decisions.CandidateEvidence | None,
    previous: Publication | None = None,
) -> tuple[tuple[CountView, ...] | None, QualityView | None]:
    """Exact counts and the comparison with real rows, each for actors who may see it.

    `previous` is the release whose quality the comparison also names.
    """
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
        part(allowed, Action.READ_QUALITY, lambda: _quality(settings, document, previous)),
    )


_REVEALING = ("clearance", "bounded")
"""Steps whose counts reveal how many people were excluded."""


def may_see_counts(allowed: Collection[Action], step: str, *, silent: bool) -> bool:
    """Whether an actor may see the exact counts of a step, which needs `READ_SPEND`.

    Where owners are excluded silently (`contracts.family.leaves_out_in_silence`), the counts that reveal how many also
    need `READ_QUALITY`, like the reviewers' dossier.
    """
    restricted = silent and step in _REVEALING
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


def safe_plots(plots: Mapping[str, str], *, pictures: bool = False) -> dict[str, str]:
    """Those plots that contain shapes and text only, and inline pictures if they may."""
    found = {}
    for title, svg in plots.items():
        with suppress(ReleaseRefused):
            check_svg(title, svg, pictures=pictures)
            found[title] = svg
    return found


def _finding(item: Mapping[str, Any]) -> str:
    of = f" of {item['place']}" if item["place"] else ""
    entry = f": ledger entry {item['entry']}{of}" if item["entry"] else ""
    incomparable = "" if item["comparable"] else "; its people cannot be compared with these"
    return f"{DESCRIPTIONS[item['kind']]}{entry}{incomparable}"


def nearest_pictures(settings: Settings, document: Mapping[str, Any]) -> dict[str, str]:
    """The nearest real pictures of this candidate's rows, as long as they are kept: for `READ_QUALITY`."""
    sheet = nearest_sheet(Storage(settings.restricted), document)
    title = "Some synthetic pictures with the nearest real ones: not to be passed on"
    return {} if sheet is None else {title: sheet.read_text(encoding="utf-8")}


def _quality(settings: Settings, document: Mapping[str, Any], previous: Publication | None) -> QualityView | None:
    found = document["quality"]
    if found is None:
        return None
    nearest = nearest_pictures(settings, document)
    return QualityView(
        header=tuple(found["header"]),
        rows=tuple(tuple(row) for row in found["rows"]),
        legend=legend_of(found["report"]),
        plots=safe_plots(found["plots"]) | safe_plots(nearest, pictures=True),
        measures=measures(found["report"]),
        copies=copies(found["report"]),
        drift=drift(settings, previous, found["report"]) if previous else None,
    )
