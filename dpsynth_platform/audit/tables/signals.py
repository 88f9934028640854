"""What attacks ask the evidence for, and what the attacked model says of records.

What belongs here: errors that say what the evidence lacks. What does not: the attacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.model import Model, log_likelihood

if TYPE_CHECKING:
    from dpsynth_platform.audit.tables.evidence import Shadows


def needed_model(evidence: Evidence) -> Model:
    """The attacked model. Raises `AccountingError` where the attacker has none."""
    if evidence.model is None:
        raise AccountingError("audit: this attack asks a fitted model; accepted: evidence with one")
    return evidence.model


def needed_shadows(evidence: Evidence) -> Shadows:
    """The shadow models. Raises `AccountingError` where there are none."""
    if evidence.shadows is None:
        raise AccountingError("audit: this attack compares with shadow models; accepted: evidence with `fit_shadows`")
    return evidence.shadows


def log_likelihoods(evidence: Evidence, table: pa.Table | None = None) -> Floats:
    """Log-likelihood of the targets, or of a table's records, under the attacked model; shape (records,).

    Raises:
        AccountingError: the attacker has no model.
    """
    return log_likelihood(needed_model(evidence), evidence.targets if table is None else table)
