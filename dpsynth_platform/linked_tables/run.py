"""The steps of synthetic linked tables: declare, admit, bound, pay, measure, fit, draw, state.

What belongs here: the order of the steps. What does not: the steps themselves, of which paying is that of one table
(`one_table.paying`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.linked_rows.drawn import Rows
from dpsynth_platform.linked_tables.output import write_tables
from dpsynth_platform.linked_tables.rows import bounded_views
from dpsynth_platform.linked_tables.statement import statement
from dpsynth_platform.linked_tables.task import LinkedTask, TablesOptions, linked_task
from dpsynth_platform.one_table.budget import Budget, runs_beside
from dpsynth_platform.one_table.output import write_statement
from dpsynth_platform.one_table.paying import Payment
from dpsynth_platform.one_table.place import STATEMENT, SYNTHETIC, Place, held
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.table_files import check_exists
from dpsynth_platform.sources.table_places import ACCEPTED
from dpsynth_platform.synth.relational.drawing import LinkedDrawing


@dataclass(frozen=True)
class SyntheticTables:
    """The result of a run.

    Attributes:
        synthetic: directory of the released tables.
        rows: of each private table, and the number of those left out (`Rows`).
        statement: their privacy statement in Markdown; beside it in JSON.
        ledger: directory of the ledger.
        entry_id: the ledger entry that paid.
        spent: whether this run paid, or an earlier one.
        not_covered: accesses to the data that the guarantee does not cover.
    """

    synthetic: Path
    rows: Mapping[str, Rows]
    statement: Path
    guarantee: Guarantee
    ledger: Path
    entry_id: str
    spent: bool
    not_covered: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        paths = {name: str(getattr(self, name)) for name in ("synthetic", "statement", "ledger")}
        return asdict(self) | paths | {"not_covered": list(self.not_covered)}


def synthesize_tables(
    data: str | Path | Mapping[str, Path | pa.Table],
    out: str | Path,
    options: TablesOptions,
    *,
    progress: Progress = silent,
) -> SyntheticTables:
    """Makes differentially private synthetic tables that join, in the directory `out`.

    Args:
        data: a directory with a Parquet or CSV file or a Delta table for each declared table; or tables by name.
        out: made if it does not exist, for this user alone; see `one_table.place`.
        progress: called with public stages and counts of steps.

    Raises:
        ContractError: options or declarations are invalid.
        SourceError: a table cannot be read as declared.
        BoundingError: the key of a table with children stands in several rows.
        BudgetExceeded, LedgerError, SpendRepeated, MechanismFailed, DpsynthError, Interrupted: as
            `one_table.synthesize`.
    """
    if not isinstance(data, Mapping):
        data = Path(data)
        check_exists(data, ACCEPTED)
        if Path(out).resolve().is_relative_to(data.resolve()):
            raise ContractError(f"--out {out} is inside of the tables' directory {data}; accepted: another directory")
    with private_files(), held(Path(out)) as place:
        return place.guarded(lambda: _synthesized(linked_task(data, options), place, progress))


def _synthesized(task: LinkedTask, place: Place, progress: Progress) -> SyntheticTables:
    _ = task.conditions  # refused before anything is paid for
    payment = Payment.of(task, place, partial(bounded_views, task), task.owner_in_words, progress)
    return payment.result(lambda entry, spent: _drawn(task, payment.budget, entry, place, spent, progress))


def _drawn(
    task: LinkedTask, budget: Budget, entry: Entry, place: Place, spent: bool, progress: Progress
) -> SyntheticTables:
    drawing = LinkedDrawing.of(task.plan, place.model(entry.entry_id))
    roots = drawing.roots if task.options.roots is None else task.options.roots
    target = place.root / SYNTHETIC
    rows = write_tables(task, drawing, roots, target, progress)
    others, attempts = runs_beside(budget.ledger, entry.entry_id)
    stated = statement(
        task,
        budget.family,
        entry_id=entry.entry_id,
        head=budget.ledger.head(),
        others=others,
        attempts=attempts,
        rows=rows,
    )
    return SyntheticTables(
        synthetic=target,
        rows=rows,
        statement=write_statement(place.root, stated, STATEMENT),
        guarantee=stated.common.guarantee,
        ledger=budget.directory,
        entry_id=entry.entry_id,
        spent=spent,
        not_covered=stated.not_covered,
    )
