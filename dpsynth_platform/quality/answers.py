"""Released answers beside the exact ones, for reviewers alone.

What belongs here: exact answers of the rows that the mechanism read, and how far the released ones are from them. What
does not: any gate, and anything that is published: exact answers are accesses that no budget paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.report_rows import Row
from dpsynth_platform.synth.answers.generator import exact_answers
from dpsynth_platform.synth.interface import SealedPlan

MOST_ROWS = 200
"""Answers that are listed one by one."""
_NAMES = ("query", "measure", "of_column", "at_share")
_NUMBERS = ("answer", "low", "high", "standard_error")


@dataclass(frozen=True)
class AnswersReport:
    """The released answers with the exact ones, in the released order.

    Attributes:
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
        return [("intervals that contain the exact answer, share", share, "0.950", ""), *self.rows[:MOST_ROWS]]


def measure_answers(plan: SealedPlan, real: pa.Table, released: pa.Table) -> AnswersReport:
    """Compares a table of answers with the exact ones.

    Args:
        real: the rows that the mechanism read, without canaries, with their owners.
    """
    exact = {_asked(row): row for row in exact_answers(plan, real).to_pylist()}
    # By what they answer: a stored table does not keep its order.
    pairs = [(row, exact[_asked(row)]) for row in released.to_pylist()]
    known = [(made, exact["answer"]) for made, exact in pairs if exact["answer"] is not None]
    inside = [made["low"] <= answer <= made["high"] for made, answer in known]
    return AnswersReport(
        dataset=plan.dataset,
        period=plan.period,
        rows=tuple((_label(made), _shown(made["answer"]), _shown(exact["answer"]), "") for made, exact in pairs),
        contained=sum(inside) / len(inside) if inside else None,
        compared=len(inside),
    )


def _asked(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an answer is of: all its columns but the numbers."""
    return tuple(sorted((name, value) for name, value in row.items() if name not in _NUMBERS and value is not None))


def _label(row: Mapping[str, Any]) -> str:
    groups = [
        f"{name} {value}" for name, value in row.items() if name not in (*_NAMES, *_NUMBERS) and value is not None
    ]
    of = "" if row["of_column"] is None else f" of {row['of_column']}"
    at = "" if row["at_share"] is None else f" {row['at_share']:g}"
    return f"{row['query']}: {row['measure']}{at}{of}{', ' if groups else ''}{', '.join(groups)}"


def _shown(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else f"{value:,.6g}"
