"""What every step shares: its declaration, what it is handed, and what it gives back.

What belongs here: the frozen types between `line.py` and the step modules. What does not: anything that runs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage
from dpsynth_platform.lifecycle import owner_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, RunFacet

    from dpsynth_platform.compute.choice import EngineChoice
    from dpsynth_platform.ledger.records import Account, CostRequest, Entry
    from dpsynth_platform.ledger.store import Ledger
    from dpsynth_platform.lifecycle.erasure import Erasure
    from dpsynth_platform.lineage.clearance import Clearance
    from dpsynth_platform.lineage.runs import StepRun
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.release.publish import Published
    from dpsynth_platform.scrub.scrub import ScrubKeys
    from dpsynth_platform.secrets.vault import Vault
    from dpsynth_platform.synth.interface import SealedPlan
    from dpsynth_platform.worker.job import WorkerJob

Fields = tuple[tuple[str, str, str], ...]
"""Columns of a record-like output: name, type, meaning."""


RunWorker = Callable[["WorkerJob"], None]
"""Runs the mechanism in a worker process of its own, to its end; raises `MechanismFailed` unless it ends well."""

CheckWorker = Callable[[Sequence[Path]], None]
"""Raises `ConfigurationError` where a worker that reads these paths could not be started."""


@dataclass(frozen=True)
class StepContext:
    """What a step's body is handed.

    Attributes:
        sql: the SQL engine that the deployment has chosen for the dataset.
        line: every step of the line with the steps that it reads, in order.
        runner: who started this run.
        spend_again: id of a started entry that the runner gives up for a second spend, or empty.
        progress: says one public sentence about how far the step is.
    """

    contract: DataContract
    family: FamilyBudget
    place: Place
    storage: Storage
    ledger: Ledger
    graph: LineageStore
    vault: Vault
    sql: EngineChoice
    run_worker: RunWorker
    check_worker: CheckWorker
    device: str
    run: StepRun
    line: Mapping[str, tuple[str, ...]]
    runner: str
    spend_again: str
    progress: Callable[[str], None]

    def sealed(self) -> tuple[DataContract, StepRecord]:
        """The contract as `raw` sealed it, and raw's record. Later steps never use the file as it is now."""
        raw = self.storage.require(self.place, "raw")
        return DataContract.model_validate(raw.facts["contract"]), raw

    def plan(self, raw: StepRecord) -> SealedPlan:
        from dpsynth_platform.synth.interface import SealedPlan

        return SealedPlan.from_json(
            (raw.directory / "plan.json").read_text(encoding="utf-8"), expected_digest=raw.facts["plan_digest"]
        )

    @staticmethod
    def source_schema(raw: StepRecord) -> pa.Schema:
        """Arrow schema of the pinned source."""
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(raw.facts["source_schema"])))

    def reusable(self, raw: StepRecord, name: str, *inputs: StepRecord) -> StepRecord | None:
        """The step's record if it belongs to this run, was made from these inputs, and its output is still there."""
        record = self.storage.read(self.place, name)
        if record is None or record.run_key != raw.run_key or not self.storage.exists(record):
            return None
        current = {item.step: item.content_hash for item in inputs}
        return record if current.items() <= record.inputs.items() else None

    def record(
        self,
        name: str,
        *,
        run_key: str,
        directory: Path | None = None,
        inputs: Iterable[StepRecord] = (),
        facts: dict[str, Any] | None = None,
    ) -> StepRecord:
        """Makes an output the step's current one; see `Storage.record`."""
        return self.storage.record(
            self.place,
            name,
            run_key=run_key,
            directory=directory,
            inputs=inputs,
            facts=facts,
            runner=self.runner,
            lineage_run=self.run.run_id,
        )

    def counted(self, what: str) -> Callable[[int, int | None], None]:
        """A progress callback that says how many of something are done, whenever their number has doubled."""
        said = 0

        def count(done: int, total: int | None) -> None:
            nonlocal said
            if done >= 2 * said or done == total:
                said = done
                self.progress(f"{done:,}{f' of {total:,}' if total else ''} {what}")

        return count

    def open_account(self) -> None:
        """Opens the family's account, with new fingerprint keys if it is the namespace's first.

        Afterwards the keys change by rotation only: the ledger freezes the account if they differ.
        """
        owner_keys.open_account(self.vault, self.ledger, self.family)

    def cleared(
        self, contract: DataContract, *, request: CostRequest | None = None, entry_id: str | None = None
    ) -> Clearance:
        """What is known now of what a run adds to, by public facts; see `lineage.clearance.clear`."""
        from dpsynth_platform.lineage.clearance import clear

        return clear(self.ledger, self.graph, contract, self.family, request=request, entry_id=entry_id)

    def account(self) -> Account:
        """The family's account as it is now."""
        return self.ledger.account(self.family.family)

    def not_completed(self, entry: Entry) -> str:
        """That an entry's mechanism started and left nothing to go on with, and what to do."""
        return (
            f"the mechanism of ledger entry {entry.entry_id} started and did not complete: its process failed, was "
            f"killed, or still runs. {self.way_to_spend_again(entry)}"
        )

    def way_to_spend_again(self, entry: Entry) -> str:
        """How a mechanism that started can be given up for another one."""
        return (
            "What it cost stays spent. To spend a second time, say so: dpsynth run "
            f"{self.place.arguments} --spend-again {entry.entry_id} (in Dagster: config of "
            f"{self.place.dataset}__clearance, spend_again)"
        )

    def check_owners(self, scrubbed: StepRecord) -> None:
        """Raises `StaleInput` if scrubbed rows bear fingerprints of keys that are no longer in use, or of the erased.

        To the ledger owners of other keys would be strangers. Where participants come from the ledger, read them first:
        then they are of the keys that this finds.
        """
        from dpsynth_platform.lifecycle.erasure import honoured

        account = self.account()
        if not self.keyed_alike(scrubbed, account):
            raise StaleInput(
                f"{self.place.label}/scrubbed bears fingerprints that are no longer in use: the keys were rotated "
                f"since; materialize {self.place.label}/scrubbed again"
            )
        if not honoured(scrubbed, self.erasure(account)):
            raise StaleInput(
                f"{self.place.label}/scrubbed was made before somebody's records were erased; materialize "
                f"{self.place.label}/scrubbed again"
            )

    @staticmethod
    def keyed_alike(scrubbed: StepRecord, account: Account) -> bool:
        """Whether a record's fingerprints are made with the keys that an account is kept with."""
        return bool(scrubbed.facts.get(owner_keys.KEY_IDS) == list(account.key_ids))

    def erasure(self, account: Account) -> Erasure | None:
        """The last request for erasure in the account's namespace."""
        from dpsynth_platform.lifecycle.erasure import erasure_of

        return erasure_of(self.ledger, account.namespace)

    def scrub_keys(self, contract: DataContract, account: Account) -> ScrubKeys:
        """The secrets of scrubbing: owners by namespace, records and hashed columns by family."""
        from dpsynth_platform.scrub.scrub import ScrubKeys

        return ScrubKeys(
            owner=owner_keys.keys_in_use(self.vault, account),
            record=self.vault.create(f"record-{contract.family}"),
            column=self.vault.create(f"column-{contract.family}"),
        )

    def ordering_key(self, contract: DataContract) -> bytes:
        """The secret that orders records in bounding."""
        return self.vault.create(f"ordering-{contract.family}")

    def holdout_key(self, contract: DataContract) -> bytes:
        """The secret that says which owners are held out."""
        return self.vault.create(f"holdout-{contract.family}")

    def same_run(self, raw: StepRecord, *steps: str) -> tuple[StepRecord, ...]:
        """Records of upstream steps, all of the run that this `raw` sealed. A body reads raw once: it may change."""
        return tuple(self.storage.require(self.place, step, run_key=raw.run_key) for step in steps)


@dataclass(frozen=True)
class Outcome:
    """What a step's body gives back.

    Attributes:
        record: the step's record.
        schema: Arrow schema of its table, or None where its output is a record (see `Step.fields`).
        rows: row count of its table; 1 for a record; None where the count is not even the operator's to see.
        reused: the output was already there and is still the right one.
        metadata: further Dagster metadata (operator zone: aggregates allowed, never a value of the data).
        facets: lineage facets of the output dataset, beside those that every output has.
        run_facets: lineage facets of the run.
        input_facets: what the step found out about its inputs, by the upstream step's name. Public facts.
        published: the release, where the step made one.
    """

    record: StepRecord
    schema: pa.Schema | None = None
    rows: int | None = 1
    reused: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facets: Mapping[str, DatasetFacet] = field(default_factory=dict)
    run_facets: Mapping[str, RunFacet] = field(default_factory=dict)
    input_facets: Mapping[str, Mapping[str, InputDatasetFacet]] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True)
class Step:
    """One step of the line: what Dagster shows of it, and its body.

    Attributes:
        zone: where its output lives: restricted, operator or public.
        fields: columns of its output where that is a record, empty where it is a table.
        code_version: raised whenever the step would give another output for the same input.
        after: steps that must have run before, of which it reads nothing.
    """

    name: str
    description: str
    upstream: tuple[str, ...]
    kinds: frozenset[str]
    zone: str
    code_version: str
    body: Callable[[StepContext], Outcome]
    fields: Fields = ()
    pool: str | None = None
    after: tuple[str, ...] = ()
