"""The sealed plan of linked tables, and what it costs.

What belongs here: the plan of each table's view, calibrated so that all together meet the guarantee, and the event of
the whole. What does not: the views' own mechanisms, and their rows (`bounding.linked`).

An owner's rows are in every view: at most `LinkedTables.bound` in each, by the one path that leads there. In each, they
weigh one row together (`units.count_sensitivity`), so that no bound multiplies the noise; the bound of the claim is the
most rows of one owner in all tables. How many children a row has is a column of its view, and paid like one.

The whole is the composition of all views' mechanisms; or, where the declaration asks for it, one adaptive selection
measures all views under one budget (`one_selection`).

Pairs of known columns are measured, too, where they are far from the model. Without them, the model takes the parent's
columns and those of the row before for independent, and counts what they say together twice: on made-up patients, a
stay had the ward of the one before in 88% instead of 80%.

Of a composition, a view's part of the budget (zCDP) is its share. Its epsilon is in proportion to the root of that, at
the same delta, and the factor is found by inverting the cost of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import LINKED, NETWORK_METHODS, VIEW_METHODS
from dpsynth_platform.contracts.tables import CHOSEN, LinkedTables
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent, event_from_json, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import DECLARED, SealedPlan, generator
from dpsynth_platform.synth.largest import largest
from dpsynth_platform.synth.relational import one_selection
from dpsynth_platform.synth.tabular.marginals import MAX_CELLS

VIEW_CELLS = 2**16
"""Of a view's model: what it says given a row's evidence is computed for each row."""


@dataclass(frozen=True)
class View:
    """A table's view, as a single table.

    Attributes:
        contract: with the view's columns, and the privacy unit with the bound on the path.
        schema: of the view's rows, with the types that they are released in.
        released: of the table's rows, as `ReleaseSchema` in JSON form.
    """

    contract: DataContract
    schema: pa.Schema
    released: dict[str, Any]


@dataclass(frozen=True)
class SealedTables:
    """The parameters of a plan of linked tables. Public; JSON values only.

    Attributes:
        declared: the tables (`LinkedTables`).
        lookups: the keys of each public table.
        views: of each private table, what its plan has of its own.
        released: of each private table, the schema of released rows (`tabular.restore`).
        one_selection: whether all views are measured together, under one budget.
    """

    declared: dict[str, Any]
    lookups: dict[str, list[str]]
    views: dict[str, dict[str, Any]]
    released: dict[str, dict[str, Any]]
    one_selection: bool = False

    def to_json(self) -> dict[str, Any]:
        """Names `one_selection` only where it is, so that other plans keep their digests."""
        return {key: value for key, value in asdict(self).items() if key != "one_selection" or value}

    @classmethod
    def of(cls, plan: SealedPlan) -> SealedTables:
        """Reads them from a plan. Raises `GrantRefused` if they are of another kind."""
        try:
            return cls(**plan.parameters)
        except TypeError:
            raise GrantRefused("the sealed plan is not for linked tables; make it again") from None

    @property
    def tables(self) -> LinkedTables:
        return validated(LinkedTables, self.declared, "the sealed plan")

    @property
    def event(self) -> DpEvent:
        """What all views together cost, in the order of the tables."""
        if self.one_selection:
            return one_selection.event_of([self.views[name] for name in self.tables.private])
        return dp_event.ComposedDpEvent([event_from_json(self.views[name]["event"]) for name in self.tables.private])

    def plan(self, whole: SealedPlan, name: str) -> SealedPlan:
        """The plan of a table's view."""
        own = self.views[name]
        return replace(whole, time_limit=None, **own)

    def plans(self, whole: SealedPlan) -> dict[str, SealedPlan]:
        """The plans of all views, in the order of the tables."""
        return {name: self.plan(whole, name) for name in self.tables.private}

    def check(self, plan: SealedPlan) -> None:
        """Raises `GrantRefused` if the whole event is not that of the views' plans, or a view has another bound."""
        tables = self.tables
        if set(self.views) != set(tables.private) or event_to_json(self.event) != plan.event:
            raise GrantRefused("the plan's privacy event is not that of its tables; make it again")
        for name in tables.private:
            view = self.plan(plan, name)
            if not _is_of(tables, view):
                raise GrantRefused("a table's plan is for other rows of an owner than the tables have; make it again")
            if view.method not in VIEW_METHODS or _whose(view) != _whose(plan):
                raise GrantRefused("a table's plan is of another method or guarantee than the whole; make it again")
            if self.one_selection and (view.method, view.guarantee) != (one_selection.METHOD, plan.guarantee):
                raise GrantRefused("a table's plan is of another method or guarantee than the whole; make it again")
            generator(view.method).check(view)
        if not _is_of(tables, plan):
            raise GrantRefused("the plan is for other rows of an owner than the tables have; make it again")


def linked_plan(
    tables: LinkedTables,
    views: Mapping[str, View],
    lookups: Mapping[str, list[str]],
    guarantee: Guarantee,
    whole: DataContract,
) -> SealedPlan:
    """Calibrates and seals the plan of all tables from public inputs.

    Args:
        views: of each private table.
        lookups: the keys of each public table.
        guarantee: of the whole.
        whole: the contract whose release it is: of all tables, or the root's.

    Raises:
        ContractError: a method cannot do what the declarations ask for.
        AccountingError: no noise meets the guarantee.
    """
    for name in tables.private:
        method, types = views[name].contract.generate.method, tables.tables[name].types
        if types is not None and method in NETWORK_METHODS:
            raise ContractError(
                f"tables.{name}.types: {types} with method {method!r}, which has no marginals that tell types; "
                f"accepted: {', '.join(each for each in VIEW_METHODS if each not in NETWORK_METHODS)}, or leave it out"
            )
    shares = {name: tables.share(name) for name in tables.private}
    parts = {name: (share / sum(shares.values())) ** 0.5 for name, share in shares.items()}
    found: dict[float, SealedTables] = {}

    def sealed_for(plans: Mapping[str, SealedPlan], *, together: bool = False) -> SealedTables:
        return SealedTables(
            declared=tables.as_modelled().model_dump(mode="json"),
            lookups={name: list(keys) for name, keys in lookups.items()},
            views={name: _own(plan) for name, plan in plans.items()},
            released={name: views[name].released for name in tables.private},
            one_selection=together,
        )

    def spent(factor: float) -> float:
        plans = {
            name: _planned(name, views[name], tables.evidence(name), guarantee, factor * part)
            for name, part in parts.items()
        }
        found[factor] = sealed_for(plans)
        return epsilon(found[factor].event, guarantee.delta).epsilon

    if tables.shares_chosen:
        sealed = sealed_for(one_selection.shared(_alone(tables, views, guarantee), shares), together=True)
    else:
        sealed = found[largest(spent, guarantee.epsilon, guarantee.epsilon, "tables", "fewer tables")]
    snapshots = {name: view.contract.mechanism_snapshot() for name, view in views.items()}
    return SealedPlan(
        method=LINKED,
        why=DECLARED,
        dataset=whole.dataset,
        period=None,
        mechanism_digest=canonical_digest(whole.mechanism_snapshot() if whole.tables else snapshots),
        columns=[],
        release={},
        parameters=sealed.to_json(),
        event=event_to_json(sealed.event),
        guarantee=guarantee.to_json(),
    )


def _alone(tables: LinkedTables, views: Mapping[str, View], guarantee: Guarantee) -> dict[str, SealedPlan]:
    """Each view's plan for the whole guarantee, as `one_selection.shared` needs them; raises as `linked_plan`."""
    method = next(iter(views.values())).contract.generate.method
    if method != one_selection.METHOD:
        raise ContractError(
            f"share: {CHOSEN} with method {method!r}; accepted: with {one_selection.METHOD}, or numbers as shares"
        )
    plans = {
        name: _planned(name, views[name], tables.evidence(name), guarantee, guarantee.epsilon)
        for name in tables.private
    }
    if (cells := one_selection.counted_cells(plans.values())) > MAX_CELLS:
        raise ContractError(
            f"share: {CHOSEN}: all pairs of columns of all tables have {cells} cells together; accepted: up to "
            f"{MAX_CELLS}, or numbers as shares: then tables are counted one after the other"
        )
    return plans


def _is_of(tables: LinkedTables, plan: SealedPlan) -> bool:
    claimed = Guarantee.from_json(plan.guarantee)
    return (claimed.max_contributions, claimed.weighting) == (tables.rows_of_owner, tables.weighting)


def _whose(plan: SealedPlan) -> tuple[Any, ...]:
    """Whom a guarantee is for, and its delta: alike for the whole and all views."""
    return tuple(plan.guarantee[key] for key in ("unit", "adjacency", "delta"))


def _planned(name: str, view: View, evidence: Sequence[str], whole: Guarantee, part: float) -> SealedPlan:
    """The plan of one view for a part of epsilon; its rows are drawn given the evidence."""
    contract = view.contract
    own = replace(
        whole,
        epsilon=part,
        max_contributions=contract.privacy.max_contributions,
        weighting=contract.privacy.weighting,
    )
    if contract.generate.method not in VIEW_METHODS:
        raise ContractError(
            f"method {contract.generate.method!r} for linked tables; accepted: {', '.join(VIEW_METHODS)}"
        )
    try:
        made = generator(contract.generate.method)
        plan = made.plan(contract, view.schema, own)
        plan = made.given(plan, evidence) if evidence else plan
    except (ContractError, AccountingError) as error:
        problem, kind = str(error), type(error)
    else:
        if "model_cells" not in plan.parameters:
            return plan
        cells = min(plan.parameters["model_cells"], VIEW_CELLS)
        return replace(plan, parameters=plan.parameters | {"model_cells": cells})
    start = f"{contract.dataset}: "
    raise kind("\n".join(f"tables.{name}: {line.removeprefix(start)}" for line in problem.split("\n")))


def _own(plan: SealedPlan) -> dict[str, Any]:
    """What the plan of a view has of its own."""
    kept = ("method", "columns", "release", "parameters", "event", "guarantee")
    return {key: getattr(plan, key) for key in kept}
