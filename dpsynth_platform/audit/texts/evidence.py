"""What an attacker on texts has in hand.

What belongs here: the released texts, the texts asked about and, if the attacker has them, others of the same
population. What does not: who was in (no attack sees a coin), and what is made of the evidence (the attacks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsynth_platform.audit.attacks import alike_items
from dpsynth_platform.audit.bounds import Alike
from dpsynth_platform.audit.registry import Need
from dpsynth_platform.foundation.errors import AccountingError


@dataclass(frozen=True)
class TextEvidence:
    """All that attacks on texts may look at.

    Attributes:
        targets: the texts asked about.
        synthetic: texts of the release.
        reference: texts of the population that the data came from; None: there are none.
        canaries: whether the targets are canaries, independent of the data.
    """

    targets: Sequence[str]
    synthetic: Sequence[str]
    reference: Sequence[str] | None = None
    canaries: bool = False

    def __post_init__(self) -> None:
        known = {"targets": self.targets, "synthetic texts": self.synthetic, "reference": self.reference}
        for name, texts in known.items():
            if texts is not None and not len(texts):
                raise AccountingError(f"audit: the {name} are empty; accepted: at least one text")

    @property
    def held(self) -> frozenset[Need]:
        """What attacks find here besides targets and release."""
        return frozenset() if self.reference is None else frozenset(["reference"])

    @property
    def alike(self) -> Alike:
        """Which targets are the same text."""
        return alike_items(self.targets)

    @property
    def publishable(self) -> bool:
        """Whether results are canaries' only, and owe nothing to texts of real people."""
        return self.canaries and self.reference is None
