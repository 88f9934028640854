"""Clearance: what is known before a mechanism of what it would add to, and the verdict that follows.

What belongs here: putting together what the graph (`survey`) and the ledger (`kinship`) know of a run, the verdict, and
the guarantee that would result. What does not: the reservation, in which people are compared (`ledger`), and showing
any of it.

**What is found.** Every live ledger entry that may be about the same people: of the dataset's own family (its earlier
periods, other datasets, learned bounds, failed attempts, this run's own included: each touched the data), of another
family of the same identity namespace (a dataset that was moved there has not moved its people), and whatever the
lineage graph leads to: mechanisms on the same table, and those upstream of the checkpoint that training starts from.
And what nobody can vouch for: a checkpoint of unknown origin, one that has seen a guarded table in clear, a claimed
entry that the ledger does not hold, an origin that only another producer tells. The last one stops nothing, since
nobody else can know: it is named, with the producer and the events, for whoever approves. Of each kind the nearest
`MOST_LISTED` are told one by one, the others by their number.

**The verdict** is the contract's word where everything can be told, and `refuse` otherwise:

- `compose`: the mechanism goes ahead with everybody whom the account can afford. What all of it promises together is
  composed and stated, for the worst case of a person in every one.
- `exclude`: whoever took part before is left out in silence.
- `block`: the run is refused if anybody took part before. That one verdict looks at the data.
- `refuse`: something upstream of the checkpoint is unknown or unprotected; or, under `exclude` and `block`, somebody
  cannot be compared with these people: of another namespace or unit, named by nobody, or claimed and not proven. There
  everybody may have taken part, and leaving everybody out is no release.

**What may be seen.** All of this follows from contracts, names, the number and kind of entries, and lineage; nothing
of it from a record or from who took part. So the same two people-free ledgers and graphs give the same clearance, word
for word, and a finding may stand in a public dossier. How many people an entry has in common with a run does depend on
them: it is counted apart (`Ledger.overlaps`), for reviewers, and decides nothing.

**The composed guarantee** holds if the plans were fixed in advance (`ledger.composition`). What holds whatever was
chosen in the light of what: for one family its cap, for several of them the sum of their caps (`Clearance.caps`).
Under `exclude` and `block` nobody who takes part was in any of the others, so that the release's own guarantee is all
of it, towards what was before; a later mechanism is cleared against this one in its turn.

**When.** A run is cleared against what was reserved before its own entry. What comes later, in whatever order its
events arrive, is cleared against this run. But what is *learned* later about what was before (a checkpoint's origin)
would have been a finding: `news` tells it apart, and a release with news is stopped until it was cleared again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

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
from dpsynth_platform.lineage.survey import Lead, Path, Survey, survey
from dpsynth_platform.lineage.upstream import Upstream, upstream_of

if TYPE_CHECKING:
    from dpsynth_platform.lineage.store import LineageStore

Decision = Literal["compose", "exclude", "block", "refuse"]
Kind = Literal["family", "namespace", "source", "base-model", "unknown", "unprotected", "unproven", "foreign-word"]

SAID: Mapping[Kind, str] = {
    "family": "an earlier mechanism of the same family",
    "namespace": "a mechanism of another family of the same identity namespace",
    "source": "a mechanism on the same table, or on what it was made from",
    "base-model": "a mechanism upstream of the base model",
    "unknown": "a model of unknown origin upstream of the base model, or the base model itself",
    "unprotected": "a guarded table that the base model has seen without a mechanism in between",
    "unproven": "a claimed ledger entry that the ledger does not bear out",
    "foreign-word": "a model whose origin is the word of other producers alone, for which nobody here vouches",
}
"""What each kind of finding is, in words."""
CLEARANCE = "clearance"
"""Under what a clearance's record keeps all of it."""
_NEVER: tuple[Kind, ...] = ("unknown", "unprotected")
_ANYBODY = "nobody can say whom it concerns"
SHOWN = 3
MOST_LISTED = 20


@dataclass(frozen=True)
class Finding:
    """One thing that a mechanism would add to. Public.

    Attributes:
        kind: how it was found; of several ways, the one by lineage, which says most.
        path: what led there, from the dataset or its base model on.
        entry: id of the ledger entry, where it is one.
        family: whom it is charged to.
        place: the dataset (and period) that it was about.
        guarantee: what it claims, in JSON.
        stranger: why its people cannot be compared with this run's, or None where they can.
        told_by: the producers whose word it is, where it rests on nothing else.
        events: numbers of the first events that tell it.
        more: for how many it stands, where there are too many to list; then `path` names none of them.
        digest: of what these are.
    """

    kind: Kind
    path: Path
    entry: str | None = None
    family: str | None = None
    place: str | None = None
    guarantee: dict[str, Any] | None = None
    stranger: str | None = None
    told_by: tuple[str, ...] = ()
    events: tuple[int, ...] = ()
    more: int = 0
    digest: str | None = None

    @property
    def words(self) -> str:
        """In a sentence without its end."""
        told = f" (told by {', '.join((*self.told_by, *_events(self.events)))})" if self.told_by else ""
        return f"{SAID[self.kind]}{told}: {' -> '.join(self.path)}"

    @property
    def number(self) -> int:
        """How many things it stands for."""
        return self.more or 1

    @property
    def identity(self) -> tuple[str, str]:
        """What makes it the same finding, however it was come by."""
        return ("entry", self.entry) if self.entry else (self.kind, self.digest or self.path[-1])

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return asdict(self) | {
            "path": list(self.path),
            "told_by": list(self.told_by),
            "events": list(self.events),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Finding:
        """Reads what `to_json` wrote."""
        lists = {name: tuple(document.get(name, ())) for name in ("path", "told_by", "events")}
        return cls(**{**document, **lists})


@dataclass(frozen=True)
class Clearance:
    """The verdict on a run, with all that it rests on. Public.

    Attributes:
        decision: what the mechanism may do.
        policy: the contract's `on_overlap`.
        reason: why, in sentences.
        findings: everything that it would add to.
        resulting: what one unit is promised by this release and everything found together; under `exclude` and `block`
            by this release alone. None where there is no common guarantee (or, while planning, no plan yet).
        apart: entries without a common guarantee with this run, which `resulting` does not hold.
        base_model: names of the checkpoint that training starts from.
        families: other families that may be about the same people.
        declared: who declared what of the checkpoint's lineage public, and why, in sentences; it counts for as much.
        upstream: what a dossier tells of the ancestry above the line. Approved with the rest: what is reported later
            stands in no dossier of this run.
        caps: (epsilon, delta) of this family and those together, whatever was chosen in the light of what; None where
            they protect different units.
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

    @property
    def related(self) -> tuple[str, ...]:
        """Ids of the entries that only lineage leads to: the ledger finds those of its namespace by itself."""
        by_lineage = (item.entry for item in self.findings if item.kind in ("source", "base-model", "unproven"))
        return tuple(sorted(entry for entry in by_lineage if entry))

    @property
    def comparable(self) -> tuple[str, ...]:
        """Ids of the entries whose people can be held against this run's; no claim of others makes them fewer."""
        return tuple(item.entry for item in self.findings if item.entry and item.stranger in (None, _ANYBODY))

    @property
    def adding(self) -> tuple[Finding, ...]:
        """The findings that the mechanism would add to; a word of other producers is nothing by itself."""
        return tuple(item for item in self.findings if item.kind != "foreign-word")

    @property
    def hearsay(self) -> int:
        """How many models upstream of the base model have an origin that only other producers tell."""
        return sum(item.number for item in self.findings if item.kind == "foreign-word")

    @property
    def unproven(self) -> int:
        """How many claimed ledger entries the ledger does not bear out."""
        return sum(item.number for item in self.findings if item.kind == "unproven")

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences, for people here."""
        return (
            f"{self.decision}: {self.reason}.",
            *(f"{said}." for said in self.declared),
            *(f"{item.words[0].upper()}{item.words[1:]}." for item in self.findings if item.kind == "foreign-word"),
            *self.promises,
        )

    @property
    def promises(self) -> tuple[str, ...]:
        """What follows for one unit, in sentences; empty where there is nothing beside the release's own guarantee."""
        said = []
        together = self.resulting
        if together is not None and self.adding and self.policy == "compose":
            said.append(
                f"Together with what was found: epsilon {upper_bound(together.epsilon)}, delta "
                f"{upper_bound(together.delta)} (by {together.accounting}) for one {together.unit} "
                f"({together.adjacency}) that took part in all {together.mechanisms} mechanisms, if no plan was chosen "
                "in the light of earlier results."
            )
            said += self._beyond_cap(together)
        if self.policy != "compose" and self.adding and self.decision != "refuse":
            said.append("Whoever takes part has taken part in nothing else that is known and was before.")
        beside = len(self.apart) + self.unproven
        if beside:
            said.append(
                f"{number_of(beside, 'finding')} of another unit or adjacency, or without a ledger entry, cannot be "
                "composed with it: no guarantee for all of them together is known."
            )
        if self.families and self.caps is not None:
            said.append(
                f"Whatever is chosen in the light of what, it and the families {', '.join(self.families)} together "
                f"never exceed epsilon {upper_bound(self.caps[0])}, delta {upper_bound(self.caps[1])}: the sum of "
                "their caps, as long as none of these is raised; by as much as one is, so is the sum."
            )
        return tuple(said)

    def _beyond_cap(self, together: Composition) -> Iterator[str]:
        """That a composed delta lies above what the accounts allow for all together, if so, and what holds then."""
        if self.caps is not None and together.delta > self.caps[1]:
            yield (
                f"Its delta is the sum of the mechanisms' own, and above the cap's ({upper_bound(self.caps[1])}). What "
                "may be claimed of all together is the cap, by which the ledger decides in another way: epsilon "
                f"{upper_bound(self.caps[0])}, delta {upper_bound(self.caps[1])}."
            )

    def to_json(self) -> dict[str, Any]:
        """As a JSON value from which `from_json` makes the same."""
        return asdict(self) | {
            "findings": [item.to_json() for item in self.findings],
            "apart": list(self.apart),
            "base_model": [asdict(name) for name in self.base_model],
            "families": list(self.families),
            "declared": list(self.declared),
            "upstream": [asdict(item) for item in self.upstream],
            "caps": list(self.caps) if self.caps else None,
        }

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
                "caps": tuple(document["caps"]) if document["caps"] else None,
            }
        )

    def require(self, where: str) -> None:
        """Raises `ClearanceRefused` if the verdict is `refuse`."""
        if self.decision == "refuse":
            raise ClearanceRefused(f"{where}: not cleared: {self.reason}. Nothing was spent.")

    def news(self, before: Clearance) -> tuple[Finding, ...]:
        """Findings that an earlier clearance of the same run did not have."""
        known = {item.identity for item in before.findings}
        return tuple(item for item in self.findings if item.identity not in known)

    def kept(self, before: Clearance) -> Clearance:
        """The earlier clearance of the same run as long as it says no less: a record that stands should not waver."""
        same = (self.decision, self.policy, self.base_model) == (before.decision, before.policy, before.base_model)
        return before if same and not self.news(before) else self


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
    """The verdict on a run, from public facts as they are now.

    Args:
        contract: the sealed snapshot, or the file while planning.
        family: the budget of the contract's family.
        request: what the mechanism would cost, where that is known.
        entry_id: the run's own entry, where it is reserved; then only what was reserved before it counts.
        base_model: another checkpoint than the contract's, while planning.

    Raises:
        LedgerError: the database is away.
    """
    seen = survey(store, contract.source.uri, base_model or contract.generate.base_model)
    if entry_id is not None:
        request = ledger.entry(entry_id).request
    kin = ledger.kin(family, related=seen.entries, before=entry_id)
    paid = tuple(_finding(item, family, seen) for item in kin)
    findings = (*_unsettled(seen, {item.path for item in paid}), *paid)
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
        base_model=seen.base_model,
        families=families,
        caps=_caps(family, [ledger.account(name) for name in families]),
        declared=tuple(f"{item.name} was declared public by {item.by}: {item.reason}" for item in seen.declared),
        upstream=upstream_of(store, {seen.source: "raw"} | dict.fromkeys(seen.base_model, "model")),
    )


def _unsettled(seen: Survey, told: Collection[Path]) -> Iterator[Finding]:
    """What the graph found that is no entry of the ledger, less what stands among the entries with the same path."""
    kinds: tuple[tuple[Kind, tuple[Lead, ...]], ...] = (
        ("unknown", seen.unknown),
        ("unprotected", seen.unprotected),
        (
            "unproven",
            tuple(lead for lead in seen.unproven if not (lead.claim in seen.trained_on and lead.path in told)),
        ),
        ("foreign-word", seen.hearsay),
    )
    for kind, leads in kinds:
        stranger = None if kind == "foreign-word" else _ANYBODY
        for lead in leads[:MOST_LISTED]:
            yield Finding(kind, lead.path, stranger=stranger, told_by=lead.producers, events=lead.events[:MOST_LISTED])
        if rest := leads[MOST_LISTED:]:
            yield _and_more(kind, rest, stranger)


def _and_more(kind: Kind, rest: Sequence[Lead], stranger: str | None) -> Finding:
    """One finding for all that are not listed. Any change in what they are is news."""
    names = sorted(f"{lead.met.node.name} {lead.claim}" for lead in rest)
    told_by = sorted({name for lead in rest for name in lead.producers})
    return Finding(
        kind,
        (f"{len(rest)} more",),
        stranger=stranger,
        told_by=tuple(told_by),
        more=len(rest),
        digest=canonical_digest(names),
    )


def _finding(item: KinEntry, family: FamilyBudget, seen: Survey) -> Finding:
    entry = item.entry
    kind, path = _way(item, family, seen)
    stranger = item.stranger or (_ANYBODY if kind == "unproven" else None)
    return Finding(
        kind=kind,
        path=path,
        entry=entry.entry_id,
        family=entry.family,
        place=entry.request.place,
        guarantee=entry.request.guarantee.to_json(),
        stranger=stranger,
    )


def _way(item: KinEntry, family: FamilyBudget, seen: Survey) -> tuple[Kind, Path]:
    """How an entry was found. What lineage says comes first, but not of the family's own: that is no news of it."""
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
    """The decision and why; public facts only."""
    never = [item for item in findings if item.kind in _NEVER]
    if never:
        ways = (
            "have its lineage ingested, declare it public (dpsynth lineage declare-public), or start from another"
            if never[0].kind == "unknown"
            else "start from another base model"
        )
        return "refuse", f"{_listed(never, lambda item: item.words)}; {ways}"
    strangers = [item for item in findings if item.stranger]
    if policy != "compose" and strangers:
        return "refuse", (
            f"on_overlap: {policy} promises that nobody takes part twice, and that cannot be told of "
            f"{_listed(strangers, lambda item: f'{item.words} ({item.stranger})')}; with 'compose' the guarantee of "
            "all together is stated"
        )
    adding = sum(item.number for item in findings if item.kind != "foreign-word")
    if not adding:
        return policy, "nothing is known that the mechanism would add to"
    number = number_of(adding, "other mechanism")
    return policy, {
        "compose": f"it adds to {number}; what one unit is promised by all of them together is composed",
        "exclude": f"whoever took part in any of {number} is left out",
        "block": f"it is refused if anybody took part in any of {number}, which looks at the data",
    }[policy]


def _together(own: Sequence[CostRequest], kin: Sequence[KinEntry]) -> tuple[Composition | None, tuple[str, ...]]:
    """The guarantee of a run and its kin together, and the entries that it cannot hold.

    Args:
        own: what the run's mechanisms cost that are not among the kin; none where that is not known.
        kin: the others.
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
    """The sum of caps, where all protect the same unit in the same way."""
    if any((item.unit, item.adjacency) != (family.unit, family.adjacency) for item in others):
        return None
    epsilon = math.fsum([family.cap.epsilon, *(item.epsilon for item in others)])
    return epsilon, math.fsum([family.cap.delta, *(item.delta for item in others)])


def _listed(findings: Sequence[Finding], say: Callable[[Finding], str]) -> str:
    """The first few, and how many more there are."""
    hidden = sum(item.number for item in findings[SHOWN:])
    more = f"; and {hidden} more" if hidden else ""
    return "; ".join(map(say, findings[:SHOWN])) + more


def _events(numbers: Sequence[int]) -> Iterator[str]:
    """`event 7`, or the first few of several."""
    if numbers:
        more = " and more" if len(numbers) > SHOWN else ""
        yield f"event{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:SHOWN]))}{more}"
