"""What an audit is held against: the contract's word on claims, gates and limits, as the verdict reads it.

What belongs here: the policy as plain values, which attacks decide, and how the confidence is shared out among all that
is tested. What does not: testing (`bounds`, `risk`), and the verdict (`verdict`).

Everything here is fixed before a run. Every attack that decides, and every limit on a rate, is a test of its own, and a
correct mechanism may fail each by chance: so the level is shared out among them (Bonferroni), and a mechanism that
keeps its claim fails with probability at most one minus the confidence, however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import ATTACKS, TEXT_ATTACKS, TEXT_LIKELIHOOD, TEXT_OVERLAP, Attack
from dpsynth_platform.contracts.audit import RateLimit
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError


@dataclass(frozen=True)
class Policy:
    """What an audit is held against.

    Attributes:
        claimed_epsilon: the guarantee under test.
        delta: of the guarantee.
        threshold: the audit fails if the bound exceeds it; at most the claimed epsilon.
        confidence: of all tests together.
        gates: names of the attacks that decide; None: all.
        rate_limits: largest true positive rates that are accepted.
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
        """The contract's policy.

        Args:
            contract: declares it.
            epsilon: the release's own epsilon, where it is smaller than the contract's.
            delta: the release's delta, where it is not the contract's.
        """
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
        """Whether an attack of this name decides."""
        return self.gates is None or name in self.gates

    def each_confidence(self, names: Collection[str]) -> float:
        """Confidence of each test, so that all hold together.

        Args:
            names: of all attacks that were made.
        """
        deciding = len(names) if self.gates is None else len(set(self.gates))
        return bounds.each_confidence(self.confidence, max(1, deciding) * (1 + len(self.rate_limits)))


def attacks_on(contract: DataContract) -> tuple[Attack, ...]:
    """The attacks that the line makes on a contract's model and rows: on columns only where some are counted."""
    from dpsynth_platform.synth.text.counted import counts_columns  # late: most commands ask for no attack

    on_columns = ATTACKS if counts_columns(contract) else ()
    if contract.text_column is None:
        return on_columns
    return (*on_columns, *(attack for attack in TEXT_ATTACKS if attack.target == "data" or contract.generate.training))


def unasked(policy: Policy, attacks: Sequence[Attack]) -> str | None:
    """Why none of the deciding attacks was shown to see a mechanism that is wrong, or None where one was.

    A trained model's texts may repeat what it remembers. No record is ever told to who writes by votes, and of tokens
    drawn one by one for many owners it was not tried: that a canary's words are not found again proves nothing there.

    Args:
        policy: says which attacks decide.
        attacks: all that are made.
    """
    deciding = [attack for attack in attacks if policy.decides(attack.name)]
    if TEXT_LIKELIHOOD in attacks or not deciding or any(attack != TEXT_OVERLAP for attack in deciding):
        return None
    return (
        f"The attack {TEXT_OVERLAP.name!r} is the only one that decides, and without a trained model it was not shown "
        "to find anybody where noise is missing."
    )


def check_gates(contract: DataContract, attacks: Sequence[Attack]) -> None:
    """Refuses a contract whose gates name an attack that its line does not make.

    Raises:
        ContractError: names the gate and what is accepted.
    """
    names = [attack.name for attack in attacks]
    for gate in contract.audit.gates or ():
        if gate not in names:
            raise ContractError(
                f"{contract.dataset}: audit.gates: {gate!r} is none of the attacks on it; accepted: {', '.join(names)}"
            )
