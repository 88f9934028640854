"""How many intervals of released answers contain the exact ones, for reviewers alone.

What belongs here: shares of right intervals, over all groups of a query. What does not: any gate, anything that is
published, and single exact answers: that of a small group is one person's value, and reports are kept longer than rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.report_rows import Row
from dpsynth_platform.synth.answers.generator import exact_answers
from dpsynth_platform.synth.interface import SealedPlan

_NUMBERS = ("answer", "low", "high", "standard_error")
CLAIMED = "0.950"
Pair = tuple[Mapping[str, Any], float]


@dataclass(frozen=True)
class AnswersReport:
    """What the released answers are worth.

    Attributes:
        rows: a row for each kind of answer of each query.
        contained: share of the intervals that contain the exact answer, of those that can be compared.
        compared: number of these.
    """

    dataset: str
    period: str | None
    rows: tuple[Row, ...]
    contained: float | None
    compared: int

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "period": self.period,
            "notice": NOTICE,
            "restricted": True,
            "answers": {"compared": self.compared, "contained": self.contained},
        }

    def table(self) -> list[Row]:
        share = "none can be compared" if self.contained is None else f"{self.contained:.3f}"
        return [("intervals that contain the exact answer, share", share, CLAIMED, ""), *self.rows]


def measure_answers(plan: SealedPlan, real: pa.Table, released: pa.Table) -> AnswersReport:
    """Compares a table of answers with the exact ones.

    Args:
        real: the rows that the mechanism read, without canaries, with their owners.
    """
    exact = {_asked(row): row["answer"] for row in exact_answers(plan, real).to_pylist()}
    kinds: dict[str, list[Pair]] = {}
    # By what they answer: a stored table does not keep its order.
    for row in released.to_pylist():
        if (answer := exact[_asked(row)]) is not None:
            kinds.setdefault(_kind(row), []).append((row, answer))
    known = [pair for pairs in kinds.values() for pair in pairs]
    return AnswersReport(
        dataset=plan.dataset,
        period=plan.period,
        rows=tuple(_row(kind, pairs) for kind, pairs in kinds.items()),
        contained=_contained(known) if known else None,
        compared=len(known),
    )


def _row(kind: str, pairs: Sequence[Pair]) -> Row:
    return f"{kind}: share of {len(pairs)}", f"{_contained(pairs):.3f}", CLAIMED, ""


def _contained(pairs: Sequence[Pair]) -> float:
    return sum(1 for row, exact in pairs if row["low"] <= exact <= row["high"]) / len(pairs)


def _asked(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an answer is of: all its columns but the numbers."""
    return tuple(sorted((name, value) for name, value in row.items() if name not in _NUMBERS and value is not None))


def _kind(row: Mapping[str, Any]) -> str:
    of = "" if row["of_column"] is None else f" of {row['of_column']}"
    at = "" if row["at_share"] is None else f" {row['at_share']:g}"
    return f"{row['query']}, {row['measure']}{at}{of}"
