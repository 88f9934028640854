"""The five records that are kept of each synthetic dataset, put together from the graph and the ledger.

What belongs here: what Ponomareva et al. 2026, "How to DP-fy Your Data", section 7.7.2, asks to know of every synthetic
dataset before its source is used again: (1) the source, (2) the privacy unit, (3) how it was made and under which
guarantee, (4) the checkpoints that it was made with, and their ancestry, (5) what a check for further loss needs. What
does not: storing anything (graph and ledger do), the check itself (`clearance`), and the release's dossier.

A record is the operator's. What is restricted (participants, nonces) is named by the ledger entry that keeps it.
"""

from __future__ import annotations

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
    """Record 1: the sensitive dataset.

    Attributes:
        dataset: the contract's name.
        period: `YYYY-MM` where the dataset has a cadence.
        family: whose account paid.
        tables: the source tables in the graph.
    """

    dataset: str
    period: str | None
    family: str
    tables: tuple[DatasetName, ...]


@dataclass(frozen=True)
class PrivacyUnit:
    """Record 2: whom the guarantee protects; `namespace` is the id space in which people can be told to be the same."""

    unit: str
    adjacency: str
    namespace: str
    owner_columns: tuple[str, ...]


@dataclass(frozen=True)
class DpDetails:
    """Record 3: method and guarantee.

    Attributes:
        epsilon, delta: of this release alone, as claimed.
        accounting: whose bound is claimed.
        event: the mechanism's event tree (`privacy.events`), from which every other bound follows; where the audit had
            a model of its own, that of both mechanisms together.
        covered: the accesses to the data that it covers. What it does not cover stands in the dossier's statement.
        plan_digest: of the sealed plan.
        dossier: where the dossier is.
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
    """One step from the release towards an ancestor: what it leads to, how, and by which run."""

    name: DatasetName
    relation: str
    run_id: str


@dataclass(frozen=True)
class Origin:
    """What a checkpoint was made from, next to it."""

    name: DatasetName
    relation: str
    version: str


@dataclass(frozen=True)
class Checkpoint:
    """Record 4: a model among the ancestors, nearest first.

    Attributes:
        kind: `model` if this platform trained it, else `checkpoint`.
        path: from the release to it.
        made_from: its nearest ancestors, of all its versions: data that it was trained on, checkpoints that it began
            as.
        releases: every release of ours that it saw, itself or through its ancestors.
        entries: every ledger entry that paid for what it saw, likewise.
        origin: `known`; `declared public`; or `unknown`: then nothing is known of what it saw.
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
    """What paid for the second mechanism, whose model was audited in place of the released one.

    Attributes:
        ledger_entry: keeps the fingerprints of those who took part in it; restricted.
        state: of the entry.
        commitment: hiding commitment to the set, or None where no participants were named: then it may be anybody.
    """

    ledger_entry: str
    state: str
    commitment: str | None


@dataclass(frozen=True)
class FurtherChecks:
    """Record 5: what tells whether people (or, at example level, records) are used again.

    Attributes:
        fingerprints: of `owners` or of `records`.
        ledger_entry: keeps the fingerprints; restricted.
        state: of the entry.
        namespace: fingerprints can be compared inside it.
        commitment: hiding commitment to the set, or None where no participants were named: then it may be anybody.
        max_contributions: the most records of one owner.
        period: the time frame, where records of other periods cannot have taken part.
        audited: the second mechanism, where the audit had a model of its own. Whoever took part in either is to be
            looked for.
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
        """Puts the records of a release together.

        Args:
            release: its name or id, or anything that `LineageStore.find` finds it by.

        Raises:
            LineageRefused: there is no such release, or several; or the graph lacks its guarantee or release facet.
            LedgerError: the ledger lacks the entry that paid for it, or cannot be used.
        """
        from dpsynth_platform.synth.planning import audited_key

        node = store.release(release)
        facets = _facets(node)
        entry = ledger.entry(facets["dpsynth_guarantee"]["ledgerEntry"])
        audited = ledger.entry_for_key(audited_key(entry.key))
        ancestry = store.ancestry([node.name])
        return cls(
            node.name,
            facets["dpsynth_release"]["releaseId"],
            Source(entry.request.dataset, entry.request.period, entry.family, tuple(_sources(ancestry))),
            _unit(facets["dpsynth_privacyUnit"]),
            _details(node.name, facets["dpsynth_guarantee"], entry, of_two=audited is not None),
            tuple(_checkpoint(store, relative, ancestry) for relative in ancestry.of_kind(*MODELS)),
            _checks(entry, facets["dpsynth_privacyUnit"], audited),
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON value (`schemas/records-1-1-0/SyntheticRecord.json`).

        A second mechanism is named only where there is one: all other records are as 1-0-0 has them, too.
        """
        document = {"format": FORMAT, **_plain(asdict(self))}
        if self.further_checks.audited is None:
            del document["further_checks"]["audited"]
        return document


def _facets(node: Node) -> dict[str, Any]:
    needed = ("dpsynth_release", "dpsynth_guarantee", "dpsynth_privacyUnit")
    missing = [name for name in needed if name not in node.facets]
    if missing:
        raise LineageRefused(
            f"{node.name}: the graph knows no {', '.join(missing)} of this release; it was published by an earlier "
            "version, or its lineage was not taken in"
        )
    return dict(node.facets)


def _sources(ancestry: Ancestry) -> Iterator[DatasetName]:
    """Tables with a declared unit that this platform reads and did not write, reached through no model.

    What only a model leads to is the model's source (`Checkpoint`). The line's own source is reached without one: the
    release rests on the clearance, which rests on the scrubbed rows.
    """
    for relative in ancestry.of_kind("dataset"):
        sensitive = "dpsynth_privacyUnit" in relative.node.facets and not relative.node.own
        if sensitive and not any(before.node.kind in (*MODELS, "release") for before in _between(relative)):
            yield relative.node.name


def _between(relative: Relative) -> Iterator[Relative]:
    """What lies between a relative and the start of its path."""
    here = relative.previous
    while here is not None and here.previous is not None:
        yield here
        here = here.previous


def _unit(facet: dict[str, Any]) -> PrivacyUnit:
    return PrivacyUnit(facet["unit"], facet["adjacency"], facet["namespace"], tuple(facet["ownerColumns"]))


def _details(release: DatasetName, claimed: dict[str, Any], entry: Entry, *, of_two: bool) -> DpDetails:
    from dpsynth_platform.privacy.events import event_from_json, event_to_json, twice
    from dpsynth_platform.privacy.statement import TWO_MODELS, covered_accesses

    one = entry.request.event
    event = event_to_json(twice(event_from_json(one))) if of_two else one
    return DpDetails(
        method=claimed["method"],
        epsilon=claimed["epsilon"],
        delta=claimed["delta"],
        tier=claimed["tier"],
        weighting=claimed["weighting"],
        accounting=claimed["accounting"],
        event=event,
        covered=(*covered_accesses(event, claimed["method"]), *([TWO_MODELS] if of_two else [])),
        plan_digest=entry.plan_digest,
        dossier=DatasetName(release.namespace, str(PurePath(release.name).with_name(DOSSIER))),
    )


def _checkpoint(store: LineageStore, relative: Relative, ancestry: Ancestry) -> Checkpoint:
    name = relative.node.name
    above = store.ancestry([name])
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
        origin=_origin(store, name, ancestry),
    )


def _origin(store: LineageStore, name: DatasetName, ancestry: Ancestry) -> str:
    if name in ancestry.unknown:
        return "unknown"
    return "known" if store.public(name) is None else "declared public"


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


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
