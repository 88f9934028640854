"""The types of a step: its declaration, its context and its outcome.

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
from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage
from dpsynth_platform.lifecycle import owner_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, RunFacet

    from dpsynth_platform.compute.choice import EngineChoice
    from dpsynth_platform.federation.choice import RelayChoice
    from dpsynth_platform.ledger.records import Account, CostRequest, Entry
    from dpsynth_platform.ledger.store import Ledger
    from dpsynth_platform.lifecycle.erasure import Erasure
    from dpsynth_platform.lineage.clearance import Clearance
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.lineage.runs import StepRun
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.release.publish import Published
    from dpsynth_platform.scrub.scrub import ScrubKeys
    from dpsynth_platform.secrets.vault import Vault
    from dpsynth_platform.synth.interface import SealedPlan
    from dpsynth_platform.worker.job import WorkerJob


@dataclass(frozen=True)
class StepContext:
    """The context of a step's body.

    Attributes:
        run_worker: runs the mechanism in its own worker process; raises `MechanismFailed` unless it completes.
        check_worker: raises `ConfigurationError` if a worker that reads these paths could not start.
        relay: where the relay of a federated run connects; raises `ConfigurationError` where nothing says so.
        emitter: of lineage events, for runs beside the step's own.
        line: every step of the line with the steps that it reads, in order.
        runner: the person who started the run.
        spend_again: id of a started entry that the runner gives up for a second spend, or empty.
        progress: called with a public sentence.
    """

    contract: DataContract
    family: FamilyBudget
    place: Place
    storage: Storage
    ledger: Ledger
    graph: LineageStore
    vault: Vault
    sql: EngineChoice
    run_worker: Callable[[WorkerJob], None]
    check_worker: Callable[[Sequence[Path]], None]
    relay: Callable[[], RelayChoice]
    device: str
    emitter: LineageEmitter
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
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(raw.facts["source_schema"])))

    def reusable(self, raw: StepRecord, name: str, *inputs: StepRecord) -> StepRecord | None:
        """The step's record if it belongs to this run, was made from these inputs, and its output still exists."""
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
        """A callback that reports a count each time it has doubled."""
        reported = 0

        def count(done: int, total: int | None) -> None:
            nonlocal reported
            if done >= 2 * reported or done == total:
                reported = done
                self.progress(f"{done:,}{f' of {total:,}' if total else ''} {what}")

        return count

    def cleared(
        self, contract: DataContract, *, request: CostRequest | None = None, entry_id: str | None = None
    ) -> Clearance:
        """The current clearance, by public facts; see `lineage.clearance.clear`."""
        from dpsynth_platform.lineage.clearance import clear

        return clear(self.ledger, self.graph, contract, self.family, request=request, entry_id=entry_id)

    def account(self) -> Account:
        return self.ledger.account(self.family.family)

    def not_completed(self, entry: Entry) -> str:
        """Says that an entry's mechanism started and cannot resume, and what to do."""
        return (
            f"the mechanism of ledger entry {entry.entry_id} started and did not complete: its process failed, was "
            f"killed, or still runs. {self.way_to_spend_again(entry)}"
        )

    def way_to_spend_again(self, entry: Entry) -> str:
        """How to give up a started mechanism and pay for another one."""
        return (
            "What it cost stays spent. To spend a second time: dpsynth run "
            f"{self.place.arguments} --spend-again {entry.entry_id} (in Dagster: config of "
            f"{self.place.dataset}__clearance, spend_again)"
        )

    def check_owners(self, scrubbed: StepRecord) -> None:
        """Raises `StaleInput` if scrubbed rows have fingerprints of retired keys, or of erased owners.

        The ledger does not recognize owners by retired keys. Read participants from the ledger before this check: then
        they have the keys that it checks.
        """
        from dpsynth_platform.lifecycle.erasure import honoured

        account = self.account()
        if not self.keyed_alike(scrubbed, account):
            raise StaleInput(
                f"{self.place.label}/scrubbed has fingerprints that are no longer in use: the keys were rotated "
                f"since; materialize {self.place.label}/scrubbed again"
            )
        if not honoured(scrubbed, self.erasure(account)):
            raise StaleInput(
                f"{self.place.label}/scrubbed was made before the last erasure request; materialize "
                f"{self.place.label}/scrubbed again"
            )

    @staticmethod
    def keyed_alike(scrubbed: StepRecord, account: Account) -> bool:
        """Whether a record's fingerprints were made with the account's current keys."""
        return bool(scrubbed.facts.get(owner_keys.KEY_IDS) == list(account.key_ids))

    def erasure(self, account: Account) -> Erasure | None:
        """The last request for erasure in the account's namespace."""
        from dpsynth_platform.lifecycle.erasure import erasure_of

        return erasure_of(self.ledger, account.namespace)

    def scrub_keys(self, contract: DataContract, account: Account) -> ScrubKeys:
        """The keys of scrubbing: for owners by namespace, for records and hashed columns by family."""
        from dpsynth_platform.scrub.scrub import ScrubKeys

        return ScrubKeys(
            owner=owner_keys.keys_in_use(self.vault, account),
            record=self.vault.create(f"record-{contract.family}"),
            column=self.vault.create(f"column-{contract.family}"),
        )

    def holdout_key(self, contract: DataContract) -> bytes:
        """The key of the choice of held-out owners."""
        return self.vault.create(f"holdout-{contract.family}")

    def same_run(self, raw: StepRecord, *steps: str) -> tuple[StepRecord, ...]:
        """Records of upstream steps of the run that `raw` sealed. A body reads raw once: it may change."""
        return tuple(self.storage.require(self.place, step, run_key=raw.run_key) for step in steps)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step's body.

    Attributes:
        schema: of its table; None where its output is a record (see `Step.fields`).
        rows: of its table; None where even the operator may not see the count.
        reused: the output existed already and is still valid.
        metadata: further Dagster metadata (operator zone: aggregates allowed, never a value of the data).
        facets: lineage facets of the output dataset, beside those that every output has.
        input_facets: public facts about the inputs, by the upstream step's name.
        targets: places that hold a copy of what is published.
    """

    record: StepRecord
    schema: pa.Schema | None = None
    rows: int | None = None
    reused: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facets: Mapping[str, DatasetFacet] = field(default_factory=dict)
    run_facets: Mapping[str, RunFacet] = field(default_factory=dict)
    input_facets: Mapping[str, Mapping[str, InputDatasetFacet]] = field(default_factory=dict)
    published: Published | None = None
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Step:
    """One step of the line: its declaration in Dagster, and its body.

    Attributes:
        zone: of its output: restricted, operator or public.
        fields: name, type and meaning of each field where its output is a record; empty where it is a table.
        code_version: raised whenever the step would give another output for the same input.
        after: steps that must have run before, but whose output it does not read.
    """

    name: str
    description: str
    upstream: tuple[str, ...]
    kinds: frozenset[str]
    zone: str
    code_version: str
    body: Callable[[StepContext], Outcome]
    fields: tuple[tuple[str, str, str], ...] = ()
    pool: str | None = None
    after: tuple[str, ...] = ()
