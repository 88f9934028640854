"""Learning a dataset's contribution bound under the ledger: reserve, start, choose, write down, complete.

What belongs here: the order of these steps, that the same question is paid once, and what lineage events say of it.
What does not: the choice (`bounding.quantile`), the budget (`ledger`), emitting (`lineage.emitter`). The result is
differentially private and may stand in a contract; reading the number of records off the table instead would be an
access that no guarantee covers.

The choice looks at the owners whom its ledger entry charges, in the scrubbed rows of the current run, so that fewer
records are read than a release would: no text, no values, only whose they are. Those rows belong to the contract that
`raw` sealed, and so does the account: the contract's file may say something else by now.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import BoundingError, DpsynthError, SpendRepeated, StaleInput
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.storage import BOUND_FILE, Place, StepRecord, Storage, read_table, write_durably
from dpsynth_platform.ledger.owners import Participants, place_of
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.lifecycle.erasure import erasure_of, honoured
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import Delivery, LineageEmitter
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.privacy.guarantee import Guarantee, tier
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, fingerprints_from_hex, read_fingerprints

STEP = "learned-bound"
METHOD = "exponential-mechanism"
"""Its name in lineage."""
DESCRIPTION = "A contribution bound, learned with differential privacy from the number of records of each owner."


@dataclass(frozen=True)
class Question:
    """What is asked. All of it is public.

    Attributes:
        quantile: share of the owners that shall keep all their records, about.
        at_most: the largest bound that may come out.
        epsilon: what the answer may cost.
    """

    quantile: Fraction
    at_most: int
    epsilon: float


@dataclass(frozen=True)
class LearnedBound:
    """A bound that was learned with differential privacy, and the entry that paid for it."""

    max_contributions: int
    entry_id: str
    epsilon: float
    reused: bool

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def learn_bound(
    contract: DataContract,
    period: str | None,
    question: Question,
    *,
    ledger: Ledger,
    storage: Storage,
    lineage: LineageEmitter,
    runner: str,
    warn: Callable[[str], None] = lambda warning: None,
) -> LearnedBound:
    """The bound under which about `question.quantile` of the owners keep all their records.

    Asked again of the same version of the same source table, the question costs nothing and has the same answer. Each
    time leaves a START and one terminal event, whatever happens.

    Args:
        contract: whose dataset is asked about; what it says besides, the one that `raw` sealed says here.
        warn: called with a sentence for each event that could not be delivered.

    Raises:
        BoundingError: the question is impossible, or the contract's overlap policy or adjacency rules it out.
        StaleInput: the scrubbed rows are missing or outdated.
        BudgetExceeded: it does not fit under the cap.
        SpendRepeated: an earlier attempt started and left no answer; what it cost stays spent.
    """
    place = Place(contract.dataset, period)
    run = _lineage_run(contract, place, storage)
    _tell(lineage.start(run), warn)
    try:
        found, finished = _learned(place, question, ledger, storage, runner, run)
    except BaseException as error:
        _tell(_ended_badly(lineage, run, error), warn)
        raise
    _tell(lineage.complete(finished), warn)
    return found


def _learned(
    place: Place, question: Question, ledger: Ledger, storage: Storage, runner: str, run: StepRun
) -> tuple[LearnedBound, StepRun]:
    """The answer, and the lineage run with what was read and written."""
    from dpsynth_platform.bounding.quantile import check_question, quantile_event
    from dpsynth_platform.reviewing.ledger_witnesses import check_not_behind  # which knows what is written here

    check_question(question.at_most, question.quantile)
    raw, scrubbed = storage.read(place, "raw"), storage.read(place, "scrubbed")
    if raw is None or scrubbed is None or scrubbed.run_key != raw.run_key or not storage.exists(scrubbed):
        raise StaleInput(
            f"{place.label}/scrubbed is missing or of another run than raw; make it with: dpsynth run "
            f"{place.arguments} --up-to scrubbed"
        )
    contract = DataContract.model_validate(raw.facts["contract"])
    if contract.privacy.on_overlap != "compose":
        raise BoundingError(
            f"{place.label}: on_overlap: {contract.privacy.on_overlap!r} bars owners who were charged before, and this "
            "would charge all of them; accepted: compose, or a declared max_contributions"
        )
    adjacency = contract.privacy.adjacency
    asked = {"bound": asdict(question) | {"quantile": str(question.quantile)}, "adjacency": adjacency}
    digest = canonical_digest(asked)
    request = CostRequest.of(
        quantile_event(question.epsilon, adjacency),
        dataset=contract.dataset,
        period=place.period,
        guarantee=Guarantee(question.epsilon, contract.privacy.delta, contract.privacy.unit, adjacency, 1),
        plan_digest=digest,
        runner=runner,
    )
    key = canonical_digest(asked | {"source": raw.facts["source"], "place": place.label})[:32]
    entry = ledger.entry_for_key(key)
    if entry is None or entry.state in ("reserved", "void"):
        check_not_behind(storage, ledger)
        entry = _reserve(contract, key, request, scrubbed, ledger)
    directory = storage.named_output(place, "bound", entry.entry_id)
    reused = (directory / BOUND_FILE).is_file()
    if not reused:
        _choose(contract, question, entry, scrubbed, directory / BOUND_FILE, ledger)
    found = int(json.loads((directory / BOUND_FILE).read_text(encoding="utf-8"))["max_contributions"])
    entry = ledger.complete(entry.entry_id, digest_file(directory / BOUND_FILE))
    learned = LearnedBound(found, entry.entry_id, question.epsilon, reused)
    return learned, _finished(run, contract, place, entry, scrubbed, directory)


def _reserve(contract: DataContract, key: str, request: CostRequest, scrubbed: StepRecord, ledger: Ledger) -> Entry:
    return ledger.reserve(
        contract.family,
        key,
        request,
        participants=read_fingerprints(scrubbed.directory / "participants"),
        policy="compose",
        key_ids=scrubbed.facts[owner_keys.KEY_IDS],
    )


def _choose(
    contract: DataContract, question: Question, entry: Entry, scrubbed: StepRecord, result: Path, ledger: Ledger
) -> None:
    """The mechanism: from the started entry to the answer on disk."""
    from dpsynth_platform.bounding.quantile import learned_contributions

    if entry.state != "reserved":
        raise SpendRepeated(
            f"{entry.request.place}: this question's ledger entry {entry.entry_id} was started and left no answer; "
            "what it cost stays spent. Asking with another epsilon, quantile or range is a new spend"
        )
    # Read before the counts: then they are of the keys that the rows bear, or the check finds that they are not.
    charged = ledger.participants(entry.entry_id)
    account = ledger.account(contract.family)
    if scrubbed.facts[owner_keys.KEY_IDS] != list(account.key_ids):
        raise StaleInput(
            f"{entry.request.place}/scrubbed bears fingerprints that are no longer in use; materialize it again"
        )
    if not honoured(scrubbed, erasure_of(ledger, account.namespace)):
        raise StaleInput(
            f"{entry.request.place}/scrubbed was made before somebody's records were erased; materialize it again"
        )
    ledger.start(entry.entry_id)
    found = learned_contributions(
        _records_per_owner(scrubbed, charged),
        at_most=question.at_most,
        quantile=question.quantile,
        epsilon=question.epsilon,
        adjacency=contract.privacy.adjacency,
    )
    write_durably(result, json.dumps({"max_contributions": found}))


def _records_per_owner(scrubbed: StepRecord, charged: Participants) -> npt.NDArray[np.int64]:
    counts = np.zeros(len(charged), dtype=np.int64)
    for batch in read_table(scrubbed.directory / "table", columns=[OWNER_COLUMN]):
        owners, times = np.unique(fingerprints_from_hex(batch.column(0).to_pylist()), return_counts=True)
        places, there = place_of(owners, charged)
        counts[places[there]] += times[there]
    return counts[counts > 0]


def _lineage_run(contract: DataContract, place: Place, storage: Storage) -> StepRun:
    """The attempt as it starts. No Dagster run is above it, so it has a parent of its own."""
    from dpsynth_platform.lineage import facets

    scrubbed = facets.symlink(naming.logical_name(place.dataset, "scrubbed", place.period))
    return StepRun(
        dagster_run_id=str(uuid.uuid4()),
        dagster_job="bound-learn",
        dataset=place.dataset,
        step=STEP,
        period=place.period,
        launcher=naming.COMMAND_NAMESPACE,
        description=DESCRIPTION,
        owners=tuple(contract.owners),
        inputs=(DatasetRef(naming.dataset_name(storage.location(place, "scrubbed")), scrubbed),),
    )


def _finished(
    run: StepRun, contract: DataContract, place: Place, entry: Entry, scrubbed: StepRecord, directory: Path
) -> StepRun:
    """The attempt as it completed, with public facts only: the guarantee, the entry that paid, who took part by their
    commitment.
    """
    from dpsynth_platform.lineage import facets
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json

    (read,) = run.inputs
    result = epsilon(event_from_json(entry.request.event), entry.request.guarantee.delta)
    made, version = naming.output_name(directory)
    guarantee = facets.guarantee(
        contract,
        epsilon=result.epsilon,
        delta=result.delta,
        tier=tier(result.epsilon),
        method=METHOD,
        accounting=result.method,
        ledger_entry=entry.entry_id,
        max_contributions=entry.request.guarantee.max_contributions,
    )
    known = facets.merge(
        facets.symlink(naming.logical_name(place.dataset, STEP, place.period)),
        facets.ownership(contract.owners),
        facets.documentation(DESCRIPTION),
        facets.tags(contract, "restricted"),
        facets.file_type("FILE"),
        facets.version(version),
        guarantee,
    )
    run_facets = facets.clearance(
        contract, verdict="cleared", ledger_entry=entry.entry_id, plan_digest=entry.plan_digest
    )
    if entry.commitment is not None:
        run_facets |= facets.participants(contract, ledger_entry=entry.entry_id, commitment=entry.commitment)
    of_version = facets.merge(read.facets, facets.version(scrubbed.directory.name))
    return replace(
        run,
        inputs=(replace(read, facets=of_version),),
        outputs=(DatasetRef(made, known),),
        run_facets=run_facets,
    )


def _ended_badly(lineage: LineageEmitter, run: StepRun, error: BaseException) -> Delivery:
    """Emits the end. Events are exported, and even a safe message may depend on the data: only its code is told."""
    if not isinstance(error, Exception):
        return lineage.abort(run, "The command was interrupted.")
    told = DpsynthError("The command failed; its message was shown to whoever ran it.")
    told.code, _ = safe_error(error)
    return lineage.fail(run, told)


def _tell(delivery: Delivery, warn: Callable[[str], None]) -> None:
    for warning in delivery.warnings:
        warn(warning)
