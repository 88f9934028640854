"""The dossier: all that a reader needs in order to judge a release, as one JSON document.

What belongs here: the typed evidence and the document made of it. What does not: how it looks (`page`), whether the
evidence holds (`evidence`), files (`publish`). The dossier is public: it holds declared or DP numbers, facts about the
synthetic rows, and results on canaries, which are independent of the data. Restricted content is named by commitments
only, and nothing here compares with the real data.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa

from dpsynth_platform.contracts import DataContract, FamilyBudget
from dpsynth_platform.errors import ReleaseRefused
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.profile import Profiler, treatment

FORMAT = "dpsynth-dossier/1"
CANDIDATE = "candidate"
PACKAGES = (
    "dpsynth-platform", "mpmath", "dp-accounting", "torch", "pyarrow", "deltalake", "dagster", "openlineage-python",
)  # fmt: skip
_SVG = "{http://www.w3.org/2000/svg}"
_SVG_ELEMENTS = frozenset(
    {"svg", "g", "title", "desc", "text", "tspan", "line", "polyline", "polygon", "path", "rect", "circle"}
)


@dataclass(frozen=True)
class LineageStep:
    """One step that led to the release.

    Attributes:
        run_id: the OpenLineage run id.
        inputs: names of the steps whose output it read.
    """

    step: str
    job: str
    run_id: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Approval:
    """Who approved the candidate, and when (ISO 8601)."""

    by: str
    at: str


@dataclass(frozen=True)
class Evidence:
    """All that a dossier says beside what follows from the published rows. Everything in it may be public.

    Attributes:
        created_at: ISO 8601.
        ledger_head: the chain's newest link at publication, so that a chain cut or rewritten later shows.
        accounting: whose bound is the smaller: `pld` or `renyi`.
        statement: the privacy statement (`privacy.statement`) as JSON.
        method, why_method: the generator's name, and why it is this one.
        plain_words: the same in sentences for readers who are no experts, the most important first.
        clearance: public facts of the clearance: verdict, policy and the like.
        audit_report: `audit.verdict.AuditReport` as JSON.
        audit_plots: SVG text by title; drawn from canaries only.
        commitments: hiding commitments by label; `candidate` is always among them, it is what was approved.
        software: versions that made the release.
    """

    contract: DataContract
    family: FamilyBudget
    period: str | None
    created_at: str
    guarantee: Guarantee
    accounting: str
    statement: Mapping[str, Any]
    plain_words: tuple[str, ...]
    plan_digest: str
    method: str
    why_method: str
    ledger_entry: str
    ledger_head: Head
    clearance: Mapping[str, Any]
    lineage: tuple[LineageStep, ...]
    audit_report: Mapping[str, Any]
    audit_plots: Mapping[str, str]
    approvals: tuple[Approval, ...]
    commitments: Mapping[str, str]
    software: Mapping[str, str]

    def __post_init__(self) -> None:
        if CANDIDATE not in self.commitments:
            raise ReleaseRefused("the evidence has no commitment to the candidate that was approved")
        if not self.audit_report.get("publishable"):
            raise ReleaseRefused("the audit report is not marked as publishable (results on canaries only)")
        for title, svg in self.audit_plots.items():
            check_svg(title, svg)

    @property
    def release_id(self) -> str:
        """Names the release: the same candidate is the same release. Tells nothing of restricted content."""
        parts = (self.contract.dataset, self.period, self.commitments[CANDIDATE][:16])
        return "-".join(part for part in parts if part)


def build_dossier(evidence: Evidence, schema: pa.Schema, rows: int, profile: Profiler) -> dict[str, Any]:
    """The dossier as JSON values. `schema`, `rows` and `profile` are those of the published table."""
    contract = evidence.contract
    return {
        "format": FORMAT,
        "release": {
            "id": evidence.release_id,
            "dataset": contract.dataset,
            "period": evidence.period,
            "description": contract.description,
            "demonstration": contract.demo,
            "owners": list(contract.owners),
            "created_at": evidence.created_at,
        },
        "guarantee": evidence.guarantee.to_json()
        | {
            "tier": evidence.guarantee.tier,
            "accounting": evidence.accounting,
            "why_weak": contract.privacy.accept_weak_guarantee,
            "plain_words": list(evidence.plain_words),
        },
        "statement": dict(evidence.statement),
        "contract": contract_summary(contract),
        "mechanism": {
            "method": evidence.method,
            "why": evidence.why_method,
            "plan_digest": evidence.plan_digest,
        },
        "clearance": dict(evidence.clearance),
        "ledger": {
            "entry": evidence.ledger_entry,
            "family": evidence.family.family,
            "mode": evidence.family.mode,
            "cap": evidence.family.cap.model_dump(),
            "head": asdict(evidence.ledger_head),
        },
        "audit": {"report": dict(evidence.audit_report), "plots": dict(evidence.audit_plots)},
        "synthetic": {"rows": rows, "columns": _columns(contract, schema, profile)},
        "lineage": [asdict(step) | {"inputs": list(step.inputs)} for step in evidence.lineage],
        "approvals": [asdict(item) | {"of": evidence.commitments[CANDIDATE]} for item in evidence.approvals],
        "approvals_needed": contract.release.approvals,
        "commitments": dict(evidence.commitments),
        "software": dict(evidence.software),
    }


def contract_summary(contract: DataContract) -> dict[str, Any]:
    """The contract without places: what was declared publicly about columns, privacy and audit."""
    whole = contract.snapshot()
    kept = {key: whole[key] for key in ("dataset", "description", "family", "privacy", "columns", "generate", "audit")}
    return kept | {"release": {key: whole["release"][key] for key in ("approvals", "cadence")}}


def software_versions() -> dict[str, str]:
    """Versions of Python and of the packages that a release depends on most."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def check_svg(title: str, svg: str) -> None:
    """Refuses a drawing with anything but shapes and text: no script, link, style sheet or external resource.

    Raises:
        ReleaseRefused: names the drawing and what was found.
    """
    problem = _svg_problem(svg)
    if problem:
        raise ReleaseRefused(f"the plot {title!r} cannot stand in a dossier: {problem}")


def _svg_problem(svg: str) -> str | None:
    if "<!" in svg or "<?" in svg:
        return "it has a declaration, a comment or an instruction"
    try:
        root = ElementTree.fromstring(svg)  # noqa: S314 - without declarations there are no entities to expand
    except ElementTree.ParseError:
        return "it is no XML"
    for element in root.iter():
        name = element.tag.removeprefix(_SVG)
        if name not in _SVG_ELEMENTS:
            return f"it has the element {name!r}"
        for attribute, value in element.attrib.items():
            if attribute.startswith(("{", "on", "href")) or "url(" in value.replace(" ", "").lower():
                return f"the element {name!r} has the attribute {attribute!r}"
    return None


def _columns(contract: DataContract, schema: pa.Schema, profile: Profiler) -> list[dict[str, Any]]:
    """Every column of the table and every declared one that was left out, in the contract's order."""
    present = {field.name: field for field in schema}
    names = [*contract.columns, *(name for name in present if name not in contract.columns)]
    columns = []
    for name in names:
        declared = contract.columns.get(name)
        field = present.get(name)
        column: dict[str, Any] = {
            "name": name,
            "treatment": treatment(declared) if field is not None else "absent",
            "declared_type": declared.type if declared else None,
            "type": str(field.type) if field is not None else None,
            "nullable": field.nullable if field is not None else None,
        }
        histogram = profile.histogram(name) if field is not None else None
        columns.append(column | ({"histogram": histogram} if histogram else {}))
    return columns
