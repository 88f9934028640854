"""A contract with small pictures that starts from a public model, and its sealed plan."""

from __future__ import annotations

from diffusion_cases import SOURCE, picture_contract
from public_models import WHY

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images.finetune import ImageFinetune
from dpsynth_platform.synth.images.finetune_plan import FinetuneParameters
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan


def finetune_contract(model, *, contract=None, **training):
    contract = contract or picture_contract()
    usual = {"steps": 6, "replay_steps": 4, "batch_size": 20, "draws": 2, "rank": 2}
    part = {"checkpoint": str(model), "public": WHY} | usual | training
    generate = {"method": "image_finetune", "rows": contract.generate.rows, "image": {"finetune": part}}
    return DataContract.model_validate(contract.snapshot() | {"generate": generate})


def finetune_inputs(model, **how):
    contract = finetune_contract(model, **how)
    return PlanInputs(contract, SOURCE, Guarantee.target(contract))


def finetune_plan(model, **how):
    """The sealed plan of a contract, without trying the network."""
    inputs = finetune_inputs(model, **how)
    return SealedPlan.of(ImageFinetune.method, inputs, FinetuneParameters.calibrated(inputs).parts(inputs))
