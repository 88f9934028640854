"""The mechanisms of federated runs by the method that a sealed plan names.

What belongs here: their list. What does not: what they do (`marginals`, `moments`, `text_evolution`,
`picture_evolution`), and what all share (`plans`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.central import CentralMarginalsPlan
from dpsynth_platform.federation.gradients import GradientsPlan
from dpsynth_platform.federation.local import LocalReportsPlan
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.moments import PictureMomentsPlan
from dpsynth_platform.federation.picture_evolution import PictureEvolutionPlan
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.interface import SealedPlan

OF_COUNTS: dict[type[MarginalsPlan], str] = {
    MarginalsPlan: "distributed",
    CentralMarginalsPlan: "central",
    LocalReportsPlan: "local",
}
"""Plans of counts of columns, by who adds the noise."""
OTHERS: tuple[Any, ...] = (GradientsPlan, PictureMomentsPlan, TextEvolutionPlan, PictureEvolutionPlan)
PLANS: tuple[type[FederatedPlan], ...] = (MarginalsPlan, *OTHERS)


def plan_for(contract: DataContract, schema: pa.Schema, **terms: Any) -> FederatedPlan:
    """Calibrates and seals a plan for the contract's method, columns and guarantee, from public inputs.

    Args:
        schema: of the participants' tables.
        terms: `participants`, `minimum`, `colluders`, `most_records` and `silos` of the plan (see `plans.Terms`), and
            `trust` (`trust.TRUSTS`; without it, distributed).

    Raises:
        ContractError: the contract asks for what a federated run of its method does not have.
        ConfigurationError: this machine lacks what makes candidates.
        AccountingError: a value is impossible, no noise meets the guarantee, or messages would be too long.
    """
    method, trust = contract.generate.method, terms.pop("trust", "distributed")
    kinds = {name: kind for kind in OTHERS for name in kind.METHODS}
    of_counts = next((kind for kind in OF_COUNTS if OF_COUNTS[kind] == trust and method in kind.METHODS), None)
    if trust != "distributed" and of_counts is None:
        accepted = sorted({name for kind, model in OF_COUNTS.items() if model == trust for name in kind.METHODS})
        raise ContractError(
            f"{contract.dataset}: trust {trust!r} with method {method!r}; accepted: {', '.join(accepted)}, or "
            "distributed"
        )
    if method in kinds:
        made: FederatedPlan = kinds[method].of(contract, schema, **terms)
        return made
    return (of_counts or MarginalsPlan).of(contract, schema, method=method, **terms)


def plan_of(text: str) -> FederatedPlan:
    """The plan of a text, checked, whatever its mechanism.

    Raises:
        GrantRefused, AccountingError: as `FederatedPlan.from_json`; also for a method that no federated run has.
    """
    sealed = SealedPlan.from_json(text)
    kind = next((each for each in PLANS if sealed.method in each.METHODS), MarginalsPlan)
    if kind is MarginalsPlan and isinstance(sealed.parameters, dict):
        kind = next((each for each, trust in OF_COUNTS.items() if trust == sealed.parameters.get("trust")), kind)
    return kind.from_json(text)
