"""The workload: which marginals the synthetic rows should keep, and how much each of them matters.

What belongs here: from the contract's words to weighted cliques that a mechanism may measure. What does not: measuring
them (`aim`). All of it is public.

After AIM (McKenna et al. 2022, section 4): a mechanism may measure every marginal of the workload and everything below
it, and one is worth as much as the workload's marginals that it has columns in common with, by weight times number of
common columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import Workload as Asked
from dpsynth_platform.contracts.methods import WORKLOAD_METHODS
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.interface import TABLE_METHODS
from dpsynth_platform.synth.tabular.junction import Clique

WEIGHT_SCALE = 256
"""The weightiest clique's weight: weights are whole, so that weighted scores stay exact integers."""
MAX_CLIQUES = 200_000


@dataclass(frozen=True)
class Workload:
    """What may be measured.

    Attributes:
        weights: weight of each clique of two columns and more, from 1 to WEIGHT_SCALE.
        named: weight of each clique that the workload names itself, as it is declared; on the same scale.
        target: index of the column that the others shall predict, if one is declared.
    """

    weights: Mapping[Clique, int]
    named: Mapping[Clique, int]
    target: int | None


def without_effect(contract: DataContract) -> str | None:
    """What is wrong with a workload that the declared method does not heed, and what to do; None where it heeds it.

    To leave it out spends nothing: runs of such methods are not named by a workload (`mechanism_snapshot`). Where
    `auto` stands for such a method, its reason says so.
    """
    method, declared = contract.generate.method, contract.generate.workload
    if method in WORKLOAD_METHODS or method not in TABLE_METHODS or declared == Asked():
        return None
    unused = next(name for name in Asked.model_fields if getattr(declared, name) != getattr(Asked(), name))
    heeding = ["aim"] if declared.target is not None else [name for name in WORKLOAD_METHODS if name != "auto"]
    return (
        f"generate.workload.{unused}: has no effect with method {method!r}; accepted: method {' or '.join(heeding)}, "
        "or auto, which may choose it; or leave it out, which makes no other run"
    )


def check_names(contract: DataContract, names: Sequence[str]) -> None:
    """Refuses a workload that names a column which is not modelled, or of which the method heeds nothing.

    Raises:
        ContractError: it does.
    """
    declared = contract.generate.workload
    named = [("weights", name) for name in declared.weights]
    named += [(f"queries.{number}", name) for number, query in enumerate(declared.queries) for name in query.columns]
    named += [("target", declared.target)] if declared.target is not None else []
    for where, name in named:
        if name not in names:
            raise ContractError(
                f"{contract.dataset}: generate.workload.{where}: {name!r} is no modelled column; accepted: "
                f"{', '.join(names)}"
            )
    if (useless := without_effect(contract)) is not None:
        raise ContractError(f"{contract.dataset}: {useless}")


def workload_of(
    contract: DataContract, names: Sequence[str], parts: Mapping[int, int] = MappingProxyType({})
) -> Workload:
    """The contract's workload over the attributes of the modelled columns.

    Args:
        contract: says what matters.
        names: of the attributes.
        parts: of hours and weekdays, by index, the index of their column (`Domain.parts`). They matter as much as it,
            unless they are named themselves.

    Raises:
        ContractError: it names a column that is not modelled, or has too many marginals.
    """
    check_names(contract, names)
    declared = contract.generate.workload
    place = {name: index for index, name in enumerate(names)}
    column_weights = [
        declared.weights.get(name, declared.weights.get(names[parts.get(index, index)], 1.0))
        for index, name in enumerate(names)
    ]
    attributes: dict[int, list[int]] = {index: [index] for index in range(len(names))}
    for part, index in parts.items():
        attributes[index].append(part)
    wanted: dict[Clique, float] = {}
    for ways in range(2, min(declared.ways, len(names)) + 1) if len(names) > 1 else ():
        for clique in itertools.combinations(range(len(names)), ways):
            wanted[clique] = 1.0
            for index in clique:
                wanted[clique] *= column_weights[index]
            if len(wanted) > MAX_CLIQUES:
                raise ContractError(
                    f"{contract.dataset}: generate.workload.ways: {declared.ways}, which makes more than {MAX_CLIQUES} "
                    "marginals; accepted: fewer ways"
                )
    for query in declared.queries:
        for chosen in itertools.product(*(attributes[place[name]] for name in dict.fromkeys(query.columns))):
            clique = tuple(sorted(set(chosen)))
            wanted[clique] = wanted.get(clique, 0.0) + query.weight
    target = None if declared.target is None else place[declared.target]
    return Workload(_weighted(wanted, len(names)), _scaled(wanted), target)


def _weighted(wanted: Mapping[Clique, float], columns: int) -> dict[Clique, int]:
    """Weights of the workload's cliques and all cliques of two columns and more below them."""
    shared = [0.0] * columns
    for clique, weight in wanted.items():
        for index in clique:
            shared[index] += weight
    candidates = {
        below
        for clique in wanted
        for ways in range(2, len(clique) + 1)
        for below in itertools.combinations(clique, ways)
    }
    return _scaled({clique: sum(shared[index] for index in clique) for clique in sorted(candidates)})


def _scaled(weights: Mapping[Clique, float]) -> dict[Clique, int]:
    """Whole weights, of which the largest is WEIGHT_SCALE and none is zero."""
    largest = max(weights.values(), default=1.0)
    return {clique: max(1, round(WEIGHT_SCALE * weight / largest)) for clique, weight in weights.items()}
