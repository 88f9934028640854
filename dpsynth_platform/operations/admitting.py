"""Steps before a record is read: pinning the source's version, reusing an earlier plan, the admission."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import BASE_MODEL_METHODS, FINETUNED_METHODS, TUNED
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, SourceError, StaleInput
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import EXTRACT, StepRecord, digest_directory
from dpsynth_platform.ledger.chain import RESERVED
from dpsynth_platform.ledger.words import other_reservations
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.sources import source
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.guarded_sources import check_public_table
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.text.base_models import BaseModel


@contextmanager
def copied(step: StepContext) -> Iterator[source.Copy | None]:
    """A copy of the source, if that is not on this machine; removed at the end unless a record names it (`keep_copy`).

    Raises:
        SourceError: it cannot be read.
    """
    contract = step.contract
    if not contract.source.is_copied:
        yield None
        return
    from dpsynth_platform.sources.plain_files import make_copy

    step.progress("copying the source into the restricted zone")
    with step.storage.new_output(step.place, EXTRACT) as directory:
        problem = ""
        try:
            content = make_copy(contract.source, contract.columns, directory)
        except SourceError as error:
            problem = str(error)
        if problem:
            raise SourceError(f"{contract.dataset}: source.uri: {contract.source.uri}: {problem}")
        yield source.Copy(directory, content)
        kept = step.storage.read(step.place, EXTRACT)
        if kept is None or kept.path != str(directory):
            shutil.rmtree(directory)


def keep_copy(step: StepContext, pinned: source.PinnedSource, run_key: str) -> None:
    """Makes the present copy that of the run, unless an earlier one of the same version is still there."""
    copy = pinned.copy
    if copy is None or pinned.content != copy.content:  # a paid period keeps an earlier version
        return
    kept = step.storage.read(step.place, EXTRACT)
    if kept is None or kept.run_key != run_key or not step.storage.exists(kept):
        step.record(EXTRACT, run_key=run_key, directory=copy.directory, facts={"content": copy.content})


def kept_copy(step: StepContext, run_key: str) -> source.Copy | None:
    """The copy that the run reads, if its source is copied. Raises `StaleInput` if it is gone or was changed."""
    if not step.contract.source.is_copied:
        return None
    record, label = step.storage.read(step.place, EXTRACT), step.place.label
    if record is None or record.run_key != run_key or not step.storage.exists(record):
        raise StaleInput(f"{label}: the copy of the source is gone (purged); materialize {label}/raw again")
    if digest_directory(record.directory) != record.content_hash:
        raise StaleInput(f"{label}: the copy of the source was changed; materialize {label}/raw again")
    return source.Copy(record.directory, record.facts["content"])


def pin_source(step: StepContext, earlier: StepRecord | None, copy: source.Copy | None) -> source.PinnedSource:
    """The source's newest version; for a paid period, the version that was paid for.

    Later versions may contain rows of an earlier period. Its release does not get them: each addition would have to be
    paid for again.
    """
    newest = source.pin(step.contract, step.storage.root, register=True, copy=copy)
    if earlier is not None:
        newest = newest.named_as(earlier.facts["source"])
        if newest.unsure_since(earlier.facts["source"]):
            step.progress(
                f"the source's log no longer shows whether versions after {earlier.facts['source_version']} changed "
                f"rows: version {newest.version} counts as a new one"
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
        f"{step.place.label} is paid for: it keeps version {kept.version} of the source, whose newest version is "
        f"{newest.version}; no release of this period contains later rows"
    )
    return kept


def earlier_plan(
    step: StepContext, code_version: str, earlier: StepRecord | None, pinned: source.PinnedSource
) -> SealedPlan | None:
    """The earlier plan of the same mechanism and source, so that it is not calibrated again.

    Raises:
        ContractError: it is not paid for, and its public table is a guarded one by now.
    """
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
    base = deployed_base(plan)
    entries = step.ledger.charged_for(step.contract.family, step.place.label)
    keys = planning.mechanism_keys(step.contract, earlier.run_key)
    paid = next((entry for entry in entries if entry.state in ("started", "spent") and entry.key in keys), None)
    if step.spend_again or paid is None:
        check_public_table(Settings.from_environment(), step.contract)
    if step.spend_again or paid is None or step.contract.generate.public is not None:
        problem = ""
        try:
            generator(plan.method).check_public(plan)
        except ConfigurationError as error:
            problem = str(error).partition("; accepted")[0]
        if problem and (step.spend_again or paid is None):
            return None
        if problem and paid is not None:
            step.progress(
                f"{problem}. This run keeps the plan that ledger entry {paid.entry_id} paid for, and spends nothing. A "
                f"plan with other public rows is another spend. {step.way_to_spend_again(paid)}"
            )
    return plan if base is None or base[0].digest == base[1] else None


def deployed_base(plan: SealedPlan) -> tuple[BaseModel, str] | None:
    """The checkpoint that a plan starts from, on this machine, and the digest in the plan; None without one."""
    if plan.method in FINETUNED_METHODS:
        from dpsynth_platform.synth.images.finetune_checkpoint import sealed

        return sealed(plan)
    if plan.method not in (*BASE_MODEL_METHODS, TUNED):
        return None
    from dpsynth_platform.synth.text.sealing import started_from
    from dpsynth_platform.synth.text.trained import deployed
    from dpsynth_platform.synth.tuning.sealing import SealedTuning

    start = SealedTuning.of(plan).base if plan.method == TUNED else started_from(plan)
    return None if start is None else (deployed(start[0]), start[1])


def admit(step: StepContext, plan: SealedPlan, run_key: str) -> float:
    """Admits a plan under the family's cap, on public facts; returns what is left for such runs, before it.

    Raises:
        BudgetExceeded: the plan does not fit.
        ContractError: its audit could only be inconclusive, and the contract does not accept that.
        SpendRepeated: its period was paid for by another plan.
        ClearanceRefused: the lineage checks refuse it.
    """
    contract = step.contract
    request = planning.cost_request(plan, step.runner)
    keys = planning.mechanism_keys(contract, run_key)
    if contract.release.cadence is not None:
        step.ledger.check_period(contract.family, keys, request, step.spend_again or None)
    for words in other_reservations(step.ledger.charged_for(contract.family, step.place.label), keys):
        step.progress(words)
    admission = step.ledger.admit(contract.family, request, keys=keys)
    if admission.due or admission.entry is None or admission.entry.state == RESERVED:
        _check_audit_can_conclude(contract, step.place.label)
    if admission.due:
        step.cleared(contract, request=request).require(step.place.label)
    each = ", for each of two models" if len(keys) > 1 else ""
    if admission.due or admission.entry is None:
        step.progress(f"admitted: up to epsilon {contract.privacy.guarantee.epsilon:g}{each}")
    elif admission.entry.state == RESERVED:
        step.progress(f"reserved by ledger entry {admission.entry.entry_id}, which this run will spend")
    else:
        step.progress(f"covered by ledger entry {admission.entry.entry_id}: nothing new is spent")
    return admission.epsilon_left


def _check_audit_can_conclude(contract: DataContract, label: str) -> None:
    """Before a spend: what it pays for could not be released, and more canaries are another run with its own cost."""
    from dpsynth_platform.audit.shortage import certain_shortage_of

    shortage = certain_shortage_of(contract)
    if shortage is not None:
        raise ContractError(f"{label}: audit: {shortage}. Nothing was spent: no release may follow such an audit")
