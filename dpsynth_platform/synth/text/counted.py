"""The columns that are counted beside a text, or that there are none: what a plan says of it, in one place.

What belongs here: whether a contract's plan counts columns; their plan as part of the whole one and of its event; and
measuring, fitting and drawing them. What does not: how the guarantee is shared (`sealing`), the text's own mechanisms,
and the counts themselves (`synth.tabular`).

A table of ids and a text alone has no column to count. Then there is no plan of columns: nothing of the guarantee goes
there, the event has no part for them, the mechanism reads the data for the text alone, and drawn rows have fresh ids
beside it. Texts that are sorted by public topics are counted by these, whatever else there is: the topic is a column
like any other. Plans that count columns are the same, to the byte, as before there were any that do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_accounting import dp_event

from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import DpEvent, event_from_json
from dpsynth_platform.synth.interface import Drawing, SealedPlan, generator
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.tabular.restore import ReleaseSchema, completed

if TYPE_CHECKING:
    from dpsynth_platform.compute.engine import Engine

Columns = SealedPlan | None
"""The plan of the columns beside a text; None where none is counted."""


def counts_columns(contract: DataContract) -> bool:
    """Whether a contract's plan counts columns: modelled ones, or the topics that texts are sorted by."""
    text = contract.generate.text
    return bool(contract.modelled) or (text is not None and text.topics is not None)


def to_json(columns: Columns) -> dict[str, Any] | None:
    """Plain JSON values, as part of a plan's parameters."""
    return None if columns is None else asdict(columns)


def from_json(document: Mapping[str, Any] | None) -> Columns:
    """Reads `to_json` back. Raises `TypeError` if it is neither a plan nor None."""
    return None if document is None else SealedPlan(**document)


def domains(columns: Columns) -> list[dict[str, Any]]:
    """The counted columns' public domains, as a sealed plan has them."""
    return [] if columns is None else columns.columns


def event_of(columns: Columns) -> DpEvent | None:
    """What counting costs; None where nothing is counted, which is no event and not one of no cost."""
    return None if columns is None else event_from_json(columns.event)


def together(counted: DpEvent | None, *parts: DpEvent) -> DpEvent:
    """What counting the columns, learning or writing the texts, and whatever else there is cost together.

    Args:
        counted: see `event_of`.
        parts: at least one; where nothing is counted, one part is the whole event.
    """
    whole = [*([] if counted is None else [counted]), *parts]
    return whole[0] if len(whole) == 1 else dp_event.ComposedDpEvent(whole)


def check(columns: Columns, plan: SealedPlan) -> None:
    """Raises `GrantRefused` if the columns' event is not what they cost, or they are not those of the whole plan."""
    if plan.columns != domains(columns):
        raise GrantRefused("the plan's columns are not those that it counts; materialize the line from raw")
    if columns is not None:
        generator(columns.method).check(columns)


def described(columns: Columns, then: str) -> dict[str, Any]:
    """The description of the columns' plan (`Generator.describe`), with what is done after they are counted.

    Args:
        columns: their plan.
        then: the text's mechanism, in words.
    """
    if columns is None:
        return {"columns": [], "event": then, "predicted_memory_bytes": 0}
    found = columns.describe()
    return found | {"event": f"{found['event']}; then {then}"}


def of_columns(columns: SealedPlan) -> MarginalGenerator:
    """The generator of the columns beside the text. Raises `GrantRefused` if their plan is for one that counts none."""
    made = generator(columns.method)
    if not isinstance(made, MarginalGenerator):
        raise GrantRefused(f"the plan's columns are for method {columns.method!r}, which counts none")
    return made


def measure(columns: Columns, records: Path, directory: Path, progress: Progress, engine: Engine | None) -> None:
    """Counts the columns of a table with noise; reads nothing where none is counted.

    Args:
        columns: their plan.
        records: the table.
        directory: where measurements go; made only where there are any.
        progress: called with public stages.
        engine: an open SQL engine that may count in this process's place.
    """
    if columns is not None:
        of_columns(columns).measure(columns, records, private_directory(directory), progress, engine)


def estimate(columns: Columns, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
    """Fits the model of the columns, if any is counted, to their measurements; see `Generator.estimate`."""
    if columns is not None:
        of_columns(columns).estimate(columns, directory, device=device, progress=progress)


def draw(
    columns: Columns,
    directory: Path,
    release: ReleaseSchema,
    rows: int | None,
    *,
    constraints: Sequence[Constraint] = (),
    given: Mapping[str, Values] | None = None,
    progress: Progress = silent,
) -> Drawing:
    """Rows of the columns, without texts; see `Generator.draw`.

    Args:
        columns: their plan.
        directory: of their model.
        release: the released schema, which rows without counted columns have, with fresh ids.
        rows: how many; None: as many as the noisy counts say.
        constraints: which every row keeps.
        given: values that all rows shall have.
        progress: called with public stages.

    Raises:
        ContractError: no column is counted, and `rows` is None, or something is asked of columns.
    """
    if columns is not None:
        return of_columns(columns).draw(directory, rows, constraints=constraints, given=given, progress=progress)
    _refuse_conditions(constraints, given)
    if rows is None:
        raise ContractError(
            "how many rows are drawn is not said, and no column is counted that would tell; accepted: a number of rows"
        )
    return Drawing(release.schema, rows, iter([completed({}, rows, release)]))


def _refuse_conditions(constraints: Sequence[Constraint], given: Mapping[str, Values] | None) -> None:
    """Raises `ContractError` where rows without counted columns shall keep something about columns."""
    if constraints or given:
        what = "constraints" if constraints else f"given values of {', '.join(given or ())}"
        raise ContractError(f"{what}, but no column is modelled that they could be about; accepted: none")
