"""The workload: which marginals the synthetic rows should keep, with weights.

What belongs here: from the contract to weighted cliques that a mechanism may measure. What does not: measuring them
(`aim`). All of it is public.

After AIM (McKenna et al. 2022, section 4): a mechanism may measure every marginal of the workload and all marginals of
subsets of its columns. The weight of one is the sum over the workload of weight times number of common columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.methods import TARGET_METHODS, WORKLOAD_METHODS
from dpsynth_platform.contracts.workload import Workload as Asked
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.interface import TABLE_METHODS
from dpsynth_platform.synth.tabular.junction import Clique

WEIGHT_SCALE = 256
"""The largest weight; weights are whole, so that weighted scores are exact integers."""
MAX_CLIQUES = 200_000
MOST_OF_TARGET = 500
MOST_CELLS_OF_TARGET = 2**23
"""Combinations of a target with two columns, and their cells together: those of up to 32 columns, as a rule."""


@dataclass(frozen=True)
class Workload:
    """The cliques that may be measured.

    `weights` are of all cliques of two or more columns, from 1 to WEIGHT_SCALE; `named` of those that the workload
    names itself, on the same scale. `target` is the index of the declared target column.
    """

    weights: Mapping[Clique, int]
    named: Mapping[Clique, int]
    target: int | None


def workload_faults(generate: Generate, names: Sequence[str], accepted: Sequence[str] | None = None) -> Iterator[str]:
    """The faults of a workload that names a column which is not in `names`, or that the declared method ignores.

    Args:
        accepted: the names that errors list; by default all.
    """
    declared = generate.workload
    named = [("weights", name) for name in declared.weights]
    named += [(f"queries.{number}", name) for number, query in enumerate(declared.queries) for name in query.columns]
    named += [("target", declared.target)] if declared.target is not None else []
    for where, name in named:
        if name not in names:
            yield f"generate.workload.{where}: {name!r} is no modelled column; accepted: {', '.join(accepted or names)}"
    if generate.method in WORKLOAD_METHODS or generate.method not in TABLE_METHODS or declared == Asked():
        return
    # Leaving the workload out spends nothing: it is not part of such a method's `mechanism_snapshot`.
    unused = next(name for name in Asked.model_fields if getattr(declared, name) != getattr(Asked(), name))
    heeding = TARGET_METHODS if declared.target is not None else [name for name in WORKLOAD_METHODS if name != "auto"]
    yield (
        f"generate.workload.{unused}: has no effect with method {generate.method!r}; accepted: method "
        f"{', '.join(heeding)}, or auto, which may choose it; or leave it out, which makes no other run"
    )


def check_names(contract: DataContract, names: Sequence[str]) -> None:
    """Raises `ContractError` for a workload that names an unmodelled column, or that the method ignores."""
    if faults := list(workload_faults(contract.generate, names, contract.modelled)):
        raise ContractError("\n".join(f"{contract.dataset}: {fault}" for fault in faults))


def workload_of(
    contract: DataContract,
    names: Sequence[str],
    parts: Mapping[int, int] = MappingProxyType({}),
    sizes: Sequence[int] = (),
) -> Workload:
    """The contract's workload over the attributes with these names.

    Hours and weekdays have the weights of their columns (`Domain.parts`), unless they are named. With a target, `sizes`
    (the most states of each attribute) add its combinations with two others, as far as there are few: what predicts it
    may do so only together. Raises `ContractError` for an unmodelled column, or too many marginals.
    """
    check_names(contract, names)
    declared = contract.generate.workload
    wanted = asked_marginals(declared, names, parts, where=f"{contract.dataset}: generate.workload")
    target = None if declared.target is None else list(names).index(declared.target)
    about = {} if target is None else _of_target(target, sizes)
    return Workload(_weighted(about | wanted, len(names)), _scaled(wanted), target)


def _of_target(target: int, sizes: Sequence[int]) -> dict[Clique, float]:
    """The combinations of the target with two other attributes; none if there are too many."""
    others = [index for index in range(len(sizes)) if index != target]
    found = [tuple(sorted((target, *pair))) for pair in itertools.combinations(others, 2)]
    cells = sum(math.prod(sizes[index] for index in clique) for clique in found)
    return dict.fromkeys(found, 1.0) if len(found) <= MOST_OF_TARGET and cells <= MOST_CELLS_OF_TARGET else {}


def asked_marginals(
    declared: Asked, names: Sequence[str], parts: Mapping[int, int] = MappingProxyType({}), where: str = "workload"
) -> dict[Clique, float]:
    """The marginals that a workload names itself, with their weights, over attributes with these names.

    Raises `ContractError` for too many marginals; `where` names the workload then.
    """
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
            wanted[clique] = math.prod((column_weights[index] for index in clique), start=1.0)
            if len(wanted) > MAX_CLIQUES:
                raise ContractError(
                    f"{where}.ways: {declared.ways}, which makes more than {MAX_CLIQUES} "
                    "marginals; accepted: fewer ways"
                )
    for query in declared.queries:
        for chosen in itertools.product(*(attributes[place[name]] for name in dict.fromkeys(query.columns))):
            clique = tuple(sorted(set(chosen)))
            wanted[clique] = wanted.get(clique, 0.0) + query.weight
    return wanted


def _weighted(wanted: Mapping[Clique, float], columns: int) -> dict[Clique, int]:
    """Weights of the workload's cliques and all their subsets of two or more columns."""
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
