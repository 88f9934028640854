"""An audit's policy: the contract's claims, gates and limits, as the verdict reads them.

What belongs here: the policy as plain values, which attacks decide, and how the tests share the confidence. What does
not: testing (`bounds`, `risk`), and the verdict (`verdict`).

All of it is fixed before a run. Each deciding attack and each limit on a rate is a separate test that a correct
mechanism may fail at random. So they share the level (Bonferroni), and a mechanism that keeps its claim fails with
probability at most one minus the confidence, for any number of tests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import (
    ANSWER_ATTACKS,
    ATTACKS,
    LINK_ATTACKS,
    LINK_MEASUREMENTS,
    PICTURE_ATTACKS,
    PICTURE_DISTANCE,
    PICTURE_LOSS,
    PICTURE_SUMS,
    TEXT_ATTACKS,
    TEXT_LIKELIHOOD,
    TEXT_OVERLAP,
    Attack,
)
from dpsynth_platform.contracts.audit import RateLimit
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import DENOISED_METHODS, NETWORK_METHODS, SUMMED_METHODS
from dpsynth_platform.foundation.errors import ContractError


@dataclass(frozen=True)
class Policy:
    """The limits of an audit.

    Attributes:
        threshold: the audit fails if the bound exceeds it; at most the claimed epsilon.
        confidence: of all tests together.
        gates: names of the attacks that decide; None: all.
        cumulative: whether the family's audits together decide, too.
    """

    claimed_epsilon: float
    delta: float
    threshold: float
    confidence: float
    gates: tuple[str, ...] | None = None
    rate_limits: tuple[RateLimit, ...] = ()
    cumulative: bool = True

    @classmethod
    def of(cls, contract: DataContract, *, epsilon: float | None = None, delta: float | None = None) -> Policy:
        """The contract's policy; `epsilon` and `delta` are the release's own, where they differ from the contract's."""
        claimed = contract.privacy.guarantee.epsilon if epsilon is None else epsilon
        audit = contract.audit
        return cls(
            claimed_epsilon=claimed,
            delta=contract.privacy.delta if delta is None else delta,
            threshold=min(contract.audit_terms["threshold"], claimed),
            confidence=audit.confidence,
            gates=None if audit.gates is None else tuple(audit.gates),
            rate_limits=tuple(audit.rate_limits),
            cumulative=audit.cumulative == "gate",
        )

    def decides(self, name: str) -> bool:
        return self.gates is None or name in self.gates

    def each_confidence(self, names: Collection[str]) -> float:
        """Confidence of each test, so that all hold together; `names` are those of all attacks that ran."""
        deciding = len(names) if self.gates is None else len(set(self.gates))
        return bounds.each_confidence(self.confidence, max(1, deciding) * (1 + len(self.rate_limits)))


def attacks_on(contract: DataContract) -> tuple[Attack, ...]:
    """The attacks that the asset line runs: on columns only where some are counted."""
    from dpsynth_platform.synth.counted import counts_columns  # late: most commands need no attack

    if contract.generate.answers:
        return ANSWER_ATTACKS
    if contract.tables:
        if len(contract.linked.private) == 1:
            return ATTACKS
        # A network's tables of counts have one column each: none links rows of two tables.
        counted = contract.generate.method not in NETWORK_METHODS
        return (*ATTACKS, *(each for each in LINK_ATTACKS if counted or each != LINK_MEASUREMENTS))
    on_columns = ATTACKS if counts_columns(contract) else ()
    if contract.image_column is not None and contract.generate.drawn is None:
        diffusion = contract.generate.image.diffusion if contract.generate.image else None
        method = contract.generate.method
        runs = {
            PICTURE_SUMS: method in SUMMED_METHODS or (diffusion is not None and diffusion.by_moments),
            PICTURE_LOSS: method in DENOISED_METHODS,
        }
        return (*on_columns, *(attack for attack in PICTURE_ATTACKS if runs.get(attack, True)))
    if contract.text_column is None:
        return on_columns
    on_texts = (attack for attack in TEXT_ATTACKS if attack.target == "data" or contract.generate.training)
    # No mechanism reads the canaries' pictures. The attack shows that the drawn ones do not depend on them.
    drawn = contract.generate.drawn is not None and not contract.separate_audit_model
    return (*on_columns, *on_texts, *([PICTURE_DISTANCE] if drawn else []))


def unproven_gate(policy: Policy, attacks: Sequence[Attack]) -> str | None:
    """Why no deciding attack has been shown to detect a faulty mechanism, or None where one has.

    A trained model's texts may repeat what it memorized. A writer by votes never reads a record, and for tokens drawn
    one by one for many owners the attack is untested: the absence of canaries' words proves nothing there. Pictures
    drawn from texts follow from no record's picture, whatever the mechanism does. A diffusion model's loss finds the
    canaries of a training without privacy; how little noise it still finds is not measured.
    """
    deciding = [attack for attack in attacks if policy.decides(attack.name)]
    unproven = [PICTURE_DISTANCE, PICTURE_LOSS, *([] if TEXT_LIKELIHOOD in attacks else [TEXT_OVERLAP])]
    if not deciding or any(attack not in unproven for attack in deciding):
        return None
    named = " and ".join(repr(attack.name) for attack in deciding)
    only = f"attack {named} is the only one that decides, and it was"
    if len(deciding) > 1:
        only = f"attacks {named} are the only ones that decide, and they were"
    return f"The {only} not shown to find anyone where noise is missing."


def check_gates(contract: DataContract, attacks: Sequence[Attack]) -> None:
    """Raises `ContractError` if the contract's gates name an attack that its asset line does not run."""
    names = [attack.name for attack in attacks]
    for gate in contract.audit.gates or ():
        if gate not in names:
            raise ContractError(
                f"{contract.dataset}: audit.gates: no attack on it is called {gate!r}; accepted: {', '.join(names)}"
            )
