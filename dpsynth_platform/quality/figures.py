"""Figures of a report over several trials or seeds: means with standard errors, beside those of real records.

What belongs here: what reports of texts and of pictures share. What does not: measuring.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

HEADER = ("measure", "better", "synthetic", "real in its place")
HIGHER, LOWER, NEAR = "higher", "lower", "near real"


@dataclass(frozen=True)
class Estimate:
    """Mean over trials and its standard error. Both are NaN if a measure does not apply; the error with one trial."""

    mean: float
    standard_error: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "not available"
        return f"{self.mean:.3f}" + ("" if math.isnan(self.standard_error) else f" ± {self.standard_error:.3f}")


@dataclass(frozen=True)
class Figure:
    """One measure, of synthetic records and of as many real ones that the generator read.

    Where that compares with what the generator read (verbatim runs), held-out ones take the place of the latter.
    """

    key: str
    name: str
    better: str
    synthetic: Estimate
    real: Estimate


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one value, and its standard error."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Estimate(float(np.mean(values)), error)


def figures_as_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Each figure as a mapping, with None for NaN."""
    shown = []
    for figure in figures:
        sides = {"synthetic": figure.synthetic, "real": figure.real}
        shown.append(asdict(figure) | {side: _as_json(found) for side, found in sides.items()})
    return shown


def _as_json(found: Estimate) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in asdict(found).items()}
