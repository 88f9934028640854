"""Before a record is read: the pinned version of the source, an earlier plan that still holds, the admission."""

from dpsynth_platform.contracts.methods import TEXT_METHODS
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.storage import StepRecord
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.sources import source
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.interface import SealedPlan


def pin_source(step: StepContext, earlier: StepRecord | None) -> source.PinnedSource:
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


def earlier_plan(
    step: StepContext, code_version: str, earlier: StepRecord | None, pinned: source.PinnedSource
) -> SealedPlan | None:
    """The plan that was sealed for the same mechanism over the same schema, so that it is not calibrated again."""
    same = {
        "mechanism_digest": canonical_digest(step.contract.mechanism_snapshot()),
        "source": pinned.name,
        "code_version": code_version,
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


def admit(step: StepContext, plan: SealedPlan, run_key: str) -> float:
    """Admits a plan under the family's cap, on public facts; returns the epsilon that is left before it.

    Raises:
        BudgetExceeded: the plan does not fit.
        SpendRepeated: its period is paid for by another plan.
        ClearanceRefused: the lineage checks refuse it.
    """
    contract = step.contract
    request = planning.cost_request(plan, step.runner)
    keys = planning.mechanism_keys(contract, run_key)
    if contract.release.cadence is not None:
        step.ledger.check_period(contract.family, keys, request, step.spend_again or None)
    admission = step.ledger.admit(contract.family, request, keys=keys)
    if admission.due:
        step.cleared(contract, request=request).require(step.place.label)
    each = ", for each of two models" if len(keys) > 1 else ""
    step.progress(
        f"admitted: up to epsilon {contract.privacy.guarantee.epsilon:g}{each}"
        if admission.due or admission.entry is None
        else f"covered by ledger entry {admission.entry.entry_id}: nothing new is asked for"
    )
    return admission.epsilon_left
