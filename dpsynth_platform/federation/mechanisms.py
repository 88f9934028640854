"""The mechanisms of federated runs by the method that a sealed plan names.

What belongs here: their list. What does not: what they do (`marginals`, `moments`, `text_evolution`,
`picture_evolution`), and what all share (`plans`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.gradients import GradientsPlan
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.moments import PictureMomentsPlan
from dpsynth_platform.federation.picture_evolution import PictureEvolutionPlan
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan
from dpsynth_platform.synth.interface import SealedPlan

PLANS: tuple[type[FederatedPlan], ...] = (
    *(MarginalsPlan, GradientsPlan, PictureMomentsPlan, TextEvolutionPlan, PictureEvolutionPlan),
)


def plan_for(contract: DataContract, schema: pa.Schema, **terms: Any) -> FederatedPlan:
    """Calibrates and seals a plan for the contract's method, columns and guarantee, from public inputs.

    Args:
        schema: of the participants' tables.
        terms: `participants`, `minimum`, `colluders`, `most_records` and `silos` of the plan; see `plans.Terms`.

    Raises:
        ContractError: the contract asks for what a federated run of its method does not have.
        ConfigurationError: this machine lacks what makes candidates.
        AccountingError: a value is impossible, no noise meets the guarantee, or messages would be too long.
    """
    method = contract.generate.method
    others = (GradientsPlan, PictureMomentsPlan, TextEvolutionPlan, PictureEvolutionPlan)
    kinds = {name: kind for kind in others for name in kind.METHODS}
    if method in kinds:
        return kinds[method].of(contract, schema, **terms)
    return MarginalsPlan.of(contract, schema, method=method, **terms)


def plan_of(text: str) -> FederatedPlan:
    """The plan of a text, checked, whatever its mechanism.

    Raises:
        GrantRefused, AccountingError: as `FederatedPlan.from_json`; also for a method that no federated run has.
    """
    method = SealedPlan.from_json(text).method
    kind = next((each for each in PLANS if method in each.METHODS), MarginalsPlan)
    return kind.from_json(text)
