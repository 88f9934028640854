"""Clearance: the mechanisms that a run's cost would add to, and the verdict before the run's own mechanism.

What belongs here: combining what the graph (`survey`) and the ledger (`kinship`) know of a run, the verdict, and the
resulting guarantee. What does not: the reservation, which compares people (`ledger`), and showing any of it.

**Findings** are all live ledger entries that may be about the same people:

- of the dataset's own family: earlier periods, other datasets, learned bounds, failed attempts, also of this run;
- of another family of the same identity namespace, since a dataset that was moved there is still about the same people;
- of mechanisms that lineage leads to: on the same table, or upstream of a public base that the plan starts from
  (`contracts.bases`: the checkpoint, public pictures or tables, a model behind an endpoint);

and whatever cannot be verified: a checkpoint of unknown origin, or a base that has seen a guarded table in clear; an
entry that is claimed and that the ledger does not confirm; an origin that only other producers report. The last one
stops no run, since only they can know it; approvers see the producers and the events.

**The verdict** is the contract's `on_overlap`, or `refuse`:

- `compose`: all whom the account can afford take part. The guarantee of all mechanisms together is stated, for a
  person who took part in each.
- `exclude`: earlier participants are silently left out.
- `block`: the run is refused if one of its people took part before. Only this verdict depends on the data.
- `refuse`: something upstream of a base is unknown or unprotected; under `exclude` and `block` also if the
  participants of a finding cannot be compared, so that anyone may have taken part.

**All of it is public**: it follows from contracts, names, lineage, and the number and kind of entries, never from a
record or from who took part. `Ledger.overlaps` counts shared participants for reviewers, and no decision uses that.

**The composed guarantee** holds if the plans were fixed in advance (`ledger.composition`). If plans depend on earlier
results, the caps hold: of one family its cap, of several the sum (`Clearance.caps`). Under `exclude` and `block` no
participant was in an earlier mechanism, so the release's own guarantee is all of it.

**Time.** A run is cleared against what was reserved before its own entry; later entries are cleared against this run.
But facts that are reported later about earlier mechanisms (a checkpoint's origin) are `new_findings`: a release with
any is refused until it is cleared again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dpsynth_platform.contracts.bases import PublicBase
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ClearanceRefused
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.ledger.composition import Composition, compose
from dpsynth_platform.ledger.kinship import KinEntry
from dpsynth_platform.ledger.records import Account, CostRequest, OverlapPolicy
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.survey import KnownBase, Lead, Path, Survey, survey
from dpsynth_platform.lineage.upstream import Upstream, upstream_of

if TYPE_CHECKING:
    from dpsynth_platform.lineage.store import LineageStore

Decision = Literal["compose", "exclude", "block", "refuse"]
Kind = Literal["family", "namespace", "source", "base-model", "unknown", "unprotected", "unproven", "unverified-source"]

DESCRIPTIONS: Mapping[Kind, str] = {
    "family": "an earlier mechanism of the same family",
    "namespace": "a mechanism of another family of the same identity namespace",
    "source": "a mechanism on the same table, or on what it was made from",
    "base-model": "a mechanism upstream of a base",
    "unknown": "a model of unknown origin upstream of a base, or a base itself",
    "unprotected": "a guarded table that a base has seen, or holds, without a mechanism in between",
    "unproven": "a claimed ledger entry that the ledger does not confirm",
    "unverified-source": "a model whose origin only other producers report",
}
_POLICIES: Mapping[OverlapPolicy, str] = {
    "compose": "it adds to {number}; the guarantee of all of them together is composed",
    "exclude": "participants of any of {number} are left out",
    "block": "it is refused if one of its people took part in any of {number}; this check depends on the data",
}
_TOGETHER = (
    "Together with what was found: epsilon {epsilon}, delta {delta} (by {accounting}) for one {unit} ({adjacency}) "
    "that took part in all {mechanisms} mechanisms, if no plan was chosen in the light of earlier results."
)
_BEYOND_CAP = (
    "Its delta is the sum of the mechanisms' own, and above the cap's ({delta}). What may be claimed of all together "
    "is the cap, which the ledger enforces by another method: epsilon {epsilon}, delta {delta}."
)
_NO_OTHER = "Its participants took part in no earlier mechanism that is known."
_NOT_COMPOSED = (
    "{number} of another unit or adjacency, or without a ledger entry, cannot be composed with it: no guarantee for "
    "all of them together is known."
)
_CAPS = (
    "Even if plans depend on earlier results, it and the families {families} together never exceed epsilon {epsilon}, "
    "delta {delta}: the sum of their caps. If a cap is raised, the sum rises by as much."
)
_FORMER = {"stranger": "incomparable", "foreign-word": "unverified-source"}
CLEARANCE = "clearance"
"""The key of the clearance in its step's record."""
_REFUSED: tuple[Kind, ...] = ("unknown", "unprotected")
_UNKNOWN_PARTICIPANTS = "nobody can say whom it concerns"  # recorded in findings, and compared: keep it
SHOWN = 3
MOST_LISTED = 20


@dataclass(frozen=True)
class Finding:
    """One thing that a mechanism would add to. Public.

    Attributes:
        kind: how it was found; of several ways, the most specific one, by lineage.
        path: the way to it from the dataset or a base.
        entry: id of the ledger entry, if it is one; `family` is its account, `place` its dataset (and period).
        guarantee: what the entry claims, in JSON.
        incomparable: why its participants cannot be compared with this run's, or None if they can.
        told_by: the producers that report it, if nobody else does.
        events: numbers of the first events that report it.
        more: how many things it summarizes, if there are too many to list; then `path` names none of them.
        digest: of the names that it summarizes.
    """

    kind: Kind
    path: Path
    entry: str | None = None
    family: str | None = None
    place: str | None = None
    guarantee: dict[str, Any] | None = None
    incomparable: str | None = None
    told_by: tuple[str, ...] = ()
    events: tuple[int, ...] = ()
    more: int = 0
    digest: str | None = None

    @property
    def words(self) -> str:
        """As a sentence without a full stop."""
        source = f" (reported by {', '.join((*self.told_by, *_events(self.events)))})" if self.told_by else ""
        return f"{DESCRIPTIONS[self.kind]}{source}: {' -> '.join(self.path)}"

    @property
    def number(self) -> int:
        """How many things it stands for."""
        return self.more or 1

    @property
    def identity(self) -> tuple[str, str]:
        """Equal for the same finding, whichever way led to it."""
        return ("entry", self.entry) if self.entry else (self.kind, self.digest or self.path[-1])

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Finding:
        """Reads a recorded finding, also with the keys and kinds of earlier versions."""
        values = {_FORMER.get(name, name): value for name, value in document.items()}
        lists = {name: tuple(values.get(name, ())) for name in ("path", "told_by", "events")}
        return cls(**{**values, **lists, "kind": _FORMER.get(values["kind"], values["kind"])})


@dataclass(frozen=True)
class Clearance:
    """The verdict on a run, with everything that it is based on. Public.

    Attributes:
        policy: the contract's `on_overlap`.
        resulting: the guarantee of this release and all findings together; under `exclude` and `block` of this release
            alone. None without a common guarantee (or, while planning, without a plan).
        apart: entries that `resulting` leaves out, since they have no common guarantee with this run.
        base_model: names of the checkpoint that training starts from.
        families: other families that may be about the same people.
        declared: who declared which part of the bases' lineage public, and why, in sentences.
        upstream: the ancestry above the line, for the dossier. It is approved with the rest; later reports change no
            dossier of this run.
        caps: (epsilon, delta) of this family and those together, valid even if plans depend on earlier results; None if
            they protect different units.
        bases: the public bases that the plan starts from, the checkpoint among them.
    """

    decision: Decision
    policy: OverlapPolicy
    reason: str
    findings: tuple[Finding, ...]
    resulting: Composition | None
    apart: tuple[str, ...]
    base_model: tuple[DatasetName, ...]
    families: tuple[str, ...]
    caps: tuple[float, float] | None
    declared: tuple[str, ...] = ()
    upstream: tuple[Upstream, ...] = ()
    bases: tuple[KnownBase, ...] = ()

    @property
    def related(self) -> tuple[str, ...]:
        """Ids of the entries that only lineage leads to; the ledger itself finds those of its namespace."""
        by_lineage = (item.entry for item in self.findings if item.kind in ("source", "base-model", "unproven"))
        return tuple(sorted(entry for entry in by_lineage if entry))

    @property
    def comparable(self) -> tuple[str, ...]:
        """Ids of the entries whose participants can be compared with this run's; an unconfirmed claim removes none."""
        return tuple(
            item.entry for item in self.findings if item.entry and item.incomparable in (None, _UNKNOWN_PARTICIPANTS)
        )

    @property
    def adding(self) -> tuple[Finding, ...]:
        """The findings that the mechanism would add to; an unverified source alone is none of them."""
        return tuple(item for item in self.findings if item.kind != "unverified-source")

    @property
    def unverified_models(self) -> int:
        """How many models upstream of the bases have an origin that only other producers report."""
        return self._count("unverified-source")

    @property
    def unproven(self) -> int:
        """How many claimed ledger entries the ledger does not confirm."""
        return self._count("unproven")

    def _count(self, kind: Kind) -> int:
        return sum(item.number for item in self.findings if item.kind == kind)

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences, for people of the deployment."""
        unverified = (item.words for item in self.findings if item.kind == "unverified-source")
        return (
            f"{self.decision}: {self.reason}.",
            *(f"{sentence}." for sentence in self.declared),
            *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in unverified),
            *self.promises,
        )

    @property
    def promises(self) -> tuple[str, ...]:
        """What follows for one unit, in sentences; empty if the release's own guarantee says all."""
        found, caps = [], self.caps and {"epsilon": upper_bound(self.caps[0]), "delta": upper_bound(self.caps[1])}
        together = self.resulting
        if together is not None and self.adding and self.policy == "compose":
            bounds = {"epsilon": upper_bound(together.epsilon), "delta": upper_bound(together.delta)}
            found.append(_TOGETHER.format(**asdict(together) | bounds))
            if self.caps and caps and together.delta > self.caps[1]:
                found.append(_BEYOND_CAP.format(**caps))
        if self.policy != "compose" and self.adding and self.decision != "refuse":
            found.append(_NO_OTHER)
        if not_composed := len(self.apart) + self.unproven:
            found.append(_NOT_COMPOSED.format(number=number_of(not_composed, "finding")))
        if self.families and caps:
            found.append(_CAPS.format(families=", ".join(self.families), **caps))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """As a JSON value from which `from_json` makes the same."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Clearance:
        """Reads what `to_json` wrote."""
        return cls(
            **{
                **document,
                "findings": tuple(Finding.from_json(item) for item in document["findings"]),
                "resulting": Composition(**document["resulting"]) if document["resulting"] else None,
                "apart": tuple(document["apart"]),
                "base_model": tuple(DatasetName(**name) for name in document["base_model"]),
                "families": tuple(document["families"]),
                "declared": tuple(document.get("declared", ())),
                "upstream": tuple(Upstream(**item) for item in document.get("upstream", ())),
                "bases": tuple(
                    KnownBase(**item | {"name": DatasetName(**item["name"])})
                    for item in document.get("bases", _checkpoints(document))
                ),
                "caps": tuple(document["caps"]) if document["caps"] else None,
            }
        )

    def require(self, where: str) -> None:
        """Raises `ClearanceRefused` if the verdict is `refuse`."""
        if self.decision == "refuse":
            raise ClearanceRefused(f"{where}: not cleared: {self.reason}. Nothing was spent.")

    def new_findings(self, before: Clearance) -> tuple[Finding, ...]:
        """Findings that an earlier clearance of the same run did not have."""
        known = {item.identity for item in before.findings}
        return tuple(item for item in self.findings if item.identity not in known)

    def kept(self, before: Clearance) -> Clearance:
        """The earlier clearance of the same run, unless this one differs or has new findings: records stay the same."""
        same = (self.decision, self.policy) == (before.decision, before.policy) and self.is_of_bases_of(before)
        return before if same and not self.new_findings(before) else self

    def is_of_bases_of(self, other: Clearance) -> bool:
        """Whether both are of the same public bases, whatever lineage knows of them by now."""
        mine, others = ([replace(base, known_by=None) for base in item.bases] for item in (self, other))
        return mine == others


def clear(
    ledger: Ledger,
    store: LineageStore,
    contract: DataContract,
    family: FamilyBudget,
    *,
    request: CostRequest | None = None,
    entry_id: str | None = None,
    base_model: str | None = None,
) -> Clearance:
    """The verdict on a run, from the present public facts. Raises `LedgerError` if the database is out of reach.

    Args:
        contract: the sealed snapshot, or the file while planning.
        family: the budget of the contract's family.
        request: the cost of the mechanism, if known.
        entry_id: the run's own entry, if reserved; then only what was reserved before it counts.
        base_model: another checkpoint than the contract's, while planning.
    """
    seen = survey(store, contract.source.place, _bases(contract, base_model))
    if entry_id is not None:
        request = ledger.entry(entry_id).request
    kin = ledger.kin(family, related=seen.entries, before=entry_id)
    paid = tuple(_finding(item, family, seen) for item in kin)
    findings = (*_unverifiable(seen, {item.path for item in paid}), *paid)
    policy = contract.privacy.on_overlap
    decision, reason = _verdict(policy, findings)
    own = [request] * (2 if contract.separate_audit_model and entry_id is None else 1) if request else []
    resulting, apart = _together(own, kin if policy == "compose" else [])
    families = tuple(sorted({item.entry.family for item in kin} - {family.family}))
    return Clearance(
        decision=decision,
        policy=policy,
        reason=reason,
        findings=findings,
        resulting=resulting,
        apart=apart,
        base_model=tuple(base.name for base in seen.bases if base.kind == "checkpoint"),
        families=families,
        caps=_caps(family, [ledger.account(name) for name in families]),
        declared=tuple(f"{item.name} was declared public by {item.by}: {item.reason}" for item in seen.declared),
        upstream=upstream_of(store, {seen.source: "raw", **seen.starts}),
        bases=seen.bases,
    )


def _bases(contract: DataContract, base_model: str | None) -> Sequence[PublicBase]:
    """The contract's public bases, with another checkpoint if one is given."""
    if base_model is None:
        return contract.bases
    others = [base for base in contract.bases if base.kind != "checkpoint"]
    return [PublicBase("checkpoint", base_model), *others]


def _checkpoints(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The bases of a clearance of an earlier version, which knew checkpoints only."""
    for name in document["base_model"]:
        yield {"kind": "checkpoint", "name": name, "why": None, "step": "model"}


def guarded_public_table(
    ledger: Ledger, store: LineageStore, contract: DataContract, family: FamilyBudget
) -> Clearance | None:
    """The refusal of a public table that lineage knows as guarded; None otherwise. Raises as `clear`.

    Asked before a plan reads the table: number and digest of its rows, or a lookup's keys, would be in the plan.
    """
    if not any(base.kind in ("table", "lookup") for base in contract.bases):
        return None
    found = clear(ledger, store, contract, family)
    return found if any(item.kind in ("unknown", "unprotected") for item in found.findings) else None


def _unverifiable(seen: Survey, paid: Collection[Path]) -> Iterator[Finding]:
    """What the graph found that is no entry of the ledger, without claims that an entry of the same path covers."""
    unproven = tuple(lead for lead in seen.unproven if not (lead.claim in seen.trained_on and lead.path in paid))
    kinds: Mapping[Kind, tuple[Lead, ...]] = {
        "unknown": seen.unknown,
        "unprotected": seen.unprotected,
        "unproven": unproven,
        "unverified-source": seen.unverified,
    }
    for kind, leads in kinds.items():
        incomparable = None if kind == "unverified-source" else _UNKNOWN_PARTICIPANTS
        for lead in leads[:MOST_LISTED]:
            events = lead.events[:MOST_LISTED]
            yield Finding(kind, lead.path, incomparable=incomparable, told_by=lead.producers, events=events)
        if rest := leads[MOST_LISTED:]:
            yield _and_more(kind, rest, incomparable)


def _and_more(kind: Kind, rest: Sequence[Lead], incomparable: str | None) -> Finding:
    """One finding for all that are not listed. Its digest makes any change of them a new finding."""
    names = sorted(f"{lead.met.node.name} {lead.claim}" for lead in rest)
    return Finding(
        kind,
        (f"{len(rest)} more",),
        incomparable=incomparable,
        told_by=tuple(sorted({name for lead in rest for name in lead.producers})),
        more=len(rest),
        digest=canonical_digest(names),
    )


def _finding(item: KinEntry, family: FamilyBudget, seen: Survey) -> Finding:
    entry = item.entry
    kind, path = _way(item, family, seen)
    return Finding(
        kind=kind,
        path=path,
        entry=entry.entry_id,
        family=entry.family,
        place=entry.request.place,
        guarantee=entry.request.guarantee.to_json(),
        incomparable=item.incomparable or (_UNKNOWN_PARTICIPANTS if kind == "unproven" else None),
    )


def _way(item: KinEntry, family: FamilyBudget, seen: Survey) -> tuple[Kind, Path]:
    """How an entry was found: by a base's lineage, else by its family, the same table, or the namespace."""
    name = item.entry.entry_id
    if name in seen.trained_on:
        path = seen.trained_on[name]
        if path[-1].startswith("claims "):
            return "unproven", (*path[:-1], f"claims {name}")
        return "base-model", path
    if item.relation == "family":
        return "family", (f"family {family.family}", f"entry {name}")
    if name in seen.same_source:
        return "source", seen.same_source[name]
    return "namespace", (f"namespace {family.namespace}", f"family {item.entry.family}", f"entry {name}")


def _verdict(policy: OverlapPolicy, findings: Sequence[Finding]) -> tuple[Decision, str]:
    """The decision and its reason; public facts only."""
    refused = [item for item in findings if item.kind in _REFUSED]
    if refused:
        ways = (
            "have its lineage ingested, declare it public (dpsynth lineage declare-public), or start from another"
            if refused[0].kind == "unknown"
            else "start from another base"
        )
        return "refuse", f"{_listed(refused, lambda item: item.words)}; {ways}"
    incomparable = [item for item in findings if item.incomparable]
    if policy != "compose" and incomparable:
        return "refuse", (
            f"on_overlap: {policy} promises that nobody takes part twice, which cannot be checked for "
            f"{_listed(incomparable, lambda item: f'{item.words} ({item.incomparable})')}; with 'compose' the "
            "guarantee of all together is stated"
        )
    adding = sum(item.number for item in findings if item.kind != "unverified-source")
    if not adding:
        return policy, "no other mechanism is known that the mechanism would add to"
    return policy, _POLICIES[policy].format(number=number_of(adding, "other mechanism"))


def _together(own: Sequence[CostRequest], kin: Sequence[KinEntry]) -> tuple[Composition | None, tuple[str, ...]]:
    """The guarantee of a run and its kin together, and the entries that it cannot include.

    Args:
        own: costs of the run's mechanisms that are not among the kin; empty if unknown.
    """
    if not own and not kin:
        return None, ()
    first = own[0] if own else kin[0].entry.request
    alike = [item for item in kin if _same_kind(item.entry.request, first)]
    requests = [*own, *(item.entry.request for item in alike)]
    return compose(requests), tuple(item.entry.entry_id for item in kin if item not in alike)


def _same_kind(one: CostRequest, other: CostRequest) -> bool:
    mine, theirs = one.guarantee, other.guarantee
    return (mine.unit, mine.adjacency) == (theirs.unit, theirs.adjacency)


def _caps(family: FamilyBudget, others: Sequence[Account]) -> tuple[float, float] | None:
    """The sum of caps, if all protect the same unit under the same adjacency."""
    if any((item.unit, item.adjacency) != (family.unit, family.adjacency) for item in others):
        return None
    epsilon = math.fsum([family.cap.epsilon, *(item.epsilon for item in others)])
    return epsilon, math.fsum([family.cap.delta, *(item.delta for item in others)])


def _listed(findings: Sequence[Finding], describe: Callable[[Finding], str]) -> str:
    """The first few, and how many more there are."""
    hidden = sum(item.number for item in findings[SHOWN:])
    more = f"; and {hidden} more" if hidden else ""
    return "; ".join(map(describe, findings[:SHOWN])) + more


def _events(numbers: Sequence[int]) -> Iterator[str]:
    """`event 7`, or the first few of several."""
    if numbers:
        more = " and more" if len(numbers) > SHOWN else ""
        yield f"event{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:SHOWN]))}{more}"
