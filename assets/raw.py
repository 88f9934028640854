"""raw: the plan is admitted on public facts, the contract is sealed, the source's version is pinned.

What belongs here: everything that happens before a record is read. What does not: reading one.
"""

import base64

from dpsynth_platform.contracts.generation import TEXT_METHODS
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.release.dossier import expected_errors
from dpsynth_platform.sources import source
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.interface import SealedPlan


def body(step: StepContext) -> Outcome:
    """Pins, plans, admits, seals. A source that has not changed keeps its plan and its run."""
    from dpsynth_platform.audit.policy import attacks_on, check_gates
    from dpsynth_platform.scrub.scrub import check_source_schema

    contract, place = step.contract, step.place
    check_gates(contract, attacks_on(contract))
    earlier = step.storage.read(place, "raw")
    pinned = _pin(step, earlier)
    check_source_schema(contract, pinned.schema)
    step.open_account()
    for name in (f"dataset {contract.dataset}", f"source {pinned.table_id}"):
        step.ledger.bind(name, contract.family, contract.privacy.owner_columns)
    if not step.spend_again:
        planning.check_choice(contract, earlier, pinned, step.ledger.charged_for(contract.family, place.label))
    plan = _earlier_plan(step, earlier, pinned)
    if plan is None:
        if earlier is None and contract.generate.base_model is not None:
            step.cleared(contract).require(place.label)  # what is refused anyway need not be tried for minutes first
        step.progress("calibrating the mechanism's noise to the guarantee")
        plan = planning.plan_release(contract, pinned.schema, place.period)
    run_key = planning.run_key(contract, pinned, place.period, plan)
    request = planning.cost_request(plan, step.runner)
    keys = planning.mechanism_keys(contract, run_key)
    if contract.release.cadence is not None:
        step.ledger.check_period(contract.family, keys, request, step.spend_again or None)
    admission = step.ledger.admit(contract.family, request, keys=keys)
    if admission.due:
        step.cleared(contract, request=request).require(place.label)
    each = ", for each of two models" if len(keys) > 1 else ""
    step.progress(
        f"admitted: up to epsilon {contract.privacy.guarantee.epsilon:g}{each}"
        if admission.due or admission.entry is None
        else f"covered by ledger entry {admission.entry.entry_id}: nothing new is asked for"
    )
    facts = {
        "contract": contract.snapshot(),
        "contract_digest": contract.digest(),
        "mechanism_digest": canonical_digest(contract.mechanism_snapshot()),
        "plan_digest": plan.digest,
        "method": plan.method,
        "why_method": plan.why,
        "expected_errors": expected_errors(plan.describe()),
        "source": pinned.name,
        "source_version": pinned.version,
        "source_schema": base64.b64encode(pinned.schema.serialize().to_pybytes()).decode(),
        "code_version": STEP.code_version,
    }
    if earlier is not None and earlier.run_key == run_key and earlier.path and facts.items() <= earlier.facts.items():
        return Outcome(earlier, reused=True, metadata=_metadata(plan, admission.epsilon_left))
    with step.storage.new_output(place, "raw") as directory:
        (directory / "plan.json").write_text(plan.to_json(), encoding="utf-8")
        record = step.record("raw", run_key=run_key, directory=directory, facts=facts)
    return Outcome(record, metadata=_metadata(plan, admission.epsilon_left))


def _pin(step: StepContext, earlier: StepRecord | None) -> source.PinnedSource:
    """The source's newest version; for a period that was paid for, the one that it was made of.

    Later versions may have rows of an earlier period. They are in no release of it: it would be paid for again each
    time that something is added, whatever is added.
    """
    newest = source.pin(step.contract)
    if earlier is not None:
        newest = newest.named_as(earlier.facts["source"])
        if newest.unsure_since(earlier.facts["source"]):
            step.progress(
                f"the source's log does not say any more whether versions after {earlier.facts['source_version']} "
                f"changed rows: version {newest.version} counts as another"
            )
    if step.contract.release.cadence is None or earlier is None or step.spend_again:
        return newest
    paid = {entry.key for entry in step.ledger.charged_for(step.contract.family, step.place.label)}
    kept = source.at_version(newest, earlier.facts["source"], step.source_schema(earlier))
    if (
        paid.isdisjoint(planning.mechanism_keys(step.contract, earlier.run_key))
        or kept is None
        or kept.version == newest.version
    ):
        return newest
    step.progress(
        f"{step.place.label} is paid for: it stays with version {kept.version} of the source, whose newest one is "
        f"{newest.version}; what came since is in no release of this period"
    )
    return kept


def _earlier_plan(step: StepContext, earlier: StepRecord | None, pinned: source.PinnedSource) -> SealedPlan | None:
    """The plan that was sealed for the same mechanism over the same schema, so that it is not calibrated again."""
    same = {
        "mechanism_digest": canonical_digest(step.contract.mechanism_snapshot()),
        "source": pinned.name,
        "code_version": STEP.code_version,
    }
    if earlier is None or not same.items() <= earlier.facts.items() or not step.storage.exists(earlier):
        return None
    if not planning.in_zone(earlier, step.contract.release.time_zone):
        return None
    plan = step.plan(earlier)
    return plan if _starts_from_the_same(plan) else None


def _starts_from_the_same(plan: SealedPlan) -> bool:
    """Whether the language model that a plan has on this machine, if any, is of the files that it was made for.

    Raises:
        ConfigurationError: it is not there.
    """
    if plan.method not in TEXT_METHODS:
        return True
    from dpsynth_platform.synth.text.sealing import started_from
    from dpsynth_platform.synth.text.trained import deployed

    start = started_from(plan)
    return start is None or deployed(start[0]).digest == start[1]


def _metadata(plan: SealedPlan, epsilon_left: float) -> dict[str, object]:
    return {
        "epsilon": plan.guarantee["epsilon"],
        "delta": plan.guarantee["delta"],
        "plan": plan.digest,
        "method": f"{plan.method}: {plan.why}",
        "plan in words": {key: value for key, value in plan.describe().items() if key != "columns"},
        "epsilon_left_before": epsilon_left,
    }


STEP = Step(
    name="raw",
    description=(
        "The run's beginning: the plan admitted under the family's cap, the contract sealed, one version of the "
        "source pinned. No record is read. Restricted."
    ),
    upstream=(),
    kinds=frozenset({"deltalake"}),
    zone="restricted",
    code_version="1",
    body=body,
    fields=(
        ("run_key", "string", "names contract, source version, period and plan together"),
        ("contract", "json", "the contract as it was sealed"),
        ("plan", "json", "the sealed plan of the mechanism"),
        ("source", "string", "table id and version of the source"),
    ),
)
