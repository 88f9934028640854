"""Operating a dataset from the command line: a run up to a candidate, and its publication once it is approved.

What belongs here: which jobs run in which order, and what to tell the person next. What does not: how a job is run
(`running`), what a reviewer sees (`reviewing`).

Light at load, with nothing of Dagster: whatever is refused is refused at once, and steps' own imports begin before
those of the command (`forking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError, ReleaseRefused
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage, steps_of
from dpsynth_platform.operations.forking import forked_from_now_on
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.synth.planning import check_period, load_dataset
from dpsynth_platform.synth.tabular.missing import MOSTLY_MISSING

if TYPE_CHECKING:
    from dpsynth_platform.operations.running import CodeLocation, LineResult

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a command achieved.

    Attributes:
        release: directory of the published release, or None.
        new_entries: ledger entries that this command reserved; empty means that nothing new was spent.
        failures: steps that failed, with their safe messages.
        next_steps: what the person can do now.
        facts: what steps counted, for the operator: see `LineResult`.
    """

    dataset: str
    period: str | None
    run_ids: tuple[str, ...] = ()
    release: str | None = None
    new_entries: tuple[str, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    next_steps: tuple[str, ...] = field(default=())
    blocked: bool = False
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def facts_rows(self) -> list[tuple[str, str, str]]:
        """The facts as rows of a table: step, what was counted, and the count."""
        return [(step, *row) for step, facts in self.facts.items() for row in _fact_rows(facts)]


def run_dataset(
    settings: Settings,
    dataset: str,
    period: str | None,
    spend_again: str | None,
    say: Say,
    *,
    up_to: str | None = None,
    in_process: CodeLocation | None = None,
) -> Outcome:
    """Runs the line up to its candidate, and publishes where the candidate is approved already.

    Args:
        settings: the deployment.
        dataset: its name.
        period: `YYYY-MM`, for datasets with a cadence.
        spend_again: id of a started ledger entry that is given up for a second spend.
        say: is told one public sentence at a time.
        up_to: the last step to run, before `released`; None: all that the candidate needs.
        in_process: see `running.run_line`.

    Raises:
        DpsynthError: the contract is not acceptable, or period or step do not fit it.
    """
    contract, _ = load_dataset(settings, dataset)
    check_period(contract, period)
    place = Place(dataset, period)
    steps = _steps_up_to(contract, up_to, spend_again)
    if spend_again is not None:
        accounts.check_given_up(settings, place, spend_again)
    with nullcontext() if in_process is not None else forked_from_now_on(settings):
        known = _entries(settings, place)
        result = _ran(settings, place, steps, spend_again, say, in_process=in_process)
        new_entries = tuple(entry for entry in _entries(settings, place) if entry not in known)
        outcome = _outcome(contract, period, result, new_entries)
        if outcome.failures or not result.success:
            return outcome
        if up_to is not None:
            return replace(outcome, next_steps=_partial_steps(place, up_to, outcome.new_entries))
        if not outcome.new_entries:
            say("nothing new was spent: the model of this run was there already")
        published = publish_if_approved(settings, place, say, in_process=in_process)
    return replace(
        published,
        run_ids=outcome.run_ids + published.run_ids,
        new_entries=outcome.new_entries,
        facts=outcome.facts,
        next_steps=(*_mostly_missing(settings, place), *published.next_steps),
    )


def _ran(
    settings: Settings,
    place: Place,
    steps: tuple[str, ...],
    spend_again: str | None,
    say: Say,
    *,
    in_process: CodeLocation | None,
) -> LineResult:
    """Runs the steps, all of them where none is named, after what killed runs left was closed."""
    from dpsynth_platform.operations import running

    with running.open_instance(settings) as instance:
        for run_id in running.reconcile(settings, instance):
            say(f"an earlier run was killed; it is closed as failed now: {run_id}")
        return running.run_line(
            settings,
            instance,
            f"{place.dataset}_candidate",
            period=place.period,
            assets=[(place.dataset, step) for step in steps],
            spend_again=(place.dataset, spend_again) if spend_again else None,
            in_process=in_process,
            progress=say,
        )


def publish_if_approved(
    settings: Settings, place: Place, say: Say, *, in_process: CodeLocation | None = None
) -> Outcome:
    """Publishes the present candidate if its evidence holds; otherwise says what is missing."""
    from dpsynth_platform.operations import running
    from dpsynth_platform.release import evidence

    storage = Storage(settings.restricted)
    contract = DataContract.model_validate(storage.require(place, "raw").facts["contract"])
    runners = evidence.candidate_runners(storage, place)
    try:
        evidence.check_evidence(storage, place, contract, accounts.ledger(settings), runners=runners)
    except ReleaseRefused as refusal:
        return Outcome(place.dataset, place.period, next_steps=_review_steps(place, str(refusal)))
    with running.open_instance(settings) as instance:
        result = running.run_line(
            settings, instance, f"{place.dataset}_release", period=place.period, in_process=in_process, progress=say
        )
    outcome = _outcome(contract, place.period, result, ())
    if outcome.failures or not result.success:
        return outcome
    path = storage.require(place, "released").facts["path"]
    return replace(outcome, release=path, next_steps=_release_steps(path))


def _steps_up_to(contract: DataContract, last: str | None, spend_again: str | None) -> tuple[str, ...]:
    """The line's steps up to `last`; none stands for the whole line.

    Publication needs an approval and is a run of its own.

    Raises:
        ConfigurationError: there is no such step, or the word for a second spend would not reach the step it is for.
    """
    if last is None:
        return ()
    line = steps_of(separate_audit_model=contract.separate_audit_model)
    partial = line[: line.index("released")]
    if last not in partial:
        raise ConfigurationError(f"--up-to {last!r}; accepted: {', '.join(partial)}")
    steps = partial[: partial.index(last) + 1]
    if spend_again is not None and "clearance" not in steps:
        raise ConfigurationError(f"--up-to {last} stops before --spend-again counts; accepted: one of the two")
    return steps


def _outcome(contract: DataContract, period: str | None, result: LineResult, new_entries: tuple[str, ...]) -> Outcome:
    failures = result.failures
    if not result.success and not failures:
        failures = (("run", "the run ended without success; see it in Dagster"),)
    return Outcome(
        contract.dataset,
        period,
        run_ids=(result.run_id,),
        new_entries=new_entries,
        failures=failures,
        blocked="budget" in result.codes,
        facts=result.facts,
    )


_NO_COUNTS = ("actions", "limits")
"""Parts of a scrubbing report that say what was to be done, and what cannot be."""


def _fact_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values. Of a mapping, a row for each number and one for each mapping of numbers in it."""
    for name, value in facts.items():
        if name == "reused":
            if value:
                yield "was there already", "what else it counted is shown by the run that made it"
        elif name == "scrubbing report":
            yield from _fact_rows({part: what for part, what in value.items() if part not in _NO_COUNTS})
        elif isinstance(value, Mapping) and any(isinstance(part, Mapping) for part in value.values()):
            yield from _fact_rows({f"{name}: {key}": part for key, part in value.items()})
        elif isinstance(value, Mapping):
            yield name, ", ".join(f"{key} {part}" for key, part in value.items()) or "none"
        else:
            yield name.replace("_", " "), str(value)


def _entries(settings: Settings, place: Place) -> list[str]:
    if not settings.has_ledger:
        return []
    entries = accounts.ledger(settings).entries()
    return [entry.entry_id for entry in entries if entry.request.place == place.label]


def _partial_steps(place: Place, last: str, new_entries: tuple[str, ...]) -> tuple[str, ...]:
    spent = f"ledger entry {', '.join(new_entries)}" if new_entries else "nothing new was spent or reserved"
    learn = f"learn a bound on its rows: dpsynth bound learn {place.arguments} --epsilon E"
    return (
        f"{place.label}/{last} is there; {spent}",
        *([learn] if last == "scrubbed" else []),
        f"go on to a candidate:       dpsynth run {place.arguments}",
    )


def _mostly_missing(settings: Settings, place: Place) -> tuple[str, ...]:
    """Columns with hardly any usable value, by the noisy counts that the run has paid for."""
    record = Storage(settings.restricted).read(place, "synthetic")
    return tuple(record.facts.get(MOSTLY_MISSING, ())) if record is not None else ()


def _review_steps(place: Place, refusal: str) -> tuple[str, ...]:
    return (
        f"not published: {refusal}",
        f"look at the candidate:  dpsynth release show {place.arguments}",
        f"decide, as someone else: dpsynth release approve {place.arguments} --as NAME",
    )


def _release_steps(path: str) -> tuple[str, ...]:
    return (
        f"release: {path}",
        f"read its dossier in a browser: {path}/dossier.html",
        f"verify it:                     dpsynth release verify {path}",
    )
