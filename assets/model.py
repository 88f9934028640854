"""model: the mechanism, in a worker process of its own.

What belongs here: clearing once more just before, starting the ledger entry, handing the worker its one-time grant, and
closing the entry. What does not: the mechanism (`synth`), or any second start: whatever repeats this step finds the
entry started and stops, unless the plan has paid for going on (a training, from its last checkpoint).
"""

import hmac
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from assets.lineage import paid_by
from assets.step import Outcome, Step, StepContext
from dpsynth_platform.compute.choice import write_choice
from dpsynth_platform.contracts import TEXT_METHODS, DataContract
from dpsynth_platform.digests import digest_file
from dpsynth_platform.errors import MechanismFailed, SpendRepeated, StaleInput
from dpsynth_platform.ledger.grants import issue_grant
from dpsynth_platform.ledger.owners import Participants
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.retention import HANDED
from dpsynth_platform.scrub.fingerprints import write_fingerprints
from dpsynth_platform.storage import HeldByAnother, StepRecord, digest_directory, held, write_durably
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.worker.inputs import claimed_canaries, claimed_for
from dpsynth_platform.worker.job import WorkerJob


def body(step: StepContext) -> Outcome:
    """Trains once. Complete measurements of an interrupted run are fitted without another look at the data."""
    contract, raw = step.sealed()
    clearance, canaries, bounded = step.same_run(raw, "clearance", "canaries", "bounded")
    entry = step.ledger.entry(clearance.facts["entry_id"])
    plan = step.plan(raw)
    if (entry.key, entry.plan_digest) != (raw.run_key, plan.digest):
        raise StaleInput(f"{step.place.label}/clearance is for another plan than raw's; materialize clearance again")
    directory = step.storage.named_output(step.place, "model", entry.entry_id)
    with _alone(step, directory):
        entry = step.ledger.entry(entry.entry_id)  # as whoever was here before has left it
        reused = entry.state == "spent" and digest_directory(directory) == entry.model_digest
        if not reused:
            entry = _trained(step, contract, plan, entry, directory, clearance, canaries, bounded)
        record = _record(step, raw, entry, plan, directory, [bounded, clearance, canaries])
    return _outcome(contract, entry, plan, record, reused)


@contextmanager
def _alone(step: StepContext, directory: Path) -> Iterator[None]:
    """Two at once would take each other's job files away, and one would judge what the other is about to change."""
    try:
        with held(directory):
            yield
    except HeldByAnother:
        raise MechanismFailed(
            f"{step.place.label}/model is being materialized by another process; wait for its end, or end it"
        ) from None


def _trained(
    step: StepContext,
    contract: DataContract,
    plan: SealedPlan,
    entry: Entry,
    directory: Path,
    clearance: StepRecord,
    canaries: StepRecord,
    bounded: StepRecord,
) -> Entry:
    """The spent entry of a complete model: of one whose process was cut short, as far as that is paid for, or anew."""
    method = generator(plan.method)
    if method.is_complete(directory):
        step.progress("what the mechanism of an interrupted run left is complete: going on, at no further cost")
        _estimate(step, plan, directory)
    else:
        _check_bounded(step, bounded, clearance, canaries)
        base = _base_model(plan)
        step.check_worker([directory, bounded.directory, *([] if base is None else [base.directory])])
        # Before the start: up to then no rotation of keys can give them other fingerprints than bounded's.
        participants = step.ledger.participants(entry.entry_id)
        resume = entry.state == "started" and method.can_resume(directory)
        if entry.state == "started":
            _check_resumable(step, entry, resume, canaries, bounded, directory)
        # What others told since the clearance may be what no mechanism may build on; the reservation expires.
        step.cleared(contract, entry_id=entry.entry_id).require(step.place.label)
        if resume:
            step.progress(f"going on from the last checkpoint of ledger entry {entry.entry_id}, which has paid")
        else:
            entry = step.ledger.start(entry.entry_id)
            step.progress(f"ledger entry {entry.entry_id} started; from here on its cost is spent")
        _fit(step, plan, entry, participants, bounded, canaries, directory, base, resume=resume)
    return step.ledger.complete(entry.entry_id, digest_directory(directory))


def _check_resumable(
    step: StepContext, entry: Entry, resume: bool, canaries: StepRecord, bounded: StepRecord, directory: Path
) -> None:
    """A mechanism that started goes on with the very data that it had read, or not at all.

    Raises:
        SpendRepeated: it left nothing to go on with, or there are other rows or canaries now.
    """
    if not resume:
        raise SpendRepeated(f"{step.place.label}: {step.not_completed(entry)}")
    if not claimed_for(directory, canaries=canaries.content_hash, data=digest_directory(bounded.directory / "table")):
        raise SpendRepeated(
            f"{step.place.label}: the training of ledger entry {entry.entry_id} was cut short, and bounded or canaries "
            f"were made anew since; it cannot go on with others. {step.way_to_spend_again(entry)}"
        )


def _check_bounded(step: StepContext, bounded: StepRecord, clearance: StepRecord, canaries: StepRecord) -> None:
    """Nothing is started for data that the worker would refuse: made for other people, or changed since."""
    made_from = {item.step: item.content_hash for item in (clearance, canaries)}
    if not made_from.items() <= bounded.inputs.items() or digest_directory(bounded.directory) != bounded.content_hash:
        raise StaleInput(
            f"{step.place.label}/bounded was made for another clearance or other canaries, or was changed; "
            f"materialize {step.place.label}/bounded again"
        )


def _estimate(step: StepContext, plan: SealedPlan, directory: Path) -> None:
    """Post-processing of stored measurements: the worker is handed no data and needs no grant."""
    with _job_files(step, directory) as job:
        write_durably(job / "plan.json", plan.to_json())
        step.run_worker(
            WorkerJob(plan=str(job / "plan.json"), model=str(directory), mode="estimate", device=step.device)
        )


def _fit(
    step: StepContext,
    plan: SealedPlan,
    entry: Entry,
    participants: Participants,
    bounded: StepRecord,
    canaries: StepRecord,
    directory: Path,
    base: BaseModel | None,
    *,
    resume: bool,
) -> None:
    """The mechanism, under a grant for exactly these data, people and place."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.scrub.fingerprints import distinct_owners

    key = step.vault.signing_key()
    table = bounded.directory / "table"
    bait = read_canaries(canaries.directory / "table").joining
    with _job_files(step, directory) as job:
        write_durably(job / "plan.json", plan.to_json())
        write_choice(job / "engine.json", step.sql)
        write_fingerprints(job / "participants", participants)
        write_fingerprints(job / "canaries", distinct_owners(bait.to_batches()))
        base_model = {} if base is None else _base_model_files(step, base, entry, job)
        grant = issue_grant(
            key,
            entry_id=entry.entry_id,
            plan_digest=plan.digest,
            data_digest=digest_directory(table),
            participants_digest=digest_file(job / "participants"),
            canaries_digest=canaries.content_hash,
            model_directory=directory.name,
        )
        step.run_worker(
            WorkerJob(
                plan=str(job / "plan.json"),
                model=str(directory),
                mode="resume" if resume else "fit",
                device=step.device,
                grant=grant,
                public_key=key.public_key().public_bytes_raw().hex(),
                bounded=str(table),
                participants=str(job / "participants"),
                canaries=str(job / "canaries"),
                engine=str(job / "engine.json"),
                **base_model,
            )
        )


def _base_model(plan: SealedPlan) -> BaseModel | None:
    """Where training starts from, if from a language model: found, and the plan's, before anything is spent.

    Raises:
        ConfigurationError: it is not there, or another one than the plan was made for.
    """
    if plan.method not in TEXT_METHODS:
        return None
    from dpsynth_platform.synth.text.sealing import TextParameters
    from dpsynth_platform.synth.text.trained import check_digest, deployed

    parameters = TextParameters.of(plan)
    base = deployed(parameters.base_model)
    check_digest(base, parameters.base_digest)
    return base


def _base_model_files(step: StepContext, base: BaseModel, entry: Entry, job: Path) -> dict[str, str]:
    """What a job names besides, where training starts from a language model: its place, and the checkpoints' key."""
    write_durably(job / "base_model.json", json.dumps(asdict(base) | {"directory": str(base.directory)}))
    key = hmac.digest(step.vault.create("checkpoints"), entry.entry_id.encode(), "sha256")
    write_durably(job / "checkpoint.key", key)
    return {"base_model": str(job / "base_model.json"), "checkpoint_key": str(job / "checkpoint.key")}


@contextmanager
def _job_files(step: StepContext, directory: Path) -> Iterator[Path]:
    """A directory for what the worker is handed; it exists only as long as the worker does."""
    job = step.storage.named_output(step.place, "model", f"{directory.name}{HANDED}")
    try:
        yield job
    finally:
        shutil.rmtree(job, ignore_errors=True)  # of a very long training, retention may have removed it


def _record(
    step: StepContext, raw: StepRecord, entry: Entry, plan: SealedPlan, directory: Path, inputs: list[StepRecord]
) -> StepRecord:
    existing = step.reusable(raw, "model", *inputs)
    if existing is not None and existing.facts["entry_id"] == entry.entry_id:
        return existing
    facts = {
        "entry_id": entry.entry_id,
        "plan_digest": plan.digest,
        "canaries": claimed_canaries(directory),
    }
    return step.record("model", run_key=raw.run_key, directory=directory, inputs=inputs, facts=facts)


def _outcome(contract: DataContract, entry: Entry, plan: SealedPlan, record: StepRecord, reused: bool) -> Outcome:
    """With the guarantee as it is claimed, and the entry that paid for it."""
    result = epsilon(event_from_json(plan.event), contract.privacy.delta)
    shown = {
        "guarantee": str(replace(Guarantee.target(contract), epsilon=result.epsilon, delta=result.delta)),
        "epsilon": result.epsilon,
        "delta": result.delta,
        "accounting": result.method,
        "ledger_entry": entry.entry_id,
        "ledger_state": entry.state,
    }
    return Outcome(record, reused=reused, metadata=shown, facets=paid_by(contract, plan, entry.entry_id))


STEP = Step(
    name="model",
    description=(
        "The mechanism: noisy measurements and the graphical model fitted to them. Differentially private, and kept "
        "restricted all the same."
    ),
    upstream=("clearance", "canaries", "bounded"),
    kinds=frozenset({"pytorch"}),
    zone="restricted",
    code_version="2",
    body=body,
    fields=(
        ("measurements", "jsonl", "noisy counts, and which columns were chosen for them, as drawn"),
        ("model", "npz", "the model that was fitted to them"),
        ("claim", "json", "the one-time claim of the ledger entry"),
    ),
    pool="accelerator",
)
