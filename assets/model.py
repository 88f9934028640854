"""model and audited: the mechanism, in its own worker process.

`audited` is the model that the audit attacks, where canaries would hurt the released one: the same mechanism by the
same sealed plan, with fresh noise, over the same people and the canaries. No release is drawn from it.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import AUDITED, TOOK_PART, StepRecord, digest_directory
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.operations.mechanism import MechanismInputs, alone, run_mechanism
from dpsynth_platform.operations.roles import ATTACKED, ONLY, Role, released_role, roles_of
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.worker.inputs import claimed_canaries


def body(step: StepContext) -> Outcome:
    """Trains the model of the release, after the audited one if there is one."""
    contract, _ = step.sealed()
    return _train(step, released_role(contract))


def _sum(step: StepContext) -> Outcome:
    """Opens the participants' noisy sums, once, and fits the model to them."""
    from dpsynth_platform.operations.federating import run_federation

    contract, raw = step.sealed()
    clearance, canaries = step.same_run(raw, "clearance", "canaries")
    plan, entry, directory = _paid(step, raw, ONLY, clearance)
    with alone(step, ONLY, directory):
        entry, reused = _standing(step, entry, directory)
        if not reused:
            entry = run_federation(step, contract, plan, entry, directory, canaries)
        took_part = json.loads((directory / TOOK_PART).read_text(encoding="utf-8"))
        record = _record(step, raw, entry, plan, directory, ONLY, [clearance, canaries], took_part=took_part)
    return _outcome(step, contract, entry, plan, record, reused)


def _paid(step: StepContext, raw: StepRecord, role: Role, clearance: StepRecord) -> tuple[SealedPlan, Entry, Path]:
    """The plan of a mechanism, the entry that pays for it, and the directory of its model."""
    entry, plan = step.ledger.entry(clearance.facts[role.entry]), step.plan(raw)
    if (entry.key, entry.plan_digest) != (role.key(raw.run_key), plan.digest):
        raise StaleInput(f"{step.place.label}/clearance is for another plan than raw's; materialize clearance again")
    return plan, entry, step.storage.named_output(step.place, role.step, entry.entry_id)


def _standing(step: StepContext, entry: Entry, directory: Path) -> tuple[Entry, bool]:
    """The entry as it is now, which may have changed before the lock was acquired, and whether its model is here."""
    entry = step.ledger.entry(entry.entry_id)
    return entry, entry.state == "spent" and digest_directory(directory) == entry.model_digest


def _train(step: StepContext, role: Role) -> Outcome:
    """Trains once. Complete measurements of an interrupted run are fitted without reading the data again."""
    contract, raw = step.sealed()
    if role not in roles_of(contract):
        raise StaleInput(
            f"{step.place.label}/raw was sealed with audit.model: {contract.audit.model}, which has no {role.step}; "
            f"materialize {step.place.label}/raw again"
        )
    clearance, bounded = step.same_run(raw, "clearance", "bounded")
    canaries = step.same_run(raw, "canaries")[0] if role.canaries else None
    inputs = MechanismInputs(role, clearance, bounded, canaries)
    plan, entry, directory = _paid(step, raw, role, clearance)
    with alone(step, role, directory):
        entry, reused = _standing(step, entry, directory)
        if not reused:
            entry = run_mechanism(step, contract, plan, entry, directory, inputs)
        record = _record(step, raw, entry, plan, directory, role, inputs.records)
    return _outcome(step, contract, entry, plan, record, reused)


def _record(
    step: StepContext,
    raw: StepRecord,
    entry: Entry,
    plan: SealedPlan,
    directory: Path,
    role: Role,
    inputs: Sequence[StepRecord],
    **more: object,
) -> StepRecord:
    name = role.step
    existing = step.reusable(raw, name, *inputs)
    if existing is not None and existing.facts["entry_id"] == entry.entry_id:
        return existing
    facts = {
        "entry_id": entry.entry_id,
        "plan_digest": plan.digest,
        "canaries": claimed_canaries(directory),
        **more,
    }
    return step.record(name, run_key=raw.run_key, directory=directory, inputs=inputs, facts=facts)


def _outcome(
    step: StepContext, contract: DataContract, entry: Entry, plan: SealedPlan, record: StepRecord, reused: bool
) -> Outcome:
    """With the claimed guarantee, and the ledger entry that paid for it."""
    from dpsynth_platform.operations.step_lineage import paid_by
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json
    from dpsynth_platform.synth.tuning.runs import kept_setting_in_words

    result = epsilon(event_from_json(plan.event), contract.privacy.delta)
    shown = {
        "guarantee": str(replace(Guarantee.target(contract), epsilon=result.epsilon, delta=result.delta)),
        "epsilon": result.epsilon,
        "delta": result.delta,
        "accounting": result.method,
        "epsilon_left_after": step.ledger.left_for(contract.family, entry.request, contract.mechanisms),
        "ledger_entry": entry.entry_id,
        "ledger_state": entry.state,
        **kept_setting_in_words(record.directory),
    }
    return Outcome(record, reused=reused, metadata=shown, facets=paid_by(contract, plan, entry.entry_id))


STEP = Step(
    name="model",
    description=(
        "The mechanism: noisy measurements and the graphical model fitted to them. Differentially private, but kept "
        "restricted."
    ),
    upstream=("clearance", "canaries", "bounded"),
    kinds=frozenset({"pytorch"}),
    zone="restricted",
    code_version="2",
    body=body,
    fields=(
        ("measurements", "jsonl", "noisy counts and the columns chosen for them, in order"),
        ("model", "npz", "the model that was fitted to them"),
        ("claim", "json", "the one-time claim of the ledger entry"),
    ),
    pool="accelerator",
)

FEDERATED_STEP = replace(
    STEP,
    description=(
        "A federated run: noisy sums of the participants' rows, which stay with them, and the model fitted to these. "
        "Differentially private, but kept restricted."
    ),
    upstream=("clearance", "canaries"),
    kinds=frozenset({"python"}),
    code_version="1",
    body=_sum,
    fields=(
        ("measurements", "jsonl", "noisy counts and the columns chosen for them, in order"),
        ("took_part", "json", "which participants started, and whose rows are in each sum"),
        ("model", "npz", "the model that was fitted to them"),
        ("claim", "json", "the one-time claim of the ledger entry"),
    ),
    pool=None,
)
AUDITED_STEP = replace(
    STEP,
    name=AUDITED,
    description=(
        "The model that is attacked instead of the released one: trained separately by the same sealed plan, with the "
        "canaries, at its own cost. Never sampled from for a release; restricted."
    ),
    code_version="1",
    body=lambda step: _train(step, ATTACKED),
)
