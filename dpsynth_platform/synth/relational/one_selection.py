"""One adaptive selection over the marginals of all views: the rounds of `aim`, under one budget.

What belongs here: the budget that the views' plans share, the event of the whole, and measuring all views together.
What does not: the rounds themselves (`tabular.aim`), and views with mechanisms of their own (`sealing`).

Each view's columns are measured first. Then each round chooses, by one exponential mechanism over all views, a marginal
of one view; measures it; fits that view's model again, and no other; and spreads the budget as `aim` does for a single
table. A round costs one choice and one measurement, however many views there are.

**The claim.** All together cost at most the event of `aim` for a single table (`privacy.selection.selection_event`)
with the shared budget: precision M for all measurements of all views, R choices of epsilon_select. Values that are
learned compose beside it, for each such column of each view.

**Derivation.** `privacy.selection` proves the claim for any interaction of steps that are each chosen in the light of
all results so far. A step is a table of counts with noise, which one unit moves by at most Delta, or a choice whose
scores a unit moves by at most what the exponential mechanism assumes. It does not ask that steps read the same table,
only that they are functions of the same data set. The data set here is the whole database. Neighbours differ in one
owner p, with all of p's rows in all tables; add-or-remove and zero-out are alike, as a zeroed-out owner has no rows.

1. *A view is a function of the database that keeps owners apart.* Which rows of another owner are kept, their columns
   of parents and of the rows before, and their numbers of children follow from that owner's rows alone
   (`bounding.linked`: there is one path to each row, and keys order rows by the owner's own ids). So in every view all
   other owners have the same rows in both neighbours, and the same number k of them, hence the same weights 1/k.
2. *A measurement.* Counts of one marginal of one view differ by p's rows in that view: by at most one record in all,
   with weights; or one record without, which is how `LinkedTables.weighting` counts only where the bounds of all views
   add up to one row. So Delta is `units.count_sensitivity` of the whole guarantee, for every view alike: the plan of
   each has the bound and the weighting of the whole (`SealedTables.check`). p's rows in other views do not matter:
   they are not in these counts. Nor does the number of views: a marginal of another view is another step.
3. *A choice.* The score of a marginal is w (|n - e| - h): n are its exact counts, and its weight w of at most
   WEIGHT_SCALE, the model's e and what noise hides, h, follow from earlier results and public facts. By the triangle
   inequality it moves by at most w L1, in whichever view. p moves the scores of marginals of all views at once, as in
   one table it moves those of all its marginals at once. The exponential mechanism asks for the most that any score
   moves: the maximum over the views, WEIGHT_SCALE L1, and not the sum.
4. *The columns at the start* are measurements as well. Those of all views are paid from the same M.
5. *The budget* is one number for all views: `Draws` refuses what exceeds it, and nothing else draws. An interrupted run
   does not continue with it, but from complete measurements only (`completed`).

**Scores of different views** are on one scale: all count owners, each of whom weighs one in every view.

What differs from one table: the part of single columns is divided among the views by their tables' own columns; the
number of rounds is that of all views together; a view whose model a round changed by no more than noise is measured
with twice the precision from then on, and the others are not; and each view's model has its own limit of cells.

What was measured is in `docs/explanation/measurements/linked-tables.md`: by default, each view has its own mechanism,
since one selection neglects tables of few columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import GrantRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.events import DpEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import Partitions, composed_beside
from dpsynth_platform.privacy.selection import SelectionBudget, calibrate_selection, selection_event
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.aim import ONE_WAY_SHARE, Aim
from dpsynth_platform.synth.tabular.domain import Domain

METHOD = Aim.method


def shared(plans: Mapping[str, SealedPlan], shares: Mapping[str, float]) -> dict[str, SealedPlan]:
    """The views' plans under one budget, from plans that each have the guarantee of the whole for themselves.

    Args:
        shares: by which the part of single columns is divided among the views (`LinkedTables.share`).

    Raises `AccountingError` if no noise meets the guarantee.
    """
    method = Aim()
    guarantee = Guarantee.from_json(next(iter(plans.values())).guarantee)
    own = {name: method.sealed(plan.parameters) for name, plan in plans.items()}
    domains = {name: Domain.from_json(plan.columns) for name, plan in plans.items()}
    rounds = sum(sealed.rounds for sealed in own.values())
    learned = Partitions(sum(len(domain.unknown) for domain in domains.values()))
    budget = calibrate_selection(guarantee, rounds, method.selection_share if rounds else 0.0, learned)
    one_way, whole = ONE_WAY_SHARE if rounds else 1.0, sum(shares.values())
    found = {}
    for name, plan in plans.items():
        domain = domains[name]
        if learned.columns:
            domain = domain.to_be_learned(learned.learning(guarantee, budget.rho))
        mine = one_way * shares[name] / whole
        sealed = replace(
            own[name],
            **asdict(budget),
            one_way_share=mine,
            others_share=one_way - mine,
            choices_per_fit=max(each.choices_per_fit for each in own.values()),
        )
        parameters = sealed.to_json()
        event = method.whole_event(domain, parameters, guarantee)
        found[name] = replace(plan, columns=domain.to_json(), parameters=parameters, event=event_to_json(event))
    return found


def counted_cells(plans: Iterable[SealedPlan]) -> int:
    """Exact counts of all views that are in memory at once."""
    found = 0
    for plan in plans:
        states = Domain.from_json(plan.columns).most_states
        found += sum(math.prod(states[index] for index in clique) for clique in plan.parameters["workload"])
    return found


def event_of(views: Sequence[Mapping[str, Any]]) -> DpEvent:
    """What measuring all views together costs; see the module.

    Args:
        views: their plans' own parts (`sealing.SealedTables.views`).

    Raises:
        GrantRefused: they share no budget.
    """
    budgets = {_budget(view["parameters"]) for view in views}
    if len(budgets) > 1 or any(view["guarantee"] != views[0]["guarantee"] for view in views):
        raise GrantRefused("tables that are measured together have budgets of their own in the plan; make it again")
    guarantee = Guarantee.from_json(views[0]["guarantee"])
    domains = [Domain.from_json(view["columns"]) for view in views]
    learned = [column.learning for domain in domains for column in domain if column.learning is not None]
    neighbours = (guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)
    return composed_beside(learned, selection_event(budgets.pop(), *neighbours), guarantee)


def in_words(tables: Sequence[str], views: Sequence[Mapping[str, Any]]) -> str:
    """The event; `tables` are described in words, as `views` of `event_of`."""
    domains = [Domain.from_json(view["columns"]) for view in views]
    names = [
        f"{column.name} of {name.partition(',')[0]}"
        for name, domain in zip(tables, domains, strict=True)
        for column in domain
        if column.learning is not None
    ]
    learned = (
        f"the values of {', '.join(names)}, each shown if its count with rounded Gaussian noise reaches a threshold; "
        "then "
        if names
        else ""
    )
    rounds = Aim().in_words(
        sum(map(len, domains)), _budget(views[0]["parameters"]).rounds, of="a table and its columns"
    )
    return f"one mechanism for {len(tables)} tables together ({'; '.join(tables)}): {learned}{rounds}"


def measure(
    plans: Mapping[str, SealedPlan], bounded: Path, model: Path, progress: Progress, engine: Engine | None
) -> None:
    """Measures all views, or completes what is measured; a directory for each view below both places.

    Raises `MechanismFailed` if a view has been begun and not been completed.
    """
    if completed(plans, model):
        return
    method = Aim()
    with ExitStack() as opened:
        tables = []
        for name, plan in plans.items():
            method.check(plan)
            directory = private_directory(model / name)
            tables.append(opened.enter_context(method.opened(plan, bounded / name, directory, progress, engine)))
        method.choose_and_measure(tables, progress)
        for table in tables:
            table.log.complete()


def completed(plans: Mapping[str, SealedPlan], model: Path) -> bool:
    """Completes all views' measurements if one is complete: their last lines are written when nothing is left to do."""
    if not any(measurements.is_complete(model / name) for name in plans):
        return False
    for name, plan in plans.items():
        measurements.complete(model / name, plan.digest)
    return True


def _budget(parameters: Mapping[str, Any]) -> SelectionBudget:
    sealed = Aim().sealed(parameters)
    return SelectionBudget(sealed.sigma_total, sealed.epsilon_select, sealed.rounds, sealed.rho)
