"""The five records of each synthetic dataset, composed from the graph and the ledger.

What belongs here: the facts that Ponomareva et al. 2026, "How to DP-fy Your Data", section 7.7.2, require of every
synthetic dataset before its source is used again: (1) the source, (2) the privacy unit, (3) method and guarantee,
(4) the checkpoints that it was made with, and their ancestry, (5) what a check for further loss needs. What does not:
storing anything (graph and ledger do), the check itself (`clearance`), and the release's dossier.

A record stays with the operator. It refers to restricted parts (participants, nonces) by their ledger entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.foundation.release_layout import DOSSIER
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import MODELS, Ancestry, Node, Relative
from dpsynth_platform.lineage.store import LineageStore

FORMAT = "dpsynth-record/1"


@dataclass(frozen=True)
class Source:
    """Record 1: the sensitive dataset, the family whose account paid, and the source tables in the graph."""

    dataset: str
    period: str | None
    family: str
    tables: tuple[DatasetName, ...]


@dataclass(frozen=True)
class PrivacyUnit:
    """Record 2: whom the guarantee protects; owners can be compared inside `namespace`."""

    unit: str
    adjacency: str
    namespace: str
    owner_columns: tuple[str, ...]


@dataclass(frozen=True)
class DpDetails:
    """Record 3: method and guarantee.

    Attributes:
        epsilon, delta: of this release alone, as claimed.
        event: the mechanism's event tree (`privacy.events`), from which every other bound follows; with a separate
            audited model, the tree of both mechanisms together.
        covered: the accesses to the data that it covers. The dossier's statement lists those that it does not cover.
    """

    method: str
    epsilon: float
    delta: float
    tier: str
    weighting: str
    accounting: str
    event: dict[str, Any]
    covered: tuple[str, ...]
    plan_digest: str
    dossier: DatasetName


@dataclass(frozen=True)
class PathStep:
    """One step from the release towards an ancestor: the ancestor, the relation and the run."""

    name: DatasetName
    relation: str
    run_id: str


@dataclass(frozen=True)
class Origin:
    """A nearest ancestor of a checkpoint."""

    name: DatasetName
    relation: str
    version: str


@dataclass(frozen=True)
class Checkpoint:
    """Record 4: a model among the ancestors, nearest first.

    Attributes:
        kind: `model` if this platform trained it, else `checkpoint`.
        path: from the release to it.
        made_from: its nearest ancestors, of all its versions: its training data and initial checkpoints.
        releases: every release of ours among its ancestors.
        entries: every ledger entry among its ancestors.
        origin: `known`, `declared public` or `unknown`.
    """

    name: DatasetName
    kind: str
    path: tuple[PathStep, ...]
    made_from: tuple[Origin, ...]
    releases: tuple[DatasetName, ...]
    entries: tuple[str, ...]
    origin: str


@dataclass(frozen=True)
class AuditedEntry:
    """The entry of the second mechanism, whose model was audited instead of the released one; see `FurtherChecks`."""

    ledger_entry: str
    state: str
    commitment: str | None


@dataclass(frozen=True)
class FurtherChecks:
    """Record 5: the data for a check whether people (or, at example level, records) are used again.

    Attributes:
        fingerprints: of `owners` or of `records`.
        ledger_entry: holds the fingerprints; restricted.
        state: of the entry.
        namespace: fingerprints can be compared inside it.
        commitment: hiding commitment to the participants, or None if none were named: then anyone may have taken part.
        period: if the dataset has a cadence, the only period of the records.
        audited: the second mechanism, if the audit had a separate model. A check must include its participants.
    """

    fingerprints: str
    ledger_entry: str
    state: str
    namespace: str
    commitment: str | None
    max_contributions: int
    period: str | None
    audited: AuditedEntry | None = None


@dataclass(frozen=True)
class SyntheticRecord:
    """The five records of one release."""

    release: DatasetName
    release_id: str
    source: Source
    privacy_unit: PrivacyUnit
    dp: DpDetails
    checkpoints: tuple[Checkpoint, ...]
    further_checks: FurtherChecks

    @classmethod
    def of(cls, store: LineageStore, ledger: Ledger, release: DatasetName | str) -> SyntheticRecord:
        """The records of a release.

        Args:
            release: its name or id, or anything that `LineageStore.find` accepts.

        Raises:
            LineageRefused: there is no such release, or several; or the graph lacks one of its facets.
            LedgerError: the ledger lacks the entry that paid for it, or cannot be used.
        """
        from dpsynth_platform.synth.planning import audited_key

        node = store.release(release)
        facets = _facets(node)
        unit = facets["dpsynth_privacyUnit"]
        entry = ledger.entry(facets["dpsynth_guarantee"]["ledgerEntry"])
        audited = ledger.entry_for_key(audited_key(entry.key))
        ancestry = store.ancestry([node.name])
        return cls(
            node.name,
            facets["dpsynth_release"]["releaseId"],
            Source(entry.request.dataset, entry.request.period, entry.family, tuple(_sources(ancestry))),
            PrivacyUnit(unit["unit"], unit["adjacency"], unit["namespace"], tuple(unit["ownerColumns"])),
            _details(node.name, facets["dpsynth_guarantee"], entry, of_two=audited is not None),
            tuple(_checkpoint(store, relative, ancestry) for relative in ancestry.of_kind(*MODELS)),
            _checks(entry, unit, audited),
        )

    def to_json(self) -> dict[str, Any]:
        """As a JSON value (`schemas/records-1-2-0/SyntheticRecord.json`).

        Records of months conform to 1-1-0, and without a second mechanism (`audited`) to 1-0-0, too.
        """
        document = {"format": FORMAT, **json.loads(json.dumps(asdict(self)))}
        if self.further_checks.audited is None:
            del document["further_checks"]["audited"]
        return document


def _facets(node: Node) -> dict[str, Any]:
    needed = ("dpsynth_release", "dpsynth_guarantee", "dpsynth_privacyUnit")
    missing = [name for name in needed if name not in node.facets]
    if missing:
        raise LineageRefused(
            f"{node.name}: the graph has no {', '.join(missing)} of this release; it was published by an earlier "
            "version, or its lineage was not recorded"
        )
    return dict(node.facets)


def _sources(ancestry: Ancestry) -> Iterator[DatasetName]:
    """Tables with a declared unit that this platform reads and did not write, on a path without a model.

    Tables behind a model are that model's sources (`Checkpoint`). The line's own source has a path without a model: the
    release depends on the clearance, which depends on the scrubbed rows.
    """
    for relative in ancestry.of_kind("dataset"):
        kinds, here = set(), relative.previous
        while here is not None and here.previous is not None:
            kinds.add(here.node.kind)
            here = here.previous
        sensitive = "dpsynth_privacyUnit" in relative.node.facets and not relative.node.own
        if sensitive and kinds.isdisjoint((*MODELS, "release")):
            yield relative.node.name


def _details(release: DatasetName, claimed: dict[str, Any], entry: Entry, *, of_two: bool) -> DpDetails:
    from dpsynth_platform.privacy.events import event_from_json, event_to_json, twice
    from dpsynth_platform.privacy.statement import TWO_MODELS, covered_accesses

    one = entry.request.event
    event = event_to_json(twice(event_from_json(one))) if of_two else one
    named = ("method", "epsilon", "delta", "tier", "weighting", "accounting")
    return DpDetails(
        **{name: claimed[name] for name in named},
        event=event,
        covered=(*covered_accesses(event, claimed["method"]), *([TWO_MODELS] if of_two else [])),
        plan_digest=entry.plan_digest,
        dossier=DatasetName(release.namespace, str(PurePath(release.name).with_name(DOSSIER))),
    )


def _checkpoint(store: LineageStore, relative: Relative, ancestry: Ancestry) -> Checkpoint:
    name = relative.node.name
    above = store.ancestry([name])
    known = "known" if store.public(name) is None else "declared public"
    made_from = [
        Origin(edge.parent, edge.relation, edge.parent_version)
        for edge in store.edges(name)
        if edge.child == name and edge.relation in ("base", "trained-on")
    ]
    return Checkpoint(
        name=name,
        kind=relative.node.kind,
        path=tuple(PathStep(step.node, step.relation, step.run_id) for step in relative.path),
        made_from=tuple(dict.fromkeys(made_from)),
        releases=tuple(found.node.name for found in above.of_kind("release")),
        entries=tuple(found.node.name.name for found in above.of_kind("mechanism")),
        origin="unknown" if name in ancestry.unknown else known,
    )


def _checks(entry: Entry, unit: dict[str, Any], audited: Entry | None = None) -> FurtherChecks:
    request = entry.request
    return FurtherChecks(
        fingerprints="records" if request.guarantee.unit == "example" else "owners",
        ledger_entry=entry.entry_id,
        state=entry.state,
        namespace=unit["namespace"],
        commitment=entry.commitment,
        max_contributions=request.guarantee.max_contributions,
        period=request.period,
        audited=None if audited is None else AuditedEntry(audited.entry_id, audited.state, audited.commitment),
    )
