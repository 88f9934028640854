"""The worker's steps from job to model: the checks in their order, the claim, then the mechanism.

What belongs here: these steps, without Dagster. What does not: start, reports and end of the process (`__main__`).
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np

from dpsynth_platform.audit.canaries import is_canary
from dpsynth_platform.contracts.methods import TEXT_METHODS
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ConfigurationError, GrantRefused, ResumeRefused
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import digest_directory
from dpsynth_platform.ledger.grants import Grant, verify_grant
from dpsynth_platform.scrub.fingerprints import distinct, read_fingerprints
from dpsynth_platform.synth.interface import Checkpoints, Ranks, SealedPlan, generator
from dpsynth_platform.worker.counting import counting_engine
from dpsynth_platform.worker.inputs import check_owners, check_unowned, claim, reclaim
from dpsynth_platform.worker.job import WorkerJob
from dpsynth_platform.worker.ranks import local_ranks


def run(job: WorkerJob, progress: Progress) -> None:
    """Writes a complete model into the job's model directory.

    Raises:
        DpsynthError: a check failed, or the mechanism stopped.
    """
    plan = read_plan(Path(job.plan))
    device = resolve_device(job.device)
    if job.mode == "estimate":
        generator(plan.method).estimate(plan, job.model_directory, device=device, progress=progress)
        return
    grant = _verified_grant(job, plan)
    if job.mode == "resume":
        reclaim(job.model_directory, grant)
        # A claim does not limit how often a worker resumes, so there must be a paid mechanism to continue.
        if not generator(plan.method).can_resume(job.model_directory):
            raise ResumeRefused(
                "the interrupted mechanism cannot be continued; what it cost stays spent, and a new attempt is a new "
                "spend"
            )
    else:
        claim(job.model_directory, grant)
    _check_participants(job, plan)
    together = local_ranks(job, device, plan.digest) if plan.method in TEXT_METHODS else nullcontext()
    inputs = generator(plan.method).inputs(plan, Path(job.bounded))
    with counting_engine(job, inputs) as engine, together as ranks:
        generator(plan.method).fit(
            plan,
            Path(job.bounded),
            grant,
            job.model_directory,
            device=device,
            progress=progress,
            engine=engine,
            checkpoints=_checkpoints(job, ranks),
        )


def _checkpoints(job: WorkerJob, ranks: Ranks | None) -> Checkpoints | None:
    """The further inputs of methods that resume by checkpoints or a journal; None for other methods."""
    if job.endpoint:
        return Checkpoints(None, b"", resume=job.mode == "resume", endpoint=Path(job.endpoint))
    if not job.checkpoint_key:
        return None
    try:
        key = Path(job.checkpoint_key).read_bytes()
    except OSError:
        raise GrantRefused("the key file of the training's checkpoints cannot be read") from None
    base = Path(job.base_model) if job.base_model else None
    return Checkpoints(base, key, resume=job.mode == "resume", ranks=ranks)


def resolve_device(device: str) -> str:
    """`cpu` or `cuda`. Raises `ConfigurationError` if `cuda` is required but missing."""
    import torch

    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigurationError("DPSYNTH_DEVICE: 'cuda', but this machine has no CUDA device; accepted: auto, cpu")
    return "cuda" if available and device != "cpu" else "cpu"


def read_plan(path: Path, *, expected_digest: str | None = None) -> SealedPlan:
    """The sealed plan of a job. Raises `GrantRefused` if it is missing or has another digest than expected."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise GrantRefused("the sealed plan is missing; materialize the line from raw again") from None
    return SealedPlan.from_json(text, expected_digest=expected_digest)


def _verified_grant(job: WorkerJob, plan: SealedPlan) -> Grant:
    """The grant, verified against the files on disk."""
    try:
        public_key = bytes.fromhex(job.public_key)
        participants = digest_file(Path(job.participants))
    except (ValueError, OSError):
        raise GrantRefused("the public key or the participants' file cannot be read") from None
    return verify_grant(
        job.grant,
        public_key,
        plan_digest=plan.digest,
        data_digest=digest_directory(Path(job.bounded)),
        participants_digest=participants,
        model_directory=job.model_directory.name,
    )


def _check_participants(job: WorkerJob, plan: SealedPlan) -> None:
    """Checks that records belong only to reserved participants and canaries, at most b to each."""
    canaries = read_fingerprints(Path(job.canaries))
    if not all(is_canary(owner.ljust(16, b"\0").hex()) for owner in canaries.tolist()):
        raise GrantRefused("the canaries' file contains fingerprints that are not canaries'")
    allowed = distinct(np.concatenate([read_fingerprints(Path(job.participants)), canaries]))
    for bounded, bound in generator(plan.method).inputs(plan, Path(job.bounded)).items():
        if not check_unowned(bounded, allowed, plan.guarantee["unit"], bound):
            check_owners(bounded, allowed, bound)
