"""Plans and runs of `arn` for its tests."""

from __future__ import annotations

from types import SimpleNamespace

from synth_cases import SCHEMA, contract_with

from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import Checkpoints, MechanismRun, generator

KEY = b"k" * 32


def arn_plan(schema=SCHEMA, network=None, **changes):
    contract = contract_with(generate__method="arn", generate__network=network or {}, **changes)
    return generator("arn").plan(contract, schema, Guarantee.target(contract))


def job(plan, bounded, directory, *, resume=False, key=KEY):
    directory.mkdir(parents=True, exist_ok=True)
    grant = SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32)
    return MechanismRun(plan, bounded, grant, directory, checkpoints=Checkpoints(None, key, resume=resume))
