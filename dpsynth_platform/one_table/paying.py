"""A model that is paid for once: admit, bound, pay, measure, and reuse.

What belongs here: the steps between a plan and its complete model, for one table or several. What does not: the plan
(`task`), the rows (`rows`), and what is drawn from the model (`run`).

The plan is admitted before the first row is read, and the ledger entry started before the mechanism reads. A repeated
run uses complete measurements and models at no cost. An incomplete mechanism starts again only with `spend_again`,
except that one with a text to write continues as far as its plan has paid: its rows are kept until it is complete, or
expire (`place`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import LedgerError, SpendRepeated
from dpsynth_platform.foundation.people import recorded_name
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import digest_directory, write_durably
from dpsynth_platform.ledger.chain import STARTED
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.budget import Budget, open_budget
from dpsynth_platform.one_table.place import BOUNDED, KEPT_DAYS, ROWS, Place
from dpsynth_platform.scrub.fingerprints import Fingerprints
from dpsynth_platform.secrets.vault import SIGNING_KEY, Vault
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.worker.job import Mode, WorkerJob, base_model_file, checkpoint_key_file

_T = TypeVar("_T")


class PaidOptions(Protocol):
    """The options about paying; see `task.Options`."""

    @property
    def ledger(self) -> str | Path | None: ...
    @property
    def cap_epsilon(self) -> float | None: ...
    @property
    def spend_again(self) -> str | None: ...
    @property
    def runner(self) -> str | None: ...


class Payable(Protocol):
    """What is paid for, by public facts alone."""

    @property
    def options(self) -> PaidOptions: ...
    @property
    def contract(self) -> DataContract: ...
    @property
    def plan(self) -> SealedPlan: ...
    def request(self, runner: str) -> CostRequest: ...
    def keys(self, secret: bytes) -> list[str]: ...


class Interrupted(KeyboardInterrupt):
    """The user interrupted the run. The message says what was spent."""


Read = Callable[[Vault, Path, Progress], tuple[Path, Fingerprints]]
"""Reads the data: the bounded rows below a work directory, and their owners."""


def known_key(keys: Sequence[str], ledger: Ledger) -> str:
    """The first of a run's keys that the ledger knows, else the first."""
    return next((known for known in keys if ledger.entry_for_key(known) is not None), keys[0])


@dataclass(frozen=True)
class Payment:
    """One run over a plan: its budget and key, and how its rows are read."""

    task: Payable
    place: Place
    read: Read
    budget: Budget
    request: CostRequest
    key: str
    device: str
    progress: Progress

    @classmethod
    def of(cls, task: Payable, place: Place, read: Read, owner: str | None, progress: Progress) -> Payment:
        """Opens the ledger; raises as `budget.open_budget`.

        Args:
            owner: the column of owners, as the ledger seals it.
        """
        settings, options = Settings.from_environment(), task.options
        request = task.request(recorded_name(options.runner or settings.user, "runner"))
        ledger = Path(options.ledger) if options.ledger else place.ledger
        budget = open_budget(place, ledger, task.contract, owner, request, options.cap_epsilon)
        place.vault.signing_key()
        key = known_key(task.keys(place.vault.read(SIGNING_KEY)), budget.ledger)
        return cls(task, place, read, budget, request, key, settings.device, progress)

    def result(self, drawn: Callable[[Entry, bool], _T]) -> _T:
        """What is drawn from the complete model of a spent entry, and whether it was paid for now.

        Raises as `one_table.synthesize`.
        """
        try:
            return drawn(*self._model())
        except KeyboardInterrupt:
            entry = self.budget.ledger.entry_for_key(self.key)
            message = spent_so_far(entry, self.task.plan.method, self.place)
        raise Interrupted(message)

    def _model(self) -> tuple[Entry, bool]:
        _sweep(self.place, self.budget.ledger)
        try:
            return self._complete()
        finally:
            _sweep(self.place, self.budget.ledger)  # rows outlive a failed mechanism only if it can continue

    def _complete(self) -> tuple[Entry, bool]:
        task, place = self.task, self.place
        entry = paid_entry(self.budget.ledger, self.key, task.plan.method, place, task.options.spend_again)
        spent = entry is None
        if entry is None:
            entry = self._measured()
        elif entry.state != "spent":
            self._continue(entry)
        return self.budget.complete(entry.entry_id, digest_directory(place.model(entry.entry_id))), spent

    def _continue(self, entry: Entry) -> None:
        """Completes the model of an interrupted run, by what its entry has paid for."""
        from dpsynth_platform.worker.run import run

        model, plan = self.place.model(entry.entry_id), self.task.plan
        if not generator(plan.method).is_complete(model):
            self._run(entry, self.place.rows(entry.entry_id), "resume")
            return
        # Post-processing of complete measurements; reads no row.
        with self.place.work() as work:
            write_durably(work / "plan.json", plan.to_json())
            job = WorkerJob(plan=str(work / "plan.json"), model=str(model), mode="estimate", device=self.device)
            run(job, self.progress)

    def _measured(self) -> Entry:
        """The entry that pays for a complete model: every access to rows is in here."""
        from dpsynth_platform.compute.choice import DuckDBChoice, write_choice
        from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, write_fingerprints

        task, place, replaces = self.task, self.place, self.task.options.spend_again
        self.budget.admit(self.request, self.key, replaces)
        with place.work() as work:
            _, participants = self.read(place.vault, work, self.progress)
            write_durably(work / "plan.json", task.plan.to_json())
            write_choice(work / "engine.json", DuckDBChoice())
            write_fingerprints(work / "participants", participants)
            write_fingerprints(work / "canaries", np.empty(0, FINGERPRINT_DTYPE))
            entry = self.budget.start(self.request, self.key, replaces)
            private_directory(place.model(entry.entry_id))
            if task.contract.text_column is not None:
                work = work.rename(place.rows(entry.entry_id))
            self._run(entry, work, "fit")
        return entry

    def _run(self, entry: Entry, work: Path, mode: Mode) -> None:
        """The mechanism, on the rows in `work`."""
        from dpsynth_platform.ledger.grants import issue_grant
        from dpsynth_platform.worker.run import run

        signing, model = self.place.vault.signing_key(), self.place.model(entry.entry_id)
        grant = issue_grant(
            signing,
            entry_id=entry.entry_id,
            plan_digest=self.task.plan.digest,
            data_digest=digest_directory(work / BOUNDED),
            participants_digest=digest_file(work / "participants"),
            canaries_digest=digest_file(work / "canaries"),
            model_directory=model.name,
        )
        job = WorkerJob(
            plan=str(work / "plan.json"),
            model=str(model),
            mode=mode,
            device=self.device,
            grant=grant,
            public_key=signing.public_key().public_bytes_raw().hex(),
            bounded=str(work / BOUNDED),
            participants=str(work / "participants"),
            canaries=str(work / "canaries"),
            engine=str(work / "engine.json"),
            **self._language_model(entry, work),
        )
        run(job, self.progress)

    def _language_model(self, entry: Entry, work: Path) -> dict[str, str]:
        """The job's fields for a mechanism with texts: its base model, and the key of its checkpoints."""
        if self.task.contract.text_column is None:
            return {}
        from dpsynth_platform.synth.text.sealing import started_from
        from dpsynth_platform.synth.text.trained import check_digest, deployed

        start, model = started_from(self.task.plan), {}
        if start is not None:  # None where texts are chosen from a public table alone; `task` refuses endpoints
            base = deployed(start[0])
            check_digest(base, start[1])
            model = base_model_file(base, work)
        secret = self.place.vault.create("checkpoints")
        return model | checkpoint_key_file(secret, entry.entry_id, work)


def can_continue(place: Place, entry: Entry | None) -> bool:
    """Whether a started mechanism left its rows, and its plan has paid for what is left of it."""
    if entry is None or entry.state != STARTED:
        return False
    try:
        text = (place.rows(entry.entry_id) / "plan.json").read_text(encoding="utf-8")
    except FileNotFoundError:  # they expired, deleting them was interrupted, or there were none
        return False
    return generator(SealedPlan.from_json(text).method).can_resume(place.model(entry.entry_id))


def _sweep(place: Place, ledger: Ledger) -> None:
    """Deletes the rows of mechanisms that cannot continue, or whose runs were paid for again."""
    left = list(place.restricted.glob(f"{ROWS}*"))
    if not left:
        return
    entries = ledger.entries()
    replaced = {entry.replaces for entry in entries if entry.state != "void"}
    current = {entry.entry_id: entry for entry in entries if entry.entry_id not in replaced}
    for rows in left:
        if not can_continue(place, current.get(rows.name.removeprefix(ROWS))):
            shutil.rmtree(rows, ignore_errors=True)


def spent_so_far(entry: Entry | None, method: str, place: Place) -> str:
    """What an interrupted run has spent, and what the next run does."""
    if entry is None or entry.state in ("void", "reserved"):
        return "Nothing was spent."
    if can_continue(place, entry):
        return (
            f"Ledger entry {entry.entry_id} has paid, and what its mechanism needs is kept. Run the same command "
            f"again: it continues, at no further cost. After {KEPT_DAYS} days the next command with this --out deletes "
            "what is kept."
        )
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
    if can_continue(place, entry):
        return entry
    raise SpendRepeated(
        f"the mechanism of ledger entry {entry.entry_id} started and did not complete: it failed or was killed. Its "
        f"cost stays spent. To spend a second time, if the cap has room: --spend-again {entry.entry_id}"
    )
