"""A contract with small pictures for two networks against each other, and its sealed plan."""

from __future__ import annotations

from diffusion_cases import SOURCE, picture_contract

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images.gan_plan import GanParameters
from dpsynth_platform.synth.images.image_gan import ImageGan
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan


def gan_contract(contract=None, **training):
    contract = contract or picture_contract()
    part = {"steps": 6, "replay_steps": 4, "batch_size": 20} | training
    generate = {"method": "image_gan", "rows": contract.generate.rows, "image": {"gan": part}}
    return DataContract.model_validate(contract.snapshot() | {"generate": generate})


def gan_inputs(contract=None, **training):
    contract = gan_contract(contract, **training)
    return PlanInputs(contract, SOURCE, Guarantee.target(contract))


def gan_plan(contract=None, **training):
    """The sealed plan of a contract, without trying the networks."""
    inputs = gan_inputs(contract, **training)
    return SealedPlan.of(ImageGan.method, inputs, GanParameters.calibrated(inputs).parts(inputs))
