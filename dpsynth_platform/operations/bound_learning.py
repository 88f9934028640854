"""Learning a dataset's contribution bound under the ledger: reserve, start, choose, store, complete.

What belongs here: the order of these steps, paying once for the same question, and its lineage events. What does not:
the choice (`synth.learned_bound`), the budget (`ledger`), emitting (`lineage.emitter`). The result is differentially
private and may be written into a contract; a bound read from the table would be an access without a guarantee.

The choice reads only the owners of the current run's scrubbed rows. Rows and account belong to the sealed contract.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

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
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, fingerprints_of, read_fingerprints

STEP = "learned-bound"
METHOD = "exponential-mechanism"
"""Its name in lineage."""
DESCRIPTION = "A contribution bound, learned with differential privacy from the number of records of each owner."


@dataclass(frozen=True)
class Question:
    """The parameters of the choice. Public.

    Attributes:
        quantile: approximate share of the owners who shall keep all their records.
        at_most: the largest possible bound.
    """

    quantile: Fraction
    at_most: int
    epsilon: float


@dataclass(frozen=True)
class LearnedBound:
    """A bound learned with differential privacy, and the ledger entry that paid for it."""

    max_contributions: int
    entry_id: str
    epsilon: float
    reused: bool


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

    The same question about the same version of the source costs nothing and has the same answer. Each call emits a
    START and exactly one terminal event.

    Args:
        contract: only names dataset and owners; the sealed one decides.
        warn: called with a sentence for each event that was not delivered.

    Raises:
        BoundingError: the question is impossible, or the contract's overlap policy or adjacency excludes it.
        StaleInput: the scrubbed rows are missing or outdated.
        BudgetExceeded: it does not fit under the cap.
        SpendRepeated: an earlier attempt started and left no answer; its cost stays spent.
    """
    place = Place(contract.dataset, period)
    if contract.tables:
        raise BoundingError(
            f"{place.label}: the bound of linked tables follows from max_children of each, which are public choices; "
            "accepted: a contract of one table"
        )
    if contract.source.federation is not None:
        raise BoundingError(
            f"{place.label}: the rows stay with participants, each of which declares its own bound; accepted: a "
            "contract whose rows are here"
        )
    run = _lineage_run(contract, place, storage)
    _warn(lineage.start(run), warn)
    try:
        found, finished = _learned(place, question, ledger, storage, runner, run)
    except BaseException as error:
        _warn(_emit_failure(lineage, run, error), warn)
        raise
    _warn(lineage.complete(finished), warn)
    return found


def _learned(
    place: Place, question: Question, ledger: Ledger, storage: Storage, runner: str, run: StepRun
) -> tuple[LearnedBound, StepRun]:
    """The answer, and the lineage run with inputs and outputs."""
    from dpsynth_platform.reviewing.ledger_witnesses import check_not_behind
    from dpsynth_platform.synth.learned_bound import check_question, quantile_event

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
            f"{place.label}: on_overlap: {contract.privacy.on_overlap!r} excludes owners with earlier charges, and "
            "this would charge all owners; accepted: compose, or a declared max_contributions"
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
        entry = ledger.reserve(
            contract.family,
            key,
            request,
            participants=read_fingerprints(scrubbed.directory / "participants"),
            policy="compose",
            key_ids=scrubbed.facts[owner_keys.KEY_IDS],
        )
    directory = storage.named_output(place, "bound", entry.entry_id)
    reused = (directory / BOUND_FILE).is_file()
    if not reused:
        _choose(contract, question, entry, scrubbed, directory / BOUND_FILE, ledger)
    found = int(json.loads((directory / BOUND_FILE).read_text(encoding="utf-8"))["max_contributions"])
    entry = ledger.complete(entry.entry_id, digest_file(directory / BOUND_FILE))
    learned = LearnedBound(found, entry.entry_id, question.epsilon, reused)
    return learned, _finished(run, contract, place, entry, scrubbed, directory)


def _choose(
    contract: DataContract, question: Question, entry: Entry, scrubbed: StepRecord, result: Path, ledger: Ledger
) -> None:
    """The mechanism: from the start of the entry to the stored answer."""
    from dpsynth_platform.synth.learned_bound import learned_contributions

    if entry.state != "reserved":
        raise SpendRepeated(
            f"{entry.request.place}: this question's ledger entry {entry.entry_id} was started and left no answer; "
            "what it cost stays spent. Another epsilon, quantile or range is a new spend"
        )
    # Read before the check: it then proves that participants and rows have the same keys.
    charged = ledger.participants(entry.entry_id)
    account = ledger.account(contract.family)
    if scrubbed.facts[owner_keys.KEY_IDS] != list(account.key_ids):
        raise StaleInput(
            f"{entry.request.place}/scrubbed has fingerprints that are no longer in use; materialize it again"
        )
    if not honoured(scrubbed, erasure_of(ledger, account.namespace)):
        raise StaleInput(
            f"{entry.request.place}/scrubbed was made before the last erasure request; materialize it again"
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
        owners, times = np.unique(fingerprints_of(batch.column(0)), return_counts=True)
        places, there = place_of(owners, charged)
        counts[places[there]] += times[there]
    return counts[counts > 0]


def _lineage_run(contract: DataContract, place: Place, storage: Storage) -> StepRun:
    """The attempt at its start. It has no Dagster run, so it gets its own parent."""
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
    """The completed attempt, with public facts only: guarantee, ledger entry, commitment of the participants."""
    from dpsynth_platform.lineage import facets
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json

    (read,) = run.inputs
    result = epsilon(event_from_json(entry.request.event), entry.request.guarantee.delta)
    made, version = naming.output_name(directory)
    guarantee = facets.guarantee(
        replace(
            Guarantee.target(contract),
            epsilon=result.epsilon,
            delta=result.delta,
            max_contributions=entry.request.guarantee.max_contributions,
        ),
        method=METHOD,
        accounting=result.method,
        ledger_entry=entry.entry_id,
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


def _emit_failure(lineage: LineageEmitter, run: StepRun, error: BaseException) -> Delivery:
    """Emits only the code of the error: events are exported, and even a safe message may depend on the data."""
    if not isinstance(error, Exception):
        return lineage.abort(run, "The command was interrupted.")
    failure = DpsynthError("The command failed; its message was shown to the user who ran it.")
    failure.code, _ = safe_error(error)
    return lineage.fail(run, failure)


def _warn(delivery: Delivery, warn: Callable[[str], None]) -> None:
    for warning in delivery.warnings:
        warn(warning)
