"""The columns that are counted in addition to a text or to pictures, if there are any.

What belongs here: whether a contract's plan counts columns; their plan as part of the whole one and of its event; and
measuring, fitting and drawing them. What does not: how the guarantee is divided (`text.sealing`), the own mechanisms of
texts and pictures, and the counts themselves (`synth.tabular`).

A table of ids and one text has no column to count: then columns take nothing of the guarantee, the event has no part
for them, and drawn rows have fresh ids and the text. Texts that are sorted by public topics are always counted by them:
the topic is a column like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import DpEvent, event_from_json
from dpsynth_platform.synth.interface import Drawing, DrawRequest, PlanInputs, SealedPlan, generator
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.tabular.restore import ReleaseSchema, completed

if TYPE_CHECKING:
    from dpsynth_platform.compute.engine import Engine
    from dpsynth_platform.contracts.columns import Column
    from dpsynth_platform.privacy.guarantee import Guarantee

Columns = SealedPlan | None
"""The plan of the counted columns; None where no column is counted."""


def counts_columns(contract: DataContract) -> bool:
    """Whether a contract's plan counts modelled columns or the topics that texts are sorted by; not for answers."""
    text = contract.generate.text
    if contract.generate.answers:
        return False
    return bool(contract.modelled) or (text is not None and text.topics is not None)


def planned(inputs: PlanInputs, part: Guarantee, extra: Mapping[str, Column] | None = None) -> SealedPlan:
    """The plan of the modelled columns alone, by the method that `auto` chooses for them.

    Args:
        part: the part of the guarantee that counting may cost.
        extra: further text columns that are counted, such as the topics of texts.

    Raises:
        ContractError, AccountingError: as `Generator.plan` does.
    """
    from dpsynth_platform.synth.automatic import method_for

    schema = inputs.schema
    for name in extra or {}:
        schema = schema.append(pa.field(name, pa.string()))
    alone = columns_alone(inputs.contract, extra)
    chosen = method_for(alone, inputs.period)
    return generator(chosen.method).plan(alone, schema, part, period=inputs.period, why=chosen.why)


def columns_alone(contract: DataContract, extra: Mapping[str, Column] | None = None) -> DataContract:
    """A contract whose rows have neither texts nor pictures."""
    bare: dict[str, Any] = {"method": "auto", "text": None, "image": None, "training": None}
    bare |= {"base_model": None, "public": None}
    generate = contract.generate.model_copy(update=bare)
    return contract.model_copy(update={"generate": generate, "columns": {**contract.columns, **(extra or {})}})


def from_json(document: Mapping[str, Any] | None) -> Columns:
    """Reads the columns' part of a plan's parameters. Raises `TypeError` if it is neither a plan nor None."""
    return None if document is None else SealedPlan(**document)


def domains(columns: Columns) -> list[dict[str, Any]]:
    """The counted columns' public domains, as in a sealed plan."""
    return [] if columns is None else columns.columns


def event_of(columns: Columns) -> DpEvent | None:
    """The cost of counting; None where nothing is counted: that is no event, and not an event without cost."""
    return None if columns is None else event_from_json(columns.event)


def together(columns: Columns, *parts: DpEvent) -> DpEvent:
    """The cost of counting the columns together with other mechanisms.

    Args:
        parts: at least one; where nothing is counted, a single part is the whole event.
    """
    counts = event_of(columns)
    return composed(*([] if counts is None else [counts]), *parts)


def composed(*parts: DpEvent) -> DpEvent:
    """The cost of mechanisms together; a single one is the whole event."""
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(list(parts))


def check(columns: Columns, plan: SealedPlan) -> None:
    """Raises `GrantRefused` if the columns' event is not their cost, or they are not the columns of the whole plan."""
    if plan.columns != domains(columns):
        raise GrantRefused("the plan's columns are not those that it counts; materialize the line from raw")
    if columns is not None:
        generator(columns.method).check(columns)


def described(columns: Columns, then: str) -> dict[str, Any]:
    """The description of the columns' plan (`Generator.describe`), followed by the text's mechanism in words."""
    if columns is None:
        return {"columns": [], "event": then, "predicted_memory_bytes": 0}
    found = columns.describe()
    return found | {"event": f"{found['event']}; then {then}"}


def of_columns(columns: SealedPlan) -> MarginalGenerator:
    """The generator of the counted columns. Raises `GrantRefused` if their plan is for a method that counts none."""
    made = generator(columns.method)
    if not isinstance(made, MarginalGenerator):
        raise GrantRefused(f"the plan's columns are for method {columns.method!r}, which counts none")
    return made


def measure(columns: Columns, records: Path, directory: Path, progress: Progress, engine: Engine | None) -> None:
    """Counts the columns of a table with noise, and makes the directory; does neither where no column is counted."""
    if columns is not None:
        of_columns(columns).measure(columns, records, private_directory(directory), progress, engine)


def estimate(columns: Columns, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
    """Fits the model of the columns, if any are counted, to their measurements; see `Generator.estimate`."""
    if columns is not None:
        of_columns(columns).estimate(columns, directory, device=device, progress=progress)


def draw(columns: Columns, release: ReleaseSchema, request: DrawRequest) -> Drawing:
    """Rows of the columns, without texts; see `Generator.draw`. Without counted columns, rows have fresh ids.

    Args:
        request: its directory is that of the columns' model.

    Raises:
        ContractError: no column is counted, and the request has no number of rows, or has conditions on columns.
    """
    if columns is not None:
        return of_columns(columns).drawn(replace(request, device="cpu"))
    if request.constraints or request.given:
        what = "constraints" if request.constraints else f"given values of {', '.join(request.given or ())}"
        raise ContractError(f"{what}, but no column is modelled that they could be about; accepted: none")
    if request.rows is None:
        raise ContractError(
            "the number of rows is not declared, and no column is counted that gives it; accepted: a number of rows"
        )
    return Drawing(release.schema, request.rows, iter([completed({}, request.rows, release)]))
