"""`dpsynth lineage check`: what a run would add to, before it runs.

What belongs here: arguments, and showing what the library returns. What does not: the rest of `dpsynth lineage`
(`lineage_command`), walking the graph and the verdict (`lineage.clearance`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from dpsynth_platform.cli.terminal import BLOCKED, Json, TerminalOutput, command
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.settings import Settings

clearance_app = typer.Typer()


@clearance_app.command("check")
@command
def lineage_check(
    dataset: Annotated[str, typer.Option(help="The dataset, as its contract's file is named.")],
    period: Annotated[str | None, typer.Option(help="Month (YYYY-MM), for datasets with a cadence.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The checkpoint that training would start from: a name, a path or a release.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Says what a run would add to, by public facts alone, and the guarantee of all of it together. Spends nothing.

    Exit status 3 where it would not be cleared. With `on_overlap: block` a run may still be refused: whether anybody
    took part before is for the run itself to see.
    """
    from dpsynth_platform.reviewing.forecasts import clearance_forecast

    output = TerminalOutput(as_json)
    if base_model is not None and not base_model.strip():
        raise ConfigurationError("--base-model says nothing; accepted: a name or a path")
    cleared, entry = clearance_forecast(Settings.from_environment(), dataset, period, base_model)
    output.json(cleared.to_json() | {"entry": None if entry is None else entry.entry_id})
    for sentence in cleared.words:
        output.print(sentence)
    if entry is not None:
        output.print(
            f"That is the run's own clearance, held against what was before it. Ledger entry {entry.entry_id} "
            f"({entry.state}) stands for the run itself: it is charged to the family {entry.family}, once, and "
            "whatever is planned next is held against it."
        )
    if cleared.findings:
        output.table(
            ("found", "entry", "family", "about", "by way of"),
            [
                (item.kind, item.entry or "", item.family or "", item.place or "", " -> ".join(item.path))
                for item in cleared.findings
            ],
        )
    if cleared.decision == "refuse":
        raise typer.Exit(BLOCKED)
