"""Operating a dataset from the command line: a run up to a candidate, and its publication once it is approved.

What belongs here: the order of jobs, and the next steps for the user. What does not: running a job (`running`), and the
reviewer's view (`reviewing`).

It imports nothing of Dagster at load: refusals come at once, and the imports of steps start before those of the command
(`forking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import ConfigurationError, DpsynthError, ReleaseRefused
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.operations.forking import fork_server
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.synth.planning import RAW_VERSION, check_period, load_dataset
from dpsynth_platform.synth.tabular.missing import MOSTLY_MISSING

if TYPE_CHECKING:
    from dpsynth_platform.operations.running import CodeLocation, LineResult

Progress = Callable[[str], None]
"""Called with public sentences."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        release: directory of the published release, or None.
        new_entries: ledger entries that this command reserved or spent; empty: nothing new was spent.
        failures: failed steps, with their safe messages.
        next_steps: what the user can do now.
        facts: see `LineResult`.
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
        return asdict(self)

    def facts_rows(self) -> list[tuple[str, str, str]]:
        """Step, counted thing and count."""
        return [(step, *row) for step, facts in self.facts.items() for row in _fact_rows(facts)]


def run_dataset(
    settings: Settings,
    dataset: str,
    period: str | None,
    spend_again: str | None,
    progress: Progress,
    *,
    up_to: str | None = None,
    in_process: CodeLocation | None = None,
) -> Outcome:
    """Runs the line up to its candidate, and publishes it if it is already approved.

    Args:
        period: such as `2026-01`, for datasets with a cadence.
        spend_again: id of a started ledger entry that is given up for a second spend.
        up_to: the last step to run, before `released`; None: all that the candidate needs.
        in_process: see `running.run_line`.
    """
    contract, family = load_dataset(settings, dataset)
    check_period(contract, period)
    place = Place(dataset, period)
    steps = _steps_up_to(contract, up_to, spend_again)
    if spend_again is not None:
        accounts.check_given_up(settings, place, spend_again)
    if up_to is None and spend_again is None and _is_current(settings, contract, family, place):
        progress("contract and source are those of the candidate, whose evidence is complete: nothing new was spent")
        return publish_if_approved(settings, place, progress, in_process=in_process)
    with nullcontext() if in_process is not None else fork_server(settings):
        from dpsynth_platform.operations import running  # late: its imports run beside those of the fork server

        known = _entries(settings, place)
        with running.open_instance(settings) as instance:
            for run_id in running.reconcile(settings, instance):
                progress(f"an earlier run was killed; it is closed as failed now: {run_id}")
            result = running.run_line(
                settings,
                instance,
                f"{dataset}_candidate",
                period=period,
                assets=[(dataset, step) for step in steps],
                spend_again=(dataset, spend_again) if spend_again else None,
                in_process=in_process,
                progress=progress,
            )
        # Also one that an earlier run reserved, and this one started.
        new_entries = tuple(entry for entry, state in _entries(settings, place).items() if known.get(entry) != state)
        outcome = _outcome(contract, period, result, new_entries)
        if outcome.failures or not result.success:
            return outcome
        if up_to is not None:
            spent = f"ledger entry {', '.join(new_entries)}" if new_entries else "nothing new was spent or reserved"
            learn = f"learn a bound on its rows: dpsynth bound learn {place.arguments} --epsilon E"
            next_steps = (
                f"{place.label}/{up_to} exists; {spent}",
                *([learn] if up_to == "scrubbed" and not contract.tables else []),
                f"continue to a candidate:    dpsynth run {place.arguments}",
            )
            return replace(outcome, next_steps=next_steps)
        if not outcome.new_entries:
            progress("nothing new was spent: the model of this run existed already")
        published = publish_if_approved(settings, place, progress, in_process=in_process)
    record = Storage(settings.restricted).read(place, "synthetic")
    mostly_missing = () if record is None else record.facts.get(MOSTLY_MISSING, ())
    return replace(
        published,
        run_ids=outcome.run_ids + published.run_ids,
        new_entries=outcome.new_entries,
        facts=outcome.facts,
        next_steps=(*mostly_missing, *published.next_steps),
    )


def publish_if_approved(
    settings: Settings, place: Place, progress: Progress, *, in_process: CodeLocation | None = None
) -> Outcome:
    """Publishes the current candidate if its evidence is complete; otherwise says what is missing."""
    from dpsynth_platform.release import evidence

    storage = Storage(settings.restricted)
    contract = DataContract.model_validate(storage.require(place, "raw").facts["contract"])
    runners = evidence.candidate_runners(storage, place)
    try:
        evidence.check_evidence(storage, place, contract, accounts.ledger(settings), runners=runners)
    except ReleaseRefused as refusal:
        next_steps = (
            f"not published: {refusal}",
            f"show the candidate:        dpsynth release show {place.arguments}",
            f"decide, as another person: dpsynth release approve {place.arguments} --as NAME",
        )
        return Outcome(place.dataset, place.period, next_steps=next_steps)
    from dpsynth_platform.operations import running

    with running.open_instance(settings) as instance:
        result = running.run_line(
            settings,
            instance,
            f"{place.dataset}_release",
            period=place.period,
            in_process=in_process,
            progress=progress,
        )
    outcome = _outcome(contract, place.period, result, ())
    if outcome.failures or not result.success:
        return outcome
    path = storage.require(place, "released").facts["path"]
    next_steps = (
        f"release: {path}",
        f"read its dossier in a browser: {path}/dossier.html",
        f"verify it:                     dpsynth release verify {path}",
    )
    return replace(outcome, release=path, next_steps=next_steps)


def _is_current(settings: Settings, contract: DataContract, family: FamilyBudget, place: Place) -> bool:
    """Whether the candidate is of the contract and source as they are now, and its evidence is what publication checks.

    Then every step would reuse its output, and refuse nothing. In doubt, and where only a step can tell (a copied
    source, the files of a public base), the answer is no.
    """
    from dpsynth_platform.ledger import chain
    from dpsynth_platform.lifecycle.erasure import erasure_of, honoured
    from dpsynth_platform.lifecycle.owner_keys import KEY_IDS
    from dpsynth_platform.lineage.clearance import clear
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.release.evidence import check_content, line_steps
    from dpsynth_platform.sources.source import pin

    storage, line = Storage(settings.restricted), line_steps(contract)
    records = [storage.read(place, step) for step in line[: line.index("released")]]
    made = [record for record in records if record is not None and storage.exists(record)]
    raw = next((record for record in made if record.step == "raw"), None)
    if raw is None or len(made) < len(records) or any(record.run_key != raw.run_key for record in made):
        return False
    same = {"contract": contract.snapshot(), "code_version": RAW_VERSION}
    bases = [base for base in contract.bases if base.kind != "lookup"]  # a lookup's content is the source's
    if not same.items() <= raw.facts.items() or contract.source.is_copied or bases:
        return False
    ledger = accounts.ledger(settings)
    try:
        source = pin(contract, storage.root).named_as(raw.facts["source"]).name
        ledger.check_declared(family)
        checked = check_content(storage, place, contract, ledger)
        paid = checked.candidate.entry_id
        cleared = clear(ledger, LineageStore(settings.ledger_url), contract, family, entry_id=paid)
        recorded = ledger.history(kinds=[chain.CANDIDATE], subject=checked.candidate.digest)
        account = ledger.account(contract.family)
        erased = erasure_of(ledger, account.namespace)
    except DpsynthError:
        return False  # the step that finds it says more
    content = {record.step: record.content_hash for record in made}
    as_cleared = cleared.kept(checked.clearance) is checked.clearance
    known = any(event.payload.get("entry") == paid for event in recorded)
    linked = all(content.get(step, digest) == digest for record in made for step, digest in record.inputs.items())
    kept = all(
        scrubbed.facts.get(KEY_IDS) == list(account.key_ids) and honoured(scrubbed, erased)
        for scrubbed in made
        if scrubbed.step == "scrubbed"
    )
    return as_cleared and known and linked and kept and source == raw.facts["source"]


def _steps_up_to(contract: DataContract, last: str | None, spend_again: str | None) -> tuple[str, ...]:
    """The line's steps up to `last`; empty for the whole line. Publication is a separate run."""
    if last is None:
        return ()
    from dpsynth_platform.release.evidence import line_steps

    line = line_steps(contract)
    partial = line[: line.index("released")]
    if last not in partial:
        raise ConfigurationError(f"--up-to {last!r}; accepted: {', '.join(partial)}")
    steps = partial[: partial.index(last) + 1]
    if spend_again is not None and "clearance" not in steps:
        raise ConfigurationError(
            f"--up-to {last} ends before the step that reads --spend-again; accepted: one of the two"
        )
    return steps


def _outcome(contract: DataContract, period: str | None, result: LineResult, new_entries: tuple[str, ...]) -> Outcome:
    failures = result.failures
    if not result.success and not failures:
        failures = (("run", "the run failed outside of its steps; see it in Dagster"),)
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
"""Parts of a scrubbing report without counts."""


def _fact_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values; nested mappings get a row for each inner mapping."""
    for name, value in facts.items():
        if name == "reused":
            if value:
                yield "existed already", "the run that made it shows its other counts"
        elif name == "scrubbing report":
            yield from _fact_rows({part: what for part, what in value.items() if part not in _NO_COUNTS})
        elif isinstance(value, Mapping) and any(isinstance(part, Mapping) for part in value.values()):
            yield from _fact_rows({f"{name}: {key}": part for key, part in value.items()})
        elif isinstance(value, Mapping):
            yield name, ", ".join(f"{key} {part}" for key, part in value.items()) or "none"
        else:
            yield name.replace("_", " "), str(value)


def _entries(settings: Settings, place: Place) -> dict[str, str]:
    """States of the place's entries."""
    if not settings.has_ledger:
        return {}
    entries = accounts.ledger(settings).entries()
    return {entry.entry_id: entry.state for entry in entries if entry.request.place == place.label}
