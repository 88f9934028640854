"""What canaries cost in quality: their share of what the mechanism counted, and how far they moved what is published.

What belongs here: figures that follow from the canaries, the model and the synthetic rows, all of which are fictional
or paid for. What does not: a comparison with real rows; it would be another access to them.

Let s be the canaries' share. What the mechanism counted is p = (1 - s)·r + s·c, with r the real records' distribution
and c the canaries'. The total variation distance of p and r is s·TV(r, c), at most s, for any set of columns, and so no
share of the rows is moved by more. It is also s/(1 - s)·TV(p, c): c is known, and p is what synthetic rows estimate.
Beside it stands what the noise of the same counts does by itself, which no audit can spare: where that is more, leaving
the canaries out would hardly show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.audit.attacks import RUN, runs_of
from dpsynth_platform.audit.canaries import CanarySet
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of

if TYPE_CHECKING:  # whoever reads a report needs none of what makes it
    from dpsynth_platform.synth.tabular.measurements import NoisyCounts
    from dpsynth_platform.synth.tabular.model import Model

COST_HEADER = ("column", "moved by canaries", "by noise in its counts")
_MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""Mean size of a normal deviate in its standard deviations."""


@dataclass(frozen=True)
class ColumnCost:
    """How far one column's distribution is from that of the real records, as total variation distance (0 to 1).

    Attributes:
        canaries: what the canaries moved it by, estimated from the synthetic rows.
        noise: what the noise in the column's own counts is expected to move it by.
    """

    column: str
    canaries: float
    noise: float


@dataclass(frozen=True)
class Echo:
    """Synthetic texts in which something of a canary's text stands: `RUN` characters in a row.

    Attributes:
        texts: how many synthetic texts were looked at.
        included: how many hold something of a canary that was in.
        held_out: how many hold something of one that was not: what comes about by itself.
    """

    texts: int
    included: int
    held_out: int


@dataclass(frozen=True)
class CanaryCost:
    """What the canaries of one run cost.

    Attributes:
        counted: what the included canaries count for: their records, or owners where owners are weighed alike.
        owners: whether owners are counted.
        share: of what the mechanism counted altogether, as its noisy counts tell; canaries are in it. None where it
            counted no column: nothing tells then.
        declared: what the share is by the contract alone, if all expected units that are not held out take part, with
            one record each (with more it is less); None where records have several owners, so that nothing follows.
        columns: of the modelled columns, in their order.
        echo: of texts that a language model writes, else None.
    """

    counted: int
    owners: bool
    share: float | None
    declared: float | None
    columns: tuple[ColumnCost, ...]
    echo: Echo | None = None

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> CanaryCost:
        """Reads back what `dataclasses.asdict` makes of it."""
        columns = tuple(ColumnCost(**column) for column in document["columns"])
        echo = None if document.get("echo") is None else Echo(**document["echo"])
        return cls(**(document | {"columns": columns, "echo": echo}))

    @property
    def words(self) -> str:
        """What a reader of the release should know of it."""
        what = number_of(self.counted, "owner" if self.owners else "record")
        expected = "if all expected units take part with one record each"
        declared = "" if self.declared is None else f"{_percent(self.declared)} {expected}"
        if self.share is None:
            said = f"What the canaries cost: they were {what}{declared and f' ({declared})'}; no column was counted."
        else:
            said = (
                f"What the canaries cost: they were {what}, {_percent(self.share)} of what the mechanism counted by "
                f"its noisy counts{declared and f' ({declared})'}, so that they moved no share of the rows by more "
                f"than {_percent(self.share)}."
            )
        if self.columns:
            most = max(self.columns, key=lambda column: column.canaries)
            middle, noise = (
                float(np.median([getattr(column, name) for column in self.columns])) for name in ("canaries", "noise")
            )
            said += (
                f" By the synthetic rows they moved a column's distribution by {_percent(middle)} in the median and by "
                f"{_percent(most.canaries)} at most ({most.column}), beside {_percent(noise)} by the noise in the "
                "median (total variation distance)."
            )
        if self.echo is not None:
            said += (
                f" Of {number_of(self.echo.texts, 'synthetic text')}, {self.echo.included} hold {RUN} characters in a "
                f"row of a canary that was in, and {self.echo.held_out} of one that was not."
            )
        return said


def canary_cost(contract: DataContract, canaries: CanarySet, model: Model | None, synthetic: pa.Table) -> CanaryCost:
    """What the included canaries cost the model and the rows drawn from it.

    Args:
        contract: as it was sealed.
        canaries: included and held-out ones.
        model: of the columns, fitted with them; None where no column is counted.
        synthetic: rows drawn from it; at least one.

    Raises:
        AccountingError: there are no synthetic rows, or they lack a modelled column.
    """
    from dpsynth_platform.audit.scoring import canary_evidence
    from dpsynth_platform.audit.tables.evidence import MOST_ROWS

    included = canaries.included
    echo = _echo(contract, canaries, included, synthetic.slice(0, MOST_ROWS))
    if model is None:
        counted = int(included.sum()) * canaries.records_per_owner
        return CanaryCost(counted, False, None, _declared_share(contract, counted), (), echo)
    evidence = canary_evidence(canaries, model, synthetic)
    counted = int(included.sum()) * evidence.counted
    # By much noise on few records, the noisy total may be anything; whoever is in it is in it.
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


def share_in_words(contract: DataContract) -> str:
    """What share of what will be counted is canaries', before anything runs: by the contract alone."""
    canaries = number_of(contract.canary_count, "fictional owner")
    if contract.separate_audit_model:
        return (
            f"{canaries}, of whom half join in the mean, in a second, equal model that is attacked in the released "
            "one's place, for as much again: the cost above is that of both, and what is released holds no canary"
        )
    owners = contract.privacy.weighting == "owners"
    joining = contract.canary_count / 2 * (1 if owners else contract.privacy.max_contributions)
    share = _declared_share(contract, joining)
    said = f"{canaries}, of whom half join in the mean: {joining:g} {'owners' if owners else 'records'}"
    if share is None:
        return said
    whole = "what is counted" if contract.modelled else "what the mechanism reads"
    return f"{said}, {_percent(share)} of {whole} if all expected units take part with one record each"


def cost_rows(cost: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The columns of a cost, as JSON has it, under `COST_HEADER`."""
    return [(item["column"], _percent(item["canaries"]), _percent(item["noise"])) for item in cost["columns"]]


def moved_by(share: float, canaries: npt.NDArray[Any], rows: npt.NDArray[Any], cells: int) -> float:
    """How far the canaries moved a distribution, as total variation distance: an estimate, at most their share.

    Args:
        share: of the canaries in what was counted.
        canaries: their cells, shape (included canaries,).
        rows: cells of synthetic rows, shape (rows,); at least one.
        cells: how many there are.

    Raises:
        AccountingError: there are no rows, or the share is none.
    """
    if not rows.size or not 0 <= share <= 1:
        raise AccountingError(f"audit: {rows.size} rows, a share of {share:g}; accepted: at least one row, 0 to 1")
    if not canaries.size or share == 1:
        return share
    bait, seen = (np.bincount(codes, minlength=cells) / codes.size for codes in (canaries, rows))
    return min(share, share / (1 - share) * float(np.abs(bait - seen).sum()) / 2)


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
    bait = canaries.values.column(contract.text_column).to_pylist()
    texts = [text for text in synthetic.column(contract.text_column).to_pylist() if text]
    return Echo(
        len(texts),
        *(
            _holding(texts, [text for text, is_in in zip(bait, included, strict=True) if is_in == group])
            for group in (True, False)
        ),
    )


def _holding(texts: Iterable[str], canaries: Sequence[str]) -> int:
    """How many texts hold a run of some canary's."""
    wanted: frozenset[str] = frozenset().union(*(runs_of(text) for text in canaries))
    return sum(not wanted.isdisjoint(runs_of(text)) for text in texts)


def _percent(share: float) -> str:
    """With two significant digits: `0.43%`."""
    return f"{float(f'{100 * share:.2g}'):g}%"
