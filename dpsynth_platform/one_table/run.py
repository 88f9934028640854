"""The steps of one synthetic table: declare, admit, bound, pay, measure, fit, draw, state.

What belongs here: the order of the steps, and the reuse of paid results. What does not: the steps themselves.

The plan is admitted before the first row is read, and the ledger entry started before the mechanism reads. A repeated
run uses complete measurements and models at no cost; an incomplete mechanism starts again only with `spend_again`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, LedgerError, SpendRepeated
from dpsynth_platform.foundation.people import recorded_name
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import digest_directory, write_durably
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.budget import Budget, open_budget, runs_beside
from dpsynth_platform.one_table.more_rows import Earlier, shape_text
from dpsynth_platform.one_table.place import (
    ANSWERS,
    ANSWERS_STATEMENT,
    STATEMENT,
    SYNTHETIC,
    Place,
    held,
    synthetic_path,
)
from dpsynth_platform.one_table.statement import Statement, statement
from dpsynth_platform.one_table.task import Options, Task, task_of
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.secrets.vault import SIGNING_KEY
from dpsynth_platform.sources.table_files import check_exists
from dpsynth_platform.synth.interface import Drawing, generator
from dpsynth_platform.synth.tabular.missing import missing_in_words
from dpsynth_platform.worker.job import WorkerJob


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

    def to_json(self) -> dict[str, Any]:
        paths = {name: str(getattr(self, name)) for name in ("synthetic", "statement", "ledger")}
        kinds = ("not_covered", "filled", "nullable", "mostly_missing", "empty")
        lists = {name: list(getattr(self, name)) for name in kinds}
        return asdict(self) | paths | lists


class Interrupted(KeyboardInterrupt):
    """The user interrupted the run. The message says what was spent."""


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

    settings, options = Settings.from_environment(), task.options
    check_format(task.released, options.format)
    request = task.request(recorded_name(options.runner or settings.user, "runner"))
    ledger = Path(options.ledger) if options.ledger else place.ledger
    budget = open_budget(place, ledger, task.contract, options.owners, request, options.cap_epsilon)
    place.vault.signing_key()
    keys = task.keys(place.vault.read(SIGNING_KEY))
    key = known_key(keys, budget.ledger)
    try:
        return _made(task, budget, request, key, place, settings.device, progress)
    except KeyboardInterrupt:
        message = _spent_so_far(budget.ledger.entry_for_key(key), task.plan.method, place)
    raise Interrupted(message)


def known_key(keys: Sequence[str], ledger: Ledger) -> str:
    """The first of a run's keys that the ledger knows, else the first."""
    return next((known for known in keys if ledger.entry_for_key(known) is not None), keys[0])


def _made(
    task: Task, budget: Budget, request: CostRequest, key: str, place: Place, device: str, progress: Progress
) -> Synthesis:
    entry = paid_entry(budget.ledger, key, task.plan.method, place, task.options.spend_again)
    spent = entry is None
    if entry is None:
        entry = _measured(task, budget, request, key, place, device, progress)
    elif entry.state != "spent":
        # Post-processing of the complete measurements of an interrupted run; reads no row.
        from dpsynth_platform.worker.run import run

        with place.work() as work:
            write_durably(work / "plan.json", task.plan.to_json())
            model = str(place.model(entry.entry_id))
            run(WorkerJob(plan=str(work / "plan.json"), model=model, mode="estimate", device=device), progress)
    entry = budget.complete(entry.entry_id, digest_directory(place.model(entry.entry_id)))
    return _drawn(task, budget, entry, place, spent, progress)


def _spent_so_far(entry: Entry | None, method: str, place: Place) -> str:
    """What an interrupted run has spent, and what the next run does."""
    if entry is None or entry.state in ("void", "reserved"):
        return "Nothing was spent."
    if entry.state == "spent" or generator(method).is_complete(place.model(entry.entry_id)):
        return (
            f"Ledger entry {entry.entry_id} has paid for the measurements, which are complete. Run the same command "
            "again: it continues from them, at no further cost."
        )
    return (
        f"The mechanism of ledger entry {entry.entry_id} had started: its cost stays spent, and there is no result. "
        "Run the same command again to see how to spend a second time."
    )


def paid_entry(ledger: Ledger, key: str, method: str, place: Place, spend_again: str | None) -> Entry | None:
    """The entry that has paid for a usable result of this run, or None where the run must be paid for.

    Raises `SpendRepeated` if one has paid and its result is missing, `LedgerError` if `spend_again` is no such entry.
    """
    entry = ledger.entry_for_key(key)
    if spend_again is not None and (entry is None or spend_again not in (entry.entry_id, entry.replaces)):
        raise LedgerError(
            f"--spend-again {spend_again}: no entry of this run; accepted: the id in an earlier error, with the same "
            "table and options"
        )
    if entry is None or entry.state in ("void", "reserved"):
        return None
    model = place.model(entry.entry_id)
    if entry.state == "spent":
        if model.is_dir() and digest_directory(model) == entry.model_digest:
            return entry
        raise SpendRepeated(
            f"the model that ledger entry {entry.entry_id} paid for is missing from {model}, or was changed. Accepted: "
            "restore it; or another --out, at a new cost"
        )
    if generator(method).is_complete(model):
        return entry
    if spend_again == entry.entry_id:
        return None
    raise SpendRepeated(
        f"the mechanism of ledger entry {entry.entry_id} started and did not complete: it failed or was killed. Its "
        f"cost stays spent. To spend a second time, if the cap has room: --spend-again {entry.entry_id}"
    )


def _measured(
    task: Task, budget: Budget, request: CostRequest, key: str, place: Place, device: str, progress: Progress
) -> Entry:
    """The entry that pays for a complete model: every access to rows is in here."""
    from dpsynth_platform.compute.choice import DuckDBChoice, write_choice
    from dpsynth_platform.ledger.grants import issue_grant
    from dpsynth_platform.one_table.rows import bounded_rows
    from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, write_fingerprints
    from dpsynth_platform.worker.run import run

    replaces = task.options.spend_again
    budget.admit(request, key, replaces)
    signing = place.vault.signing_key()
    with place.work() as work:
        bounded, participants = bounded_rows(task, place.vault, work, progress)
        write_durably(work / "plan.json", task.plan.to_json())
        write_choice(work / "engine.json", DuckDBChoice())
        write_fingerprints(work / "participants", participants)
        write_fingerprints(work / "canaries", np.empty(0, FINGERPRINT_DTYPE))
        entry = budget.start(request, key, replaces)
        model = private_directory(place.model(entry.entry_id))
        grant = issue_grant(
            signing,
            entry_id=entry.entry_id,
            plan_digest=task.plan.digest,
            data_digest=digest_directory(bounded),
            participants_digest=digest_file(work / "participants"),
            canaries_digest=digest_file(work / "canaries"),
            model_directory=model.name,
        )
        job = WorkerJob(
            plan=str(work / "plan.json"),
            model=str(model),
            mode="fit",
            device=device,
            grant=grant,
            public_key=signing.public_key().public_bytes_raw().hex(),
            bounded=str(bounded),
            participants=str(work / "participants"),
            canaries=str(work / "canaries"),
            engine=str(work / "engine.json"),
        )
        run(job, progress)
    return entry


def _drawn(task: Task, budget: Budget, entry: Entry, place: Place, spent: bool, progress: Progress) -> Synthesis:
    """Post-processing: rows from the model under its constraints, and the statement."""
    from dpsynth_platform.one_table.output import write_rows, write_statement
    from dpsynth_platform.synth.tuning.runs import kept_setting_in_words

    options, constraints = task.options, task.contract.generate.constraints
    drawing = generator(task.plan.method).draw(
        place.model(entry.entry_id), options.rows, constraints=constraints, progress=progress
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
        _keep(task, budget, entry, place, names, stated)
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
    )


def _names(task: Task, drawing: Drawing) -> dict[str, str]:
    """The source's names of the released columns, by the contract's; the id of a row is in no output."""
    return {name: task.given[name] for name in drawing.schema.names if name in task.given}


def _keep(task: Task, budget: Budget, entry: Entry, place: Place, names: dict[str, str], stated: Statement) -> None:
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
    ).save(place)
