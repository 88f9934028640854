"""A federated dataset's mechanism at its coordinator: the relay, the auditor, the start of the ledger entry.

What belongs here: what a run of a line has beside that of a command (`one_table.federated_run`): the entry of the
coordinator's ledger, and the canaries as the rows of a participant of its own. What does not: rounds and messages
(`federation`). No row of another participant comes here.

**The auditor** is a participant whose rows are the canaries: fictional owners, of whom each joins by its own coin. Its
node runs in this process, with a ledger for this run alone. Its counts are masked and summed as those of all others
are, so that an attack on the model tells as much of a canary as of any participant's record. The coordinator knows
whatever its node draws: the plan counts one more of those who finish and of those who collude
(`federation.contracts.terms_of`). So it adds no noise, and its secrets follow from its key and the round: it says the
same again when an interrupted run is made again from what was said in it (`federation.exchanges`).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpsynth_platform.contracts.base import MOST_CAP
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.federation import AUDITOR, Federation
from dpsynth_platform.federation.choice import RelayChoice
from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.exchanges import Exchanges
from dpsynth_platform.federation.masks import derive_key
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.nodes import Coordinator, Node
from dpsynth_platform.federation.participants import Participant, Policy
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.relays import relayed, start_of_flower
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.federation.secure_sum import Draws, Link
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    DpsynthError,
    LedgerError,
    MechanismFailed,
    MechanismInterrupted,
    RoundRefused,
    SpendRepeated,
)
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.restricted_log import logs_of, new_log
from dpsynth_platform.foundation.settings import embedded_ledger
from dpsynth_platform.foundation.storage import HANDED, StepRecord, check_room, digest_directory
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.training.stream import SecureStream
from dpsynth_platform.worker.inputs import CLAIM_FILE, claim_of

COORDINATOR = "coordinator"
_MODEL_BYTES = 2**24


def federation_keys(vault: Vault) -> dict[str, Ed25519PrivateKey]:
    """The deployment's own keys as coordinator and auditor, made at first use."""
    return {
        name: Ed25519PrivateKey.from_private_bytes(vault.create(f"federation-{name}"))
        for name in (COORDINATOR, AUDITOR)
    }


def run_federation(
    step: StepContext, contract: DataContract, plan: SealedPlan, entry: Entry, directory: Path, canaries: StepRecord
) -> Entry:
    """The spent entry of a complete model, of opened sums.

    Raises:
        SpendRepeated: an earlier run of the entry started, and cannot continue.
        ConfigurationError: the deployment says of no relay, or none connects.
        LedgerError: fewer participants than `minimum` have reserved, or not the auditor; nothing is spent.
        DpsynthError: as `Coordinator.run`. The message says what is spent.
    """
    method, federation = generator(plan.method), contract.source.federation
    assert federation is not None  # noqa: S101  (who calls has asked)
    sealed = plan_of(plan.to_json())
    if method.is_complete(directory):
        step.progress("the sums of an interrupted run are all open: continuing, at no further cost")
        method.estimate(plan, directory)
        # The interrupted run has ended without a word of its model.
        kept = exchanges_of(step, directory)
        run = kept.begun(plan.digest) or step.run.dagster_run_id
        step.emitter.start(_lineage(step, sealed, run))
        step.emitter.complete(_lineage(step, sealed, run, TookPart.read(directory).started, directory))
        kept.forget()
    else:
        exchanges = exchanges_of(step, directory)
        if entry.state == "started" and exchanges.begun(plan.digest) is None:
            raise SpendRepeated(f"{step.place.label}: {step.not_completed(entry)}")
        if digest_directory(canaries.directory) != canaries.content_hash:
            raise MechanismFailed(f"{step.place.label}/canaries were changed; materialize them again")
        relay = step.relay()
        step.cleared(contract, entry_id=entry.entry_id).require(step.place.label)
        check_room(directory, _MODEL_BYTES)
        _opened(step, contract, federation, sealed, entry, directory, canaries, relay, exchanges)
        exchanges.forget()
    _check_audited(step, entry, sealed, TookPart.read(directory))
    return step.ledger.complete(entry.entry_id, digest_directory(directory))


def _opened(
    step: StepContext,
    contract: DataContract,
    federation: Federation,
    plan: FederatedPlan,
    entry: Entry,
    directory: Path,
    canaries: StepRecord,
    relay: RelayChoice,
    exchanges: Exchanges,
) -> None:
    """All sums of a run in the directory, and the model that is fitted to them; reported as a run of its own."""
    keys, begun = federation_keys(step.vault), _begun(step, exchanges, plan, entry, canaries)
    run = begun or step.run.dagster_run_id
    public = {name: key.public_key().public_bytes_raw().hex() for name, key in keys.items()}
    roster = {**federation.participants, AUDITOR: public[AUDITOR]}
    place, started = Path(relay.socket), entry.state == "started"
    problem: BaseException | None = None

    def ready() -> None:
        if relay.flower is None:
            step.progress(
                f"waiting at {place} for the Flower app; start it now: {start_of_flower(place, relay.seconds)}"
            )
            return
        step.progress(f"starting the Flower app by {relay.flower.program}")
        relay.flower.start(place, relay.seconds, new_log(logs_of(step.storage.root), "flower"))

    def before_start(reserved: Collection[str]) -> None:
        nonlocal started
        step.progress(f"reserved by {', '.join(sorted(set(reserved) - {AUDITOR}))}")
        exchanges.begin(plan.digest, run, canaries=canaries.content_hash)
        if not started:
            step.ledger.start(entry.entry_id)
        started = True
        if not (directory / CLAIM_FILE).exists():
            claim_of(directory, entry=entry.entry_id, plan=plan.digest, canaries=canaries.content_hash, data="")
        step.progress(
            f"ledger entry {entry.entry_id} started; from here on its cost is spent, here and at each of them"
        )

    emitter, lineage = step.emitter, _lineage(step, plan, run)
    if begun is None:
        exchanges.forget()  # of a run that was interrupted before it began
    else:
        step.progress(f"continuing run {run}, which was interrupted: participants that are still up go on, at no cost")
    try:
        with (
            _auditor(step, contract, plan, keys[AUDITOR], roster, public[COORDINATOR], canaries, directory) as auditor,
            relayed(place, relay.seconds, plan.most_reply_bytes, ready) as link,
        ):
            emitter.start(lineage)
            known, wires = Roster.from_texts(roster), _WithAuditor(exchanges.over(link), auditor)
            made = Coordinator(known, keys[COORDINATOR], wires, step.progress).run(
                run, plan, directory, _rounds_of(step), before_start=before_start, continues=begun is not None
            )
    except BaseException as error:  # also KeyboardInterrupt and Dagster's own interrupt, which derive from it
        problem = error
    if isinstance(problem, LedgerError | RoundRefused):  # too few are left, and that does not change
        exchanges.forget()
    if problem is not None:
        stopped = not isinstance(problem, Exception)
        _ = emitter.abort(lineage) if stopped else emitter.fail(lineage, problem)
        goes_on = "The next run continues this one, at no cost, as long as its participants are up. "
        spent = (
            f"Ledger entry {entry.entry_id} had started. {goes_on if exchanges.begun(plan.digest) else ''}"
            f"{step.way_to_spend_again(entry)}"
        )
        words = spent if started else "Nothing is spent; once that is mended, run again"
        if isinstance(problem, DpsynthError):
            raise type(problem)(f"{problem}. {words}")
        kind = MechanismInterrupted if stopped else MechanismFailed
        what = "the run was stopped" if stopped else reason_of(problem)
        raise kind(f"{step.place.label}/model: {what}. {words}") from problem
    emitter.complete(_lineage(step, plan, run, made.participants, directory))


def _lineage(
    step: StepContext, plan: FederatedPlan, run: str, started: Iterable[str] = (), directory: Path | None = None
) -> StepRun:
    """The coordinator's run as all who take part know it: a child of the Dagster run, whose id is its name.

    Args:
        run: its name, of the Dagster run that began it.
    """
    from dpsynth_platform.one_table.federated_lineage import coordinator_run

    now = step.run
    return coordinator_run(
        plan, run, started, directory, launcher=now.launcher, job=now.dagster_job, attempt=now.dagster_run_id
    )


def _check_audited(step: StepContext, entry: Entry, plan: FederatedPlan, took_part: TookPart) -> None:
    """An audit of sums without the canaries would find nothing, whatever the mechanism leaks."""
    with_canaries = [AUDITOR in names for names in took_part.finished]
    if with_canaries != [True] * len(plan.rounds):
        raise MechanismFailed(
            f"{step.place.label}: the {AUDITOR} is not in all sums of this run, so that no audit of it is possible. "
            f"{step.way_to_spend_again(entry)}"
        )


def _rounds_of(step: StepContext) -> Progress:
    return lambda what, done, total, more="": step.progress(f"{what}: {done} of {total}")


def _begun(
    step: StepContext, exchanges: Exchanges, plan: FederatedPlan, entry: Entry, canaries: StepRecord
) -> str | None:
    """The name of the run that continues. Raises `SpendRepeated` if it has begun with other canaries."""
    try:
        return exchanges.begun(plan.digest, canaries=canaries.content_hash)
    except ConfigurationError as error:
        problem = str(error).partition(";")[0]
    raise SpendRepeated(
        f"{step.place.label}: {problem}, and cannot continue with these. {step.way_to_spend_again(entry)}"
    )


class _OwnStream(SecureStream):
    """A stream that is the same for the same key, plan and round of a run."""

    def __init__(self, key: Ed25519PrivateKey, plan: FederatedPlan, round_id: str) -> None:
        own = derive_key(key.private_bytes_raw(), b"dpsynth-auditor-1", plan.digest.encode(), round_id.encode())
        self._encryptor = Cipher(algorithms.AES(own), modes.CTR(bytes(16))).encryptor()


class _WithAuditor:
    """A link to the participants of a relay, and to the auditor in this process.

    The auditor is asked first. Without its reply nobody else is asked: no participant starts a run that is without an
    audit from its start, and one that loses its auditor ends with that round.
    """

    def __init__(self, others: Link, auditor: Node) -> None:
        self._others, self._auditor = others, auditor

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        others, own = {name: body for name, body in requests.items() if name != AUDITOR}, {}
        if AUDITOR in requests:
            try:
                own = {AUDITOR: self._auditor.answer(requests[AUDITOR])}
            except DpsynthError as error:
                self._auditor.report(f"refused: {error}")
                return {}
        return {**(self._others.ask(others) if others else {}), **own}


def exchanges_of(step: StepContext, directory: Path) -> Exchanges:
    """What was said in a run that is not complete, beside the directory of its model."""
    return Exchanges(step.storage.location(step.place, "model") / f"{directory.name}-exchanges{HANDED}")


@contextmanager
def _auditor(
    step: StepContext,
    contract: DataContract,
    plan: FederatedPlan,
    key: Ed25519PrivateKey,
    roster: Mapping[str, str],
    coordinator: str,
    canaries: StepRecord,
    directory: Path,
) -> Iterator[Node]:
    """The node of the auditor, whose ledger knows this run alone: its owners are fictional."""
    from dpsynth_platform.audit.canaries import read_canaries

    guarantee, terms = plan.guarantee, plan.terms
    cap = {"epsilon": MOST_CAP, "delta": max(guarantee.delta, contract.privacy.delta)}
    policy = Policy.model_validate(
        {
            "name": AUDITOR,
            "dataset": plan.sealed.dataset,
            "family": {
                "family": "fictional",
                "namespace": "fictional",
                "unit": guarantee.unit,
                "adjacency": guarantee.adjacency,
                "mode": "family",
                "cap": cap,
            },
            "run_cap": {"epsilon": guarantee.epsilon, "delta": guarantee.delta},
            "methods": [plan.sealed.method],
            "trust": [plan.trust],
            "columns": list(plan.reads),
            "participants": dict(roster),
            "coordinator": coordinator,
            "approval": "policy",
            "minimum": terms.minimum,
            "colluders": terms.colluders,
            "max_contributions": terms.max_contributions,
            "silos": terms.silos,
            "most_cells": max(each.length for each in plan.sums),
        }
    )

    def report(line: str) -> None:
        step.progress(f"{AUDITOR}: {line}")

    work = step.storage.named_output(step.place, "model", f"{directory.name}-{AUDITOR}{HANDED}")
    shutil.rmtree(work)  # of a process that was killed
    try:
        private_directory(work)
        ledger = Ledger(embedded_ledger(work))
        joining = read_canaries(canaries.directory / "table").joining
        layout = None if contract.image_column is None else ImageLayout.of(contract)
        texts = [] if contract.text_column is None else [contract.text_column]
        member = Participant(policy, ledger, joining, planned_domain(contract), layout, texts)
        yield Node(member, key, report=report, draws=lambda round_id: Draws(_OwnStream(key, plan, round_id)))
    finally:
        shutil.rmtree(work, ignore_errors=True)
