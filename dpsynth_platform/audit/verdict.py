"""The verdict of an audit, and the report that explains it.

What belongs here: comparing attack results with the claim, the audit's power, and the report as JSON and as text. What
does not: scoring and drawing canaries, limits (`policy`), several audits together (`cumulative`), release decisions.

The report follows from the canaries' coins and from scores of the mechanism's output. Canaries are independent of the
data, so the report is post-processing and may be published.

A canary owner joins or stays away with all its records: a neighbouring pair under add-or-remove and zero-out. Under
replace-one the claim is also tested on joining; the generators' noise is scaled for a replacement, the larger change.

An attack without usable scores (not numbers, or all equal) proves nothing and is no evidence of privacy: where no
deciding attack has usable scores, the verdict is inconclusive. So it is where the coins cannot have been fair, since
the bounds require fair ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, TypeAdapter
from scipy import stats

from dpsynth_platform.audit import bounds, fdp
from dpsynth_platform.audit.attacks import PICTURE_ATTACKS, PICTURE_SUMS, TEXT_ATTACKS, Scored
from dpsynth_platform.audit.bounds import Coins, Rate, Scores
from dpsynth_platform.audit.canaries import kinds_of
from dpsynth_platform.audit.canary_cost import CanaryCost
from dpsynth_platform.audit.cumulative import Earlier, FamilyStanding
from dpsynth_platform.audit.policy import Policy, unproven_gate
from dpsynth_platform.audit.risk import CONFIDENCE, Reconstructed, Risk, SharedFound, bounds_at, frontier, measure_risk
from dpsynth_platform.contracts.audit import RateLimit
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.foundation.redaction import reason_of

Verdict = Literal["pass", "fail", "inconclusive"]

REALISTIC = 0.8
"""Share of right guesses of a good attack on a leaking model, for a realistic bound below the highest one."""
DETECTION_PROBABILITY = 0.8
"""With which a visible leak is found."""
_LOOSENED = "An earlier audit of this mechanism failed by limits of its contract that have been changed since."
KINDS_HEADER = (
    "kind of canary",
    "canaries",
    "attack",
    "area under the curve (95%, each separately)",
    "found at 1% false alarms (95%, each separately)",
)
_UNFAIR = 1e-9
"""Coins are called unfair if fair ones are so one-sided with at most this probability."""


@dataclass(frozen=True)
class AttackResult:
    """The result of one attack.

    Attributes:
        guessed_in, guessed_out: number of canaries guessed in and out; fixed before the run.
        right_to_fail: right guesses that would fail the audit; None: even all would not.
        epsilon_lower_bound: what the guesses prove, at a confidence that makes all attacks hold together.
        highest_bound: what `best_right` right guesses would prove.
        true_positive_rate: share of included canaries found at 1% false alarms, with its 95% interval.
        true_negative_rate: the same with included and held-out canaries exchanged.
        likely_bound: the bound if a share of `REALISTIC` of the guesses were right.
        visible_from: least epsilon of a mechanism that, giving this attack all it may, fails with
            `DETECTION_PROBABILITY`; None: there is none, or canaries are equal and it is unknown.
        gaussian_bound: the bound if the mechanism is a Gaussian one (`fdp`); no verdict depends on it.
        p_value: largest probability with which the claim allows so many right guesses.
        plan_p_value: the same by the whole curve that the ledger charges; None where that was not given.
        fault: why it has no usable scores, or None.
        best_right: right guesses that can be expected (`bounds.best_right`), at least `right`.
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
        return self.guessed_in + self.guessed_out

    @property
    def has_duplicates(self) -> bool:
        """Whether equal canaries keep it from being right in all guesses, except by luck."""
        return self.best_right is not None and self.best_right < self.guesses


@dataclass(frozen=True)
class FoundOfKind:
    """The result of one attack on one of several kinds of canaries, at 1% false alarms; no verdict depends on it.

    Each 95% interval holds separately, not all together.
    """

    kind: str
    canaries: int
    attack: str
    area_under_curve: Rate
    true_positive_rate: Rate


@dataclass(frozen=True)
class SeparateModel:
    """The attacked model instead of the released one: trained separately with canaries, by an equal plan.

    `together` is the epsilon of both models, which the release promises; None in older reports.
    """

    entry: str
    plan_digest: str
    together: float | None = None


@dataclass(frozen=True)
class AuditReport:
    """The audit of one model and of the data sampled from it.

    Attributes:
        unit: the privacy unit; one canary owner is one unit.
        threshold: the audit fails if the bound exceeds it; at most the claimed epsilon.
        epsilon_lower_bound: the largest bound of the deciding attacks; holds at `confidence`.
        highest_bound: the largest bound that any of them could have shown.
        reasons: why it failed or is inconclusive, one sentence each; empty where it passed.
        gates: names of the attacks that decide; None: all.
        cumulative: `gate` or `report`: how the family's audits together count.
        family: their combined result, this one included; None where unknown.
        earlier: whether an earlier audit of this mechanism failed, and how that counts.
        cost, reconstructed, shared: None and empty where not measured; no verdict depends on them.
        apart: the attacked model, where the release is drawn from another.
        kinds: of canaries in the contract; empty in older reports.
        at_most: whether `records_per_canary` is the most of any canary, of whom others have fewer.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

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
    apart: SeparateModel | None = None
    of_kinds: tuple[FoundOfKind, ...] = ()
    kinds: tuple[str, ...] = ()
    at_most: bool = False
    shared: tuple[SharedFound, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them, with the summary in words."""
        return asdict(self) | {
            "rate_limits": [limit.model_dump() for limit in self.rate_limits],
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> AuditReport:
        """Reads the output of `to_json`, also of earlier versions, which lack what they did not measure.

        Raises:
            AccountingError: it is no report of an audit, or one of a later version.
        """
        known = {field.name for field in fields(cls)}
        try:
            return TypeAdapter(cls).validate_python({key: value for key, value in document.items() if key in known})
        except (ValueError, AttributeError) as error:
            problem = reason_of(error)
        raise AccountingError(
            f"audit: the report cannot be read ({problem}): another version of the platform made it, or it is damaged; "
            "materialize the audit again"
        )

    @property
    def summary(self) -> str:
        """The audit in sentences."""
        parts = [
            self._setting,
            self._not_made,
            self._finding,
            self._untested,
            self._scope,
            self._best_attack,
            self._power,
            self._by_kind,
            self.family.words if self.family and self.family.words not in self.reasons else "",
            _LOOSENED if self.earlier == "told" else "",
            *(item.words for item in self.reconstructed),
            *(item.words for item in self.shared),
            self.cost.words if self.cost else "",
        ]
        return " ".join(part for part in parts if part)

    @property
    def _deciding(self) -> list[AttackResult]:
        return [attack for attack in self.attacks if attack.decides]

    @property
    def _setting(self) -> str:
        kinds = f" ({'kinds' if len(self.kinds) > 1 else 'kind'}: {'; '.join(self.kinds)})" if self.kinds else ""
        records = f"{'at most ' if self.at_most else ''}{number_of(self.records_per_canary, 'record')}"
        prepared = (
            f"{self.canaries} fictional owners{kinds} with {records} each were "
            "prepared without the data, and a fair coin decided for each whether it joined."
        )
        attacks = number_of(len(self.attacks), "attack")
        if self.apart is None:
            return (
                f"{prepared} {attacks} then tried to tell from the model and from the synthetic data which ones had "
                "joined."
            )
        return (
            f"{prepared} They joined an equal model that was trained separately, by the same sealed plan and at an "
            f"additional cost; the release holds none of them. {attacks} then tried to tell from that model and from "
            "rows drawn from it which ones had joined."
        )

    @property
    def _not_made(self) -> str:
        for kind, attacks in (("texts", TEXT_ATTACKS), ("pictures", PICTURE_ATTACKS)):
            if self.attacks and {attack.name for attack in self.attacks} <= {attack.name for attack in attacks}:
                return f"Attacks on columns do not apply: no column is counted, and canaries are {kind} alone."
        return ""

    @property
    def _finding(self) -> str:
        if self.verdict == "fail":
            # In a report without reasons, of an older version, the bound is the only possible reason.
            why = " ".join(self.reasons) or _beyond(self.epsilon_lower_bound, self.threshold, self.confidence)
            return f"FAIL: {why} The mechanism leaks more than it claims, or than its contract accepts."
        if self.verdict == "inconclusive":
            return "INCONCLUSIVE: " + (" ".join(self.reasons) or _powerless(self.highest_bound, self.threshold))
        terms = f"the claim of {self.claimed_epsilon:g} (accepted: up to {self.threshold:g})"
        if self.epsilon_lower_bound < 0.005:
            return (
                f"PASS: The attacks found nothing: with {self.confidence:.0%} confidence they show no privacy loss at "
                f"all, which does not contradict {terms}, and is no proof of safety."
            )
        return (
            f"PASS: With {self.confidence:.0%} confidence the privacy loss epsilon is at least "
            f"{self.epsilon_lower_bound:.2f}, which does not contradict {terms}."
        )

    @property
    def _untested(self) -> str:
        """Of a pass: that no attack which was shown to work is about the pictures that the mechanism read."""
        names, deciding = {attack.name for attack in self.attacks}, {attack.name for attack in self._deciding}
        pictures = names & {attack.name for attack in PICTURE_ATTACKS}
        drawn = names & {attack.name for attack in TEXT_ATTACKS}  # from texts: no mechanism read a picture
        if self.verdict != "pass" or not pictures or drawn or PICTURE_SUMS.name in deciding:
            return ""
        return (
            "This rests on the counted columns alone: no attack on pictures that decides was shown to find anyone "
            "where noise is missing, so it says little of what the mechanism learned from pictures."
        )

    @property
    def _scope(self) -> str:
        if self.apart is None:
            return ""
        both = "" if self.apart.together is None else f", epsilon {upper_bound(self.apart.together, 4)}"
        return (
            f"Claim and bounds are those of one model alone, epsilon {self.claimed_epsilon:g}; the release's guarantee "
            f"is for both models together{both}, since results of both are published."
        )

    @property
    def _best_attack(self) -> str:
        found = [(attack.risk.rates[1], attack.name) for attack in self._deciding if attack.risk is not None]
        if not found:
            return ""
        best, name = max(found, key=lambda item: item[0].found.value)
        allowed = frontier(best.false_positive_rate, self.claimed_epsilon, self.delta)
        # The best of several, picked afterwards, is luckier than its own interval says.
        picked = f", the best of {len(found)}" if len(found) > 1 else ""
        return (
            f"An attacker who uses the best of these attacks ({name}) and wrongly accuses one outsider in a hundred "
            f"recognizes {100 * best.found.value:.1f} of a hundred who joined here (by so many canaries, "
            f"{100 * best.found.low:.1f} to {100 * best.found.high:.1f} in general). Blind guessing recognizes 1, and "
            f"the guarantee allows at most {100 * allowed:.1f} in general. That interval is of {CONFIDENCE:.0%} for "
            f"this attack alone{picked}."
        )

    @property
    def _by_kind(self) -> str:
        best: dict[str, FoundOfKind] = {}
        for item in self.of_kinds:
            if item.kind not in best or item.area_under_curve.value > best[item.kind].area_under_curve.value:
                best[item.kind] = item
        if not best:
            return ""
        kinds = [
            f"{item.canaries} {kind} ones: {item.area_under_curve.value:.2f} ({item.area_under_curve.low:.2f} to "
            f"{item.area_under_curve.high:.2f}, {item.attack})"
            for kind, item in best.items()
        ]
        return (
            "By kind of canary, area under the curve of the strongest attack, with intervals of 95%, each separately "
            f"and not for all of them together: {'; '.join(kinds)}."
        )

    @property
    def _power(self) -> str:
        deciding = self._deciding
        if not deciding:
            return ""
        best = max(deciding, key=lambda attack: attack.highest_bound)
        right = f"{best.best_right} of {best.guesses}" if best.has_duplicates else f"all {best.guesses}"
        power = f"The highest bound this audit could have shown is {self.highest_bound:.2f}, with {right} guesses right"
        if best.has_duplicates:
            power += (
                ", the most to be expected of an attacker who knows how many of each set of equal canaries were in: no "
                "attack can distinguish those"
            )
        elif best.likely_bound is not None:
            power += f"; with {REALISTIC:.0%} of them right it is {best.likely_bound:.2f}"
        power += "."
        if best.visible_from is not None:
            power += (
                f" A mechanism whose epsilon is {best.visible_from:.2f} or more would have failed in four of five "
                "audits, if it gave the attack all that such an epsilon allows."
            )
        if self.verdict == "inconclusive":
            return power
        return f"{power} An audit finds gross mistakes; the guarantee itself depends on the proof, not on this test."


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
    shared: tuple[SharedFound, ...] = (),
    apart: SeparateModel | None = None,
    kinds: Sequence[str] = (),
    most_records: int | None = None,
) -> AuditReport:
    """Compares the attacks' results with the claim, by the contract's policy.

    Fail: the bound exceeds the threshold, or a rate is shown to be above its limit. Inconclusive: the bound could not
    have exceeded the threshold, a rate is not shown to be within its limit, no deciding attack has usable scores, none
    has been shown to detect a faulty mechanism (`policy.unproven_gate`), or the coins cannot have been fair. Pass:
    otherwise. A mechanism that keeps its claim fails by its bound with probability at most 1 - confidence, over all
    attacks together.

    Args:
        contract: unit, contribution bound and policy.
        period: the line's period.
        included: shape (canaries,), the coins.
        scored: every attack's scores, in the coins' order; at least one attack.
        epsilon, delta: the release's own, where they are not the contract's.
        curve: the plan's whole claim by `fdp.renyi_profile`; the family's evidence uses it.
        cost, reconstructed, shared, apart: for the report; the verdict does not depend on them.
        kinds: of each canary, in the coins' order, where there are several.
        most_records: the most of any canary, where they have different numbers; None: each has the contract's bound.

    Raises:
        AccountingError: scores and coins differ in number.
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
    unproven = unproven_gate(policy, [item.attack for item in scored])
    unsure = [*([unproven] if unproven else []), *_no_power(policy, included, results, highest), *unsure]
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
        records_per_canary=contract.unit_records if most_records is None else most_records,
        at_most=most_records is not None,
        epsilon_lower_bound=bound,
        highest_bound=highest,
        attacks=results,
        reasons=tuple(failed or unsure),
        gates=policy.gates,
        rate_limits=policy.rate_limits,
        cumulative="gate" if policy.cumulative else "report",
        cost=cost,
        reconstructed=reconstructed,
        shared=shared,
        apart=apart,
        of_kinds=tuple(_found_of_kinds(policy, included, scored, kinds)),
        kinds=kinds_of(contract),
    )


def _found_of_kinds(
    policy: Policy, included: Coins, scored: Sequence[Scored], kinds: Sequence[str]
) -> Iterator[FoundOfKind]:
    """Results of each attack with usable scores on each kind that has both included and held-out canaries."""
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
    """A `FoundOfKind` in JSON form, as a row under `KINDS_HEADER`."""
    area, rate = found["area_under_curve"], found["true_positive_rate"]
    return (
        found["kind"],
        f"{found['canaries']}",
        found["attack"],
        f"{area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})",
        f"{rate['value']:.1%} ({rate['low']:.1%} to {rate['high']:.1%})",
    )


def with_family(report: AuditReport, family: FamilyStanding, *, earlier: Earlier) -> AuditReport:
    """The report with the family's combined result, this audit included, which decides if the policy says so.

    A decisive `earlier` failure of the same mechanism (`cumulative.failure_before`) stays: another audit, for example
    of other rows of the same model or on other terms, does not undo it.
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
    """Largest probability with which the claim allows the result of all deciding attacks together.

    It uses the plan's curve where that was given: a mechanism that keeps the plan keeps its curve.
    """
    each = [attack.p_value if attack.plan_p_value is None else attack.plan_p_value for attack in report._deciding]
    values = [value for value in each if value is not None]
    return min(1.0, len(values) * min(values)) if values else 1.0


def attack_result(
    item: Scored, included: Coins, policy: Policy, confidence: float, curve: fdp.Curve | None = None
) -> AttackResult:
    """What one attack's scores prove at this confidence; unusable scores prove nothing.

    Raises `AccountingError` if scores and coins differ in number.
    """
    guess_in, guess_out = item.attack.guesses(included.size)
    scores, fault = usable(item.scores)
    right = bounds.count_right(scores, included, guess_in=guess_in, guess_out=guess_out) if fault is None else 0
    canaries, guesses = int(included.size), guess_in + guess_out
    best = guesses
    if item.duplicates is not None:
        best = max(right, bounds.best_right(item.duplicates, included, guess_in=guess_in, guess_out=guess_out))
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
        visible_from=None
        if needed is None or best < guesses
        else bounds.visible_from(guesses, needed, DETECTION_PROBABILITY),
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
    """Scores that can be ranked, and why they are unusable, or None.

    If a score is not a number, all are set to zero: which canaries lack a number must not become a score.
    """
    unknown = int(np.isnan(scores).sum())
    if unknown:
        return np.zeros(scores.shape), f"{unknown} of its {scores.size} scores are no numbers"
    if scores.size and bool((scores == scores[0]).all()):
        return scores, "it gave every canary the same score"
    return scores, None


def coins_fault(included: Coins) -> str | None:
    """Why no bound follows from these coins, or None: all are equal, or too one-sided to be fair."""
    heads, tosses = int(included.sum()), int(included.size)
    if not 0 < heads < tosses:
        return "All coins are equal: there is no other group to compare with."
    if stats.binomtest(heads, tosses).pvalue < _UNFAIR:
        return f"{heads} of {tosses} were included: the coins were not fair, and the bounds require fair ones."
    return None


def _no_power(policy: Policy, included: Coins, results: Sequence[AttackResult], highest: float) -> list[str]:
    """Why the bound could not have exceeded the threshold."""
    reasons = [] if (fault := coins_fault(included)) is None else [fault]
    names = [result.name for result in results]
    reasons += [
        f"The attack {gate!r}, which decides, gave no scores: it does not apply to this model."
        for gate in policy.gates or ()
        if gate not in names
    ]
    deciding = [result for result in results if result.decides]
    if deciding and all(result.fault for result in deciding):
        reasons += [f"The attack {result.name!r} has no usable scores: {result.fault}." for result in deciding]
    if highest <= policy.threshold:
        enough = any(result.right_to_fail is not None for result in deciding)
        reasons.append(_too_alike(highest, policy.threshold) if enough else _powerless(highest, policy.threshold))
    return reasons


def _rates(policy: Policy, included: Coins, scored: Sequence[Scored], confidence: float) -> tuple[list[str], list[str]]:
    """Sentences on rates above their limits, and on rates that are not shown to be within them."""
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
            rate = f"The attack {item.attack.name!r} finds {100 * found:.1f}% of the included {at}"
            if least > limit.true_positive_rate:
                failed.append(f"{rate}, at least {100 * least:.1f}%; accepted are {accepted}.")
            elif most > limit.true_positive_rate:
                unsure.append(f"{rate}, and by so few canaries it may be {100 * most:.1f}%; accepted are {accepted}.")
            elif could <= limit.true_positive_rate:
                unsure.append(
                    f"{rate}, and could have found no more than {100 * could:.1f}%, since canaries are equal; accepted "
                    f"are {accepted}."
                )
    return failed, unsure


def _could_find(item: Scored, included: Coins, false_positive_rate: float) -> float:
    """The true positive rate of an attacker who knows how many of each set of equal canaries were in."""
    if item.duplicates is None:
        return 1.0
    known = bounds.known_chances(item.duplicates, included)
    return bounds.true_positive_rate(known, included, false_positive_rate=false_positive_rate).value


def _beyond(bound: float, threshold: float, confidence: float) -> str:
    return (
        f"With {confidence:.0%} confidence the privacy loss epsilon is at least {bound:.2f}, more than the "
        f"{threshold:g} that is accepted."
    )


def _powerless(highest: float, threshold: float) -> str:
    return (
        f"Even if every guess had been right, the audit could not have shown more than {highest:.2f}, which is not "
        f"above the {threshold:g} that is accepted. More canaries are needed (`dpsynth contract check` says whether "
        "any number is enough), which takes another run at its own cost."
    )


def _too_alike(highest: float, threshold: float) -> str:
    return (
        "An attacker who knew how many of each set of equal canaries were in could not be expected to show more than "
        f"{highest:.2f}, which is not above the {threshold:g} that is accepted: too many canaries are equal. Columns "
        "or values that distinguish them are needed, which takes another run at its own cost."
    )
