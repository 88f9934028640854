"""Whether an audit will be able to conclude, before any budget is spent.

What belongs here: the audit's power by the contract alone: numbers of canaries and guesses, and of equal rows in a
trial draw. What does not: results (`verdict`).
"""

from __future__ import annotations

import numpy as np

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import ATTACKS, LINK_ATTACKS, Attack, equal_cells
from dpsynth_platform.audit.bounds import Duplicates
from dpsynth_platform.audit.canaries import trial_rows
from dpsynth_platform.audit.linked_canaries import trial_families
from dpsynth_platform.audit.policy import Policy, attacks_on, check_gates, unproven_gate
from dpsynth_platform.audit.risk import bounds_at
from dpsynth_platform.contracts.audit import RateLimit
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.mock import source_schema_of

_MOST_CANARIES = 2000
_TOSSES = 20
"""Draws of trial coins; their mean gives the expected number of right guesses."""


def shortage_of(contract: DataContract) -> str | None:
    """Why an audit of this contract can only be, or will probably be inconclusive; None if it can conclude.

    Also None if the contract accepts that. Beside `certain_shortage_of`, equal rows count, as in small domains: by one
    trial draw of canaries and `bounds.best_right` right guesses. So a second call may differ where it is a close thing.

    Raises:
        ContractError: the policy names an attack that does not run, or no canaries can be drawn (`make_canaries`).
    """
    policy = Policy.of(contract)
    shortage = certain_shortage_of(contract)
    if shortage is not None or contract.audit.accept_inconclusive or not contract.modelled:
        return shortage  # made-up texts differ; whether a base model's do is known only after they are written
    mine = contract.canary_count
    duplicates = equal_cells(
        trial_families(contract.linked, mine)
        if contract.tables
        else trial_rows(contract, source_schema_of(contract), mine)
    )
    expected = _highest(contract, policy, mine, duplicates)
    if expected > policy.threshold:
        return None
    return (
        f"of {mine} canaries only {np.unique(duplicates).size} differ in the modelled columns, and no attack can "
        f"distinguish equal ones: they can be expected to show at most epsilon {expected:.2f}, which is not above the "
        f"{policy.threshold:g} that is accepted: the verdict will be inconclusive; declare columns with more values, "
        "or say in audit.accept_inconclusive why that is acceptable"
    )


def certain_shortage_of(contract: DataContract) -> str | None:
    """Why an audit can only be inconclusive, whatever it draws; None if it can conclude, or the contract accepts that.

    Raises:
        ContractError: the policy names an attack that does not run.
    """
    policy = Policy.of(contract)
    attacks = attacks_on(contract)
    check_gates(contract, attacks)
    if contract.audit.accept_inconclusive:
        return None
    if (unproven := unproven_gate(policy, attacks)) is not None:
        return (
            f"{unproven} The verdict can only be inconclusive; train a model (dp_finetune, ctcl), let an attack on "
            "a counted column decide, or say in audit.accept_inconclusive why that is acceptable"
        )
    mine = contract.canary_count
    each = policy.each_confidence([attack.name for attack in attacks])
    for limit in policy.rate_limits:
        if (least := _least_shown(mine, limit, each)) > limit.true_positive_rate:
            return (
                f"{mine} canaries cannot show that at most {100 * limit.true_positive_rate:g}% are found at "
                f"{100 * limit.false_positive_rate:g}% false alarms: even if none is found, the rate may be "
                f"{100 * least:.1f}%. The verdict can only be inconclusive or fail; declare more audit.canaries, or "
                "say in audit.accept_inconclusive why that is acceptable"
            )
    highest = _highest(contract, policy, mine)
    if highest <= policy.threshold:
        return _too_few(contract, policy, mine, highest)
    return None


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


def _highest(contract: DataContract, policy: Policy, canaries: int, duplicates: Duplicates | None = None) -> float:
    """The largest bound that a deciding attack can show, with all guesses right, or `best_right` with equal rows."""
    attacks = attacks_on(contract)
    each = policy.each_confidence([attack.name for attack in attacks])
    return max(
        bounds.epsilon_lower_bound(
            canaries=canaries,
            guesses=sum(attack.guesses(canaries)),
            right=_right(attack, canaries, duplicates if attack in (*ATTACKS, *LINK_ATTACKS) else None),
            delta=policy.delta,
            confidence=each,
        )
        for attack in attacks
        if policy.decides(attack.name)
    )


def _right(attack: Attack, canaries: int, duplicates: Duplicates | None) -> int:
    guess_in, guess_out = attack.guesses(canaries)
    if duplicates is None:
        return guess_in + guess_out
    coins = np.random.default_rng().random((_TOSSES, canaries)) < 1 / 2
    right = [bounds.best_right(duplicates, included, guess_in=guess_in, guess_out=guess_out) for included in coins]
    return int(np.mean(right))


def _least_shown(canaries: int, limit: RateLimit, confidence: float) -> float:
    """Upper bound on the rate if half of the canaries are included and an attack finds none of them."""
    included = np.arange(canaries) < canaries // 2
    return bounds_at(-included.astype(np.float64), included, limit.false_positive_rate, confidence)[1]
