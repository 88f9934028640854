"""Audits of any scores: from any attack, on any model or table.

What belongs here: conclusions from scores and the design, with a verdict where there is a claim, as JSON and as text.
What does not: the asset line's audit (`verdict`), reading files, the attacks.

The conclusions depend on the design, which the numbers do not show:

- `coins`: one run; a separate fair coin included each target. Bounds of one run (Steinke et al. 2023).
- `runs`: each row is a separate run, with or without the same target. Bounds by both error rates (Clopper-Pearson).
- `groups`: given groups. Rates and area describe the attack; no bound on epsilon follows, since members and non-members
  may differ in other ways, too.

Results on canaries may be published. Those on real people may not: no guarantee covers them, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from dpsynth_platform.audit import bounds, fdp
from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.risk import Reconstructed, Risk, measure_risk
from dpsynth_platform.audit.tables.attributes import Inferred
from dpsynth_platform.audit.tables.copies import Copies
from dpsynth_platform.audit.verdict import Verdict, coins_fault, usable
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.redaction import reason_of

FORMAT = "dpsynth-audit/1"
Design = Literal["coins", "runs", "groups"]
NOTICE = (
    "NOT PUBLISHABLE: these results compare real people, or rest on a table of real people. No guarantee covers them; "
    "keep them as you keep the data."
)
_ORDER = 20231212
"""Seed of the order of rows with equal scores: fixed, so that the same file has the same outcome."""
HEADER = ("attack", "epsilon at least", "Gaussian bound", "TPR at 0.1%", "TPR at 1% FPR", "TPR at 10%", "AUC")


@dataclass(frozen=True)
class Outcome:
    """The result of one attack.

    Attributes:
        guesses, right: number of guessed coins, and of right guesses; None without coins.
        epsilon_lower_bound: at a confidence that makes all attacks hold together; None: there is none.
        highest_bound: the largest possible bound; of one run, with `bounds.best_right` right guesses.
        gaussian_bound: the bound if the mechanism is a Gaussian one.
        fault: why it has no usable scores, or None.
    """

    name: str
    guesses: int | None
    right: int | None
    epsilon_lower_bound: float | None
    highest_bound: float | None
    gaussian_bound: float | None
    risk: Risk
    fault: str | None


@dataclass(frozen=True)
class OwnAudit:
    """An audit outside of the asset line, of what `of` describes; without a claim, epsilon and verdict are None.

    Attributes:
        targets, included: number of scored rows, and of members among them.
        confidence: of all bounds together.
        publishable: whether only canaries were compared.
        copies, inferred: of a table.
        reconstructed: of a language model.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    of: str
    design: Design
    targets: int
    included: int
    claimed_epsilon: float | None
    delta: float
    confidence: float
    attacks: tuple[Outcome, ...]
    verdict: Verdict | None
    reasons: tuple[str, ...]
    publishable: bool
    copies: tuple[Copies, ...] = ()
    reconstructed: tuple[Reconstructed, ...] = ()
    inferred: tuple[Inferred, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them, with the summary in words."""
        return {"format": FORMAT} | asdict(self) | {"summary": self.summary}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> OwnAudit:
        """Reads the output of `to_json`.

        Raises:
            AccountingError: it is something else.
        """
        known = {field.name for field in fields(cls)}
        try:
            return TypeAdapter(cls).validate_python({key: value for key, value in document.items() if key in known})
        except (ValueError, AttributeError) as error:
            problem = reason_of(error)
        raise AccountingError(f"audit: the report cannot be read ({problem}); accepted: what `dpsynth audit run` wrote")

    @property
    def summary(self) -> str:
        """The audit in sentences."""
        parts = [
            f"Attacks on {self.of}: {self.included} of {self.targets} rows were in ({self.design}).",
            self._finding,
            *map(_copied, self.copies),
            *(item.words for item in self.reconstructed),
            *(item.words for item in self.inferred),
            "" if self.publishable else NOTICE,
        ]
        return " ".join(part for part in parts if part)

    @property
    def _finding(self) -> str:
        claim = f"epsilon {self.claimed_epsilon:g} at delta {self.delta:g}" if self.claimed_epsilon is not None else ""
        highest = max((item.highest_bound or 0.0 for item in self.attacks), default=0.0)
        power = f"The highest bound that could have been shown is {highest:.2f}." if self.design != "groups" else ""
        if self.verdict is None:
            return " ".join(part for part in ("Nothing was claimed, so there is no verdict.", power) if part)
        if self.verdict == "pass":
            return f"PASS: at {self.confidence:.0%} confidence nothing contradicts {claim}. {power}"
        return f"{self.verdict.upper()}: {' '.join(self.reasons)} {power}".strip()

    def table(self) -> list[tuple[str, ...]]:
        """One row an attack, in the columns of `HEADER`."""
        return [_row(item) for item in self.attacks]


def audit_scores(
    of: str,
    scored: Sequence[Scored],
    included: Coins,
    *,
    design: Design,
    publishable: bool,
    epsilon: float | None,
    delta: float,
    confidence: float,
    copies: tuple[Copies, ...] = (),
    reconstructed: tuple[Reconstructed, ...] = (),
    inferred: tuple[Inferred, ...] = (),
) -> OwnAudit:
    """What the scores show, and whether they contradict a claim.

    Args:
        of: description of what was audited.
        scored: every attack's scores; at least one attack.
        included: shape (rows,), the members, chosen by `design`.
        publishable: whether the rows are canaries, and no other data was read.
        epsilon: the claim, or None.
        delta: of the claim and the bounds, in (0, 1).
        confidence: of all bounds together.
        copies, reconstructed, inferred: for the report; the verdict does not depend on them.

    Raises:
        AccountingError: the numbers are inconsistent.
    """
    if (epsilon is not None and not epsilon > 0) or not 0 < delta < 1 or not 0.5 <= confidence < 1:
        raise AccountingError(
            f"audit: epsilon {epsilon}, delta {delta:g}, confidence {confidence:g}; accepted: epsilon > 0, a delta in "
            "(0, 1) and a confidence from 0.5 to below 1"
        )
    each = bounds.each_confidence(confidence, len(scored))
    outcomes = tuple(_outcome(item, included, design, epsilon, delta, each) for item in scored)
    verdict, reasons = _judged(outcomes, included, design, epsilon)
    return OwnAudit(
        of=of,
        design=design,
        targets=int(included.size),
        included=int(included.sum()),
        claimed_epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        attacks=outcomes,
        verdict=verdict,
        reasons=tuple(reasons),
        publishable=publishable,
        copies=copies,
        reconstructed=reconstructed,
        inferred=inferred,
    )


def _outcome(
    item: Scored, included: Coins, design: Design, epsilon: float | None, delta: float, confidence: float
) -> Outcome:
    scores, fault = usable(item.scores)
    guesses = right = bound = highest = gaussian = None
    if design == "coins":
        guess_in, guess_out = item.attack.guesses(included.size)
        guesses, right = guess_in + guess_out, 0
        if fault is None:
            # Rows of a file or of two tables may be in the order of their coins, which must not break ties.
            order = np.random.default_rng(_ORDER).permutation(included.size)
            right = bounds.count_right(scores[order], included[order], guess_in=guess_in, guess_out=guess_out)
        asked: dict[str, Any] = {
            "canaries": int(included.size), "guesses": guesses, "delta": delta, "confidence": confidence,
        }  # fmt: skip
        best = guesses
        if item.duplicates is not None:
            best = bounds.best_right(item.duplicates, included, guess_in=guess_in, guess_out=guess_out)
        bound = bounds.epsilon_lower_bound(right=right, **asked)
        highest = bounds.epsilon_lower_bound(right=max(best, right), **asked)
        gaussian = fdp.gaussian_epsilon_bound(right=right, **asked)
    elif design == "runs":
        shared = {"delta": delta, "confidence": confidence}
        bound = bounds.repeated_runs_bound(scores, included, **shared)
        highest = bounds.repeated_runs_bound(included.astype(float), included, **shared)
        gaussian = fdp.gaussian_runs_bound(scores, included, **shared)
    risk = measure_risk(scores, included, epsilon=epsilon, delta=delta)
    return Outcome(item.attack.name, guesses, right, bound, highest, gaussian, risk, fault)


def _judged(
    outcomes: Sequence[Outcome], included: Coins, design: Design, epsilon: float | None
) -> tuple[Verdict | None, list[str]]:
    """The verdict on a claim, and why it is no pass."""
    faults = [f"The attack {item.name!r} has no usable scores: {item.fault}." for item in outcomes if item.fault]
    if epsilon is None:
        return None, faults
    bound = max((item.epsilon_lower_bound or 0.0 for item in outcomes), default=0.0)
    highest = max((item.highest_bound or 0.0 for item in outcomes), default=0.0)
    if bound > epsilon:
        return "fail", [f"The privacy loss epsilon is at least {bound:.2f}, more than the {epsilon:g} that is claimed."]
    unsure = list(faults) if len(faults) == len(outcomes) else []
    if design == "groups":
        unsure.append("From groups that no coins chose, no bound on epsilon follows, so no claim can be contradicted.")
    elif design == "coins" and (unfair := coins_fault(included)):
        unsure.append(unfair)
    elif not 0 < included.sum() < included.size:
        unsure.append("All runs are in one group: there is no other group to compare with.")
    if design != "groups" and highest <= epsilon:
        unsure.append(f"No more than {highest:.2f} could have been shown, which is not above the {epsilon:g} claimed.")
    return ("inconclusive", unsure) if unsure else ("pass", [])


def _row(item: Outcome) -> tuple[str, ...]:
    rates = [
        f"{rate.found.value:.3f} ({rate.found.low:.3f} to {rate.found.high:.3f})" if rate.resolved else "too few rows"
        for rate in item.risk.rates
    ]
    area = item.risk.area_under_curve
    return (
        item.name,
        item.fault or _number(item.epsilon_lower_bound),
        _number(item.gaussian_bound),
        *rates,
        f"{area.value:.3f} ({area.low:.3f} to {area.high:.3f})",
    )


def _copied(found: Copies) -> str:
    kind = "a copy" if not found.columns_off else f"a copy in all but {found.columns_off} columns or fewer"
    return (
        f"Of {found.of_members} members, {found.members} have {kind} in the table; of {found.of_held_out} others, "
        f"{found.held_out} (one-sided p-value of the difference {found.p_value:.2g})."
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
