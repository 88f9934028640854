"""The story of one synthetic table: declared, admitted, bounded, paid for, measured, fitted, drawn, stated.

What belongs here: the order of the steps, and what is used again instead of being paid for twice. What does not: the
steps themselves.

Before the first row is read the plan is sealed and admitted; before the mechanism reads, its ledger entry is started,
durably. A run that stops after that has spent. The same options again then find what is there: a complete model is
drawn from, complete measurements are fitted, at no cost; a mechanism that did not finish is started again only with the
explicit word, as another spend.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, LedgerError, SpendRepeated
from dpsynth_platform.foundation.people import recorded_name
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import digest_directory, write_durably
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.one_table.budget import Budget, open_budget, runs_beside
from dpsynth_platform.one_table.more_rows import Earlier
from dpsynth_platform.one_table.place import Place, held
from dpsynth_platform.one_table.statement import Run, statement
from dpsynth_platform.one_table.task import Options, Task, task_of
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.secrets.vault import SIGNING_KEY
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.measurements import is_complete
from dpsynth_platform.synth.tabular.missing import missing_in_words
from dpsynth_platform.worker.job import WorkerJob


@dataclass(frozen=True)
class Synthesis:
    """What a run made.

    Attributes:
        synthetic: the table.
        statement: what it promises, in Markdown; beside it in JSON.
        rows: how many synthetic rows.
        guarantee: as it is claimed.
        method: the generator.
        why_method: why it is this one.
        ledger: directory of the ledger.
        entry_id: the ledger entry that paid.
        spent: whether it was paid for now, or before.
        not_covered: accesses to the data that the guarantee does not cover.
        filled: columns that lack no value, whatever the data lack.
        nullable: the other modelled columns.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        paths = {name: str(getattr(self, name)) for name in ("synthetic", "statement", "ledger")}
        lists = {name: list(getattr(self, name)) for name in ("not_covered", "filled", "nullable", "mostly_missing")}
        return asdict(self) | paths | lists


class Interrupted(KeyboardInterrupt):
    """A run that somebody interrupted. Its text says what was spent."""


def synthesize(table: str | Path, out: str | Path, options: Options, *, progress: Progress = silent) -> Synthesis:
    """Makes a differentially private synthetic table in the directory `out`.

    Args:
        table: a Parquet file or a directory of them, a Delta table, or a CSV file.
        out: made where it is missing, for this user alone; see `place`.
        progress: called with public stages and counts of steps.

    Raises:
        ContractError: options or declarations are not acceptable.
        SourceError: the table cannot be read as declared.
        BudgetExceeded: the run does not fit under the ledger's cap; nothing was spent.
        LedgerError: the ledger is not of this unit or cap, or is gone or older than what it has paid for.
        SpendRepeated: an earlier attempt at this run started and left nothing; what it cost stays spent.
        MechanismFailed: the mechanism stopped; what it cost stays spent.
        DpsynthError: anything else that went wrong, free of any value of the data.
        Interrupted: the user stopped it, after the ledger was opened.
    """
    if Path(table).is_dir() and Path(out).resolve().is_relative_to(Path(table).resolve()):
        raise ContractError(f"--out {out} lies inside of the table {table}; accepted: a directory elsewhere")
    with private_files(), held(Path(out)) as place:
        return place.guarded(lambda: _synthesized(task_of(Path(table), options), place, progress))


def _synthesized(task: Task, place: Place, progress: Progress) -> Synthesis:
    from dpsynth_platform.one_table.output import check_format

    settings, options = Settings.from_environment(), task.options
    check_format(task.released, options.format)
    request = task.request(recorded_name(options.runner or settings.user, "runner"))
    ledger = Path(options.ledger) if options.ledger else place.ledger
    budget = open_budget(place, ledger, task.contract, request, options.cap_epsilon)
    place.vault.signing_key()
    keys = task.keys(place.vault.read(SIGNING_KEY))
    key = next((known for known in keys if budget.ledger.entry_for_key(known) is not None), keys[0])
    try:
        return _made(task, budget, request, key, place, settings.device, progress)
    except KeyboardInterrupt:
        said = _left_behind(budget.ledger.entry_for_key(key), place)
    raise Interrupted(said)


def _made(
    task: Task, budget: Budget, request: CostRequest, key: str, place: Place, device: str, progress: Progress
) -> Synthesis:
    entry = _paid(budget, key, place, task.options.spend_again)
    spent = entry is None
    if entry is None:
        entry = _measured(task, budget, request, key, place, device, progress)
    elif entry.state != "spent":
        _estimated(task, place, entry, device, progress)
    model = place.model(entry.entry_id)
    entry = budget.complete(entry.entry_id, digest_directory(model))
    return _drawn(task, budget, entry, place, spent, progress)


def _left_behind(entry: Entry | None, place: Place) -> str:
    """What an interrupted run has spent, and what the next one does."""
    if entry is None or entry.state in ("void", "reserved"):
        return "Nothing was spent."
    if entry.state == "spent" or is_complete(place.model(entry.entry_id)):
        return (
            f"Ledger entry {entry.entry_id} has paid for the measurements, which are complete. Run the same command "
            "again: it goes on from them, at no further cost."
        )
    return (
        f"The mechanism of ledger entry {entry.entry_id} had started: what it costs stays spent, and it left nothing. "
        "Run the same command again for the way to spend a second time."
    )


def _paid(budget: Budget, key: str, place: Place, spend_again: str | None) -> Entry | None:
    """The entry that has paid for this run and left what is needed, or None where it is to be paid for.

    Raises:
        SpendRepeated: one has paid and left nothing, and no word was given.
        LedgerError: the word was given for another entry.
    """
    entry = budget.ledger.entry_for_key(key)
    if spend_again is not None and (entry is None or spend_again not in (entry.entry_id, entry.replaces)):
        raise LedgerError(
            f"--spend-again {spend_again}: no entry of this run; accepted: the one that a refusal names, with the same "
            "table and options"
        )
    if entry is None or entry.state in ("void", "reserved"):
        return None
    model = place.model(entry.entry_id)
    if entry.state == "spent":
        if model.is_dir() and digest_directory(model) == entry.model_digest:
            return entry
        raise SpendRepeated(
            f"the model that ledger entry {entry.entry_id} paid for is gone from {model}, or was changed. Accepted: "
            "restore it; or another output, which is paid for anew"
        )
    if is_complete(model):
        return entry
    if spend_again == entry.entry_id:
        return None
    raise SpendRepeated(
        f"the mechanism of ledger entry {entry.entry_id} started and did not finish: it failed or was killed. What it "
        f"cost stays spent. To spend a second time, if the cap has room, say so: --spend-again {entry.entry_id}"
    )


def _measured(
    task: Task, budget: Budget, request: CostRequest, key: str, place: Place, device: str, progress: Progress
) -> Entry:
    """The entry that pays from now on, with a complete model: every look at rows is in here."""
    from dpsynth_platform.compute.choice import DuckDBChoice, write_choice
    from dpsynth_platform.ledger.grants import issue_grant
    from dpsynth_platform.one_table.rows import bounded_rows
    from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, write_fingerprints
    from dpsynth_platform.worker.run import run

    again = task.options.spend_again
    budget.admit(request, key, again)
    signing = place.vault.signing_key()
    with place.work() as work:
        bounded, participants = bounded_rows(task, place.vault, work, progress)
        write_durably(work / "plan.json", task.plan.to_json())
        write_choice(work / "engine.json", DuckDBChoice())
        write_fingerprints(work / "participants", participants)
        write_fingerprints(work / "canaries", np.empty(0, FINGERPRINT_DTYPE))
        entry = budget.start(request, key, again)
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


def _estimated(task: Task, place: Place, entry: Entry, device: str, progress: Progress) -> None:
    """Post-processing of the complete measurements of a run that was cut short; no row is read."""
    from dpsynth_platform.worker.run import run

    with place.work() as work:
        write_durably(work / "plan.json", task.plan.to_json())
        model = str(place.model(entry.entry_id))
        run(WorkerJob(plan=str(work / "plan.json"), model=model, mode="estimate", device=device), progress)


def _drawn(task: Task, budget: Budget, entry: Entry, place: Place, spent: bool, progress: Progress) -> Synthesis:
    """Post-processing: rows from the model, fitted under the constraints if there are any, and the statement."""
    from dpsynth_platform.one_table.output import synthetic_path, write_rows, write_statement

    options, constraints = task.options, task.contract.generate.constraints
    drawing = generator(task.plan.method).draw(
        place.model(entry.entry_id), options.rows, constraints=constraints, progress=progress
    )
    synthetic = synthetic_path(place.root, options.format)
    names = {name: task.given[name] for name in drawing.schema.names if name in task.given}
    write_rows(synthetic, drawing, names, options.format)
    missing = tuple(missing_in_words(drawing.missing, task.given))
    said = statement(task.contract, budget.family, task.plan, _run(task, budget, entry, drawing.rows, missing))
    earlier = Earlier(
        entry_id=entry.entry_id,
        method=task.plan.method,
        ledger=str(budget.directory.resolve()),
        names=names,
        constraints=[constraint.model_dump() for constraint in constraints],
        statement=said.to_json(),
        ledger_head=asdict(said.ledger_head),
    )
    earlier.save(place)
    return Synthesis(
        synthetic=synthetic,
        statement=write_statement(place.root, said),
        rows=drawing.rows,
        guarantee=said.common.guarantee,
        method=task.plan.method,
        why_method=task.plan.why,
        ledger=budget.directory,
        entry_id=entry.entry_id,
        spent=spent,
        not_covered=said.not_covered,
        filled=task.filled,
        nullable=task.nullable,
        mostly_missing=missing,
    )


def _run(task: Task, budget: Budget, entry: Entry, rows: int, missing: tuple[str, ...]) -> Run:
    others, attempts = runs_beside(budget.ledger, entry.entry_id)
    return Run(
        entry_id=entry.entry_id,
        head=budget.ledger.head(),
        others=others,
        attempts=attempts,
        rows=rows,
        rows_given=task.options.rows is not None,
        filled=task.filled,
        nullable=task.nullable,
        assumed=task.not_covered,
        ignored=task.ignored,
        read_as=task.source.dialect.in_words if task.source.format == "csv" else "",
        mostly_missing=missing,
    )
