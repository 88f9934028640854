"""clearance: the verdict before the mechanism, and the reservation of its cost.

What belongs here: naming the participants, asking lineage and the ledger once, and reusing an entry of the same run.
What does not: the verdict itself (`lineage.clearance`), and which owners are left out (the ledger). Visible verdicts
depend on public facts only; overlaps with earlier runs are counted into a file for reviewers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ClearanceRefused, SpendRepeated
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.lifecycle.owner_keys import KEY_IDS
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.lineage.overlaps import Overlaps
from dpsynth_platform.operations.roles import Role, roles_of
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.scrub.fingerprints import Fingerprints, read_fingerprints
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.interface import Generator, generator


def body(step: StepContext) -> Outcome:
    """Reserves the run's cost, once. A paid run keeps its entry."""
    from dpsynth_platform.lineage import facets

    contract, raw = step.sealed()
    entries = _entries(step, contract, raw)
    entry = entries[-1]
    cleared = _cleared(step, contract, entry)
    shown = {
        "entry_id": entry.entry_id,
        "plan_digest": entry.request.plan_digest,
        "family": entry.family,
        "policy": contract.privacy.on_overlap,
        "attempt": entry.attempt,
        "verdict": "cleared",
    } | {role.entry: paid.entry_id for role, paid in zip(roles_of(contract), entries, strict=True)}
    record = step.record("clearance", run_key=raw.run_key, facts=shown | {CLEARANCE: cleared.to_json()})
    run_facets = facets.clearance(
        contract, verdict="cleared", ledger_entry=entry.entry_id, plan_digest=entry.request.plan_digest
    )
    if entry.commitment is not None:
        run_facets |= facets.participants(contract, ledger_entry=entry.entry_id, commitment=entry.commitment)
    shown |= {
        "what is known of earlier mechanisms": "\n\n".join(cleared.words),
        "findings": [item.words for item in cleared.findings],
    }
    return Outcome(record, metadata=shown, run_facets=run_facets)


def _cleared(step: StepContext, contract: DataContract, entry: Entry) -> Clearance:
    """The clearance before the run's entry; the stored one is kept unless there are new findings."""
    cleared = step.cleared(contract, entry_id=entry.entry_id)
    before = step.storage.read(step.place, "clearance")
    if before is not None and before.facts.get("entry_id") == entry.entry_id and CLEARANCE in before.facts:
        cleared = cleared.kept(Clearance.from_json(before.facts[CLEARANCE]))
    cleared.require(step.place.label)
    return cleared


def _entries(step: StepContext, contract: DataContract, raw: StepRecord) -> list[Entry]:
    """The entries that pay for the run's mechanisms, in their order; missing ones are reserved, all or none."""
    roles = roles_of(contract)
    active = {role: _active_entry(step, raw, role) for role in roles}
    for entry in active.values():
        if entry is not None:
            step.progress(f"ledger entry {entry.entry_id} is {entry.state}; nothing new is reserved")
    due = [role for role in roles if active[role] is None]
    # A repeated run repeats `spend_again`, which the active mechanism may have used already.
    used = any(entry is not None and entry.replaces == step.spend_again for entry in active.values())
    replaces = None if used else step.spend_again or None
    reserved = dict(zip(due, _reserve(step, contract, raw, due, replaces) if due else [], strict=True))
    for entry in reserved.values():
        step.progress(f"ledger entry {entry.entry_id} reserved: up to epsilon {contract.privacy.guarantee.epsilon:g}")
    return [active[role] or reserved[role] for role in roles]


def _active_entry(step: StepContext, raw: StepRecord, role: Role) -> Entry | None:
    """The entry that has paid for a mechanism of this run, or None where a new reservation is due.

    An interrupted training resumes under its own entry, which has paid for the steps that it repeats.
    """
    entry = step.ledger.entry_for_key(role.key(raw.run_key))
    if entry is None or entry.state in ("void", "reserved") or step.spend_again == entry.entry_id:
        return None  # reserving again returns a valid reservation, and replaces an expired one
    directory = step.storage.location(step.place, role.step) / entry.entry_id
    method = generator(raw.facts["method"])
    if method.is_complete(directory) or (entry.state == "started" and _can_continue(step, entry, method, directory)):
        return entry
    if entry.state == "spent":
        raise SpendRepeated(
            f"{step.place.label}: the model that ledger entry {entry.entry_id} paid for has been purged. A run has one "
            "completed model; a new version of the source, or a changed contract, is a new run with its own cost"
        )
    raise SpendRepeated(f"{step.place.label}: {step.not_completed(entry)}")


def _can_continue(step: StepContext, entry: Entry, method: Generator, directory: Path) -> bool:
    """Whether what an entry has paid for goes on where it was interrupted."""
    if step.contract.source.federation is None:
        return method.can_resume(directory)
    from dpsynth_platform.operations.federating import exchanges_of

    return exchanges_of(step, directory).begun(entry.plan_digest) is not None


def _reserve(
    step: StepContext, contract: DataContract, raw: StepRecord, due: Sequence[Role], replaces: str | None
) -> list[Entry]:
    from dpsynth_platform.reviewing.ledger_witnesses import check_not_behind

    check_not_behind(step.storage, step.ledger)
    if contract.source.federation is not None:
        step.relay()  # of a deployment that says of none, the run would end later
    scrubbed, policy = _scrubbed(step, contract, raw), contract.privacy.on_overlap
    if replaces is not None and policy != "compose":
        raise ClearanceRefused(
            f"{step.place.label}: the owners of the failed attempt have taken part, and on_overlap: {policy} excludes "
            "them from another attempt; accepted: on_overlap: compose, which is another run"
        )
    plan = step.plan(raw)
    request = planning.cost_request(plan, step.runner)
    cleared = step.cleared(contract, request=request)
    cleared.require(step.place.label)
    offered = None if scrubbed is None else _offered(step, contract, scrubbed)
    overlaps = {} if offered is None else step.ledger.overlaps(offered, cleared.comparable)
    entries = step.ledger.reserve_together(
        contract.family,
        [role.key(raw.run_key) for role in due],
        request,
        participants=offered,
        policy=policy,
        key_ids=() if scrubbed is None else scrubbed.facts[KEY_IDS],
        related=cleared.related,
        replaces=replaces,
        period_keys=planning.mechanism_keys(contract, raw.run_key) if contract.release.cadence is not None else (),
    )
    if offered is None:
        return entries
    for entry in entries:
        charged = len(step.ledger.participants(entry.entry_id))
        Overlaps(len(offered), charged, overlaps).write(step.storage, step.place, entry.entry_id)
    return entries


def _scrubbed(step: StepContext, contract: DataContract, raw: StepRecord) -> StepRecord | None:
    """The scrubbed rows with their owners; None of a federated dataset, whose account charges everybody."""
    if contract.source.federation is not None:
        return None
    (scrubbed,) = step.same_run(raw, "scrubbed")
    step.check_owners(scrubbed)
    return scrubbed


def _offered(step: StepContext, contract: DataContract, scrubbed: StepRecord) -> Fingerprints:
    """All owners but those who are held out."""
    from dpsynth_platform.scrub.fingerprints import holdout_mask

    owners = read_fingerprints(scrubbed.directory / "participants")
    held_out = holdout_mask(owners, step.holdout_key(contract), contract.quality.holdout)
    return np.ascontiguousarray(owners[~held_out])


STEP = Step(
    name="clearance",
    description=(
        "Compares owners with earlier releases and reserves the cost in the ledger before the mechanism may start; "
        "leaves exhausted owners out silently. A record, without rows."
    ),
    upstream=("raw", "scrubbed"),
    kinds=frozenset({"sql"}),
    zone="restricted",
    code_version="2",
    body=body,
    fields=(
        ("entry_id", "string", "the ledger entry that pays for the mechanism"),
        ("audited_entry_id", "string", "the ledger entry that pays for a separate audited model"),
        ("plan_digest", "string", "digest of the sealed plan"),
        ("family", "string", "the account"),
        ("policy", "string", "what happens to owners with earlier entries"),
        ("attempt", "integer", "number of entries of this run"),
        ("verdict", "string", "cleared"),
        ("clearance", "json", "earlier mechanisms that this one adds to, with paths, and the resulting guarantee"),
    ),
)
