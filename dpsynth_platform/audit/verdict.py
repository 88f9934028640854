"""The verdict of an audit, and the report that explains it.

What belongs here: comparing what the attacks proved with what was claimed, saying how much the audit could have shown
at all, and the report as JSON and in plain words. What does not: scoring canaries, drawing, what an audit is held
against (`policy`), what several say together (`cumulative`), deciding about a release.

Everything in the report follows from the canaries' coins and from scores of what the mechanism left. Canaries are
independent of the data, so the report is post-processing and may be published.

A canary owner joins or stays away with all its records. That is a neighbouring pair under add-or-remove and zero-out;
under replace-one the claim is tested on joining too, which the generators' noise covers, since it is scaled for a
replacement, the larger change.

An attack that could not look (its scores are no numbers, or the same for everyone) proves nothing, and is no evidence
of privacy either: where no deciding attack could look, the verdict is inconclusive. So it is where the coins cannot
have been fair, since the bounds rest on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats

from dpsynth_platform.audit import bounds, fdp
from dpsynth_platform.audit.attacks import TEXT_ATTACKS, Scored
from dpsynth_platform.audit.bounds import Coins, Rate, Scores
from dpsynth_platform.audit.canaries import kinds_of
from dpsynth_platform.audit.canary_cost import CanaryCost
from dpsynth_platform.audit.cumulative import Earlier, FamilyStanding
from dpsynth_platform.audit.policy import Policy, unasked
from dpsynth_platform.audit.risk import CONFIDENCE, Risk, bounds_at, frontier, measure_risk
from dpsynth_platform.contracts.audit import RateLimit
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.foundation.redaction import reason_of

if TYPE_CHECKING:
    from dpsynth_platform.audit.texts.reconstruction import Reconstructed

Verdict = Literal["pass", "fail", "inconclusive"]

REALISTIC = 0.8
"""Share of right guesses that a good attack on a leaking model may have: the power beside the ceiling."""
SURE = 0.8
"""How likely a leak must be found to be called visible."""
_LOOSENED = "An earlier audit of this mechanism failed by limits of its contract that have been changed since."
KINDS_HEADER = (
    "kind of canary",
    "canaries",
    "attack",
    "area under the curve (95%, each for itself)",
    "found at 1% false alarms (likewise)",
)
_UNFAIR = 1e-9
"""Coins that fall so one-sidedly less often than this were not tossed."""


@dataclass(frozen=True)
class AttackResult:
    """What one attack achieved.

    Attributes:
        guessed_in: how many canaries it guessed to be in; fixed before the run.
        guessed_out: how many it guessed to be out; fixed before the run.
        right: how many of these guesses were right.
        right_to_fail: how many would have had to be right to fail the audit; None: all of them would not do.
        epsilon_lower_bound: what the guesses prove, at a confidence that makes all attacks hold together.
        highest_bound: what `best_right` right guesses would prove.
        true_positive_rate: share of the included canaries found at one percent false alarms, with 95% interval.
        true_negative_rate: share of the held-out canaries found at one percent of the included ones missed, likewise.
        area_under_curve: 0.5 is guessing, 1 is certainty.
        decides: whether the verdict rests on it.
        likely_bound: what the guesses would prove if eight of ten were right.
        visible_from: the least epsilon of a mechanism that gives this attack all it may, and that would have failed in
            four of five audits; None: none would, or it is not known, since canaries are alike.
        gaussian_bound: the bound if the mechanism is a Gaussian one in kind (`fdp`); no verdict rests on it.
        p_value: the largest probability with which the claim allows so many right guesses.
        plan_p_value: the same by the whole curve that the ledger charges; None where it was not given.
        risk: area and rates at 0.1%, 1% and 10% false alarms, with intervals, beside the claim's frontier.
        fault: why the attack could not look, or None.
        best_right: guesses that can be right: all of them, or as many as can be expected of whoever knows how many of
            each set of equal canaries were in (`bounds.best_right`); at least `right`, which luck may have made more.
    """

    name: str
    target: str
    describes: str
    guessed_in: int
    guessed_out: int
    right: int
    right_to_fail: int | None
    epsilon_lower_bound: float
    highest_bound: float
    true_positive_rate: Rate
    true_negative_rate: Rate
    area_under_curve: float
    decides: bool = True
    likely_bound: float | None = None
    visible_from: float | None = None
    gaussian_bound: float | None = None
    p_value: float | None = None
    risk: Risk | None = None
    fault: str | None = None
    plan_p_value: float | None = None
    best_right: int | None = None

    @property
    def guesses(self) -> int:
        """How many canaries it guessed."""
        return self.guessed_in + self.guessed_out

    @property
    def some_alike(self) -> bool:
        """Whether it cannot be right in all guesses, except by luck, since canaries are alike."""
        return self.best_right is not None and self.best_right < self.guesses

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> AttackResult:
        """Reads it back, with risk and rates."""
        rates = {name: Rate(**document[name]) for name in ("true_positive_rate", "true_negative_rate")}
        risk = document.get("risk")
        return cls(**(document | rates | {"risk": None if risk is None else Risk.from_json(risk)}))


@dataclass(frozen=True)
class FoundOfKind:
    """What one attack found of one kind of canaries, where there are several; told, and no verdict rests on it.

    Attributes:
        kind: of canaries.
        canaries: how many there are of it.
        attack: name of the attack.
        area_under_curve: of these canaries alone, with its 95% interval: each for itself, not all of them together.
        true_positive_rate: of these canaries alone, at one percent false alarms, likewise.
    """

    kind: str
    canaries: int
    attack: str
    area_under_curve: Rate
    true_positive_rate: Rate


@dataclass(frozen=True)
class Apart:
    """The model that was attacked in the released one's place: an equal one, trained apart with the canaries.

    Attributes:
        entry: the ledger entry that paid for it.
        plan_digest: of its plan, which is the released one's.
        together: epsilon of both models, which the release promises; None in reports from before it was told.
    """

    entry: str
    plan_digest: str
    together: float | None = None


@dataclass(frozen=True)
class AuditReport:
    """The audit of one model and of the data sampled from it.

    Attributes:
        unit: the privacy unit; one canary owner is one unit.
        claimed_epsilon: the guarantee under test.
        threshold: the audit fails if the bound exceeds it; at most the claimed epsilon.
        epsilon_lower_bound: the largest bound of the deciding attacks; holds at `confidence`.
        highest_bound: the largest bound that any of them could have shown.
        publishable: true, since nothing but canaries was compared.
        reasons: why it failed or is inconclusive, one sentence each; empty where it passed.
        gates: names of the attacks that decide; None: all.
        rate_limits: the contract's limits on true positive rates.
        cumulative: `gate` or `report`: what the family's audits together do.
        family: what they say, this one included; None where they were not asked.
        earlier: whether an earlier audit of this mechanism failed, and what follows from that.
        cost: what the canaries cost in quality; None where that was not asked.
        reconstructed: of a language model, how many canaries' texts it goes on with; told, and no verdict rests on it.
        apart: the model that was attacked, where it is not the one that the release is drawn from.
        of_kinds: what each attack found of each kind of canaries, where there are several.
        kinds: of canaries that the contract asked for; none in reports from before they were named.
    """

    dataset: str
    period: str | None
    verdict: Verdict
    unit: str
    adjacency: str
    claimed_epsilon: float
    delta: float
    threshold: float
    confidence: float
    canaries: int
    included: int
    records_per_canary: int
    epsilon_lower_bound: float
    highest_bound: float
    attacks: tuple[AttackResult, ...]
    publishable: bool = True
    reasons: tuple[str, ...] = ()
    gates: tuple[str, ...] | None = None
    rate_limits: tuple[RateLimit, ...] = ()
    cumulative: str = "gate"
    family: FamilyStanding | None = None
    earlier: Earlier = "none"
    cost: CanaryCost | None = None
    reconstructed: tuple[Reconstructed, ...] = ()
    apart: Apart | None = None
    of_kinds: tuple[FoundOfKind, ...] = ()
    kinds: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them, with the summary in words."""
        return asdict(self) | {
            "attacks": [asdict(attack) for attack in self.attacks],
            "rate_limits": [limit.model_dump() for limit in self.rate_limits],
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> AuditReport:
        """Reads `to_json` back, also reports of earlier versions, which lack what they did not measure.

        Raises:
            AccountingError: it is no report of an audit, or one of a later version.
        """
        known = {field.name for field in fields(cls)}
        family, cost, apart = document.get("family"), document.get("cost"), document.get("apart")
        try:
            return cls(
                **{key: value for key, value in document.items() if key in known}
                | {
                    "attacks": tuple(AttackResult.from_json(attack) for attack in document["attacks"]),
                    "reasons": tuple(document.get("reasons", ())),
                    "gates": None if document.get("gates") is None else tuple(document["gates"]),
                    "rate_limits": tuple(RateLimit(**limit) for limit in document.get("rate_limits", ())),
                    "family": None if family is None else FamilyStanding(**family),
                    "cost": None if cost is None else CanaryCost.from_json(cost),
                    "reconstructed": _read_reconstructed(document.get("reconstructed", ())),
                    "apart": None if apart is None else Apart(**apart),
                    "of_kinds": tuple(_read_found(item) for item in document.get("of_kinds", ())),
                    "kinds": tuple(document.get("kinds", ())),
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = reason_of(error)
        raise AccountingError(
            f"audit: the report cannot be read ({problem}): another version of the platform made it, or it is damaged; "
            "materialize the audit again"
        )

    @property
    def summary(self) -> str:
        """The audit in plain words."""
        together = self.family.words if self.family and self.family.words not in self.reasons else ""
        loosened = _LOOSENED if self.earlier == "told" else ""
        cost = self.cost.words if self.cost else ""
        back = [item.words for item in self.reconstructed]
        kinds = self._by_kind
        told = [self._setting, self._not_made, self._finding, self._of_one, self._plainly, self._power]
        parts = [*told, kinds, together, loosened, *back, cost]
        return " ".join(part for part in parts if part)

    @property
    def _deciding(self) -> list[AttackResult]:
        return [attack for attack in self.attacks if attack.decides]

    @property
    def _setting(self) -> str:
        kinds = f" ({'kinds' if len(self.kinds) > 1 else 'kind'}: {'; '.join(self.kinds)})" if self.kinds else ""
        prepared = (
            f"{self.canaries} fictional owners{kinds} with {_records(self.records_per_canary)} each were prepared "
            "without looking at the data, and a coin toss decided for each whether it joined."
        )
        attacks = number_of(len(self.attacks), "attack")
        if self.apart is None:
            return (
                f"{prepared} {attacks} then tried to tell from the model and from the synthetic data which ones had "
                "joined."
            )
        return (
            f"{prepared} They joined an equal model that was trained apart, by the same sealed plan and at a cost of "
            f"its own; what is released holds none of them. {attacks} then tried to tell from that "
            "model and from rows drawn from it which ones had joined."
        )

    @property
    def _not_made(self) -> str:
        """What attacks there were not, since the release has nothing that they could ask about."""
        on_texts = {attack.name for attack in TEXT_ATTACKS}
        if not self.attacks or any(attack.name not in on_texts for attack in self.attacks):
            return ""
        return "Attacks on columns do not apply: no column is counted, and canaries are texts alone."

    @property
    def _finding(self) -> str:
        bound = f"With {self.confidence:.0%} confidence the privacy loss epsilon is at least"
        if self.verdict == "fail":
            # Of a report from before reasons were kept, the bound is the only reason that there can be.
            why = " ".join(self.reasons) or _beyond(self.epsilon_lower_bound, self.threshold, self.confidence)
            return f"FAIL: {why} The mechanism leaks more than it claims, or than its contract accepts."
        if self.verdict == "inconclusive":
            return "INCONCLUSIVE: " + (" ".join(self.reasons) or _powerless(self.highest_bound, self.threshold))
        return (
            f"PASS: {bound} {self.epsilon_lower_bound:.2f}, which does not contradict the claim of "
            f"{self.claimed_epsilon:g} (accepted: up to {self.threshold:g})."
        )

    @property
    def _of_one(self) -> str:
        """Of which guarantee all of this speaks, where the release promises another one."""
        if self.apart is None:
            return ""
        both = "" if self.apart.together is None else f", epsilon {upper_bound(self.apart.together, 4)}"
        return (
            f"Claim and bounds are of one model alone, epsilon {self.claimed_epsilon:g}; the release promises both "
            f"models together{both}, since results of both are published."
        )

    @property
    def _plainly(self) -> str:
        """The attack that did best, in words that need no statistics."""
        found = [(attack.risk.rates[1], attack.name) for attack in self._deciding if attack.risk is not None]
        if not found:
            return ""
        best, name = max(found, key=lambda item: item[0].found.value)
        allowed = frontier(best.false_positive_rate, self.claimed_epsilon, self.delta)
        # Whoever picks the best of several afterwards is luckier than an interval for one says.
        picked = f", the best of {len(found)}" if len(found) > 1 else ""
        return (
            f"Plainly: whoever uses the best of these attacks ({name}) and accepts to accuse one outsider in a hundred "
            f"wrongly recognizes {100 * best.found.value:.1f} of a hundred participants here (by so many canaries, "
            f"{100 * best.found.low:.1f} to {100 * best.found.high:.1f} in general). Blind guessing recognizes 1, and "
            f"the guarantee allows at most {100 * allowed:.1f} in general. That interval is of {CONFIDENCE:.0%} for "
            f"this attack alone{picked}."
        )

    @property
    def _by_kind(self) -> str:
        """Of each kind of canaries, the attack that told most."""
        best: dict[str, FoundOfKind] = {}
        for item in self.of_kinds:
            if item.kind not in best or item.area_under_curve.value > best[item.kind].area_under_curve.value:
                best[item.kind] = item
        said = [
            f"{item.canaries} {kind} ones: {item.area_under_curve.value:.2f} ({item.area_under_curve.low:.2f} to "
            f"{item.area_under_curve.high:.2f}, {item.attack})"
            for kind, item in best.items()
        ]
        return (
            "By kind of canary, area under the curve of the attack that told most, with intervals of 95%, each "
            f"for itself and not for all of them together: {'; '.join(said)}."
            if said
            else ""
        )

    @property
    def _power(self) -> str:
        deciding = self._deciding
        if not deciding:
            return ""
        best = max(deciding, key=lambda attack: attack.highest_bound)
        right = f"{best.best_right} of {best.guesses}" if best.some_alike else f"all {best.guesses}"
        power = f"The highest bound this audit could have shown is {self.highest_bound:.2f}, with {right} guesses right"
        if best.some_alike:
            power += (
                ", the most to be expected of whoever knows how many of each set of equal canaries were in: nobody can "
                "tell those apart"
            )
        elif best.likely_bound is not None:
            power += f"; with {REALISTIC:.0%} of them right it is {best.likely_bound:.2f}"
        power += "."
        if best.visible_from is not None:
            power += (
                f" A mechanism whose epsilon is {best.visible_from:.2f} or more would have failed in four of five "
                "audits, had it given the attack all that such an epsilon allows."
            )
        if self.verdict == "inconclusive":
            return power
        return f"{power} An audit finds gross mistakes; the guarantee itself rests on the proof, not on this test."


def judge(
    contract: DataContract,
    period: str | None,
    included: Coins,
    scored: Sequence[Scored],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    curve: fdp.Curve | None = None,
    cost: CanaryCost | None = None,
    reconstructed: tuple[Reconstructed, ...] = (),
    apart: Apart | None = None,
    kinds: Sequence[str] = (),
) -> AuditReport:
    """Compares what the attacks proved with the claim, by the contract's policy.

    Fail: the bound exceeds the threshold, or a rate is shown to be above its limit. Inconclusive: the bound could not
    have exceeded the threshold, a rate is not shown to be within its limit, no deciding attack could look, none was
    shown to see a mechanism that is wrong (`policy.unasked`), or the coins cannot have been fair. Pass: otherwise. A
    mechanism that keeps its claim fails by its bound with probability at most 1 - confidence, over all attacks
    together.

    Args:
        contract: unit, bound on contributions and policy.
        period: the line's period.
        included: shape (canaries,), the coins.
        scored: every attack's scores, in the coins' order; at least one attack.
        epsilon: the release's own epsilon, where it is smaller than the contract's.
        delta: the release's delta, where it is not the contract's.
        curve: all that the plan claims, as `fdp.renyi_profile` makes it; the family's evidence rests on it.
        cost: what the canaries cost in quality; told, and no verdict rests on it.
        reconstructed: of a language model; likewise.
        apart: the model that was attacked, where it is not the released one.
        kinds: of each canary, in the coins' order, where there are several.

    Raises:
        AccountingError: there are scores of other canaries than there are coins.
    """
    policy = Policy.of(contract, epsilon=epsilon, delta=delta)
    each = policy.each_confidence([item.attack.name for item in scored])
    results = tuple(attack_result(item, included, policy, each, curve) for item in scored)
    deciding = [result for result in results if result.decides]
    bound = max((result.epsilon_lower_bound for result in deciding), default=0.0)
    highest = max((result.highest_bound for result in deciding), default=0.0)
    failed, unsure = _rates(policy, included, scored, each)
    if bound > policy.threshold:
        failed.insert(0, _beyond(bound, policy.threshold, policy.confidence))
    blind = unasked(policy, [item.attack for item in scored])
    unsure = [*([] if blind is None else [blind]), *_blind(policy, included, results, highest), *unsure]
    return AuditReport(
        dataset=contract.dataset,
        period=period,
        verdict="fail" if failed else "inconclusive" if unsure else "pass",
        unit=contract.privacy.unit,
        adjacency=contract.privacy.adjacency,
        claimed_epsilon=policy.claimed_epsilon,
        delta=policy.delta,
        threshold=policy.threshold,
        confidence=policy.confidence,
        canaries=int(included.size),
        included=int(included.sum()),
        records_per_canary=contract.privacy.max_contributions,
        epsilon_lower_bound=bound,
        highest_bound=highest,
        attacks=results,
        reasons=tuple(failed or unsure),
        gates=policy.gates,
        rate_limits=policy.rate_limits,
        cumulative="gate" if policy.cumulative else "report",
        cost=cost,
        reconstructed=reconstructed,
        apart=apart,
        of_kinds=tuple(_found_of_kinds(policy, included, scored, kinds)),
        kinds=kinds_of(contract),
    )


def _found_of_kinds(
    policy: Policy, included: Coins, scored: Sequence[Scored], kinds: Sequence[str]
) -> Iterator[FoundOfKind]:
    """What each attack that could look found of each kind of which some are in and some are not."""
    named = np.asarray(kinds)
    for kind in dict.fromkeys(kinds):
        mine = named == kind
        coins = included[mine]
        if coins.all() or not coins.any():
            continue
        for item in scored:
            scores, fault = usable(item.scores)
            if fault is None:
                risk = measure_risk(scores[mine], coins, epsilon=policy.claimed_epsilon, delta=policy.delta)
                yield FoundOfKind(kind, coins.size, item.attack.name, risk.area_under_curve, risk.rates[1].found)


def kind_row(found: dict[str, Any]) -> tuple[str, ...]:
    """What one attack found of one kind of canaries, as JSON has it, under `KINDS_HEADER`."""
    area, rate = found["area_under_curve"], found["true_positive_rate"]
    return (
        found["kind"],
        f"{found['canaries']}",
        found["attack"],
        f"{area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})",
        f"{rate['value']:.1%} ({rate['low']:.1%} to {rate['high']:.1%})",
    )


def _read_found(document: dict[str, Any]) -> FoundOfKind:
    rates = {name: Rate(**document[name]) for name in ("area_under_curve", "true_positive_rate")}
    return FoundOfKind(**(document | rates))


def with_family(report: AuditReport, family: FamilyStanding, *, earlier: Earlier) -> AuditReport:
    """The report with what the family's audits say together, which decides if the policy says so.

    Args:
        report: of this audit alone.
        family: this audit included.
        earlier: of this very mechanism (`cumulative.failure_before`). Where a failure decides, another look, at other
            rows of the same model, say, or on other terms, does not undo it.
    """
    reasons = [family.words] if family.refuted and report.cumulative == "gate" else []
    if earlier == "decides":
        reasons.insert(0, "An earlier audit of this mechanism failed, which another one cannot undo.")
    report = replace(report, family=family, earlier=earlier)
    if not reasons:
        return report
    kept = report.reasons if report.verdict == "fail" else ()
    return replace(report, verdict="fail", reasons=(*kept, *reasons))


def claim_p_value(report: AuditReport) -> float:
    """Largest probability with which the claim allows what the deciding attacks found, over all of them together.

    By the plan's curve where that was given: whoever keeps the plan keeps its curve.
    """
    each = [
        attack.p_value if attack.plan_p_value is None else attack.plan_p_value
        for attack in report.attacks
        if attack.decides
    ]
    values = [value for value in each if value is not None]
    return min(1.0, len(values) * min(values)) if values else 1.0


def attack_result(
    item: Scored, included: Coins, policy: Policy, confidence: float, curve: fdp.Curve | None = None
) -> AttackResult:
    """What one attack's scores prove, at this confidence; an attack that could not look proves nothing.

    Raises:
        AccountingError: there are scores of other canaries than there are coins.
    """
    guess_in, guess_out = item.attack.guesses(included.size)
    scores, fault = usable(item.scores)
    right = bounds.count_right(scores, included, guess_in=guess_in, guess_out=guess_out) if fault is None else 0
    canaries, guesses = int(included.size), guess_in + guess_out
    best = guesses
    if item.alike is not None:
        best = max(right, bounds.best_right(item.alike, included, guess_in=guess_in, guess_out=guess_out))
    asked: dict[str, Any] = {"canaries": canaries, "guesses": guesses, "delta": policy.delta, "confidence": confidence}
    needed = bounds.right_needed(epsilon=policy.threshold, **asked)
    return AttackResult(
        name=item.attack.name,
        target=item.attack.target,
        describes=item.attack.describes,
        guessed_in=guess_in,
        guessed_out=guess_out,
        right=right,
        right_to_fail=needed,
        epsilon_lower_bound=bounds.epsilon_lower_bound(right=right, **asked),
        highest_bound=bounds.epsilon_lower_bound(right=best, **asked),
        true_positive_rate=bounds.true_positive_rate(scores, included),
        true_negative_rate=bounds.true_positive_rate(-scores, ~included),
        area_under_curve=bounds.area_under_curve(scores, included),
        decides=policy.decides(item.attack.name),
        likely_bound=bounds.epsilon_lower_bound(right=min(best, round(REALISTIC * guesses)), **asked),
        visible_from=None if needed is None or best < guesses else bounds.visible_from(guesses, needed, SURE),
        gaussian_bound=fdp.gaussian_epsilon_bound(right=right, **asked),
        p_value=bounds.p_value(
            canaries=canaries, guesses=guesses, right=right, epsilon=policy.claimed_epsilon, delta=policy.delta
        ),
        risk=measure_risk(scores, included, epsilon=policy.claimed_epsilon, delta=policy.delta),
        fault=fault,
        plan_p_value=None if curve is None else fdp.p_value(curve, canaries=canaries, guesses=guesses, right=right),
        best_right=best,
    )


def usable(scores: Scores) -> tuple[Scores, str | None]:
    """Scores as they can be ranked, and why they tell nothing, or None.

    What is no number is set to zero with all the rest: which canaries an attack has no number for must not become a
    score of its own.
    """
    unknown = int(np.isnan(scores).sum())
    if unknown:
        return np.zeros(scores.shape), f"{unknown} of its {scores.size} scores are no numbers"
    if scores.size and bool((scores == scores[0]).all()):
        return scores, "it gave every canary the same score"
    return scores, None


def coins_fault(included: Coins) -> str | None:
    """Why these coins cannot carry a bound, or None: all fell alike, or so one-sidedly that they cannot be fair."""
    heads, tosses = int(included.sum()), int(included.size)
    if not 0 < heads < tosses:
        return "All coins fell alike: there is nobody to tell the others from."
    if stats.binomtest(heads, tosses).pvalue < _UNFAIR:
        return f"{heads} of {tosses} were included: these were no fair coins, and the bounds rest on fair ones."
    return None


def _blind(policy: Policy, included: Coins, results: Sequence[AttackResult], highest: float) -> list[str]:
    """Why the audit could not see, as far as the bound is concerned."""
    reasons = [] if (fault := coins_fault(included)) is None else [fault]
    names = [result.name for result in results]
    reasons += [
        f"The attack {gate!r}, which is to decide, gave no scores: the model has nothing that it could ask."
        for gate in policy.gates or ()
        if gate not in names
    ]
    deciding = [result for result in results if result.decides]
    if deciding and all(result.fault for result in deciding):
        reasons += [f"The attack {result.name!r} could not look: {result.fault}." for result in deciding]
    if highest <= policy.threshold:
        enough = any(result.right_to_fail is not None for result in deciding)
        reasons.append(_too_alike(highest, policy.threshold) if enough else _powerless(highest, policy.threshold))
    return reasons


def _rates(policy: Policy, included: Coins, scored: Sequence[Scored], confidence: float) -> tuple[list[str], list[str]]:
    """Rates above their limits, and rates that are not shown to be within them, as sentences."""
    failed, unsure = [], []
    for limit in policy.rate_limits:
        at = f"at {100 * limit.false_positive_rate:g}% false alarms"
        accepted = f"{100 * limit.true_positive_rate:g}%"
        for item in scored:
            scores, fault = usable(item.scores)
            if not policy.decides(item.attack.name) or fault:
                continue
            found = bounds.true_positive_rate(scores, included, false_positive_rate=limit.false_positive_rate).value
            least, most = bounds_at(scores, included, limit.false_positive_rate, confidence)
            could = _could_find(item, included, limit.false_positive_rate)
            said = f"The attack {item.attack.name!r} finds {100 * found:.1f}% of the included {at}"
            if least > limit.true_positive_rate:
                failed.append(f"{said}, at least {100 * least:.1f}%; accepted are {accepted}.")
            elif most > limit.true_positive_rate:
                unsure.append(f"{said}, and by so few canaries it may be {100 * most:.1f}%; accepted are {accepted}.")
            elif could <= limit.true_positive_rate:
                unsure.append(
                    f"{said}, and could have found no more than {100 * could:.1f}%, since canaries are alike; accepted "
                    f"are {accepted}."
                )
    return failed, unsure


def _could_find(item: Scored, included: Coins, false_positive_rate: float) -> float:
    """The true positive rate of whoever knows how many of each set of equal canaries were in."""
    if item.alike is None:
        return 1.0
    known = bounds.known_chances(item.alike, included)
    return bounds.true_positive_rate(known, included, false_positive_rate=false_positive_rate).value


def _read_reconstructed(found: Sequence[dict[str, Any]]) -> tuple[Reconstructed, ...]:
    if not found:
        return ()  # most reports are of tables, and what comes with attacks on texts is slow to import
    from dpsynth_platform.audit.texts.reconstruction import Reconstructed

    return tuple(Reconstructed(**item) for item in found)


def _beyond(bound: float, threshold: float, confidence: float) -> str:
    return (
        f"With {confidence:.0%} confidence the privacy loss epsilon is at least {bound:.2f}, more than the "
        f"{threshold:g} that is accepted."
    )


def _powerless(highest: float, threshold: float) -> str:
    return (
        f"Even if every guess had been right, the audit could not have shown more than {highest:.2f}, which is not "
        f"above the {threshold:g} that is accepted. More canaries are needed (`dpsynth contract check` "
        "says whether any number is enough), which makes another run, with a cost of its own."
    )


def _too_alike(highest: float, threshold: float) -> str:
    return (
        "Whoever knew how many of each set of equal canaries were in could not be expected to show more than "
        f"{highest:.2f}, which is not above the {threshold:g} that is accepted: too many canaries are alike. Columns "
        "or values that tell them apart are needed, which makes another run, with a cost of its own."
    )


def _records(count: int) -> str:
    return "one record" if count == 1 else f"{count} records"
