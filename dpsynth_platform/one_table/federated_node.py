"""A participant's node in federated runs: its directory, its rows, and the process that answers the coordinator.

What belongs here: reading and bounding the own table once, approvals, and the node's directory. What does not: what is
approved, paid and computed (`federation.participants`), messages (`federation.nodes`) and the network.

    DIR/keys/                      the participant's key
    DIR/restricted/ledger/         its budget, and its lineage (`federated_lineage`), also as DIR/restricted/lineage/
    DIR/restricted/cap.json        the policy's cap, which an account gets by its first run
    DIR/restricted/work-<random>/  its bounded rows, while the node is up
    DIR/plans/<digest>.json        a plan that waits for a person, or was approved
    DIR/plans/<digest>.approved    who approved it, and the run that it was then used for
    DIR/node.sock                  where a relay brings messages
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.columns import TextColumn
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.nodes import Node
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.plans import MOST_MESSAGE_BYTES, FederatedPlan
from dpsynth_platform.federation.relays import serve
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan, with_features
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, NotFound, SchemaMissing
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import embedded_ledger
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.declaration import Declared, read_declared
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_lineage import NodeLineage, own_emitter
from dpsynth_platform.one_table.place import BOUNDED, held
from dpsynth_platform.one_table.rows import bounded_rows
from dpsynth_platform.one_table.task import LEAST_UNITS, Options, declared_run
from dpsynth_platform.one_table.witnesses import intact_ledger, note_head
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.tabular.attributes import planned_domain

SOCKET = "node.sock"
ENCODING = "sentence features"
MOST_WAITING = 20
"""Plans that nobody has approved. A coordinator could otherwise fill the disk."""
_PREFIX = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Approvals:
    """The plans that a person has to approve, in a node's directory. One approval is for one run."""

    root: Path

    @property
    def _plans(self) -> Path:
        return self.root / "plans"

    def check(self, run_id: str, plan: FederatedPlan) -> None:
        """Keeps the plan, and raises `GrantRefused` unless it is approved for this run."""
        private_directory(self._plans)
        kept, approved = (self._plans / f"{plan.digest}.{suffix}" for suffix in ("json", "approved"))
        if not kept.exists():
            if len(self.waiting()) >= MOST_WAITING:
                raise GrantRefused(
                    f"run {run_id}: {MOST_WAITING} plans wait in {self._plans}; accepted: fewer: approve or delete some"
                )
            write_durably(kept, plan.to_json())
        how = f"dpsynth node approve {self.root} {plan.digest[:12]} --by NAME"
        if not approved.exists():
            raise GrantRefused(f"run {run_id}: plan {plan.digest[:12]} waits for a person: {how}")
        found = json.loads(approved.read_text(encoding="utf-8"))
        if found["run"] not in (None, run_id):
            raise GrantRefused(f"run {run_id}: the approval was for run {found['run']}; approve it again: {how}")
        if found["run"] is None:
            write_durably(approved, json.dumps(found | {"run": run_id}))

    def allowed(self, run_id: str, plan: FederatedPlan) -> None:
        """Called in place of `check` where the policy approves all that it allows: such a plan no longer waits."""
        kept = self._plans / f"{plan.digest}.json"
        if not kept.with_suffix(".approved").exists():
            kept.unlink(missing_ok=True)

    def waiting(self) -> list[FederatedPlan]:
        """The plans without an approval that a run can still use."""
        found = []
        for kept in sorted(self._plans.glob("*.json")):
            approved = kept.with_suffix(".approved")
            if not approved.exists():
                found.append(plan_of(kept.read_text(encoding="utf-8")))
        return found

    def unused(self) -> list[tuple[str, str]]:
        """The digests of plans with an approval that no run has used, and who approved them."""
        found = []
        for approved in sorted(self._plans.glob("*.approved")):
            said = json.loads(approved.read_text(encoding="utf-8"))
            if said["run"] is None:
                found.append((approved.stem, str(said["by"])))
        return found

    def find(self, digest: str) -> FederatedPlan:
        """The kept plan whose digest begins like this. Raises `NotFound`, also if several do."""
        kept = list(self._plans.glob(f"{digest}*.json")) if _PREFIX.fullmatch(digest) else []
        if len(kept) != 1:
            raise NotFound(
                f"{len(kept)} plans in {self._plans} begin with {digest!r}; accepted: 8 or more digits of one"
            )
        return plan_of(kept[0].read_text(encoding="utf-8"))

    def approve(self, plan: FederatedPlan, by: str) -> None:
        """Notes that a person approves one run of the plan."""
        if not by.strip() or not by.isprintable():
            raise ContractError(f"--by {by!r}; accepted: a person's name")
        for digest, earlier in self.unused():
            if digest == plan.digest:
                raise ContractError(
                    f"plan {digest[:12]} is approved already, by {earlier}, and no run has used that; accepted: one "
                    "approval for each run"
                )
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        with private_files():
            write_durably(self._plans / f"{plan.digest}.approved", json.dumps({"by": by, "at": at, "run": None}))


def node_up(
    root: Path,
    table: Path,
    policy: Policy,
    schema: Path | Mapping[str, Any],
    *,
    owners: str | None = None,
    dialect: Mapping[str, Any] | None = None,
    socket: Path | None = None,
    report: Callable[[str], None],
    goes_on: Callable[[], bool] = lambda: True,
    progress: Progress = silent,
) -> None:
    """Bounds the table's rows, and answers the coordinator as long as `goes_on()`. One process for each directory.

    Args:
        schema: a file with `columns:` as in a contract, or a mapping like one; the same at all participants.
        owners: the column that names the owner of each row; None: each row is its own unit.
        dialect: of a CSV file, by the names of `Options`.
        socket: where a relay brings messages; by default in `root`.
        report: called with a line on each thing that was done or refused.

    Raises:
        ContractError: owners and policy do not fit, or a declaration is missing.
        SourceError: the table cannot be read as declared.
        ConfigurationError: the directory or the socket cannot be used, or the policy has another key of this node.
        LedgerError: the ledger is missing, outdated, or was edited, or its account has other terms than the policy.
    """
    if (owners is None) != (policy.family.unit == "example"):
        raise ContractError(
            f"the policy's unit is {policy.family.unit!r}; accepted: --owners for one person's records together, and "
            "none where each row is a unit (example)"
        )
    declared = read_declared(schema, None, pictures=True)
    if unknown := sorted(set(policy.columns) - set(declared.columns)):
        report(f"the policy names columns that the schema does not declare: {', '.join(unknown)}")
    options = _options(policy, declared, schema, owners, dialect or {})
    with private_files(), held(root) as place:

        def up() -> None:
            try:
                read, _ = declared_run(table, options, pictures=True)
            except SchemaMissing as missing:
                problem = missing.words.partition(" The possible values")[0]
            else:
                problem = ""
            if problem:  # its ways out are those of one table
                raise ContractError(
                    f"{problem} Accepted: a --schema with them, and `ignore: true` where the plan does not count them"
                )
            identity, approvals = federation_key(root), Approvals(root)
            ledger = intact_ledger(place, place.ledger)
            ledger.check_declared(policy.family)
            write_durably(_cap(root), policy.family.cap.model_dump_json())
            with place.work() as work, NodeLineage(own_emitter(place), policy.name, table, report) as lineage:
                bounded, _ = bounded_rows(read, place.vault, work, progress)
                layout = ImageLayout.of(read.contract) if declared.pictures else None
                texts = []
                if options.text is not None:
                    texts = [str(read.contract.text_column)]
                    report("taking the sentence features of the texts, which are milliseconds of a core for each")
                    progress(ENCODING, 0, 1)  # steps between would disclose the number of rows
                    bounded = with_features(bounded, texts[0], work / "features")
                    shutil.rmtree(work / BOUNDED)
                    progress(ENCODING, 1, 1)
                node = Node(
                    Participant(policy, ledger, bounded, planned_domain(read.contract), layout, texts),
                    identity,
                    approvals.check if policy.approval == "person" else approvals.allowed,
                    report,
                    lineage.started,
                    lineage.completed,
                )

                known = ledger.head()

                def answer(message: bytes) -> bytes:
                    nonlocal known
                    try:
                        return place.guarded(lambda: node.answer(message))
                    finally:
                        if (last := ledger.head()) != known:
                            note_head(place.ledger, ledger)
                            known = last

                end = socket or root / SOCKET
                is_up = partial(report, f"{policy.name} is up: {end}")
                serve(end, policy.name, answer, MOST_MESSAGE_BYTES, goes_on, report, is_up)

        place.guarded(up)


def _options(
    policy: Policy,
    known: Declared,
    schema: Path | Mapping[str, Any],
    owners: str | None,
    dialect: Mapping[str, Any],
) -> Options:
    """How a participant's table is read: with its pictures, or the text that its policy names for methods that vote.

    Raises:
        ContractError: both, several texts, or settings that are the coordinator's.
    """
    texts = [
        name for name, column in known.columns.items() if isinstance(column, TextColumn) and name in policy.columns
    ]
    if not set(policy.methods) & set(TextEvolutionPlan.METHODS):
        texts = []
    if len(texts) > 1 or (texts and known.pictures):
        others = ", pictures" if known.pictures else ""
        raise ContractError(
            f"columns: the policy names {', '.join(texts)}{others}; accepted: one text, or pictures; ignore: true for "
            "the others"
        )
    for name in ("text", "training"):
        if getattr(known, name) is not None:
            raise ContractError(f"{name}: at a participant; accepted: none, as the coordinator's plan has it")
    method = "aug_pe" if texts else "image_moments" if known.pictures else "independent"
    cap = policy.run_cap
    return Options(
        epsilon=cap.epsilon,  # the guarantee is a plan's; this one has no effect on what is read and kept
        delta=cap.delta,
        accept_weak_guarantee="the largest that the policy allows" if cap.epsilon > 10 else None,
        method=method,  # type: ignore[arg-type]  # accepted with pictures
        rows=1,  # as the guarantee: none are made here
        schema=schema,
        owners=owners,
        contributions=None if owners is None else policy.max_contributions,
        text=texts[0] if texts else None,
        about=policy.dataset if texts else None,  # words and units, too, are a plan's
        expected_units=LEAST_UNITS,
        **dialect,
    )


@dataclass(frozen=True)
class Status:
    """What a node's directory says, also while the node is up.

    Attributes:
        cap, left: epsilon of the ledger's account at its delta. Before its first run, which opens it: of the policy
            with which the node was up last; None without one.
        entries: of its ledger, newest last.
        waiting: plans that no person has approved.
        approved: digests of plans whose approval no run has used, each with who approved it.
    """

    public_key: str
    cap: float | None
    left: float | None
    entries: list[Entry]
    waiting: list[FederatedPlan]
    approved: list[tuple[str, str]]

    def to_json(self) -> dict[str, Any]:
        return {
            "public_key": self.public_key,
            "cap_epsilon": self.cap,
            "left_epsilon": self.left,
            "runs": [
                {"entry": entry.entry_id, "state": entry.state, "plan": entry.request.plan_digest}
                | {"epsilon": entry.request.guarantee.epsilon, "delta": entry.request.guarantee.delta}
                for entry in self.entries
            ],
            "waiting": [plan.digest for plan in self.waiting],
            "approved": [{"plan": digest, "by": by} for digest, by in self.approved],
        }


def node_status(root: Path) -> Status:
    """Reads a node's directory. Raises `NotFound` if it is none."""
    if not (root / "keys").is_dir():
        raise NotFound(f"{root} is no node's directory; accepted: one that `dpsynth node key` has made")
    directory, entries = root / "restricted" / "ledger", list[Entry]()
    cap = left = json.loads(_cap(root).read_text(encoding="utf-8"))["epsilon"] if _cap(root).exists() else None
    if directory.is_dir():
        ledger = Ledger(embedded_ledger(directory.resolve()))
        account, entries = next(iter(ledger.accounts()), None), list(ledger.entries())
        if account is not None:
            cap, left = account.epsilon, ledger.left(account.family, account.delta)
    key = federation_key(root).public_key().public_bytes_raw().hex()
    approvals = Approvals(root)
    return Status(key, cap, left, entries, approvals.waiting(), approvals.unused())


def _cap(root: Path) -> Path:
    return root / "restricted" / "cap.json"
