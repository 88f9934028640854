"""The generator of linked tables: each view's mechanism, one after the other, or one for all views.

What belongs here: the order of the mechanisms, and the interface of generators. What does not: the plan and its cost
(`sealing`), the views (`bounding.linked`), and how rows that join are drawn (`drawing`).

| directory | holds |
| --- | --- |
| bounded/TABLE | the view of a table |
| model/TABLE | its measurements, the training of a network, and its model |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.methods import LINKED
from dpsynth_platform.foundation.errors import ContractError, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.synth.interface import (
    ERRORS,
    Drawing,
    DrawRequest,
    Generator,
    MechanismRun,
    PlanInputs,
    PlanParts,
    SealedPlan,
    generator,
)
from dpsynth_platform.synth.relational import one_selection
from dpsynth_platform.synth.relational.drawing import LinkedDrawing
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular import measurements

PLAN = "linked.json"
"""The plan, in the model's directory: written first, so that what is complete can be read."""
STAGE = "measuring tables"


class Linked(Generator):
    """The generator of a plan of linked tables (`sealing.linked_plan`)."""

    method = LINKED

    def parts(self, inputs: PlanInputs) -> PlanParts:
        raise ContractError(f"{inputs.contract.dataset}: one table; accepted: linked tables, which have their own plan")

    def check(self, plan: SealedPlan) -> None:
        SealedTables.of(plan).check(plan)

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        """Of memory, the most that any view has; or all, where they are measured together."""
        sealed = SealedTables.of(plan)
        tables = sealed.tables
        described = {name: _described(sealed.plan(plan, name)) for name in tables.private}
        return {
            "event": _in_words(sealed, {name: found["event"] for name, found in described.items()}),
            "columns": [],
            "tables": {
                name: {
                    "bound": tables.bound(name),
                    "method": sealed.views[name]["method"],
                    **({} if sealed.one_selection else {"epsilon": sealed.views[name]["guarantee"]["epsilon"]}),
                    "columns": found["columns"],
                    **{figure: value for figure, value in found.items() if figure.startswith(ERRORS)},
                }
                for name, found in described.items()
            },
            "predicted_memory_bytes": (sum if sealed.one_selection else max)(
                found["predicted_memory_bytes"] for found in described.values()
            ),
        }

    def inputs(self, plan: SealedPlan, bounded: Path) -> dict[Path, int]:
        sealed = SealedTables.of(plan)
        return {bounded / name: sealed.tables.bound(name) for name in sealed.tables.private}

    def run(self, run: MechanismRun) -> None:
        """Runs the mechanism of every view that is not complete; of all together, where one selection measures them.

        One that was interrupted while it counted cannot continue; an interrupted training continues as far as its plan
        has paid (`NetworkGenerator.run`). Each view's training has a journal and checkpoints of its own, bound to the
        digest of the view's plan.
        """
        self.check(run.plan)
        sealed = SealedTables.of(run.plan)
        names = sealed.tables.private
        write_durably(run.directory / PLAN, run.plan.to_json())
        if sealed.one_selection:
            one_selection.measure(sealed.plans(run.plan), run.bounded, run.directory, run.progress, run.engine)
        for number, name in enumerate(names):
            run.progress(STAGE, number, len(names))
            plan = sealed.plan(run.plan, name)
            inner = replace(run, plan=plan, bounded=run.bounded / name, directory=run.directory / name, progress=silent)
            method = generator(plan.method)
            if method.is_complete(inner.directory):
                method.estimate(plan, inner.directory, device=run.device)
                continue
            private_directory(inner.directory)
            method.run(inner)
        run.progress(STAGE, len(names), len(names))

    def is_complete(self, directory: Path) -> bool:
        views = _views(directory)
        return bool(views) and all(method.is_complete(place) for place, method in views.items())

    def can_resume(self, directory: Path) -> bool:
        """Whether each incomplete view is paid for and not begun, or can itself resume.

        Where one selection measures all of them, whether none is begun, or one is complete and not all: then nothing is
        left to measure (`one_selection.completed`).
        """
        views = _views(directory)
        begun = [place for place in views if (place / measurements.FILE_NAME).exists()]
        incomplete = {place: method for place, method in views.items() if not method.is_complete(place)}
        if views and SealedTables.of(planned(directory)).one_selection:
            return not begun or 0 < len(incomplete) < len(views)
        return bool(incomplete) and all(
            place not in begun or method.can_resume(place) for place, method in incomplete.items()
        )

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        sealed = SealedTables.of(plan)
        for name in sealed.tables.private:
            view = sealed.plan(plan, name)
            generator(view.method).estimate(view, directory / name, device=device, progress=progress)

    def drawn(self, request: DrawRequest) -> Drawing:
        """The root's rows alone; all tables by `LinkedDrawing`."""
        drawing = LinkedDrawing.of(planned(request.directory), request.directory)
        rows = drawing.roots if request.rows is None else request.rows
        root = drawing.tables.root
        batches = (found[root] for found in drawing.batches(rows, request.given, request.progress))
        return Drawing(drawing.released[root].schema, rows, batches)


def planned(directory: Path) -> SealedPlan:
    """The plan of a model's directory. Raises `MechanismFailed` if there is none."""
    try:
        text = (directory / PLAN).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MechanismFailed("the model directory holds no model of linked tables; make it again") from None
    return SealedPlan.from_json(text)


def _views(directory: Path) -> dict[Path, Generator]:
    """The directory of each view's model, and its method; none without a plan."""
    try:
        sealed = SealedTables.of(planned(directory))
    except MechanismFailed:
        return {}
    return {directory / name: generator(sealed.views[name]["method"]) for name in sealed.tables.private}


def _in_words(sealed: SealedTables, events: Mapping[str, str]) -> str:
    tables = sealed.tables
    bounds = {name: f"{name}, of whose rows one owner has at most {tables.bound(name)}" for name in events}
    if not sealed.one_selection:
        words = "; ".join(f"table {bounds[name]}: {event}" for name, event in events.items())
        return f"for each of {len(events)} tables a mechanism of its own, all composed: {words}"
    return one_selection.in_words(list(bounds.values()), [sealed.views[name] for name in events])


def _described(plan: SealedPlan) -> dict[str, Any]:
    return generator(plan.method).describe(plan)
