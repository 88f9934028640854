"""The mechanism of a run: its checks, its start under a ledger entry, and the worker that carries it out.

What belongs here: clearing once more just before, starting the entry, the worker's one-time grant, closing the entry.
What does not: the mechanism (`synth`), or any second start: a repeated step finds the entry started and stops, unless
the plan has paid for a resumption (a training, from its last checkpoint).
"""

from __future__ import annotations

import hmac
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dpsynth_platform.compute.choice import write_choice
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import TEXT_METHODS
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import MechanismFailed, SpendRepeated, StaleInput
from dpsynth_platform.foundation.storage import (
    HANDED,
    HeldByAnother,
    StepRecord,
    check_room,
    digest_directory,
    held,
    write_durably,
)
from dpsynth_platform.ledger.grants import issue_grant
from dpsynth_platform.ledger.owners import Participants
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.lifecycle.erasure import honoured
from dpsynth_platform.operations.roles import Role, attacked_role
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.scrub.fingerprints import write_fingerprints
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.endpoint_access import Access, transport_of
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_for
from dpsynth_platform.worker.job import WorkerJob

_MODEL_BYTES = 2**20
"""A small model's; what a larger one takes nobody knows beforehand."""


@dataclass(frozen=True)
class MechanismInputs:
    """What a mechanism reads, as the steps before it recorded it.

    Attributes:
        canaries: those that are in its rows; None where there are none.
    """

    role: Role
    clearance: StepRecord
    bounded: StepRecord
    canaries: StepRecord | None

    @property
    def table(self) -> Path:
        """The rows that the mechanism reads."""
        return self.bounded.directory / self.role.table

    @property
    def canaries_hash(self) -> str:
        """Content hash of its canaries, which its claim will name."""
        return NO_CANARIES if self.canaries is None else self.canaries.content_hash

    @property
    def records(self) -> list[StepRecord]:
        """All of them."""
        return [self.bounded, self.clearance, *([] if self.canaries is None else [self.canaries])]


@contextmanager
def alone(step: StepContext, role: Role, directory: Path) -> Iterator[None]:
    """Two at once would take each other's job files away, and one would judge what the other is about to change."""
    try:
        with held(directory):
            yield
    except HeldByAnother:
        raise MechanismFailed(
            f"{step.place.label}/{role.step} is being materialized by another process; wait for its end, or end it"
        ) from None


def run_mechanism(
    step: StepContext,
    contract: DataContract,
    plan: SealedPlan,
    entry: Entry,
    directory: Path,
    inputs: MechanismInputs,
) -> Entry:
    """The spent entry of a complete model: of one whose process was cut short, as far as that is paid for, or anew."""
    method = generator(plan.method)
    if method.is_complete(directory):
        step.progress("what the mechanism of an interrupted run left is complete: going on, at no further cost")
        _estimate(step, plan, inputs.role, directory)
    else:
        _check_bounded(step, inputs)
        _check_erased(step, inputs.bounded)
        _check_attacked(step, contract, inputs)
        base, endpoint = _base_model(plan), _endpoint(contract, plan)
        step.check_worker([directory, inputs.bounded.directory, *([] if base is None else [base.directory])])
        # Before the start: up to then no rotation of keys can give them other fingerprints than bounded's.
        participants = step.ledger.participants(entry.entry_id)
        resume = entry.state == "started" and method.can_resume(directory)
        if entry.state == "started":
            _check_resumable(step, entry, resume, inputs, directory)
        # What others told since the clearance may be what no mechanism may build on; the reservation expires.
        step.cleared(contract, entry_id=entry.entry_id).require(step.place.label)
        if resume:
            step.progress(f"going on with the mechanism of ledger entry {entry.entry_id}, which has paid")
        _fit(step, plan, entry, participants, inputs, directory, base, endpoint, resume=resume)
    return step.ledger.complete(entry.entry_id, digest_directory(directory))


def _check_resumable(step: StepContext, entry: Entry, resume: bool, inputs: MechanismInputs, directory: Path) -> None:
    """A mechanism that started goes on with the very data that it had read, or not at all.

    Raises:
        SpendRepeated: it left nothing to go on with, or there are other rows or canaries now.
    """
    if not resume:
        raise SpendRepeated(f"{step.place.label}: {step.not_completed(entry)}")
    if not claimed_for(directory, canaries=inputs.canaries_hash, data=digest_directory(inputs.table)):
        raise SpendRepeated(
            f"{step.place.label}: the training of ledger entry {entry.entry_id} was cut short, and bounded or canaries "
            f"were made anew since; it cannot go on with others. {step.way_to_spend_again(entry)}"
        )


def _check_bounded(step: StepContext, inputs: MechanismInputs) -> None:
    """Nothing is started for data that the worker would refuse: made for other people, or changed since."""
    bounded = inputs.bounded
    made_from = {item.step: item.content_hash for item in inputs.records if item is not bounded}
    if not made_from.items() <= bounded.inputs.items() or digest_directory(bounded.directory) != bounded.content_hash:
        raise StaleInput(
            f"{step.place.label}/bounded was made for another clearance or other canaries, or was changed; "
            f"materialize {step.place.label}/bounded again"
        )


def _check_erased(step: StepContext, bounded: StepRecord) -> None:
    """Nobody is read by a mechanism who asked to be erased before, also where a legal hold keeps the rows.

    Raises:
        StaleInput: the bounded rows come of scrubbed ones from before the last request.
    """
    asked = step.erasure(step.account())
    scrubbed = step.storage.require(step.place, "scrubbed")
    made_of_these = bounded.inputs["scrubbed"] == scrubbed.content_hash
    if asked is not None and not (made_of_these and honoured(scrubbed, asked)):
        raise StaleInput(
            f"{step.place.label}/bounded was made before somebody's records were erased; materialize "
            f"{step.place.label}/scrubbed and {step.place.label}/bounded again"
        )


def _check_attacked(step: StepContext, contract: DataContract, inputs: MechanismInputs) -> None:
    """The released model's mechanism starts only after the one of the model that is attacked in its place completed.

    Raises:
        StaleInput: it has not.
    """
    attacked = attacked_role(contract)
    if inputs.role == attacked:
        return
    entry = step.ledger.entry(inputs.clearance.facts[attacked.entry])
    if entry.state != "spent":
        raise StaleInput(
            f"{step.place.label}/{attacked.step} has not completed (ledger entry {entry.entry_id} is {entry.state}), "
            f"and without it nothing could be audited; materialize {step.place.label}/{attacked.step} first"
        )
    record, canaries = (
        step.storage.require(step.place, name, run_key=inputs.clearance.run_key) for name in (attacked.step, "canaries")
    )
    there = (record.facts["entry_id"], digest_directory(record.directory), digest_directory(canaries.directory))
    if there != (entry.entry_id, entry.model_digest, record.facts["canaries"]):
        raise StaleInput(
            f"{step.place.label}/{attacked.step} is not the model of ledger entry {entry.entry_id} any more, or "
            "canaries are not its own, so that nothing could be audited; materialize "
            f"{step.place.label}/{attacked.step} again"
        )


def _estimate(step: StepContext, plan: SealedPlan, role: Role, directory: Path) -> None:
    """Post-processing of stored measurements: the worker is handed no data and needs no grant."""
    with _job_files(step, role, directory) as job:
        write_durably(job / "plan.json", plan.to_json())
        step.run_worker(
            WorkerJob(plan=str(job / "plan.json"), model=str(directory), mode="estimate", device=step.device)
        )


def _fit(
    step: StepContext,
    plan: SealedPlan,
    entry: Entry,
    participants: Participants,
    inputs: MechanismInputs,
    directory: Path,
    base: BaseModel | None,
    endpoint: Access | None,
    *,
    resume: bool,
) -> None:
    """The mechanism, under a grant for exactly these data, people and place. Its entry starts once all is prepared."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.scrub.fingerprints import distinct_owners

    key = step.vault.signing_key()
    bait = [] if inputs.canaries is None else read_canaries(inputs.canaries.directory / "table").joining.to_batches()
    with _job_files(step, inputs.role, directory) as job:
        write_durably(job / "plan.json", plan.to_json())
        write_choice(job / "engine.json", step.sql)
        write_fingerprints(job / "participants", participants)
        write_fingerprints(job / "canaries", distinct_owners(bait))
        writes = {} if base is None else _base_model_files(step, base, entry, job)
        if endpoint is not None:
            endpoint.write(job / "endpoint.json")
            writes["endpoint"] = str(job / "endpoint.json")
        # All that can be checked beforehand has been here: after the start, a full disk costs what the mechanism costs.
        data, owners = digest_directory(inputs.table), digest_file(job / "participants")
        check_room(directory, _MODEL_BYTES)
        if not resume:
            step.ledger.start(entry.entry_id)
            step.progress(f"ledger entry {entry.entry_id} started; from here on its cost is spent")
        grant = issue_grant(
            key,
            entry_id=entry.entry_id,
            plan_digest=plan.digest,
            data_digest=data,
            participants_digest=owners,
            canaries_digest=inputs.canaries_hash,
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
                bounded=str(inputs.table),
                participants=str(job / "participants"),
                canaries=str(job / "canaries"),
                engine=str(job / "engine.json"),
                **writes,
            )
        )


def _base_model(plan: SealedPlan) -> BaseModel | None:
    """The language model that a plan has on this machine, if any: found, and the plan's, before anything is spent.

    Raises:
        ConfigurationError: it is not there, or another one than the plan was made for.
    """
    if plan.method not in TEXT_METHODS:
        return None
    from dpsynth_platform.synth.text.sealing import started_from
    from dpsynth_platform.synth.text.trained import check_digest, deployed

    start = started_from(plan)
    if start is None:
        return None
    base = deployed(start[0])
    check_digest(base, start[1])
    return base


def _endpoint(contract: DataContract, plan: SealedPlan) -> Access | None:
    """How the endpoint that writes texts is reached; None where none does. Tried before anything is spent.

    Raises:
        ConfigurationError: it is none of the deployment's, or wrote nothing.
    """
    transport = transport_of(contract)
    if transport is None:
        return None
    from dpsynth_platform.synth.text.evolution import tried_endpoint  # late: with it comes torch

    return tried_endpoint(plan, transport)


def _base_model_files(step: StepContext, base: BaseModel, entry: Entry, job: Path) -> dict[str, str]:
    """What a job names besides, where training starts from a language model: its place, and the checkpoints' key."""
    write_durably(job / "base_model.json", json.dumps(asdict(base) | {"directory": str(base.directory)}))
    key = hmac.digest(step.vault.create("checkpoints"), entry.entry_id.encode(), "sha256")
    write_durably(job / "checkpoint.key", key)
    return {"base_model": str(job / "base_model.json"), "checkpoint_key": str(job / "checkpoint.key")}


@contextmanager
def _job_files(step: StepContext, role: Role, directory: Path) -> Iterator[Path]:
    """A directory for what the worker is handed; it exists only as long as the worker does."""
    job = step.storage.named_output(step.place, role.step, f"{directory.name}{HANDED}")
    try:
        yield job
    finally:
        shutil.rmtree(job, ignore_errors=True)  # of a very long training, retention may have removed it
