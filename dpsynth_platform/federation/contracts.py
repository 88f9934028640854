"""The federated plan of a contract, and what follows from it before a run.

What belongs here: a contract's `source.federation` as terms of a plan, with the coordinator's own auditor. What does
not: plans (`plans`), and running them. Mechanisms are imported late: they load PyTorch.
"""

from __future__ import annotations

from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.federation import Federation
from dpsynth_platform.foundation.errors import AccountingError, ContractError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.sources.source import schema_of
from dpsynth_platform.synth.guarded_sources import check_public_table
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.planning import check_plan

_OF_A_CELL = 64
"""Bytes of memory for each number of the longest sum, beside the masked vectors of all.

60 were measured for a sum of two million numbers, with the coordinator and three members in one process and their
vectors included.
"""


def terms_of(federation: Federation) -> dict[str, Any]:
    """The terms of a plan, which counts the auditor as one that finishes and whose noise is known."""
    return {
        "participants": federation.all_names,
        "minimum": federation.minimum + 1,
        "colluders": federation.colluders + 1,
        "silos": federation.silos,
        "most_records": federation.most_records,
        "trust": federation.trust,
    }


def plan_of_contract(contract: DataContract) -> SealedPlan:
    """The plan of a contract with `source.federation`, calibrated and sealed from public declarations alone.

    Raises:
        ContractError: the method or a declaration needs what a federated run does not have, or the public table is
            guarded.
        ConfigurationError: this machine lacks what makes candidates.
        AccountingError: no noise meets the guarantee, or messages would be too long.
    """
    from dpsynth_platform.federation.mechanisms import plan_for

    federation, method, schema = contract.source.federation, contract.generate.method, schema_of(contract)
    if federation is None:
        raise ContractError(f"{contract.dataset}: source.federation: none; accepted: one")
    check_public_table(Settings.from_environment(), contract)
    try:
        made = plan_for(contract, schema, **terms_of(federation)).sealed
    except AccountingError as error:
        problem = str(error)
    else:
        check_plan(contract, made, method, described(contract, made))
        return made
    raise AccountingError(f"{contract.dataset}: {problem}")


def described(contract: DataContract, plan: SealedPlan) -> dict[str, Any]:
    """`SealedPlan.describe` of a contract's plan, also of a federated one: with errors of a run without dropouts."""
    if contract.source.federation is None:
        return plan.describe()
    from dpsynth_platform.federation.mechanisms import plan_of

    federated = plan_of(plan.to_json())
    terms, cells = federated.terms, max(each.length for each in federated.sums)
    own = getattr(getattr(federated, "parameters", None), "memory_bytes", 0)  # of what learns pictures
    return federated.described() | {
        "most_cells_measured": sum(each.length for each in federated.sums),
        "predicted_memory_bytes": 2**28 + own + (_OF_A_CELL + 8 * len(terms.participants)) * cells,
        "participants": terms.participants,
        "minimum": terms.minimum,
        "colluders": terms.colluders,
    }
