"""Whether an audit will be able to conclude, before anything is spent.

What belongs here: what follows from the contract alone: the number of canaries and of guesses, and how many of the
canaries' rows will be alike, as a trial draw has it. What does not: what was found (`verdict`).
"""

from __future__ import annotations

import numpy as np

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import ATTACKS, Attack, alike_cells
from dpsynth_platform.audit.bounds import Alike
from dpsynth_platform.audit.canaries import trial_rows
from dpsynth_platform.audit.policy import Policy, attacks_on, check_gates, unasked
from dpsynth_platform.audit.risk import bounds_at
from dpsynth_platform.contracts.audit import RateLimit
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.mock import source_schema_of

_MOST_CANARIES = 2000
_TOSSES = 20
"""Of trial coins; the number of right guesses that can be expected is their mean."""


def shortage_of(contract: DataContract) -> str | None:
    """Why an audit of this contract can only be inconclusive, whatever comes out; None if it can conclude.

    None as well where the contract accepts that. Where rows are alike, as in small domains, it is by one trial draw of
    canaries, and with as many right guesses as may be expected (`bounds.best_right`).

    Raises:
        ContractError: the policy names an attack that is not made, or no canaries can be drawn (`make_canaries`).
    """
    policy = Policy.of(contract)
    check_gates(contract, attacks_on(contract))
    if contract.audit.accept_inconclusive:
        return None
    if (blind := unasked(policy, attacks_on(contract))) is not None:
        return (
            f"{blind} The verdict can only be inconclusive; train a model (dp_finetune, ctcl), let an attack on "
            "a counted column decide, or say in audit.accept_inconclusive why that is acceptable"
        )
    mine = contract.canary_count
    each = policy.each_confidence([attack.name for attack in attacks_on(contract)])
    for limit in policy.rate_limits:
        if (least := _least_shown(mine, limit, each)) > limit.true_positive_rate:
            return (
                f"{mine} canaries cannot show that at most {100 * limit.true_positive_rate:g}% are found at "
                f"{100 * limit.false_positive_rate:g}% false alarms: even where nobody is, it may be "
                f"{100 * least:.1f}%. The verdict can only be inconclusive or fail; declare more audit.canaries, or "
                "say in audit.accept_inconclusive why that is acceptable"
            )
    highest = _highest(contract, policy, mine)
    if highest <= policy.threshold:
        return _too_few(contract, policy, mine, highest)
    if not contract.modelled:
        return None  # the texts differ, of canaries that are made up; how many others do is seen when they are written
    alike = alike_cells(trial_rows(contract, source_schema_of(contract), mine))
    expected = _highest(contract, policy, mine, alike)
    if expected > policy.threshold:
        return None
    return (
        f"of {mine} canaries only {np.unique(alike).size} differ in the modelled columns, and nobody can tell equal "
        f"ones apart: they can be expected to show at most epsilon {expected:.2f}, which is not above the "
        f"{policy.threshold:g} that is accepted: the verdict will be inconclusive; declare columns with more values, "
        "or say in audit.accept_inconclusive why that is acceptable"
    )


def _too_few(contract: DataContract, policy: Policy, mine: int, highest: float) -> str:
    numbers = range(mine, _MOST_CANARIES + 1, 10)
    enough = next((number for number in numbers if _highest(contract, policy, number) > policy.threshold), None)
    way_out = (
        f"declare audit.canaries: {enough} (more show more)"
        if enough
        else f"no number up to {_MOST_CANARIES} is enough, so say in audit.accept_inconclusive why that is acceptable"
    )
    return (
        f"{mine} canaries can show at most epsilon {highest:.2f}, which is not above the "
        f"{policy.threshold:g} that is accepted: the verdict can only be inconclusive; {way_out}"
    )


def _highest(contract: DataContract, policy: Policy, canaries: int, alike: Alike | None = None) -> float:
    """The largest bound that a deciding attack can show, if all of its guesses are right, or as many as can be."""
    attacks = attacks_on(contract)
    each = policy.each_confidence([attack.name for attack in attacks])
    return max(
        bounds.epsilon_lower_bound(
            canaries=canaries,
            guesses=sum(attack.guesses(canaries)),
            right=_right(attack, canaries, alike if attack in ATTACKS else None),
            delta=policy.delta,
            confidence=each,
        )
        for attack in attacks
        if policy.decides(attack.name)
    )


def _right(attack: Attack, canaries: int, alike: Alike | None) -> int:
    guess_in, guess_out = attack.guesses(canaries)
    if alike is None:
        return guess_in + guess_out
    coins = np.random.default_rng().random((_TOSSES, canaries)) < 1 / 2
    right = [bounds.best_right(alike, included, guess_in=guess_in, guess_out=guess_out) for included in coins]
    return int(np.mean(right))


def _least_shown(canaries: int, limit: RateLimit, confidence: float) -> float:
    """What so many canaries leave possible of a rate, where half are included and an attack finds none of them."""
    included = np.arange(canaries) < canaries // 2
    return bounds_at(-included.astype(np.float64), included, limit.false_positive_rate, confidence)[1]
