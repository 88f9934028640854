"""The evidence of an attacker on texts.

What belongs here: the released texts, the target texts and, if the attacker has them, others of the same population.
What does not: membership (no attack sees a coin), and the attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsynth_platform.audit.attacks import equal_items
from dpsynth_platform.audit.bounds import Duplicates
from dpsynth_platform.audit.registry import Need
from dpsynth_platform.foundation.errors import AccountingError


@dataclass(frozen=True)
class TextEvidence:
    """All inputs of attacks on texts.

    Attributes:
        synthetic: texts of the release.
        reference: texts of the data's population; None: there are none.
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
        return frozenset() if self.reference is None else frozenset(["reference"])

    @property
    def duplicates(self) -> Duplicates:
        return equal_items(self.targets)

    @property
    def publishable(self) -> bool:
        """Whether results depend on canaries and the release only, not on texts of real people."""
        return self.canaries and self.reference is None
