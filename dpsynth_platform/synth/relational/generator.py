"""The generator of linked tables: each view's mechanism, one after the other, or one for all views.

What belongs here: the order of the mechanisms, and the interface of generators. What does not: the plan and its cost
(`sealing`), the views (`bounding.linked`), and how rows that join are drawn (`drawing`).

| directory | holds |
| --- | --- |
| bounded/TABLE | the view of a table |
| model/TABLE | its measurements and model |
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
        """Measures every view that has not been measured; one that was interrupted while it counted cannot continue.

        All views are one where one selection measures them.
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
            if measurements.is_complete(inner.directory):
                generator(plan.method).estimate(plan, inner.directory, device=run.device)
                continue
            private_directory(inner.directory)
            generator(plan.method).run(inner)
        run.progress(STAGE, len(names), len(names))

    def is_complete(self, directory: Path) -> bool:
        try:
            names = SealedTables.of(planned(directory)).tables.private
        except MechanismFailed:
            return False
        return all(measurements.is_complete(directory / name) for name in names)

    def can_resume(self, directory: Path) -> bool:
        """Whether each view either has all its measurements or none; those without are paid for and not begun.

        Where one selection measures all of them, whether none is begun, or one is complete and not all: then nothing is
        left to measure (`one_selection.completed`).
        """
        try:
            sealed = SealedTables.of(planned(directory))
        except MechanismFailed:
            return False
        places = [directory / name for name in sealed.tables.private]
        if sealed.one_selection:
            complete = [measurements.is_complete(place) for place in places]
            begun = any((place / measurements.FILE_NAME).exists() for place in places)
            return not begun or (any(complete) and not all(complete))
        return any(not (place / measurements.FILE_NAME).exists() for place in places) and all(
            measurements.is_complete(place) or not (place / measurements.FILE_NAME).exists() for place in places
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


def _in_words(sealed: SealedTables, events: Mapping[str, str]) -> str:
    tables = sealed.tables
    bounds = {name: f"{name}, of whose rows one owner has at most {tables.bound(name)}" for name in events}
    if not sealed.one_selection:
        words = "; ".join(f"table {bounds[name]}: {event}" for name, event in events.items())
        return f"for each of {len(events)} tables a mechanism of its own, all composed: {words}"
    return one_selection.in_words(list(bounds.values()), [sealed.views[name] for name in events])


def _described(plan: SealedPlan) -> dict[str, Any]:
    return generator(plan.method).describe(plan)
