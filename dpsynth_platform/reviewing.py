"""What reviewers and engineers look at: forecasts, accounts, candidates, releases, and their decisions.

What belongs here: reading what the library keeps and putting it together for the command line (and whatever shows it
next), and recording approvals and refusals. What does not: running anything, or printing.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts import DataContract, FamilyBudget, canonical_digest
from dpsynth_platform.errors import (
    BudgetExceeded,
    ConfigurationError,
    LedgerError,
    ReleaseRefused,
    SourceError,
    VerificationFailed,
    file_problem,
)
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import Account, CostRequest, Decision, Entry, Head
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.planning import changes, cost_request, load_all, load_dataset, plan_release, run_key
from dpsynth_platform.privacy.figures import number_of, rounded, upper_bound
from dpsynth_platform.privacy.guarantee import Guarantee, tier
from dpsynth_platform.privacy.statement import WORDS, privacy_statement
from dpsynth_platform.release import evidence
from dpsynth_platform.release import verify as verification
from dpsynth_platform.settings import Settings
from dpsynth_platform.source import pin
from dpsynth_platform.storage import Place, Storage
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.vault import SIGNING_KEY, Vault

AUDIT_HEADER = ("attack", "on", "epsilon at least", "TPR at 1% FPR (95% interval)", "AUC")
QUALITY_HEADER = ("measure", "synthetic", "real or best possible", "without any model")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])", re.ASCII)


@dataclass(frozen=True)
class Forecast:
    """What a run would do and cost, from public facts.

    Attributes:
        event: the privacy event, as JSON.
        event_in_words: the same for people.
        claimed: the epsilon that the release would claim: the smaller of PLD and Renyi, never above the target.
        preparation: which columns are counted finely first, in words.
        cap: the account's, or the one that its family's file declares where there is no account yet.
        left: what is left of that cap for a Gaussian-like mechanism, before this run.
        mode: how the family is charged.
        fits: whether the run would be admitted.
        refusal: why not, where it would not.
        standing: ledger entry that has paid already for the run as it would be now; then it costs nothing.
        paid_before: ledger entry that has paid for a model of this dataset and period by another run, or None; then
            the run would pay a second time.
        changed: keys of the contract that make it another run than that one, as far as they are known.
        audit_shortage: why the audit can only be inconclusive, or None.
    """

    dataset: str
    period: str | None
    event: dict[str, Any]
    mechanism: str
    why_mechanism: str
    event_in_words: str
    target: Guarantee
    claimed: float
    method: str
    noise: dict[str, float]
    error: dict[str, float]
    preparation: str
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
    audit_shortage: str | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The forecast as a table of two columns, for readers who are no experts; the last row is for those who are."""
        target = self.target
        return [
            (
                "whom it protects",
                f"each {target.unit}, with at most {number_of(target.max_contributions, 'record')} used; hidden is "
                f"{_HIDDEN[target.adjacency]}",
            ),
            (
                "how well",
                f"{tier(self.claimed)}: epsilon {upper_bound(self.claimed, 4)}, delta {upper_bound(target.delta)} "
                "(smaller protects more; epsilon up to 1 is strong, up to 10 reasonable)",
            ),
            (
                "that is to say",
                f"one {target.unit}'s data change the chance of any conclusion from the release by a factor of at most "
                f"{upper_bound(math.exp(self.claimed))}, apart from {upper_bound(target.delta)} in probability",
            ),
            *((_plain(name), f"each is off by about {value:.3g} records") for name, value in self.error.items()),
            ("method", f"{self.mechanism}: {self.why_mechanism}"),
            ("what is counted", self.preparation),
            ("what survives", "what clearly more records than that have in common; the rest drowns in the noise"),
            *((_plain(name), rounded(value, 4)) for name, value in self.size.items()),
            (
                "what it costs",
                f"that epsilon and delta, of what all releases about the family {self.family} may cost together for "
                f"life: epsilon {self.cap['epsilon']:g}, delta {self.cap['delta']:g}",
            ),
            ("what is left", left_words(self.left, self.mode)),
            *([("audit", self.audit_shortage)] if self.audit_shortage else []),
            ("a run now", self._verdict()),
            *([("paid twice", self._paid_twice())] if self.paid_before else []),
            (
                "for experts",
                f"{self.event_in_words}; epsilon by {self.method}; {target.adjacency}; "
                + ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.noise.items()),
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


_HIDDEN = {
    "add-or-remove": "what their records say, and whether they are in the data at all",
    "zero-out": "what their records say, but not how many people there are",
    "replace-one": "what their records say, but not how many people there are",
    "fixed-graph": "what their records say, but not whose records they are",
}


def _of(described: dict[str, Any], *names: str) -> dict[str, float]:
    """Those numbers of a plan's description that its method has."""
    return {name: described[name] for name in names if name in described}


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


def left_words(left: float, mode: str) -> str:
    """What is left of a cap at its delta, with what keeps it from being the cap less what was spent."""
    whose = ", for an owner who was never charged" if mode == "per-owner" else ""
    rounded_down = math.floor(left * 1000) / 1000
    if rounded_down == 0:
        return f"no further release would fit{whose}"
    return (
        f"a further release of up to epsilon {rounded_down:g} at this delta would fit{whose} (costs add up more slowly "
        "than epsilons do)"
    )


def forecast(settings: Settings, dataset: str, period: str | None) -> Forecast:
    """Calibrates a dataset's plan from its contract alone and holds it against the family's account.

    Nothing is reserved, and no record is read: the source's types are taken from the contract.
    """
    from dpsynth_platform.audit.verdict import shortage_of
    from dpsynth_platform.synth.mock import source_schema_of

    contract, family = load_dataset(settings, dataset)
    check_period(contract, period)
    plan = plan_release(contract, source_schema_of(contract), period)
    described = plan.describe()
    statement = privacy_statement(contract, family, plan.event, WORDS[plan.method])
    store = ledger(settings) if has_ledger(settings) else None
    request = cost_request(plan, settings.user)
    account, outdated = _account_of(store, family)
    left, refusal = _standing_of(store, account, family, request)
    standing = None if outdated else _standing_entry(settings, store, contract, period)
    paid_before, changed = (None, ()) if standing else _paid_before(settings, store, contract, period)
    return Forecast(
        dataset=dataset,
        period=period,
        event=plan.event,
        mechanism=plan.method,
        why_mechanism=plan.why,
        event_in_words=described["event"],
        target=Guarantee.target(contract),
        claimed=statement.guarantee.epsilon,
        method=statement.accounting["type"],
        noise=_of(described, "sigma_one", "epsilon_select", "sigma_two", "rho"),
        error=_of(described, "expected_error_per_one_way_cell", "expected_error_per_two_way_cell"),
        preparation=Domain.from_json(plan.columns).preparation,
        size=_of(described, "one_way_cells", "most_cells_measured", "predicted_noise_seconds"),
        family=family.family,
        cap=family.cap.model_dump() if account is None else _cap_of(account),
        left=left,
        mode=family.mode,
        fits=not outdated and (refusal is None or standing is not None),
        refusal=outdated or refusal,
        standing=standing,
        paid_before=paid_before,
        changed=changed,
        audit_shortage=None if contract.audit.accept_inconclusive else shortage_of(contract),
    )


def check_period(contract: DataContract, period: str | None) -> None:
    """Refuses a period for a dataset without a cadence; for one with, all but a month that it has and that has ended.

    Raises:
        ConfigurationError: names the period and what is accepted.
    """
    if contract.release.cadence is None:
        if period is not None:
            raise ConfigurationError(f"{contract.dataset} has no cadence; leave --period out")
        return
    first, this_month = str(contract.release.start), dt.datetime.now(dt.UTC).strftime("%Y-%m")
    if period is None:
        raise ConfigurationError(f"{contract.dataset} is released by month; say which: --period YYYY-MM, from {first}")
    # Text of this form sorts as time does.
    if not _MONTH.fullmatch(period) or not first <= period < this_month:
        raise ConfigurationError(
            f"{contract.dataset}: --period {period!r}; accepted: a month (YYYY-MM) from {first} that has ended"
        )


def ledger(settings: Settings) -> Ledger:
    """The deployment's ledger.

    Raises:
        ConfigurationError: there is none; looking at one makes none.
    """
    if not has_ledger(settings):
        raise ConfigurationError(
            f"there is no ledger in {settings.home} (DPSYNTH_HOME); the first run of a dataset makes it"
        )
    return Ledger(settings.ledger_url)


def has_ledger(settings: Settings) -> bool:
    """Whether the deployment's ledger was made already; one that is configured is taken to exist."""
    return settings.ledger_url_is_configured or (settings.home / "ledger" / "ledger.db").exists()


def check_given_up(settings: Settings, place: Place, entry_id: str) -> None:
    """Refuses the word for a second spend where it names no entry of this dataset that could be given up."""
    entry = ledger(settings).entry(entry_id)
    if entry.request.place != place.label or entry.state != "started":
        raise LedgerError(
            f"{place.label}: entry {entry_id} is {entry.state} and of {entry.request.place}; only an entry of "
            f"{place.label} that started and did not complete can be given up"
        )


def accounts(settings: Settings) -> list[dict[str, Any]]:
    """All accounts: cap, what is left (for a Gaussian-like mechanism at the cap's delta), raises asked for, entries."""
    if not has_ledger(settings):
        return []
    store = ledger(settings)
    return [
        {
            "family": account.family,
            "mode": account.mode,
            "unit": account.unit,
            "adjacency": account.adjacency,
            "cap": _cap_of(account),
            "epsilon_left": store.left(account.family, account.delta),
            "raises_asked": [
                {"event": event.sequence, "at": event.at[:19]} | event.payload
                for event in store.history(kinds=[chain.RAISE_ASKED], subject=account.family)
                if event.payload["was"] == _cap_of(account)
            ],
            "entries": [_entry(entry) for entry in store.entries(account.family)],
        }
        for account in store.accounts()
    ]


@dataclass(frozen=True)
class LedgerVerification:
    """What was found in a deployment's ledger.

    Attributes:
        events: how many the chain has.
        entries: how many there are.
        dossiers: how many published ones the chain was held against.
        last_at: when the last event was, ISO 8601, UTC; None where there is none.
        problems: what does not fit; empty if the ledger is as it was written.
    """

    events: int
    entries: int
    dossiers: int
    last_at: str | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify_ledger(settings: Settings) -> LedgerVerification:
    """Recomputes the chain and holds it against the heads that the published dossiers name."""
    store = ledger(settings)
    heads = {path: _head_of(path) for path in _published(settings)}
    known = [head for head in heads.values() if head is not None]
    report = store.verify(known)
    unreadable = [
        f"{path}: its dossier cannot be read, so the chain is not held against the head in it"
        for path, head in heads.items()
        if head is None
    ]
    last = store.history(after=report.head.sequence - 1) if report.ok else []
    return LedgerVerification(
        events=report.events,
        entries=report.entries,
        dossiers=len(known),
        last_at=last[0].at if last else None,
        problems=(*report.problems, *unreadable),
    )


@dataclass(frozen=True)
class Review:
    """One candidate as a reviewer needs it. Restricted: the quality rows compare with real data."""

    place: str
    candidate: str
    guarantee: tuple[str, ...]
    verdict: str
    audit_summary: str
    audit_rows: Sequence[Sequence[str]]
    quality_rows: Sequence[Sequence[str]]
    runners: tuple[str, ...]
    approvals: tuple[str, ...]
    standing: str
    audit: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def review(settings: Settings, place: Place) -> Review:
    """The present candidate of a dataset. Raises `ReleaseRefused` where there is none."""
    storage, store = Storage(settings.restricted), ledger(settings)
    contract = _sealed(storage, place)
    _, family = load_dataset(settings, place.dataset)
    candidate = evidence.candidate_of(storage, place, contract)
    report = evidence.audit_report(place, storage.require(place, "audit"))
    quality = storage.read(place, "quality")
    rows = json.loads((quality.directory / "rows.json").read_text(encoding="utf-8")) if quality else []
    statement = evidence.statement_of(contract, family, store, candidate.entry_id, candidate.method)
    runners = evidence.candidate_runners(storage, place)
    decisions = store.approvals(candidate.digest)
    return Review(
        place=place.label,
        candidate=candidate.digest,
        guarantee=statement.plain_words(),
        verdict=report["verdict"],
        audit_summary=report["summary"],
        audit_rows=[attack_row(attack) for attack in report["attacks"]],
        quality_rows=rows,
        runners=runners,
        approvals=tuple(f"{item.decision} by {item.by} at {item.at}" for item in decisions),
        standing=_standing(storage, place, contract, store, runners),
        audit=report,
    )


def approve(settings: Settings, place: Place, by: str, reason: str) -> Decision:
    """Records an approval of the present candidate. Raises `ReleaseRefused` if the approver ran it."""
    storage, store = Storage(settings.restricted), ledger(settings)
    candidate = evidence.candidate_of(storage, place, _sealed(storage, place))
    runners = evidence.candidate_runners(storage, place)
    return store.approve(candidate.digest, by=by, entry_id=candidate.entry_id, reason=reason, runners=runners)


def refuse(settings: Settings, place: Place, by: str, reason: str) -> Decision:
    """Records a refusal of the present candidate."""
    storage, store = Storage(settings.restricted), ledger(settings)
    candidate = evidence.candidate_of(storage, place, _sealed(storage, place))
    return store.refuse(candidate.digest, by=by, entry_id=candidate.entry_id, reason=reason)


def releases(settings: Settings) -> list[dict[str, str]]:
    """Published releases, and candidates that are not published (or were refused)."""
    storage, store = Storage(settings.restricted), ledger(settings) if has_ledger(settings) else None
    listing = [_listed(path) for path in _published(settings)]
    for place in storage.places():
        try:
            digest = evidence.candidate_digest(storage, place, _sealed(storage, place))
        except ReleaseRefused:
            continue
        if published_as(storage, place, digest) is None:
            decisions = store.approvals(digest) if store is not None else []
            state = "refused" if decisions and decisions[-1].decision == evidence.REFUSE else "candidate"
            listing.append({"place": place.label, "state": state, "id": digest[:16], "where": "not published"})
    return sorted(listing, key=lambda item: (item["place"], item["state"], item["id"]))


def published_as(storage: Storage, place: Place, candidate: str) -> str | None:
    """Id of the release that a candidate was published as, or None."""
    released = storage.read(place, "released")
    return released.facts["release_id"] if released and released.facts["candidate"] == candidate else None


def verify(settings: Settings, release: str, public_key: Path | None) -> verification.VerificationReport:
    """Verifies a release given by directory, id or dataset.

    Raises:
        VerificationFailed: there is no such release, or the key cannot be read.
    """
    path = _find(settings, release)
    key = None
    if public_key is not None:
        try:
            key = public_key.read_bytes()
        except OSError as error:
            raise VerificationFailed(f"{public_key}: the key cannot be read: {file_problem(error)}") from None
    elif Path(settings.vault / f"{SIGNING_KEY}.key").is_file():
        from dpsynth_platform.release.signature import public_pem

        key = public_pem(Vault(settings.vault).signing_key().public_key())
    return verification.verify_release(path, key)


def public_key(settings: Settings) -> tuple[str, str]:
    """The deployment's public key (PEM) and its fingerprint."""
    from dpsynth_platform.release.signature import fingerprint, public_pem

    key = Vault(settings.vault).signing_key().public_key()
    return public_pem(key).decode(), fingerprint(key)


def _find(settings: Settings, release: str) -> Path:
    if Path(release).is_dir():
        if not (Path(release) / "manifest.json").exists():
            raise VerificationFailed(f"{release}: manifest.json: is missing; accepted: the directory of one release")
        return Path(release)
    published = _published(settings)
    named = [path for path in published if path.name == release]
    of_dataset = [path for path in published if path.parent.name == release]
    found = named or sorted(of_dataset, key=lambda path: path.stat().st_mtime)
    if not found:
        known = ", ".join(path.name for path in published) or "none is published"
        raise VerificationFailed(f"{release}: no such directory, release or dataset; accepted: {known}")
    return found[-1]


def _published(settings: Settings) -> list[Path]:
    """Directories of all published releases of this deployment's sound contracts."""
    targets = {Path(contract.release.uri) for contract, _ in load_all(settings)[0]}
    return sorted(path.parent for target in targets for path in target.glob("*/manifest.json"))


def _listed(path: Path) -> dict[str, str]:
    """One release as the list shows it; a damaged one shows too."""
    try:
        release = json.loads((path / "dossier.json").read_text(encoding="utf-8"))["release"]
        place, state = Place(release["dataset"], release["period"]).label, "published"
    except (OSError, ValueError, KeyError, TypeError):
        place, state = path.parent.name, "published, damaged since"
    return {"place": place, "state": state, "id": path.name, "where": str(path)}


def _head_of(path: Path) -> Head | None:
    """The ledger's head in a release's dossier, or None if the dossier is damaged."""
    try:
        return Head(**json.loads((path / "dossier.json").read_text(encoding="utf-8"))["ledger"]["head"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sealed(storage: Storage, place: Place) -> DataContract:
    raw = storage.read(place, "raw")
    if raw is None:
        raise ReleaseRefused(f"{place.label}: nothing was run yet; start with: dpsynth run {place.arguments}")
    return DataContract.model_validate(raw.facts["contract"])


def _standing(storage: Storage, place: Place, contract: DataContract, store: Ledger, runners: Sequence[str]) -> str:
    try:
        evidence.check_evidence(storage, place, contract, store, runners=runners)
    except ReleaseRefused as refusal:
        return f"not releasable now: {refusal}"
    return "all evidence holds and it is approved"


def _standing_entry(settings: Settings, store: Ledger | None, contract: DataContract, period: str | None) -> str | None:
    """The entry that has paid for the run as it would be now, if one has. Of the source, reads metadata only.

    As `raw` would: the plan of the last run stands while contract and source do, and is calibrated anew otherwise.
    """
    raw = Storage(settings.restricted).read(Place(contract.dataset, period), "raw")
    if store is None or raw is None:
        return None
    try:
        pinned = pin(contract)
    except SourceError:
        return None
    now = (canonical_digest(contract.mechanism_snapshot()), pinned.name)
    if now == (raw.facts["mechanism_digest"], raw.facts["source"]):
        key = raw.run_key
    else:
        key = run_key(contract, pinned, period, plan_release(contract, pinned.schema, period))
    entry = store.entry_for_key(key)
    return entry.entry_id if entry is not None and entry.state == "spent" else None


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
    store: Ledger | None, account: Account | None, family: FamilyBudget, request: CostRequest
) -> tuple[float, str | None]:
    """What is left of the family's cap (at its own delta), and why the request would be refused, or None."""
    if store is None or account is None:
        sealed = RenyiFilter.seal(family.cap.epsilon, family.cap.delta)
        fits = sealed.fits([(request.curve, request.delta_slack)])
        return sealed.left([], family.cap.delta), None if fits else "it alone exceeds the family's cap"
    left = store.left(account.family, account.delta)
    try:
        store.admit(account.family, request, dry_run=True)
    except BudgetExceeded as refusal:
        return left, str(refusal)
    return left, None


def _cap_of(account: Account) -> dict[str, float]:
    return {"epsilon": account.epsilon, "delta": account.delta}


def _entry(entry: Entry) -> dict[str, Any]:
    since = entry.finished_at or entry.started_at or entry.reserved_at
    return {
        "entry_id": entry.entry_id,
        "place": entry.request.place,
        "purpose": entry.request.purpose,
        "epsilon": entry.request.guarantee.epsilon,
        "delta": entry.request.guarantee.delta,
        "state": entry.state,
        "since": since[:19],
        "runner": entry.request.runner,
    }


def attack_row(attack: dict[str, Any]) -> tuple[str, ...]:
    """One attack of an audit's report, in the columns of `AUDIT_HEADER`."""
    rate = attack["true_positive_rate"]
    return (
        attack["name"],
        attack["target"],
        f"{attack['epsilon_lower_bound']:.2f} (most possible {attack['highest_bound']:.2f})",
        f"{rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})",
        f"{attack['area_under_curve']:.3f}",
    )
