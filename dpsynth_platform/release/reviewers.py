"""The reviewers' dossier: what a person should see before deciding about a candidate. Restricted.

What belongs here: exact counts, comparisons with real rows, spend and clearance, as JSON and as a page. What does not:
public facts (`dossier`), and gates: only people decide on this, and the privacy statement lists that. It never leaves
the restricted zone. Counts are taken from the steps' records, so that they outlast expired rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ReleaseRefused, StaleInput
from dpsynth_platform.foundation.storage import (
    NEAREST,
    NEAREST_DRAWING,
    Place,
    StepRecord,
    Storage,
    digest_directory,
    write_durably,
)
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.overlaps import Overlaps
from dpsynth_platform.release import evidence, schema
from dpsynth_platform.release.evidence import Candidate

if TYPE_CHECKING:
    from dpsynth_platform.privacy.statement import PrivacyStatement

FORMAT = "dpsynth-reviewers-dossier/1"
NOTICE = (
    "Restricted. This holds exact counts, comparisons with real rows and what owners have spent: no guarantee covers "
    "it. For the people who decide about this candidate, and for nobody else."
)
NOTICE_WITHOUT_ROWS = "Restricted. For the people who decide about this candidate, and for nobody else."
"""Of a federated dataset, whose exact counts and rows are not here."""
DOSSIER_STEP = "dossier"
"""Directory of a place's reviewers' dossiers, each in a directory of its own (`directory_name`)."""
JSON_NAME = "reviewers.json"
PAGE_NAME = "reviewers.html"
_NOT_FACTS = ("contract", "source_schema")
"""Long recorded facts that are shown elsewhere."""
_QUALITY_PLOTS = {
    "marginals": "Distances of marginals",
    "ways": "Distances by number of columns",
    "classifiers": "Classifiers on held-out real rows",
    "precision": "Alpha-precision: rows as typical as real ones",
    "recall": "Beta-recall: real rows that are covered",
    "closeness": "Nearness to real rows",
    "links": "Links between tables",
    "queries": "Errors of queries",
}


@dataclass(frozen=True)
class ReviewersDossier:
    """The document and its files."""

    document: Mapping[str, Any]
    json_file: Path
    page_file: Path


def write_reviewers_dossier(
    storage: Storage,
    ledger: Ledger,
    contract: DataContract,
    candidate: Candidate,
    statement: PrivacyStatement,
    *,
    standing: str,
) -> ReviewersDossier:
    """Writes a candidate's dossier into the restricted zone, in a directory per candidate.

    Args:
        contract: the snapshot that `raw` sealed.
        candidate: as its evidence was read just now (`evidence.candidate_of`).
        standing: whether it could be released now, in words.

    Raises `ReleaseRefused` if the audit's report cannot be read, or a plot is not plain SVG.
    """
    from dpsynth_platform.release.page import render_reviewers

    document = reviewers_document(storage, ledger, contract, candidate, statement, standing=standing)
    place = Place(candidate.dataset, candidate.period)
    directory = storage.named_output(place, DOSSIER_STEP, directory_name(candidate.digest))
    dossier = ReviewersDossier(document, directory / JSON_NAME, directory / PAGE_NAME)
    write_durably(dossier.json_file, json.dumps(document, indent=1, ensure_ascii=False))
    write_durably(dossier.page_file, render_reviewers(document))
    return dossier


def directory_name(candidate: str) -> str:
    """The directory's name of the dossier of a candidate, by the candidate's digest."""
    return candidate[:16]


def nearest_sheet(storage: Storage, document: Mapping[str, Any]) -> Path | None:
    """The drawing of the real pictures that are nearest to a candidate's rows, as long as it is kept. Restricted.

    Args:
        document: the candidate's reviewers' dossier.
    """
    candidate = document["candidate"]
    record = storage.read(Place(candidate["dataset"], candidate["period"]), NEAREST)
    synthetic = next((step for step in document["steps"] if step["step"] == "synthetic"), None)
    if record is None or synthetic is None or not storage.exists(record):
        return None
    same = record.inputs.get("synthetic") == synthetic["content_hash"]
    return record.directory / NEAREST_DRAWING if same else None


def reviewers_document(
    storage: Storage,
    ledger: Ledger,
    contract: DataContract,
    candidate: Candidate,
    statement: PrivacyStatement,
    *,
    standing: str,
) -> dict[str, Any]:
    """The dossier as JSON values, not written. Arguments and errors are those of `write_reviewers_dossier`."""
    place = Place(candidate.dataset, candidate.period)
    line = evidence.line_steps(contract)
    records = {step: record for step in line if (record := storage.read(place, step)) is not None}
    overlaps = Overlaps.read(storage, place, candidate.entry_id)
    content = {
        "format": FORMAT,
        "notice": NOTICE if contract.source.federation is None else NOTICE_WITHOUT_ROWS,
        "made_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "place": place.label,
        "description": contract.description,
        "candidate": asdict(candidate) | {"digest": candidate.digest},
        "standing": standing,
        "guarantee": statement.guarantee.to_json() | {"tier": statement.tier, "plain_words": statement.plain_words()},
        "decisions": [
            {"decision": item.decision, "by": item.by, "at": item.at, "reason": item.reason}
            for item in ledger.approvals(candidate.digest, candidate.entry_id)
        ],
        "approvals_needed": contract.release.approvals,
        "runners": list(evidence.candidate_runners(storage, place)),
        "counts": _counts(ledger, candidate, records),
        "scrubbing": records["scrubbed"].facts.get("report", {}) if "scrubbed" in records else {},
        "clearance": _facts(records["clearance"]) | ({"people": asdict(overlaps)} if overlaps else {}),
        "spend": _spend(ledger, contract, candidate),
        "audit": {
            "report": evidence.audit_report(place, records["audit"]),
            "plots": plots_of_audit(records["audit"]),
        },
        "quality": _quality(storage, records.get("quality"), candidate),
        "steps": [_step(record) for record in records.values()],
    }
    document: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    for breach in schema.breaches(document, schema.REVIEWERS):
        raise ReleaseRefused(f"the reviewers' dossier does not match its schema: at {breach.where} it {breach.message}")
    return document


def _counts(ledger: Ledger, candidate: Candidate, records: Mapping[str, StepRecord]) -> list[dict[str, Any]]:
    """Exact counts in the order of the line, as far as they were recorded."""
    cleared, owners = [], records["scrubbed"].facts.get("owners") if "scrubbed" in records else None
    if ledger.entry(candidate.entry_id).commitment is not None:
        participants = int(ledger.participants(candidate.entry_id).size)
        cleared.append(("owners cleared for the mechanism", participants))
        if owners is not None:
            cleared.append(("owners held out for tests, or left out", owners - participants))
    found = []
    for step in ("scrubbed", "clearance", "canaries", "bounded", "synthetic"):
        counted = cleared if step == "clearance" else counts_of(records[step]) if step in records else []
        found += [{"step": step, "what": what, "count": count} for what, count in counted]
    return found


_COUNTED: Mapping[str, Mapping[str, str]] = {
    "scrubbed": {"rows": "records with an owner", "owners": "owners"},
    "canaries": {"canaries": "fictional owners"},
    "bounded": {
        "rows_before": "records before bounding",
        "repeated_keys": "records with a repeated key",
        "rows": "records that the mechanism read",
        "owners": "owners whose records it read",
        "canary_rows": "of the records, fictional",
    },
    "synthetic": {
        "texts_drawn": "synthetic texts drawn",
        "texts_left_out": "of these, left out by the rules",
        "captions_without_picture": "of these, without a picture",
        "rows": "synthetic rows",
    },
}


def counts_of(record: StepRecord) -> list[tuple[str, int]]:
    """A step's exact counts with their labels, as far as they were recorded."""
    named = _COUNTED.get(record.step, {})
    return [(what, record.facts[name]) for name, what in named.items() if record.facts.get(name) is not None]


def _spend(ledger: Ledger, contract: DataContract, candidate: Candidate) -> dict[str, Any]:
    """This entry, the account with all its entries, and (with mode per-owner) what owners have left."""
    account, entry = ledger.account(contract.family), ledger.entry(candidate.entry_id)
    return {
        "entry": entry.summary(),
        "account": {
            "family": account.family,
            "mode": account.mode,
            "unit": account.unit,
            "adjacency": account.adjacency,
            "cap": {"epsilon": account.epsilon, "delta": account.delta},
            "epsilon_left": ledger.left_for(account.family, entry.request, contract.mechanisms),
        },
        "entries": [entry.summary() for entry in ledger.entries(account.family)],
        "owners": ledger.owner_spending(account.family).to_json() if account.mode == "per-owner" else None,
    }


def plots_of_audit(record: StepRecord) -> dict[str, str]:
    """An audit's SVG plots by title. They show canaries only, so that they may be published."""
    return _plots(record.directory, {"roc": "ROC curves of the attacks", "scores": "Scores of the canaries"})


def quality_hash(storage: Storage, candidate: Candidate) -> str | None:
    """The content hash of this candidate's quality report; None if it is not made yet, purged, or of other rows.

    Raises `ReleaseRefused` if it is not what its step recorded.
    """
    place = Place(candidate.dataset, candidate.period)
    record = storage.read(place, "quality")
    if record is None or record.inputs.get("synthetic") != candidate.synthetic_hash or not storage.exists(record):
        return None
    if digest_directory(record.directory) != record.content_hash:
        raise ReleaseRefused(
            f"{place.label}: the quality report is not what its step recorded; materialize {place.dataset}/quality "
            "again, and find out who changed it"
        )
    return record.content_hash


def _quality(storage: Storage, record: StepRecord | None, candidate: Candidate) -> dict[str, Any] | None:
    """This candidate's quality report, or None if there is none with the recorded content (`quality_hash`)."""
    from dpsynth_platform.quality.report_rows import HEADER

    try:
        if record is None or quality_hash(storage, candidate) is None:
            return None
        directory = record.directory
        report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
        rows = json.loads((directory / "rows.json").read_text(encoding="utf-8"))
    except (ReleaseRefused, StaleInput, OSError, ValueError):
        return None
    return {"header": list(HEADER), "rows": rows, "report": report, "plots": _plots(directory, _QUALITY_PLOTS)}


def _plots(directory: Path, titles: Mapping[str, str]) -> dict[str, str]:
    files = {title: directory / f"{name}.svg" for name, title in titles.items()}
    return {title: file.read_text(encoding="utf-8") for title, file in files.items() if file.is_file()}


def _step(record: StepRecord) -> dict[str, Any]:
    return {
        "step": record.step,
        "made_at": record.created_at,
        "runner": record.runner,
        "content_hash": record.content_hash,
        "made_from": dict(record.inputs),
        "lineage_run": record.lineage_run,
        "output_is_there": record.path is None or Path(record.path).is_dir(),
        "facts": _facts(record),
    }


def _facts(record: StepRecord) -> dict[str, Any]:
    return {name: value for name, value in record.facts.items() if name not in _NOT_FACTS}
