"""The evidence of an attacker on tables.

What belongs here: the released rows, the target records, a table of the same population and, if the attacker has them,
the model and shadow models, all as cells of one domain. What does not: membership (no attack sees a coin), and the
attacks.

The evidence alone decides whether a result may be published: canaries are independent of the protected data, and the
release is post-processing; real people and tables of real people are neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.audit.attacks import Floats, equal_cells
from dpsynth_platform.audit.bounds import Duplicates
from dpsynth_platform.audit.registry import Need
from dpsynth_platform.audit.tables.agreement import Query
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.model import Model, log_likelihood

MOST_ROWS = 200_000
"""Used rows of a table: rows are exchangeable, so more would only take time."""


@dataclass(frozen=True)
class Shadows:
    """Signals of every shadow model. Restricted where the population is.

    Attributes:
        included: membership of targets in models, shape (models, targets); each target in half of them.
        likelihoods: log-likelihood of each target under each model, same shape.
        references: records of the population, with log-likelihoods of shape (models, references).
        agreements: rows of each model's sample of `sampled` rows that agree with the target in a query's columns, shape
            (models, targets, queries).
    """

    included: npt.NDArray[np.bool_]
    likelihoods: Floats
    references: pa.Table
    reference_likelihoods: Floats
    queries: tuple[Query, ...]
    agreements: npt.NDArray[np.float32]
    sampled: int


@dataclass(frozen=True)
class Evidence:
    """All inputs of attacks on tables.

    Attributes:
        domain: the columns' cells, including learned values.
        targets: records, one row each.
        reference: rows of the data's population; None: the release replaces them.
        canaries: whether the targets are canaries, independent of the data.
        records_per_target: b, the records of each target in the data.
        shadows: models of the same mechanism on tables that the attacker knows (`shadows.fit_shadows`).
    """

    domain: Domain
    targets: pa.Table
    synthetic: pa.Table
    reference: pa.Table | None = None
    canaries: bool = False
    records_per_target: int = 1
    model: Model | None = None
    shadows: Shadows | None = None

    def __post_init__(self) -> None:
        known = {"targets": self.targets, "synthetic rows": self.synthetic, "reference": self.population}
        for name, table in known.items():
            lacking = [column for column in self.domain.reads if column not in table.column_names]
            if lacking or not table.num_rows:
                wrong = f"lack the columns {', '.join(lacking)}" if lacking else "are empty"
                raise AccountingError(f"audit: the {name} {wrong}; accepted: rows with every modelled column")
        if self.domain.unknown or self.records_per_target < 1:
            raise AccountingError(
                f"audit: {len(self.domain.unknown)} columns of unknown values, {self.records_per_target} records a "
                "target; accepted: a domain with the values that the mechanism learned, at least one record"
            )

    @property
    def held(self) -> frozenset[Need]:
        available: dict[Need, bool] = {
            "model": self.model is not None,
            "reference": self.reference is not None,
            "shadows": self.shadows is not None,
            "samples": self.shadows is not None and bool(self.shadows.queries),
        }
        return frozenset(need for need, is_available in available.items() if is_available)

    @property
    def publishable(self) -> bool:
        """Whether results depend on canaries and the release only, not on a table of real people."""
        return self.canaries and self.reference is None

    @property
    def counted(self) -> int:
        """A target's contribution to the model's counts: its records, or 1 where owners are counted."""
        return 1 if self.counts_owners else self.records_per_target

    @property
    def counts_owners(self) -> bool:
        """Whether the model counts owners instead of records; False without a model."""
        return self.model is not None and Guarantee.from_json(self.model.plan.guarantee).weighting == "owners"

    @property
    def population(self) -> pa.Table:
        return self.synthetic if self.reference is None else self.reference

    @cached_property
    def target_codes(self) -> Codes:
        """Cells of the targets, shape (targets, columns)."""
        return self.domain.encode(self.targets)

    @property
    def duplicates(self) -> Duplicates:
        """Which targets have equal cells, the only input of attacks on tables."""
        return equal_cells(self.target_codes)

    @cached_property
    def synthetic_codes(self) -> Codes:
        """Cells of the first `MOST_ROWS` synthetic rows."""
        return self.domain.encode(self.synthetic.slice(0, MOST_ROWS))

    @cached_property
    def population_codes(self) -> Codes:
        if self.reference is None:
            return self.synthetic_codes
        return self.domain.encode(self.reference.slice(0, MOST_ROWS))


def needed_model(evidence: Evidence) -> Model:
    """The attacked model. Raises `AccountingError` where the attacker has none."""
    if evidence.model is None:
        raise AccountingError("audit: there is no fitted model, which this attack needs; accepted: evidence with one")
    return evidence.model


def needed_shadows(evidence: Evidence) -> Shadows:
    """The shadow models. Raises `AccountingError` where there are none."""
    if evidence.shadows is None:
        raise AccountingError("audit: there are no shadow models, which this attack needs; accepted: `fit_shadows`")
    return evidence.shadows


def log_likelihoods(evidence: Evidence, table: pa.Table | None = None) -> Floats:
    """Log-likelihood of the targets, or of a table's records, under the attacked model (`needed_model`)."""
    return log_likelihood(needed_model(evidence), evidence.targets if table is None else table)
