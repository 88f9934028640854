"""What a run would do and cost, from public facts.

What belongs here: comparing a dataset's plan with its family's account before anything runs. What does not: reserving
anything, or reading a record.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.periods import CADENCES
from dpsynth_platform.contracts.text_generation import published_name
from dpsynth_platform.federation.contracts import described as described_plan
from dpsynth_platform.federation.contracts import plan_of_contract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import BudgetExceeded, ContractError, LedgerError, SourceError
from dpsynth_platform.foundation.figures import number_of, rounded, upper_bound
from dpsynth_platform.foundation.markdown import html_table
from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import Account, CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.ledger.verdicts import left_for
from dpsynth_platform.ledger.words import other_reservations
from dpsynth_platform.lineage.clearance import Clearance, clear, guarded_public_table
from dpsynth_platform.privacy.guarantee import Guarantee, tier
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.sources.source import PinnedSource, at_version, pin
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.automatic import why_in_words
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.domain import Domain, filled_in_words
from dpsynth_platform.synth.tabular.missing import MOSTLY_MISSING

if TYPE_CHECKING:
    import pyarrow as pa

MOST_COUNTED = 1000
"""Releases that are counted, at most: twenty years of weeks."""


@dataclass(frozen=True)
class Forecast:
    """What a run would do and cost, from public facts.

    Attributes:
        units: how many privacy units the contract expects.
        claimed: the epsilon that the release would claim: the smaller of PLD and Renyi, never above the target.
        preparation: which columns are counted finely first, in words.
        training: who writes texts and how it learns or is prompted, in words; None without texts.
        drawing: who draws pictures from synthetic texts, and what is shown to it, in words; None without.
        filled: columns without missing values in a release, whatever the data lack; `nullable`: the other columns.
        cap: of the account, or of the family's file before there is one.
        left: what is left of the cap for releases like this one, at its own delta, before this run.
        releases_left: with a cadence, how many further releases like this one fit if the same people take part in each;
            at most `MOST_COUNTED`. None without a cadence.
        noun: a period in words; None without a cadence.
        standing: ledger entry that has already paid for this run, which then costs nothing.
        paid_before: ledger entry that paid for a model of this place by another run; this run would pay again.
        changed: known keys of the contract that make it another run than that one.
        canaries: how many there are and their share of the counted records, in words.
        audit_shortage: why the audit can only be inconclusive, or None.
        lost_training: why the training of a language model learns little, or None.
        lost_votes: why private votes for texts are mostly noise, or choose nothing, or None.
        mostly_missing: columns with hardly any usable value by the last run's noisy counts, in words.
        public, public_in_words: rows, columns and unlisted values of the public table that helps; None without one.
        asked: what noise does to each answer, in words; empty where rows are made.
        reserved: earlier reservations that count and that this run does not use, in words.
        copied: whether the source is copied by each run, so that only a run sees whether its rows are others.
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
    drawing: str | None
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
    asked: tuple[str, ...] = ()
    public: dict[str, Any] | None = None
    public_in_words: str | None = None
    reserved: tuple[str, ...] = ()
    copied: bool = False
    releases_left: int | None = None
    noun: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """A table of two columns for readers who are no experts; the last row is for experts."""
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
                "in other words",
                f"one {target.unit}'s data change the chance of any conclusion from the release by a factor of at most "
                f"{upper_bound(math.exp(self.claimed))}, except for {upper_bound(target.delta)} in probability (to "
                f"draw one {target.unit} of the {self.units:,} expected and show all of it would have "
                f"{upper_bound(1 / self.units)})",
            ),
            *(
                (_plain(name), f"each count is off by about {value:.3g} records in the mean")
                for name, value in self.error.items()
            ),
            ("method", f"{self.mechanism}: {why_in_words(self.why_mechanism, 'above')}"),
            *([("what is counted", self.preparation)] if self.preparation else []),
            *([("public table", self.public_in_words)] if self.public_in_words else []),
            *(("noise of an answer", words) for words in self.asked),
            *([("who writes texts", self.training)] if self.training else []),
            *([("who draws pictures", self.drawing)] if self.drawing else []),
            *([("training", self.lost_training)] if self.lost_training else []),
            *([("votes", self.lost_votes)] if self.lost_votes else []),
            *([("missing values", filled_in_words(self.filled, self.nullable))] if self.filled else []),
            *(("the last run", sentence) for sentence in self.mostly_missing),
            ("what survives", f"what {survivors} have in common; the noise hides the rest"),
            *((_plain(name), rounded(value, 4)) for name, value in self.size.items()),
            (
                "what it costs",
                f"that epsilon and delta, of what all releases about the family {self.family} may cost together for "
                f"life: epsilon {self.cap['epsilon']:g}, delta {self.cap['delta']:g}",
            ),
            ("what is left now", accounts.left_words(self.left, target.delta, self.mode, "this one")),
            *([("how long it lasts", self._lasting())] if self.releases_left is not None else []),
            ("canaries", f"bait by which the audit tests whether those who joined are recognized: {self.canaries}"),
            *([("audit", self.audit_shortage)] if self.audit_shortage else []),
            ("a run now", self._verdict()),
            *([("paid twice", self._paid_twice())] if self.paid_before else []),
            *(("reserved before", words) for words in self.reserved),
            (
                "for experts",
                "; ".join(filter(None, (self.event_in_words, f"epsilon by {self.method}", target.adjacency, noise))),
            ),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {words}" for name, words in self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())

    def _lasting(self) -> str:
        count = self.releases_left or 0
        more = " or more" if count >= MOST_COUNTED else ""
        who = "an owner who was never charged and takes" if self.mode == "per-owner" else "people who all take"
        return f"for {number_of(count, str(self.noun))}{more}, at one release each, for {who} part every time"

    def _verdict(self) -> str:
        if self.standing is not None:
            return f"would spend nothing: ledger entry {self.standing} has paid for it"
        return "would be admitted" if self.fits else f"would be blocked: {self.refusal}"

    def _paid_twice(self) -> str:
        if self.copied and not self.changed:
            return (
                f"ledger entry {self.paid_before} has paid for a model of the rows that an earlier run copied. A run "
                "copies the source again: with the same rows it spends nothing, with others it would pay for another "
                "model"
            )
        why = ", ".join(self.changed) or "the source table or the contract"
        return (
            f"ledger entry {self.paid_before} has paid for a model already, by a run before {why} changed. This run "
            "would pay for another model, and nothing is given back; only the former contract and source use the model "
            "that is paid for"
        )


def clearance_forecast(
    settings: Settings, dataset: str, period: str | None, base_model: str | None
) -> tuple[Clearance, Entry | None]:
    """What a run would add to, by public facts, and its own ledger entry if it has one. No record is read.

    A run that is reserved or paid for is compared with what was before it, as its own clearance was; any other with
    everything, at the cost of the plan that the contract alone calibrates.
    """
    from dpsynth_platform.lineage.store import LineageStore

    contract, family = planning.load_dataset(settings, dataset)
    planning.check_period(contract, period)
    store, graph = Ledger(settings.ledger_url), LineageStore(settings.ledger_url)
    raw = Storage(settings.restricted).read(Place(dataset, period), "raw")
    same = raw is not None and raw.facts["mechanism_digest"] == canonical_digest(contract.mechanism_snapshot())
    entry = store.entry_for_key(raw.run_key) if raw is not None and same else None
    if entry is not None and entry.live:
        return clear(store, graph, contract, family, entry_id=entry.entry_id, base_model=base_model), entry
    if (refused := guarded_public_table(store, graph, contract, family)) is not None:
        return refused, None
    request = planning.cost_request(_planned(contract, period), settings.user)
    return clear(store, graph, contract, family, request=request, base_model=base_model), None


_PLAIN = {
    "expected_error_per_one_way_cell": "noise in counts of one column, by this plan",
    "expected_error_per_two_way_cell": "noise in counts of two columns, by this plan",
    "one_way_cells": "counts of one column",
    "most_cells_measured": "counts in all, at most",
    "predicted_noise_seconds": "expected seconds for drawing noise",
    "predicted_training_seconds": "expected seconds for training, on one core",
}


def _plain(name: str) -> str:
    return _PLAIN.get(name, name.replace("_", " "))


def _planned(contract: DataContract, period: str | None, schema: pa.Schema | None = None) -> SealedPlan:
    """The plan of a contract, by the types of its source, or those that it suggests.

    Of linked tables, the source's metadata and the keys of its public tables are read.
    """
    if contract.tables:
        from dpsynth_platform.linked_rows.line import plan_of

        return plan_of(contract)
    if contract.source.federation is not None:
        return plan_of_contract(contract)
    from dpsynth_platform.synth.mock import source_schema_of

    return planning.plan_release(contract, source_schema_of(contract) if schema is None else schema, period)


def _why(contract: DataContract) -> str:
    """The method of each of linked tables."""
    from dpsynth_platform.synth.automatic import method_for

    chosen = method_for(contract)
    return f"each table by {chosen.method}: {chosen.why}"


def _view_in_words(name: str, view: dict[str, Any]) -> str:
    """What is counted of one of linked tables."""
    noise = view.get("expected_error_per_one_way_cell")
    off = "" if noise is None else f", by which a count of one column is off by about {noise:.3g} owners in the mean"
    part = (
        f"a part of the budget (epsilon {upper_bound(view['epsilon'], 2)} alone)" if "epsilon" in view else "one budget"
    )
    return (
        f"{name}: at most {number_of(view['bound'], 'row')} of an owner, which weigh one row together, with {part}{off}"
    )


def _drawing(contract: DataContract) -> str | None:
    drawn = contract.generate.drawn
    if drawn is None:
        return None
    return (
        f"{published_name(drawn.endpoint.model)}, behind {urlsplit(drawn.endpoint.url).hostname}, draws "
        f"{contract.image_column} from each synthetic {contract.text_column}, at no further cost in privacy. It is "
        "shown these texts before anybody approves their release. No mechanism reads the pictures of the source"
    )


def forecast(settings: Settings, dataset: str, period: str | None) -> Forecast:
    """Calibrates a dataset's plan from its contract alone and compares it with the family's account.

    Nothing is reserved, and no record is read: the source's types are taken from the contract, unless it has tables.
    """
    from dpsynth_platform.audit.canary_cost import share_in_words
    from dpsynth_platform.audit.shortage import certain_shortage_of, shortage_of
    from dpsynth_platform.privacy.statement import privacy_statement, words_of
    from dpsynth_platform.synth.text.choice import lost_training_of
    from dpsynth_platform.synth.text.lost_votes import lost_votes_of

    contract, family = planning.load_dataset(settings, dataset)
    planning.check_period(contract, period)
    check_public_table(settings, contract, family)
    plan = _planned(contract, period)
    described, domain = described_plan(contract, plan), Domain.from_json(plan.columns)
    filled, nullable, preparation = domain.filled, domain.nullable, domain.preparation
    if contract.tables:
        nullable = tuple(name for name in contract.modelled if contract.columns[name].nullable)
        filled = tuple(name for name in contract.modelled if name not in nullable)
        preparation = "; ".join(starmap(_view_in_words, described["tables"].items()))

    def numbers(*names: str) -> dict[str, float]:
        return {name: described[name] for name in names if name in described}

    statement = privacy_statement(contract, family, plan.event, words_of(plan.method, plan.event))
    store = accounts.ledger(settings) if settings.has_ledger else None
    request = planning.cost_request(plan, settings.user)
    account, outdated = _account_of(store, family)
    models = contract.mechanisms
    left, refusal = _standing_of(store, account, family, request, models)
    last = _last_run(settings, contract, period)
    stopped = outdated or _other_choice(store, contract, last)
    key = None if stopped else _key_now(store, contract, last)
    standing = _standing_entry(store, key)
    charged = store.charged_for(contract.family, Place(dataset, period).label) if store is not None else []
    if refusal is None and standing is None:
        refusal = _not_cleared(settings, store, contract, family, request)
    public = described.get("public_in_words")
    if standing is not None and last is not None and _has_other_public_rows(plan, last[0]):
        public = f"{public}; a run keeps the plan that is paid for, which has other rows of this table"
    paid_before, changed = (None, ()) if standing else _paid_before(settings, store, contract, period)
    if refusal is None and standing is None and certain_shortage_of(contract) is not None:
        refusal = "its audit could not conclude, which the contract does not accept"
    if refusal is None and paid_before is not None and period is not None:
        refusal = f"a period is paid for once, unless you say so: --spend-again {paid_before}"
    return Forecast(
        dataset=dataset,
        period=period,
        event=plan.event,
        mechanism=plan.method,
        why_mechanism=_why(contract) if contract.tables else plan.why,
        event_in_words=described["event"],
        target=Guarantee.target(contract),
        units=contract.privacy.expected_units,
        claimed=statement.guarantee.epsilon,
        method=statement.accounting["type"],
        noise=numbers("sigma_one", "epsilon_select", "sigma_two", "rho"),
        error=numbers("expected_error_per_one_way_cell", "expected_error_per_two_way_cell"),
        preparation="" if contract.generate.answers else preparation,
        training=described.get("training_in_words"),
        drawing=_drawing(contract),
        filled=() if contract.generate.answers else filled,
        nullable=() if contract.generate.answers else nullable,
        asked=tuple(described.get("queries_in_words", ())),
        public=described.get("public"),
        public_in_words=public,
        size=numbers("one_way_cells", "most_cells_measured", "predicted_noise_seconds", "predicted_training_seconds"),
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
        reserved=() if key is None else tuple(other_reservations(charged, planning.mechanism_keys(contract, key))),
        copied=contract.source.is_copied,
        releases_left=_releases_left(store, account, family, request, models) if contract.release.cadence else None,
        noun=CADENCES[contract.release.cadence].noun if contract.release.cadence else None,
    )


def check_public_table(settings: Settings, contract: DataContract, family: FamilyBudget) -> None:
    """Raises `ClearanceRefused` for a public table that lineage knows as guarded, before it is read."""
    from dpsynth_platform.lineage.store import LineageStore

    if settings.has_ledger:
        store, graph = Ledger(settings.ledger_url), LineageStore(settings.ledger_url)
        if (refused := guarded_public_table(store, graph, contract, family)) is not None:
            refused.require(contract.dataset)


def _not_cleared(
    settings: Settings, store: Ledger | None, contract: DataContract, family: FamilyBudget, request: CostRequest
) -> str | None:
    """Why a run would not be cleared for a public base; None if it would be, or has none."""
    from dpsynth_platform.lineage.store import LineageStore

    if not contract.bases:
        return None
    with tempfile.TemporaryDirectory() as nowhere:
        # Without a ledger nothing is known of the model, and a forecast must not create a ledger.
        url = settings.ledger_url if store is not None else embedded_ledger(Path(nowhere))
        cleared = clear(store or Ledger(url), LineageStore(url), contract, family, request=request)
    return cleared.reason if cleared.decision == "refuse" else None


def _mostly_missing(settings: Settings, contract: DataContract, period: str | None) -> tuple[str, ...]:
    """What the last run's noisy counts say of its columns; as public as a release."""
    record = Storage(settings.restricted).read(Place(contract.dataset, period), "synthetic")
    return () if record is None else tuple(record.facts.get(MOSTLY_MISSING, ()))


def _last_run(settings: Settings, contract: DataContract, period: str | None) -> tuple[StepRecord, PinnedSource] | None:
    """The record of `raw`, and the source's newest version by its metadata; None if either is missing."""
    raw = Storage(settings.restricted).read(Place(contract.dataset, period), "raw")
    if raw is None:
        return None
    try:
        return raw, pin(contract, settings.restricted)
    except SourceError:
        return None


def _key_now(store: Ledger | None, contract: DataContract, last: tuple[StepRecord, PinnedSource] | None) -> str | None:
    """The key of the present run, or None where there is no earlier one.

    As in `raw`: the last run's plan is valid while contract and source are unchanged, and is calibrated anew otherwise.
    """
    if store is None or last is None:
        return None
    raw, pinned = last
    same = canonical_digest(contract.mechanism_snapshot()) == raw.facts["mechanism_digest"]
    same &= planning.in_zone(raw, contract.release.time_zone)
    if same and _kept(raw, pinned).name == raw.facts["source"]:
        return raw.run_key
    return planning.run_key(contract, pinned, raw.period, _planned(contract, raw.period, pinned.schema))


def _standing_entry(store: Ledger | None, key: str | None) -> str | None:
    """The entry that has paid for the run of a key, or None."""
    entry = None if store is None or key is None else store.entry_for_key(key)
    return entry.entry_id if entry is not None and entry.state == "spent" else None


def _has_other_public_rows(plan: SealedPlan, raw: StepRecord) -> bool:
    """Whether the public table has changed since a run sealed its plan; False where that plan is gone."""
    from dpsynth_platform.synth.tabular.marginals import sealed_rows

    now, file = sealed_rows(plan), None if raw.path is None else Path(raw.path, "plan.json")
    if now is None or file is None or not file.is_file():
        return False
    then = sealed_rows(SealedPlan.from_json(file.read_text(encoding="utf-8"), expected_digest=raw.facts["plan_digest"]))
    return then is not None and then.digest != now.digest


def _other_choice(
    store: Ledger | None, contract: DataContract, last: tuple[StepRecord, PinnedSource] | None
) -> str | None:
    """Why `raw` would refuse the present meaning of `auto`, since another method is paid for; else None."""
    if store is None or last is None:
        return None
    raw, pinned = last
    charged = store.charged_for(contract.family, Place(contract.dataset, raw.period).label)
    try:
        planning.check_choice(contract, raw, _kept(raw, pinned), charged)
    except ContractError as refusal:
        return str(refusal)
    return None


def _kept(raw: StepRecord, newest: PinnedSource) -> PinnedSource:
    """The version that a paid run of a period keeps, even if there is a newer one; else the newest."""
    kept = None if raw.period is None else at_version(newest, raw.facts["source"], newest.schema)
    return kept or newest.named_as(raw.facts["source"])


def _paid_before(
    settings: Settings, store: Ledger | None, contract: DataContract, period: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The entry that paid for the latest model of a dataset and period, and the known changes since."""
    storage, place = Storage(settings.restricted), Place(contract.dataset, period)
    raw, model = storage.read(place, "raw"), storage.read(place, "model")
    if store is None or raw is None or model is None:
        return None, ()
    # After raw was made anew, the contract of the model's run is no longer recorded.
    then = DataContract.model_validate(raw.facts["contract"]) if raw.run_key == model.run_key else contract
    return model.facts["entry_id"], tuple(planning.changes(then, contract))


def _account_of(store: Ledger | None, family: FamilyBudget) -> tuple[Account | None, str | None]:
    """The family's account, and how the family's file differs from it; each None if there is none."""
    if store is None:
        return None, None
    try:
        return store.check_declared(family), None
    except LedgerError as differs:
        return store.account(family.family), str(differs)


def _releases_left(
    store: Ledger | None, account: Account | None, family: FamilyBudget, request: CostRequest, times: int
) -> int:
    """How many releases like the requested one still fit, of `times` mechanisms each; at most `MOST_COUNTED`."""

    def fits(number: int) -> bool:
        return _standing_of(store, account, family, request, number * times)[1] is None

    if not fits(1):
        return 0
    fitting, other = 1, MOST_COUNTED + 1
    while other - fitting > 1:
        middle = (fitting + other) // 2
        fitting, other = (middle, other) if fits(middle) else (fitting, middle)
    return fitting


def _standing_of(
    store: Ledger | None, account: Account | None, family: FamilyBudget, request: CostRequest, times: int
) -> tuple[float, str | None]:
    """What is left for each of `times` releases like the requested one, and why they would be refused, or None."""
    if store is None or account is None:
        sealed = RenyiFilter.seal(family.cap.epsilon, family.cap.delta)
        fits = sealed.fits([(request.curve, request.delta_slack)] * times)
        what = "delta, by its thresholds" if sealed.fits([(request.curve, 0.0)] * times) else "epsilon"
        return left_for(
            sealed, sealed.nothing, request, times
        ), None if fits else f"it alone exceeds the family's cap ({what})"
    left = store.left_for(account.family, request, times)
    try:
        store.admit(account.family, request, times=times, dry_run=True)
    except BudgetExceeded as refusal:
        return left, str(refusal)
    return left, None
