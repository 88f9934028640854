"""What canaries cost in quality: their share of the counted records, and how far they moved what is published.

What belongs here: figures from canaries, model and synthetic rows, all of which are fictional or paid for. What does
not: a comparison with real rows, which would be another access to them.

Let s be the canaries' share. The mechanism counted p = (1 - s)·r + s·c, with r the real records' distribution and c the
canaries'. The total variation distance of p and r is s·TV(r, c), at most s for any set of columns, so no share of the
rows moves by more. It is also s/(1 - s)·TV(p, c): c is known, and synthetic rows estimate p. The effect of the counts'
own noise is shown for comparison: where it is larger, removing the canaries would hardly change the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.audit.attacks import RUN, runs_of
from dpsynth_platform.audit.canaries import OWNER, CanarySet
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of

if TYPE_CHECKING:  # a reader of reports needs none of it
    from dpsynth_platform.synth.tabular.measurements import NoisyCounts
    from dpsynth_platform.synth.tabular.model import Model

COST_HEADER = ("column", "moved by canaries", "by noise in its counts")
_MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""Mean absolute value of a standard normal deviate."""


@dataclass(frozen=True)
class ColumnCost:
    """Total variation distance (0 to 1) of one column's distribution from the real records'.

    The part caused by canaries is an estimate from the synthetic rows, that by noise in the column's counts expected.
    """

    column: str
    canaries: float
    noise: float


@dataclass(frozen=True)
class Echo:
    """Number of synthetic texts, and of those that contain `RUN` characters in a row of an included or held-out canary.

    The rate for held-out canaries is the one without memorization.
    """

    texts: int
    included: int
    held_out: int


@dataclass(frozen=True)
class CanaryCost:
    """What the canaries of one run cost.

    Attributes:
        counted: number of the included canaries' records, or of `owners` where these have equal weight.
        share: canaries' share of all that the mechanism counted, by its noisy counts; None where it counted no column.
        subtracted: whether what they add is taken out of what is released.
        declared: the share by the contract alone, if all expected units that are not held out take part with one
            record each (less with more records); None where records have several owners.
    """

    counted: int
    owners: bool
    share: float | None
    declared: float | None
    columns: tuple[ColumnCost, ...]
    echo: Echo | None = None
    subtracted: bool = False

    @property
    def words(self) -> str:
        """The cost in sentences, for readers of the release."""
        what = number_of(self.counted, "owner" if self.owners else "record")
        expected = "if all expected units take part with one record each"
        declared = "" if self.declared is None else f"{_percent(self.declared)} {expected}"
        if self.subtracted:
            text = (
                f"What the canaries cost: they were {what}{declared and f' ({declared})'}; what they add to the "
                "answers is subtracted."
            )
        elif self.share is None:
            text = f"What the canaries cost: they were {what}{declared and f' ({declared})'}; no column was counted."
        else:
            text = (
                f"What the canaries cost: they were {what}, {_percent(self.share)} of what the mechanism counted by "
                f"its noisy counts{declared and f' ({declared})'}, so that they moved no share of the rows by more "
                f"than {_percent(self.share)}."
            )
        if self.columns:
            most = max(self.columns, key=lambda column: column.canaries)
            middle, noise = (
                float(np.median([getattr(column, name) for column in self.columns])) for name in ("canaries", "noise")
            )
            text += (
                f" By the synthetic rows they moved a column's distribution by {_percent(middle)} in the median and by "
                f"{_percent(most.canaries)} at most ({most.column}); noise moved it by {_percent(noise)} in the median "
                "(total variation distance)."
            )
        if self.echo is not None:
            text += (
                f" Of {number_of(self.echo.texts, 'synthetic text')}, {self.echo.included} hold {RUN} characters in a "
                f"row of a canary that was in, and {self.echo.held_out} of one that was not."
            )
        return text


def canary_cost(contract: DataContract, canaries: CanarySet, model: Model | None, synthetic: pa.Table) -> CanaryCost:
    """What the included canaries cost the model (None where no column is counted) and the rows drawn from it.

    Raises `AccountingError` if there are no synthetic rows, or they lack a modelled column.
    """
    from dpsynth_platform.audit.scoring import canary_evidence
    from dpsynth_platform.audit.tables.evidence import MOST_ROWS

    included = canaries.included
    echo = _echo(contract, canaries, included, synthetic.slice(0, MOST_ROWS))
    if model is None:
        counted = canaries.joining.num_rows
        share = _declared_share(contract, counted)
        return CanaryCost(counted, False, None, share, (), echo, subtracted=contract.generate.answers)
    evidence = canary_evidence(canaries, model, synthetic)
    joining = canaries.joining
    counted = len(pc.unique(joining[OWNER])) if evidence.counts_owners else joining.num_rows
    # With much noise on few records the noisy total may be any number; the canaries are part of it.
    total = max(model.total, float(counted), 1.0)
    share = counted / total
    columns = [
        _column_cost(name, mine[included], rows, share, measured, total)
        for name, mine, rows, measured in zip(
            model.domain.names,
            evidence.target_codes.T,
            evidence.synthetic_codes.T,
            model.measurements.one_way,
            strict=True,
        )
    ]
    return CanaryCost(
        counted=counted,
        owners=evidence.counts_owners,
        share=share,
        declared=_declared_share(contract, counted),
        columns=tuple(columns),
        echo=echo,
    )


def owners_cost(contract: DataContract, owners: int, total: float) -> CanaryCost:
    """What so many included owners cost where each weighs one of a noisy total, without the effect on columns."""
    share = owners / max(total, float(owners), 1.0)
    return CanaryCost(owners, True, share, _declared_share(contract, owners), ())


def share_in_words(contract: DataContract) -> str:
    """The canaries' expected share of the counted records, by the contract alone."""
    shared = contract.audit.shared_secrets
    count = contract.canary_count + (0 if shared is None else shared.total)
    canaries = number_of(count, "fictional owner")
    if shared is not None:
        canaries += f", {shared.total} of them with shared secrets"
    if contract.separate_audit_model:
        return (
            f"{canaries}, of whom half join in the mean, in a second, equal model that is attacked instead of the "
            "released one, at the same cost again: the cost above is that of both, and the release holds no canary"
        )
    owners = contract.privacy.weighting == "owners"
    joining = count / 2 * (1 if owners else contract.unit_records)
    share = _declared_share(contract, joining)
    text = f"{canaries}, of whom half join in the mean: {joining:g} {'owners' if owners else 'records'}"
    if share is None:
        return text
    whole = "what is counted" if contract.modelled else "what the mechanism reads"
    return f"{text}, {_percent(share)} of {whole} if all expected units take part with one record each"


def cost_rows(cost: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The columns of a cost in JSON form, as rows under `COST_HEADER`."""
    return [(item["column"], _percent(item["canaries"]), _percent(item["noise"])) for item in cost["columns"]]


def moved_by(share: float, canaries: npt.NDArray[Any], rows: npt.NDArray[Any], cells: int) -> float:
    """How far the canaries moved a distribution, as total variation distance: an estimate, at most their share.

    `canaries` and `rows` are cells, of shapes (included canaries,) and (synthetic rows,); `cells` is their number.
    Raises `AccountingError` if there are no rows, or the share is outside 0 to 1.
    """
    if not rows.size or not 0 <= share <= 1:
        raise AccountingError(
            f"audit: {rows.size} rows, a share of {share:g}; accepted: at least one row, a share from 0 to 1"
        )
    if not canaries.size or share == 1:
        return share
    planted, seen = (np.bincount(codes, minlength=cells) / codes.size for codes in (canaries, rows))
    return min(share, share / (1 - share) * float(np.abs(planted - seen).sum()) / 2)


def _declared_share(contract: DataContract, counted: float) -> float | None:
    if contract.privacy.multi_owner:
        return None
    return counted / (counted + contract.privacy.expected_units * (1 - contract.quality.holdout))


def _column_cost(
    name: str,
    canaries: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    share: float,
    measured: NoisyCounts,
    total: float,
) -> ColumnCost:
    cells = measured.counts.size
    noise = cells * math.sqrt(measured.variance) * _MEAN_OF_NORMAL / (2 * total)
    return ColumnCost(name, moved_by(share, canaries, rows, cells), min(1.0, noise))


def _echo(
    contract: DataContract, canaries: CanarySet, included: npt.NDArray[np.bool_], synthetic: pa.Table
) -> Echo | None:
    if contract.text_column is None:
        return None
    planted = canaries.values.column(contract.text_column).to_pylist()
    texts = [text for text in synthetic.column(contract.text_column).to_pylist() if text]
    counts = []
    for group in (True, False):
        runs = (runs_of(text) for text, is_in in zip(planted, included, strict=True) if is_in == group)
        wanted: frozenset[str] = frozenset().union(*runs)
        counts.append(sum(not wanted.isdisjoint(runs_of(text)) for text in texts))
    return Echo(len(texts), *counts)


def _percent(share: float) -> str:
    """With two significant digits: `0.43%`."""
    return f"{float(f'{100 * share:.2g}'):g}%"
