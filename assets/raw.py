"""raw: the plan is admitted on public facts, the contract is sealed, the source's version is pinned.

What belongs here: everything before the first record is read. What does not: reading one.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace

from assets.shown import numbers
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.contracts import described as described_plan
from dpsynth_platform.federation.contracts import plan_of_contract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.operations.admitting import admit, copied, earlier_plan, keep_copy, pin_source
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.release.dossier import expected_errors
from dpsynth_platform.sources import source
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.interface import SealedPlan


def body(step: StepContext) -> Outcome:
    """Pins, plans, admits, seals. An unchanged source keeps its plan and its run."""
    with copied(step) as copy:
        return _sealed(step, copy)


def _sealed(step: StepContext, copy: source.Copy | None) -> Outcome:
    from dpsynth_platform.audit.policy import attacks_on, check_gates
    from dpsynth_platform.scrub.scrub import check_source_schema

    contract, place = step.contract, step.place
    check_gates(contract, attacks_on(contract))
    earlier = step.storage.read(place, "raw")
    pinned = pin_source(step, earlier, copy)
    check_source_schema(contract, pinned.schema)
    owner_keys.open_account(step.vault, step.ledger, step.family)
    step.ledger.bind_all(contract.family, _bindings(contract, pinned), pinned.people)
    if not step.spend_again:
        planning.check_choice(contract, earlier, pinned, step.ledger.charged_for(contract.family, place.label))
    plan = earlier_plan(step, STEP.code_version, earlier, pinned)
    if plan is None:
        plan = _new_plan(step, earlier, pinned)
    run_key = planning.run_key(contract, pinned, place.period, plan)
    epsilon_left = admit(step, plan, run_key)
    keep_copy(step, pinned, run_key)
    facts = {
        "contract": contract.snapshot(),
        "contract_digest": contract.digest(),
        "mechanism_digest": canonical_digest(contract.mechanism_snapshot()),
        "plan_digest": plan.digest,
        "method": plan.method,
        "why_method": plan.why,
        "expected_errors": expected_errors(described_plan(contract, plan)),
        "source": pinned.name,
        "source_version": pinned.version,
        "source_schema": base64.b64encode(pinned.schema.serialize().to_pybytes()).decode(),
        "code_version": STEP.code_version,
        **({"parts": sorted(pinned.parts)} if contract.tables else {}),
    }
    if earlier is not None and earlier.run_key == run_key and earlier.path and facts.items() <= earlier.facts.items():
        return Outcome(earlier, reused=True, metadata=_metadata(contract, plan, epsilon_left))
    with step.storage.new_output(place, "raw") as directory:
        (directory / "plan.json").write_text(plan.to_json(), encoding="utf-8")
        if contract.tables:  # which also asks whether its public tables are guarded by now
            from dpsynth_platform.linked_rows.line import write_public

            facts |= write_public(contract, pinned.content, directory)
        record = step.record("raw", run_key=run_key, directory=directory, facts=facts)
    return Outcome(record, metadata=_metadata(contract, plan, epsilon_left))


def _bindings(contract: DataContract, pinned: source.PinnedSource) -> Mapping[str, Sequence[str]]:
    """What is of the contract's family for life, each with its owner columns."""
    owners = contract.privacy.owner_columns
    bound: dict[str, Sequence[str]] = {f"dataset {contract.dataset}": owners, f"source {pinned.table_id}": owners}
    bound |= {f"source {each}": columns for each, columns in pinned.parts.items()}
    return bound | {f"people of {each}": () for each in pinned.people}


def _new_plan(step: StepContext, earlier: StepRecord | None, pinned: source.PinnedSource) -> SealedPlan:
    from dpsynth_platform.lineage.clearance import guarded_public_table

    if (refused := guarded_public_table(step.ledger, step.graph, step.contract, step.family)) is not None:
        refused.require(step.place.label)
    if earlier is None and step.contract.generate.checkpoint is not None:
        step.cleared(step.contract).require(step.place.label)  # before the trial of a model, which takes minutes
    step.progress("calibrating the mechanism's noise to the guarantee")
    if step.contract.tables:
        from dpsynth_platform.linked_rows.line import plan_of

        return plan_of(step.contract)
    if step.contract.source.federation is not None:
        return plan_of_contract(step.contract)
    return planning.plan_release(step.contract, pinned.schema, step.place.period)


_ERRORS = {
    "expected error of a count in one column": "expected_error_per_one_way_cell",
    "expected error of a count in two columns": "expected_error_per_two_way_cell",
    "memory that it may take, bytes": "predicted_memory_bytes",
}
"""Numbers of a plan by their labels; errors are in records, in the mean."""


def _metadata(contract: DataContract, plan: SealedPlan, epsilon_left: float) -> dict[str, object]:
    described = described_plan(contract, plan)
    return {
        "epsilon": plan.guarantee["epsilon"],
        "delta": plan.guarantee["delta"],
        "plan": plan.digest,
        "method": f"{plan.method}: {plan.why}",
        "what is measured": described["event"],
        **numbers(described, _ERRORS),
        "plan in numbers": {key: value for key, value in described.items() if key != "columns"},
        "epsilon_left_before": epsilon_left,
    }


STEP = Step(
    name="raw",
    description=(
        "The start of a run: admits the plan under the family's cap, seals the contract, pins one version of the "
        "source. Reads no record. Restricted."
    ),
    upstream=(),
    kinds=frozenset({"deltalake"}),
    zone="restricted",
    code_version=planning.RAW_VERSION,
    body=body,
    fields=(
        ("run_key", "string", "identifies contract, source version, period and plan together"),
        ("contract", "json", "the sealed contract"),
        ("plan", "json", "the sealed plan of the mechanism"),
        ("source", "string", "table id and version of the source"),
    ),
)

FEDERATED_STEP = replace(
    STEP,
    description=(
        "The start of a federated run: admits the plan under the family's cap, seals contract and plan, which each "
        "participant checks anew. No row comes here. Restricted."
    ),
    kinds=frozenset({"python"}),
)
