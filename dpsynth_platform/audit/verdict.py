"""The verdict of an audit, and the report that explains it.

What belongs here: comparing what the attacks proved with what was claimed, saying how much the audit could have shown
at all, and the report as JSON and in plain words. What does not: scoring canaries, drawing, deciding about a release.

Everything in the report follows from the canaries' coins and from scores of what the mechanism left. Canaries are
independent of the data, so the report is post-processing and may be published.

A canary owner joins or stays away with all its records. That is a neighbouring pair under add-or-remove and zero-out;
under replace-one the claim is tested on joining too, which the generators' noise covers, since it is scaled for a
replacement, the larger change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import ATTACKS, TEXT_ATTACKS, Scored
from dpsynth_platform.audit.bounds import Coins, Rate
from dpsynth_platform.contracts import DataContract

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class AttackResult:
    """What one attack achieved.

    Attributes:
        guessed_in: how many canaries it guessed to be in; fixed before the run.
        guessed_out: how many it guessed to be out; fixed before the run.
        right: how many of these guesses were right.
        right_to_fail: how many would have had to be right to fail the audit; None: all of them would not do.
        epsilon_lower_bound: what the guesses prove, at a confidence that makes all attacks hold together.
        true_positive_rate: share of the included canaries found at one percent false alarms, with 95% interval.
        true_negative_rate: share of the held-out canaries found at one percent of the included ones missed, likewise.
        area_under_curve: 0.5 is guessing, 1 is certainty.
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


@dataclass(frozen=True)
class AuditReport:
    """The audit of one model and of the data sampled from it.

    Attributes:
        unit: the privacy unit; one canary owner is one unit.
        claimed_epsilon: the guarantee under test.
        threshold: the audit fails if the bound exceeds it; at most the claimed epsilon.
        epsilon_lower_bound: the largest bound of all attacks; holds at `confidence`.
        highest_bound: the largest bound that any attack of this size could have shown.
        publishable: true, since nothing but canaries was compared.
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them, with the summary in words."""
        return asdict(self) | {"attacks": [asdict(attack) for attack in self.attacks], "summary": self.summary}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> AuditReport:
        """Reads `to_json` back."""
        attacks = tuple(
            AttackResult(
                **(attack | {rate: Rate(**attack[rate]) for rate in ("true_positive_rate", "true_negative_rate")})
            )
            for attack in document["attacks"]
        )
        fields = {key: value for key, value in document.items() if key != "summary"}
        return cls(**(fields | {"attacks": attacks}))

    @property
    def summary(self) -> str:
        """The audit in plain words."""
        return " ".join([self._setting, self._finding, self._power])

    @property
    def _setting(self) -> str:
        return (
            f"{self.canaries} fictional owners with {_records(self.records_per_canary)} each were prepared without "
            f"looking at the data, and a coin toss decided for each whether it joined. {len(self.attacks)} attacks "
            "then tried to tell from the model and from the synthetic data which ones had joined."
        )

    @property
    def _finding(self) -> str:
        bound = f"With {self.confidence:.0%} confidence the privacy loss epsilon is at least"
        if self.verdict == "fail":
            return (
                f"FAIL: {bound} {self.epsilon_lower_bound:.2f}, more than the {self.threshold:g} that is accepted. "
                "The mechanism leaks more than it claims."
            )
        if self.verdict == "inconclusive":
            return (
                f"INCONCLUSIVE: even if every guess had been right, the audit could not have shown more than "
                f"{self.highest_bound:.2f}, which is not above the {self.threshold:g} that is accepted. "
                "More canaries are needed, which makes another run, with a cost of its own."
            )
        return (
            f"PASS: {bound} {self.epsilon_lower_bound:.2f}, which does not contradict the claim of "
            f"{self.claimed_epsilon:g} (accepted: up to {self.threshold:g})."
        )

    @property
    def _power(self) -> str:
        best = max(self.attacks, key=lambda attack: attack.highest_bound)
        power = (
            f"The highest bound this audit could have shown is {self.highest_bound:.2f}, with all "
            f"{best.guessed_in + best.guessed_out} guesses right."
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
) -> AuditReport:
    """Compares what the attacks proved with the claim.

    Fail: the bound exceeds the threshold, the smaller of the claimed epsilon and the contract's
    `audit.max_epsilon_lower_bound`. Inconclusive: it could not have exceeded it. Pass: otherwise. A mechanism that
    keeps its claim fails with probability at most 1 - confidence, over all attacks together.

    Args:
        contract: unit, bound on contributions, threshold and confidence.
        period: the line's period.
        included: shape (canaries,), the coins.
        scored: every attack's scores, in the coins' order; at least one attack.
        epsilon: the release's own epsilon, where it is smaller than the contract's.
        delta: the release's delta, where it is not the contract's.
    """
    claimed = contract.privacy.guarantee.epsilon if epsilon is None else epsilon
    delta = contract.privacy.delta if delta is None else delta
    threshold = min(contract.audit_terms["threshold"], claimed)
    each = bounds.each_confidence(contract.audit.confidence, len(scored))
    results = tuple(_result(item, included, threshold, delta, each) for item in scored)
    bound = max(result.epsilon_lower_bound for result in results)
    highest = max(result.highest_bound for result in results)
    verdict: Verdict = "fail" if bound > threshold else "inconclusive" if highest <= threshold else "pass"
    return AuditReport(
        dataset=contract.dataset,
        period=period,
        verdict=verdict,
        unit=contract.privacy.unit,
        adjacency=contract.privacy.adjacency,
        claimed_epsilon=claimed,
        delta=delta,
        threshold=threshold,
        confidence=contract.audit.confidence,
        canaries=int(included.size),
        included=int(included.sum()),
        records_per_canary=contract.privacy.max_contributions,
        epsilon_lower_bound=bound,
        highest_bound=highest,
        attacks=results,
    )


def shortage_of(contract: DataContract) -> str | None:
    """Why an audit of this contract can only be inconclusive, whatever comes out; None if it can conclude.

    Known before anything is spent: the number of canaries and of guesses is fixed.
    """
    terms = contract.audit_terms

    attacks = ATTACKS if contract.written is None else (*ATTACKS, *TEXT_ATTACKS)

    def highest(canaries: int) -> float:
        each = bounds.each_confidence(contract.audit.confidence, len(attacks))
        return max(
            bounds.highest_bound(
                canaries=canaries, guesses=sum(attack.guesses(canaries)), delta=terms["delta"], confidence=each
            )
            for attack in attacks
        )

    mine = contract.canary_count
    if highest(mine) > terms["threshold"]:
        return None
    enough = next((number for number in range(mine, 2001, 10) if highest(number) > terms["threshold"]), None)
    way_out = (
        f"declare audit.canaries: {enough} (more show more)"
        if enough
        else "no number up to 2000 is enough, so say in audit.accept_inconclusive why that is acceptable"
    )
    return (
        f"{mine} canaries can show at most epsilon {highest(mine):.2f}, which is not above the "
        f"{terms['threshold']:g} that is accepted: the verdict can only be inconclusive; {way_out}"
    )


def _result(item: Scored, included: Coins, threshold: float, delta: float, confidence: float) -> AttackResult:
    guess_in, guess_out = item.attack.guesses(included.size)
    right = bounds.count_right(item.scores, included, guess_in=guess_in, guess_out=guess_out)
    canaries, guesses = int(included.size), guess_in + guess_out
    return AttackResult(
        name=item.attack.name,
        target=item.attack.target,
        describes=item.attack.describes,
        guessed_in=guess_in,
        guessed_out=guess_out,
        right=right,
        right_to_fail=bounds.right_needed(
            canaries=canaries, guesses=guesses, epsilon=threshold, delta=delta, confidence=confidence
        ),
        epsilon_lower_bound=bounds.epsilon_lower_bound(
            canaries=canaries, guesses=guesses, right=right, delta=delta, confidence=confidence
        ),
        highest_bound=bounds.highest_bound(canaries=canaries, guesses=guesses, delta=delta, confidence=confidence),
        true_positive_rate=bounds.true_positive_rate(item.scores, included),
        true_negative_rate=bounds.true_positive_rate(-item.scores, ~included),
        area_under_curve=bounds.area_under_curve(item.scores, included),
    )


def _records(count: int) -> str:
    return "one record" if count == 1 else f"{count} records"
