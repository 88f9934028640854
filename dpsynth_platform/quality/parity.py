"""Epistemic parity: the share of an analysis's conclusions that synthetic rows lead to as real rows do.

What belongs here: comparing conclusions. What does not: declaring them (`contracts.findings`), and drawing one
(`conclusions`). Rosenblatt et al., "Epistemic parity" (VLDB 2023; SIGMOD Record 53, 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.findings import Finding
from dpsynth_platform.quality.conclusions import conclusion

Test = Callable[[pa.Table], Any]
"""A conclusion as Python code: any value that compares equal where the conclusion is the same, and None for none."""

MOST_ROWS = 200_000


@dataclass(frozen=True)
class Found:
    """One conclusion from real rows, and whether synthetic rows and a bootstrap of the real ones lead to it, too.

    `conclusion` is None where real rows lead to none (too few, or constant), or where it is that of Python code.
    """

    name: str
    conclusion: str | None
    drawn: bool
    synthetic: bool
    resampled: bool


@dataclass(frozen=True)
class Parity:
    """All conclusions, and the shares, in [0, 1], of those from real rows that hold; None if there are none."""

    findings: tuple[Found, ...]

    @property
    def synthetic(self) -> float | None:
        return self._share("synthetic")

    @property
    def resampled(self) -> float | None:
        return self._share("resampled")

    def _share(self, side: str) -> float | None:
        drawn = [getattr(each, side) for each in self.findings if each.drawn]
        return sum(drawn) / len(drawn) if drawn else None


def measure_parity(real: pa.Table, synthetic: pa.Table, findings: Sequence[Finding | Test]) -> Parity | None:
    """Draws each conclusion from equally many real and synthetic rows; None without findings or rows.

    1 is good. A share of about that of the bootstrap says that synthetic rows serve as well as a new sample of so many
    rows. A finding that cannot be drawn (`check_findings` says why) does not count.
    """
    rows = min(len(real), len(synthetic), MOST_ROWS)
    if not findings or not rows:
        return None
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    kept = real.take(pa.array(rng.choice(len(real), rows, replace=False)))
    made = synthetic.take(pa.array(rng.choice(len(synthetic), rows, replace=False)))
    again = kept.take(pa.array(rng.integers(rows, size=rows)))
    return Parity(tuple(_found(each, number, kept, made, again) for number, each in enumerate(findings, 1)))


def _found(finding: Finding | Test, number: int, real: pa.Table, made: pa.Table, again: pa.Table) -> Found:
    if isinstance(finding, Finding):
        declared = finding  # a name of its own, so that its type is known below
        kept, *others = (_tried(lambda rows: conclusion(declared, rows), table) for table in (real, made, again))
        return Found(finding.label, kept, kept is not None, *(kept is not None and kept == other for other in others))
    kept, *others = (_tried(finding, table) for table in (real, made, again))
    name = getattr(finding, "__name__", f"finding {number}")
    return Found(name, None, kept is not None, *(kept is not None and _same(kept, other) for other in others))


def _same(first: Any, second: Any) -> bool:
    return _tried(lambda _: bool(np.all(first == second)), None) or False


def _tried(test: Test, table: pa.Table | None) -> Any:
    try:
        return test(table)
    except Exception:  # its message may quote a value, and a table may well lead to no conclusion
        return None
