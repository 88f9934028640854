"""What a run would do and cost, from public facts.

What belongs here: a dataset's plan held against its family's account, before anything runs. What does not: reserving
anything, or reading a record.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import BudgetExceeded, ContractError, LedgerError, SourceError
from dpsynth_platform.foundation.figures import number_of, rounded, upper_bound
from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import Account, CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.clearance import Clearance, clear
from dpsynth_platform.privacy.guarantee import Guarantee, tier
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.sources.source import PinnedSource, at_version, pin
from dpsynth_platform.synth.planning import (
    changes,
    check_choice,
    check_period,
    cost_request,
    in_zone,
    load_dataset,
    plan_release,
    run_key,
)
from dpsynth_platform.synth.tabular.domain import Domain, filled_in_words
from dpsynth_platform.synth.tabular.missing import MOSTLY_MISSING


@dataclass(frozen=True)
class Forecast:
    """What a run would do and cost, from public facts.

    Attributes:
        event: the privacy event, as JSON.
        event_in_words: the same for people.
        units: how many privacy units the contract expects.
        claimed: the epsilon that the release would claim: the smaller of PLD and Renyi, never above the target.
        preparation: which columns are counted finely first, in words.
        training: who writes texts and how it learns or is asked, in words; None where no text is written.
        filled: columns that lack no value in a release, whatever the data lack.
        nullable: the other columns.
        cap: the account's, or the one that its family's file declares where there is no account yet.
        left: what is left of that cap for a Gaussian-like mechanism, before this run.
        mode: how the family is charged.
        fits: whether the run would be admitted.
        refusal: why not, where it would not.
        standing: ledger entry that has paid already for the run as it would be now; then it costs nothing.
        paid_before: ledger entry that has paid for a model of this dataset and period by another run, or None; then
            the run would pay a second time.
        changed: keys of the contract that make it another run than that one, as far as they are known.
        canaries: how many there are and what share of what is counted, in words.
        audit_shortage: why the audit can only be inconclusive, or None.
        lost_training: why the training of a language model learns little; or None.
        lost_votes: why private votes for texts are mostly noise, or choose nothing; or None.
        mostly_missing: columns with hardly any usable value, by the noisy counts of the last run, in words.
    """

    dataset: str
    period: str | None
    event: dict[str, Any]
    mechanism: str
    why_mechanism: str
    event_in_words: str
    target: Guarantee
    units: int
    claimed: float
    method: str
    noise: dict[str, float]
    error: dict[str, float]
    preparation: str
    training: str | None
    filled: tuple[str, ...]
    nullable: tuple[str, ...]
    size: dict[str, float]
    family: str
    cap: dict[str, float]
    left: float
    mode: str
    fits: bool
    refusal: str | None
    standing: str | None
    paid_before: str | None
    changed: tuple[str, ...]
    canaries: str
    audit_shortage: str | None
    lost_training: str | None
    lost_votes: str | None
    mostly_missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The forecast as a table of two columns, for readers who are no experts; the last row is for those who are."""
        from dpsynth_platform.privacy.statement import HIDDEN

        target = self.target
        noise = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.noise.items())
        survivors = "clearly more records than that" if self.error else "many records"
        return [
            (
                "whom it protects",
                f"each {target.unit}, with at most {number_of(target.max_contributions, 'record')} used; hidden is "
                f"{HIDDEN[target.adjacency]}",
            ),
            (
                "how well",
                f"{tier(self.claimed)}: epsilon {upper_bound(self.claimed, 4)}, delta {upper_bound(target.delta)} "
                "(smaller protects more; epsilon up to 1 is strong, up to 10 reasonable)",
            ),
            (
                "that is to say",
                f"one {target.unit}'s data change the chance of any conclusion from the release by a factor of at most "
                f"{upper_bound(math.exp(self.claimed))}, apart from {upper_bound(target.delta)} in probability (to "
                f"draw one {target.unit} of the {self.units:,} expected and show all of it would have "
                f"{upper_bound(1 / self.units)})",
            ),
            *((_plain(name), f"each is off by about {value:.3g} records") for name, value in self.error.items()),
            ("method", f"{self.mechanism}: {self.why_mechanism}"),
            ("what is counted", self.preparation),
            *([("who writes texts", self.training)] if self.training else []),
            *([("training", self.lost_training)] if self.lost_training else []),
            *([("votes", self.lost_votes)] if self.lost_votes else []),
            *([("missing values", filled_in_words(self.filled, self.nullable))] if self.filled else []),
            *(("the last run", sentence) for sentence in self.mostly_missing),
            ("what survives", f"what {survivors} have in common; the rest drowns in the noise"),
            *((_plain(name), rounded(value, 4)) for name, value in self.size.items()),
            (
                "what it costs",
                f"that epsilon and delta, of what all releases about the family {self.family} may cost together for "
                f"life: epsilon {self.cap['epsilon']:g}, delta {self.cap['delta']:g}",
            ),
            ("what is left now", accounts.left_words(self.left, self.mode)),
            ("canaries", self.canaries),
            *([("audit", self.audit_shortage)] if self.audit_shortage else []),
            ("a run now", self._verdict()),
            *([("paid twice", self._paid_twice())] if self.paid_before else []),
            (
                "for experts",
                "; ".join(filter(None, (self.event_in_words, f"epsilon by {self.method}", target.adjacency, noise))),
            ),
        ]

    def _verdict(self) -> str:
        if self.standing is not None:
            return f"would spend nothing: ledger entry {self.standing} has paid for it"
        return "would be admitted" if self.fits else f"would be blocked: {self.refusal}"

    def _paid_twice(self) -> str:
        """What a run would pay for again, and why it is another run."""
        why = ", ".join(self.changed) or "the source table, or what the contract says"
        return (
            f"ledger entry {self.paid_before} has paid for a model already, by a run before {why} changed. This would "
            "be another model and another payment, and nothing is given back; only the contract and the source as "
            "they were then use the one that is paid for"
        )


def _of(described: dict[str, Any], *names: str) -> dict[str, float]:
    """Those numbers of a plan's description that its method has."""
    return {name: described[name] for name in names if name in described}


def clearance_forecast(
    settings: Settings, dataset: str, period: str | None, base_model: str | None
) -> tuple[Clearance, Entry | None]:
    """What a run would add to, by public facts alone, and its own ledger entry if it has one. No record is read.

    A run that is reserved or paid for already is held against what was before it, as its own clearance was; any other
    against all that there is, with the cost of the plan as the contract alone calibrates it.

    Args:
        base_model: another checkpoint than the contract's.
    """
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.synth.mock import source_schema_of

    contract, family = load_dataset(settings, dataset)
    check_period(contract, period)
    store, graph = Ledger(settings.ledger_url), LineageStore(settings.ledger_url)
    raw = Storage(settings.restricted).read(Place(dataset, period), "raw")
    same = raw is not None and raw.facts["mechanism_digest"] == canonical_digest(contract.mechanism_snapshot())
    entry = store.entry_for_key(raw.run_key) if raw is not None and same else None
    if entry is not None and entry.live:
        return clear(store, graph, contract, family, entry_id=entry.entry_id, base_model=base_model), entry
    request = cost_request(plan_release(contract, source_schema_of(contract), period), settings.user)
    return clear(store, graph, contract, family, request=request, base_model=base_model), None


_PLAIN = {
    "expected_error_per_one_way_cell": "noise in counts of one column",
    "expected_error_per_two_way_cell": "noise in counts of two columns",
    "one_way_cells": "counts of one column",
    "most_cells_measured": "counts in all, at most",
    "predicted_noise_seconds": "seconds to draw their noise",
}


def _plain(name: str) -> str:
    """One of the mechanism's own numbers in words."""
    return _PLAIN.get(name, name.replace("_", " "))


def forecast(settings: Settings, dataset: str, period: str | None) -> Forecast:
    """Calibrates a dataset's plan from its contract alone and holds it against the family's account.

    Nothing is reserved, and no record is read: the source's types are taken from the contract.
    """
    from dpsynth_platform.audit.canary_cost import share_in_words
    from dpsynth_platform.audit.shortage import shortage_of
    from dpsynth_platform.privacy.statement import privacy_statement, words_of
    from dpsynth_platform.synth.mock import source_schema_of
    from dpsynth_platform.synth.text.choice import lost_training_of
    from dpsynth_platform.synth.text.lost_votes import lost_votes_of

    contract, family = load_dataset(settings, dataset)
    check_period(contract, period)
    plan = plan_release(contract, source_schema_of(contract), period)
    described, domain = plan.describe(), Domain.from_json(plan.columns)
    statement = privacy_statement(contract, family, plan.event, words_of(plan.method, plan.event))
    store = accounts.ledger(settings) if settings.has_ledger else None
    request = cost_request(plan, settings.user)
    account, outdated = _account_of(store, family)
    left, refusal = _standing_of(store, account, family, request, 2 if contract.separate_audit_model else 1)
    last = _last_run(settings, contract, period)
    stopped = outdated or _other_choice(store, contract, last)
    standing = None if stopped else _standing_entry(store, contract, last)
    if refusal is None and standing is None:
        refusal = _not_cleared(settings, store, contract, family, request)
    paid_before, changed = (None, ()) if standing else _paid_before(settings, store, contract, period)
    if refusal is None and paid_before is not None and period is not None:
        refusal = f"a period is paid for once, unless you say so: --spend-again {paid_before}"
    return Forecast(
        dataset=dataset,
        period=period,
        event=plan.event,
        mechanism=plan.method,
        why_mechanism=plan.why,
        event_in_words=described["event"],
        target=Guarantee.target(contract),
        units=contract.privacy.expected_units,
        claimed=statement.guarantee.epsilon,
        method=statement.accounting["type"],
        noise=_of(described, "sigma_one", "epsilon_select", "sigma_two", "rho"),
        error=_of(described, "expected_error_per_one_way_cell", "expected_error_per_two_way_cell"),
        preparation=domain.preparation,
        training=described.get("training_in_words"),
        filled=domain.filled,
        nullable=domain.nullable,
        size=_of(described, "one_way_cells", "most_cells_measured", "predicted_noise_seconds"),
        family=family.family,
        cap=family.cap.model_dump() if account is None else accounts.cap_of(account),
        left=left,
        mode=family.mode,
        fits=not stopped and (refusal is None or standing is not None),
        refusal=stopped or refusal,
        standing=standing,
        paid_before=paid_before,
        changed=changed,
        canaries=share_in_words(contract),
        audit_shortage=shortage_of(contract),
        lost_training=lost_training_of(contract, settings),
        lost_votes=lost_votes_of(contract, plan),
        mostly_missing=_mostly_missing(settings, contract, period),
    )


def _not_cleared(
    settings: Settings, store: Ledger | None, contract: DataContract, family: FamilyBudget, request: CostRequest
) -> str | None:
    """Why a run would not be cleared for what it starts from; None where it would be, or starts from no model."""
    from dpsynth_platform.lineage.store import LineageStore

    if contract.generate.base_model is None:
        return None
    with tempfile.TemporaryDirectory() as nowhere:
        # Where there is no ledger yet, nobody knows anything of the model; looking must not make one.
        url = settings.ledger_url if store is not None else embedded_ledger(Path(nowhere))
        cleared = clear(store or Ledger(url), LineageStore(url), contract, family, request=request)
    return cleared.reason if cleared.decision == "refuse" else None


def _mostly_missing(settings: Settings, contract: DataContract, period: str | None) -> tuple[str, ...]:
    """What the last run's noisy counts say of its columns; they are as public as a release."""
    record = Storage(settings.restricted).read(Place(contract.dataset, period), "synthetic")
    return () if record is None else tuple(record.facts.get(MOSTLY_MISSING, ()))


def _last_run(settings: Settings, contract: DataContract, period: str | None) -> tuple[StepRecord, PinnedSource] | None:
    """What `raw` left of the last run, and the source's newest version; None where there is none of either.

    Of the source, metadata only are read.
    """
    raw = Storage(settings.restricted).read(Place(contract.dataset, period), "raw")
    if raw is None:
        return None
    try:
        return raw, pin(contract)
    except SourceError:
        return None


def _standing_entry(
    store: Ledger | None, contract: DataContract, last: tuple[StepRecord, PinnedSource] | None
) -> str | None:
    """The entry that has paid for the run as it would be now, if one has.

    As `raw` would: the plan of the last run stands while contract and source do, and is calibrated anew otherwise.
    """
    if store is None or last is None:
        return None
    raw, pinned = last
    same = canonical_digest(contract.mechanism_snapshot()) == raw.facts["mechanism_digest"]
    same &= in_zone(raw, contract.release.time_zone)
    if same and _kept(raw, pinned).name == raw.facts["source"]:
        key = raw.run_key
    else:
        key = run_key(contract, pinned, raw.period, plan_release(contract, pinned.schema, raw.period))
    entry = store.entry_for_key(key)
    return entry.entry_id if entry is not None and entry.state == "spent" else None


def _other_choice(
    store: Ledger | None, contract: DataContract, last: tuple[StepRecord, PinnedSource] | None
) -> str | None:
    """Why `raw` would not start what `auto` stands for now: another method is paid for. None where it would."""
    if store is None or last is None:
        return None
    raw, pinned = last
    charged = store.charged_for(contract.family, Place(contract.dataset, raw.period).label)
    try:
        check_choice(contract, raw, _kept(raw, pinned), charged)
    except ContractError as refusal:
        return str(refusal)
    return None


def _kept(raw: StepRecord, newest: PinnedSource) -> PinnedSource:
    """The version that a paid run of a period stays with, also where there is a newer one; else the newest."""
    kept = None if raw.period is None else at_version(newest, raw.facts["source"], newest.schema)
    return kept or newest.named_as(raw.facts["source"])


def _paid_before(
    settings: Settings, store: Ledger | None, contract: DataContract, period: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The entry that has paid for the latest model of a dataset and period, and what changed since that is known of."""
    storage, place = Storage(settings.restricted), Place(contract.dataset, period)
    raw, model = storage.read(place, "raw"), storage.read(place, "model")
    if store is None or raw is None or model is None:
        return None, ()
    # Once raw was made anew, the contract of the model's run is no longer on record.
    then = DataContract.model_validate(raw.facts["contract"]) if raw.run_key == model.run_key else contract
    return model.facts["entry_id"], tuple(changes(then, contract))


def _account_of(store: Ledger | None, family: FamilyBudget) -> tuple[Account | None, str | None]:
    """The family's account, or None while there is none; and how the family's file differs from it, or None."""
    if store is None:
        return None, None
    try:
        return store.check_declared(family), None
    except LedgerError as differs:
        return store.account(family.family), str(differs)


def _standing_of(
    store: Ledger | None, account: Account | None, family: FamilyBudget, request: CostRequest, times: int
) -> tuple[float, str | None]:
    """What is left of the family's cap (at its own delta), and why so many requests would be refused, or None."""
    if store is None or account is None:
        sealed = RenyiFilter.seal(family.cap.epsilon, family.cap.delta)
        fits = sealed.fits([(request.curve, request.delta_slack)] * times)
        what = "delta, by its thresholds" if sealed.fits([(request.curve, 0.0)] * times) else "epsilon"
        return sealed.left([], family.cap.delta), None if fits else f"it alone exceeds the family's cap ({what})"
    left = store.left(account.family, account.delta)
    try:
        store.admit(account.family, request, times=times, dry_run=True)
    except BudgetExceeded as refusal:
        return left, str(refusal)
    return left, None
