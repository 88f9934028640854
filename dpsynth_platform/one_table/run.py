"""The steps of one synthetic table: declare, admit, bound, pay, measure, fit, draw, state.

What belongs here: the order of the steps, and the reuse of paid results. What does not: the steps themselves.

"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.one_table.budget import Budget, runs_beside
from dpsynth_platform.one_table.more_rows import Earlier, drawn_by, shape_text
from dpsynth_platform.one_table.paying import Payment
from dpsynth_platform.one_table.place import (
    ANSWERS,
    ANSWERS_STATEMENT,
    STATEMENT,
    SYNTHETIC,
    Place,
    held,
    synthetic_path,
)
from dpsynth_platform.one_table.rows import bounded_rows
from dpsynth_platform.one_table.statement import Statement, statement
from dpsynth_platform.one_table.task import Options, Task, task_of
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.table_files import check_exists
from dpsynth_platform.synth.interface import Drawing, generator
from dpsynth_platform.synth.tabular.missing import missing_in_words


@dataclass(frozen=True)
class Synthesis:
    """The result of a run.

    Attributes:
        synthetic: the table.
        statement: its privacy statement in Markdown; beside it in JSON.
        ledger: directory of the ledger.
        entry_id: the ledger entry that paid.
        spent: whether this run paid, or an earlier one.
        not_covered: accesses to the data that the guarantee does not cover.
        filled: columns without missing values, whatever the data miss.
        nullable: the other modelled columns.
        empty: columns that are missing in every row: texts.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
        public: rows, columns, and missing or unlisted values of the public table that helped; None without one.
        texts: how many texts were drawn, and why others are missing, where a trained model writes them.
    """

    synthetic: Path
    statement: Path
    rows: int
    guarantee: Guarantee
    method: str
    why_method: str
    ledger: Path
    entry_id: str
    spent: bool
    not_covered: tuple[str, ...]
    filled: tuple[str, ...]
    nullable: tuple[str, ...] = ()
    mostly_missing: tuple[str, ...] = ()
    public: str | None = None
    empty: tuple[str, ...] = ()
    texts: str | None = None

    def to_json(self) -> dict[str, Any]:
        paths = {name: str(getattr(self, name)) for name in ("synthetic", "statement", "ledger")}
        kinds = ("not_covered", "filled", "nullable", "mostly_missing", "empty")
        lists = {name: list(getattr(self, name)) for name in kinds}
        return asdict(self) | paths | lists


def synthesize(
    table: str | Path | pa.Table, out: str | Path, options: Options, *, progress: Progress = silent
) -> Synthesis:
    """Makes a differentially private synthetic table in the directory `out`.

    Args:
        table: a Parquet file or a directory of them, a Delta table, a CSV file, or a table in memory.
        out: made if it does not exist, for this user alone; see `place`.
        progress: called with public stages and counts of steps.

    Raises:
        ContractError: options or declarations are invalid.
        SourceError: the table cannot be read as declared.
        BudgetExceeded: the run does not fit under the ledger's cap; nothing was spent.
        LedgerError: the ledger has another unit or cap, is missing or is outdated.
        SpendRepeated: an earlier attempt at this run started and left no result; its cost stays spent.
        MechanismFailed: the mechanism failed; its cost stays spent.
        DpsynthError: any other failure, without any value of the data.
        Interrupted: the user stopped it after the ledger was opened.
    """
    if not isinstance(table, pa.Table):
        table = Path(table)
        check_exists(table)
        if table.is_dir() and Path(out).resolve().is_relative_to(table.resolve()):
            raise ContractError(f"--out {out} is inside of the table {table}; accepted: another directory")
    with private_files(), held(Path(out)) as place:
        return place.guarded(lambda: _synthesized(task_of(table, options), place, progress))


def _synthesized(task: Task, place: Place, progress: Progress) -> Synthesis:
    from dpsynth_platform.one_table.output import check_format

    check_format(task.released, task.options.format)
    payment = Payment.of(task, place, partial(bounded_rows, task), task.options.owners, progress)
    return payment.result(lambda entry, spent: _drawn(task, payment.budget, entry, place, spent, progress))


def _drawn(task: Task, budget: Budget, entry: Entry, place: Place, spent: bool, progress: Progress) -> Synthesis:
    """Post-processing: rows from the model under its constraints, and the statement."""
    from dpsynth_platform.one_table.output import write_rows, write_statement
    from dpsynth_platform.synth.tuning.runs import kept_setting_in_words

    options, constraints = task.options, task.contract.generate.constraints
    texts = task.texts
    drawing = generator(task.plan.method).draw(
        place.model(entry.entry_id), options.rows, constraints=constraints, **drawn_by(texts), progress=progress
    )
    synthetic = synthetic_path(place.root, options.format, ANSWERS if task.answers else SYNTHETIC)
    names = dict(zip(drawing.schema.names, task.released.names, strict=True)) if task.answers else _names(task, drawing)
    write_rows(synthetic, drawing, names, options.format, None if task.answers else task.source.shape)
    missing = tuple(missing_in_words(drawing.missing, task.given))
    others, attempts = runs_beside(budget.ledger, entry.entry_id)
    stated = statement(
        task,
        budget.family,
        entry_id=entry.entry_id,
        head=budget.ledger.head(),
        others=others,
        attempts=attempts,
        rows=drawing.rows,
        mostly_missing=missing,
        setting=kept_setting_in_words(place.model(entry.entry_id)).get("setting"),
    )
    if not task.answers:  # there is no model of rows
        _keep(task, budget, entry, place, names, stated, texts)
    return Synthesis(
        synthetic=synthetic,
        statement=write_statement(place.root, stated, ANSWERS_STATEMENT if task.answers else STATEMENT),
        rows=drawing.rows,
        guarantee=stated.common.guarantee,
        method=task.plan.method,
        why_method=task.plan.why,
        ledger=budget.directory,
        entry_id=entry.entry_id,
        spent=spent,
        not_covered=stated.not_covered,
        filled=task.filled,
        nullable=task.nullable,
        mostly_missing=missing,
        public=task.plan.describe().get("public_in_words"),
        empty=task.empty,
        texts=None if drawing.texts is None else drawing.texts.in_words,
    )


def _names(task: Task, drawing: Drawing) -> dict[str, str]:
    """The source's names of the released columns, by the contract's; the id of a row is in no output."""
    return {name: task.given[name] for name in drawing.schema.names if name in task.given}


def _keep(
    task: Task,
    budget: Budget,
    entry: Entry,
    place: Place,
    names: dict[str, str],
    stated: Statement,
    texts: dict[str, Any] | None,
) -> None:
    """Keeps what further rows need."""
    Earlier(
        entry_id=entry.entry_id,
        method=task.plan.method,
        ledger=str(budget.directory.resolve()),
        names=names,
        constraints=[constraint.model_dump() for constraint in task.contract.generate.constraints],
        statement=stated.to_json(),
        ledger_head=asdict(stated.ledger_head),
        shape=shape_text(task.source.shape),
        texts=texts,
    ).save(place)
