"""What an attacker on tables has in hand.

What belongs here: the released rows, the records asked about, a table of the same population and, if the attacker has
them, the model and shadow models, all as cells of one domain. What does not: who was in (no attack sees a coin), and
what is made of the evidence (the attacks).

Whether a result may be published depends on the evidence alone: canaries and whatever follows from the release are
independent of, or post-processing of, what is protected; real people and tables of real people are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.audit.attacks import Floats, alike_cells
from dpsynth_platform.audit.bounds import Alike
from dpsynth_platform.audit.registry import Need
from dpsynth_platform.audit.tables.agreement import Query
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.tabular.domain import Codes, Domain

if TYPE_CHECKING:
    from dpsynth_platform.synth.tabular.model import Model

MOST_ROWS = 200_000
"""Rows of a table are drawn alike, so that the first ones tell as much as any; more would only take time."""


@dataclass(frozen=True)
class Shadows:
    """What attacks compare, of every shadow model. Restricted where the population is.

    Attributes:
        included: which targets were in which model, shape (models, targets); each target in half of them.
        likelihoods: log-likelihood of each target under each model, same shape.
        references: records of the population (which were drawn into about as many models as any).
        reference_likelihoods: of these, shape (models, references).
        queries: sets of columns of which `agreements` tells.
        agreements: rows of each model's sample that agree with the target in a query's columns, shape (models, targets,
            queries).
        sampled: rows of each sample.
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
    """All that attacks on tables may look at.

    Attributes:
        domain: the columns' cells; values that were learned are known.
        targets: the records asked about, one row each.
        synthetic: rows of the release.
        reference: rows of the population that the data came from; None: the release has to do in their place.
        canaries: whether the targets are canaries, independent of the data.
        records_per_target: b, how many records each target would have had in the data.
        model: what the mechanism left, if the attacker has it.
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
        """What attacks find here besides targets and release."""
        there: dict[Need, bool] = {
            "model": self.model is not None,
            "reference": self.reference is not None,
            "shadows": self.shadows is not None,
            "samples": self.shadows is not None and bool(self.shadows.queries),
        }
        return frozenset(need for need, is_there in there.items() if is_there)

    @property
    def publishable(self) -> bool:
        """Whether results are canaries' only, and owe nothing to a table of real people."""
        return self.canaries and self.reference is None

    @property
    def counted(self) -> int:
        """What a target would count for in the model's counts: its records, or one where owners are counted."""
        return 1 if self.counts_owners else self.records_per_target

    @property
    def counts_owners(self) -> bool:
        """Whether the model counts owners, each as one, instead of records; False where there is no model."""
        return self.model is not None and Guarantee.from_json(self.model.plan.guarantee).weighting == "owners"

    @property
    def population(self) -> pa.Table:
        """The reference, or the release in its place."""
        return self.synthetic if self.reference is None else self.reference

    @cached_property
    def target_codes(self) -> Codes:
        """Cells of the targets, shape (targets, columns)."""
        return self.domain.encode(self.targets)

    @property
    def alike(self) -> Alike:
        """Which targets have the same cells: no attack on tables sees more of a target."""
        return alike_cells(self.target_codes)

    @cached_property
    def synthetic_codes(self) -> Codes:
        """Cells of the first `MOST_ROWS` synthetic rows."""
        return self.domain.encode(self.synthetic.slice(0, MOST_ROWS))

    @cached_property
    def population_codes(self) -> Codes:
        """Cells of the first `MOST_ROWS` rows of the population."""
        if self.reference is None:
            return self.synthetic_codes
        return self.domain.encode(self.reference.slice(0, MOST_ROWS))
