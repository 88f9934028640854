"""What the attacked model says of the targets, for attacks that ask for it.

What belongs here: asking the evidence for what it may lack, with an error that says so. What does not: the attacks.
"""

from __future__ import annotations

from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.errors import AccountingError
from dpsynth_platform.synth.tabular.model import Model


def needed_model(evidence: Evidence) -> Model:
    """The attacked model. Raises `AccountingError` where the attacker has none."""
    if evidence.model is None:
        raise AccountingError("audit: this attack asks a fitted model; accepted: evidence with one")
    return evidence.model
