"""The mechanism of a run: its checks, the start of its ledger entry, and its worker.

What belongs here: a last clearance, starting the entry, the worker's one-time grant, completing the entry. What does
not: the mechanism (`synth`), and a second start: a repeated step finds the started entry and stops, unless the plan has
paid for a resumption (a training, from its last checkpoint).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.compute.choice import write_choice
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import (
    BASE_MODEL_METHODS,
    EVOLVED_METHODS,
    IMAGE_METHODS,
    LINKED,
    NETWORK_METHODS,
    TUNED,
)
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
from dpsynth_platform.operations.admitting import deployed_base
from dpsynth_platform.operations.roles import Role, attacked_role
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.scrub.fingerprints import Fingerprints, distinct_owners, write_fingerprints
from dpsynth_platform.synth.endpoint_access import Access, transport_of
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.worker.inputs import NO_CANARIES, claimed_for
from dpsynth_platform.worker.job import WorkerJob, base_model_file, checkpoint_key_file

_MODEL_BYTES = 2**20
"""Of a small model; the size of a larger one is unknown beforehand."""


@dataclass(frozen=True)
class MechanismInputs:
    """Records of a mechanism's inputs.

    Attributes:
        canaries: those in its rows; None where there are none.
    """

    role: Role
    clearance: StepRecord
    bounded: StepRecord
    canaries: StepRecord | None

    @property
    def table(self) -> Path:
        return self.bounded.directory / self.role.table

    @property
    def canaries_hash(self) -> str:
        """Content hash of its canaries, for its claim."""
        return NO_CANARIES if self.canaries is None else self.canaries.content_hash

    @property
    def records(self) -> list[StepRecord]:
        return [self.bounded, self.clearance, *([] if self.canaries is None else [self.canaries])]


@contextmanager
def alone(step: StepContext, role: Role, directory: Path) -> Iterator[None]:
    """Excludes a concurrent materialization, which would delete job files and change outputs of this one."""
    try:
        with held(directory):
            yield
    except HeldByAnother:
        raise MechanismFailed(
            f"{step.place.label}/{role.step} is being materialized by another process; wait for its end, or stop it"
        ) from None


def run_mechanism(
    step: StepContext,
    contract: DataContract,
    plan: SealedPlan,
    entry: Entry,
    directory: Path,
    inputs: MechanismInputs,
) -> Entry:
    """The spent entry of a complete model: of a new one, or of a resumed one as far as its entry has paid."""
    method = generator(plan.method)
    if method.is_complete(directory):
        step.progress("the measurements of an interrupted run are complete: continuing, at no further cost")
        # Post-processing: the worker receives no data and needs no grant.
        with _job_files(step, inputs.role, directory) as job:
            path = job / "plan.json"
            write_durably(path, plan.to_json())
            estimate = WorkerJob(plan=str(path), model=str(directory), mode="estimate", device=step.device)
            _run_worker(step, entry, plan.method, estimate)
    else:
        _check_bounded(step, inputs)
        _check_erased(step, inputs.bounded)
        _check_attacked(step, contract, inputs)
        public = method.check_public(plan)
        base, endpoint = _base_model(plan), _endpoint(contract, plan)
        step.check_worker([directory, inputs.bounded.directory, *public, *([] if base is None else [base.directory])])
        # Before the start: until then, a rotation of keys cannot give them other fingerprints than in bounded.
        participants = step.ledger.participants(entry.entry_id)
        resume = entry.state == "started" and method.can_resume(directory)
        if entry.state == "started":
            _check_resumable(step, entry, resume, inputs, directory)
        # Events of other producers since the clearance may forbid the mechanism; the reservation then expires.
        step.cleared(contract, entry_id=entry.entry_id).require(step.place.label)
        if resume:
            step.progress(f"resuming the mechanism of ledger entry {entry.entry_id}, which has paid")
        _fit(step, plan, entry, participants, inputs, directory, base, endpoint, resume=resume)
    return step.ledger.complete(entry.entry_id, digest_directory(directory))


def _check_resumable(step: StepContext, entry: Entry, resume: bool, inputs: MechanismInputs, directory: Path) -> None:
    """A started mechanism resumes with exactly the data that it had read, or not at all (`SpendRepeated`)."""
    if not resume:
        raise SpendRepeated(f"{step.place.label}: {step.not_completed(entry)}")
    if not claimed_for(directory, canaries=inputs.canaries_hash, data=digest_directory(inputs.table)):
        raise SpendRepeated(
            f"{step.place.label}: the training of ledger entry {entry.entry_id} was interrupted, and bounded or "
            f"canaries were made again since; it cannot resume with others. {step.way_to_spend_again(entry)}"
        )


def _check_bounded(step: StepContext, inputs: MechanismInputs) -> None:
    """Refuses data that the worker would refuse: made for other owners, or changed since."""
    bounded = inputs.bounded
    made_from = {item.step: item.content_hash for item in inputs.records if item is not bounded}
    if not made_from.items() <= bounded.inputs.items() or digest_directory(bounded.directory) != bounded.content_hash:
        raise StaleInput(
            f"{step.place.label}/bounded was made for another clearance or other canaries, or was changed; "
            f"materialize {step.place.label}/bounded again"
        )


def _check_erased(step: StepContext, bounded: StepRecord) -> None:
    """No mechanism reads an owner after their erasure request, even where a legal hold keeps the rows."""
    asked = step.erasure(step.account())
    scrubbed = step.storage.require(step.place, "scrubbed")
    made_of_these = bounded.inputs["scrubbed"] == scrubbed.content_hash
    if asked is not None and not (made_of_these and honoured(scrubbed, asked)):
        raise StaleInput(
            f"{step.place.label}/bounded was made before the last erasure request; materialize "
            f"{step.place.label}/scrubbed and {step.place.label}/bounded again"
        )


def _check_attacked(step: StepContext, contract: DataContract, inputs: MechanismInputs) -> None:
    """The mechanism of the released model starts only after that of a separate attacked model has completed."""
    attacked = attacked_role(contract)
    if inputs.role == attacked:
        return
    entry = step.ledger.entry(inputs.clearance.facts[attacked.entry])
    if entry.state != "spent":
        raise StaleInput(
            f"{step.place.label}/{attacked.step} has not completed (ledger entry {entry.entry_id} is {entry.state}), "
            f"so that there could be no audit; materialize {step.place.label}/{attacked.step} first"
        )
    record, canaries = (
        step.storage.require(step.place, name, run_key=inputs.clearance.run_key) for name in (attacked.step, "canaries")
    )
    there = (record.facts["entry_id"], digest_directory(record.directory), digest_directory(canaries.directory))
    if there != (entry.entry_id, entry.model_digest, record.facts["canaries"]):
        raise StaleInput(
            f"{step.place.label}/{attacked.step} is no longer the model of ledger entry {entry.entry_id}, or canaries "
            "are not those of its training, so that there could be no audit; materialize "
            f"{step.place.label}/{attacked.step} again"
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
    """The mechanism, under a grant for exactly these data, owners and place. Its entry starts after all checks."""
    key = step.vault.signing_key()
    planted = None if inputs.canaries is None else _joining(plan, inputs.canaries.directory)
    with _job_files(step, inputs.role, directory) as job:
        write_durably(job / "plan.json", plan.to_json())
        write_choice(job / "engine.json", step.sql)
        write_fingerprints(job / "participants", participants)
        write_fingerprints(job / "canaries", distinct_owners([]) if planted is None else planted)
        # Others find their model by the plan.
        language = plan.method in (*BASE_MODEL_METHODS, TUNED)
        writes = base_model_file(base, job) if base is not None and language else {}
        if base is not None or plan.method in (*IMAGE_METHODS, *NETWORK_METHODS, *EVOLVED_METHODS, TUNED, LINKED):
            writes |= checkpoint_key_file(step.vault.create("checkpoints"), entry.entry_id, job)
        if endpoint is not None:
            endpoint.write(job / "endpoint.json")
            writes["endpoint"] = str(job / "endpoint.json")
        # All checks come before the start: after it, a full disk costs as much as the mechanism.
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
        _run_worker(
            step,
            entry,
            plan.method,
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
            ),
        )


def _joining(plan: SealedPlan, canaries: Path) -> Fingerprints:
    """The owners of included canaries."""
    if plan.method == LINKED:
        from dpsynth_platform.audit.linked_canaries import joining_fingerprints

        return joining_fingerprints(canaries)
    from dpsynth_platform.audit.canaries import read_canaries

    return distinct_owners(read_canaries(canaries / "table").joining.to_batches())


def _run_worker(step: StepContext, entry: Entry, method: str, job: WorkerJob) -> None:
    """Runs the worker of a started entry; the error of a failure also says what is paid for, and what to do next."""
    try:
        step.run_worker(job)
        return
    except MechanismFailed as error:
        failed = error
    fitting, directory = generator(method), job.model_directory
    if fitting.is_complete(directory) or fitting.can_resume(directory):
        # What was wrong may not allow it: then the next run says what else to do.
        what_next = (
            "which has paid: run again, and it continues from what is kept, as far as possible at no further cost"
        )
    else:
        what_next = f"which had started. {step.way_to_spend_again(entry)}"
    raise type(failed)(f"{failed}: ledger entry {entry.entry_id}, {what_next}")


def _base_model(plan: SealedPlan) -> BaseModel | None:
    """The checkpoint that a plan starts from, on this machine, if any; checked before anything is spent."""
    found = deployed_base(plan)
    if found is None:
        return None
    from dpsynth_platform.synth.text.trained import check_digest

    check_digest(*found)
    return found[0]


def _endpoint(contract: DataContract, plan: SealedPlan) -> Access | None:
    """Access to the endpoint that makes samples, if there is one; tried before anything is spent.

    So is an endpoint that draws pictures from texts later: the mechanism gets no access to it.
    """
    if contract.generate.drawn is not None:
        from dpsynth_platform.synth.images.captions import CaptionPainter

        CaptionPainter.of(contract).trial()
    transport = transport_of(contract)
    return None if transport is None else generator(plan.method).tried_endpoint(plan, transport)


@contextmanager
def _job_files(step: StepContext, role: Role, directory: Path) -> Iterator[Path]:
    """A directory for the worker's input files, which exists as long as the worker."""
    job = step.storage.named_output(step.place, role.step, f"{directory.name}{HANDED}")
    try:
        yield job
    finally:
        shutil.rmtree(job, ignore_errors=True)  # retention may have removed it during a very long training
