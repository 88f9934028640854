"""Plans and runs of networks over a table's columns for their tests."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from synth_cases import SCHEMA, contract_with

from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import Checkpoints, MechanismRun, generator

KEY = b"k" * 32
SHORT = {"steps": 6, "replay_steps": 4, "batch_size": 40}


def network_plan(method="arn", schema=SCHEMA, network=None, **changes):
    contract = contract_with(generate__method=method, generate__network=network or {}, **changes)
    return generator(method).plan(contract, schema, Guarantee.target(contract))


@cache
def short_plan(method="arn", sampled="records"):
    return network_plan(method, network={**SHORT, "sampled": sampled})


def job(plan, bounded, directory, *, resume=False, key=KEY):
    directory.mkdir(parents=True, exist_ok=True)
    grant = SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32)
    return MechanismRun(plan, bounded, grant, directory, checkpoints=Checkpoints(None, key, resume=resume))
