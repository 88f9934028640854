"""The share of each column's records that are missing or unlisted, by the noisy counts that are paid for.

What belongs here: the share of records in a column's last cell (`domain`) with a lower bound, its file beside drawn
rows, its words, and the contract's limit (`release.max_missing`). What does not: counting, and any access to data.

A declaration that does not fit the data is paid for all the same: `values: [yes, no]` for data that hold "Yes" counts
every record as missing, and the model draws noise. The one-way counts show it at no further cost: this is
post-processing, which may be published. No torch is imported at load, since reviewers' pages and plans use this, too.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.storage import read_beside_rows, write_durably

if TYPE_CHECKING:
    from dpsynth_platform.synth.tabular.domain import Domain
    from dpsynth_platform.synth.tabular.measurements import NoisyCounts

FILE = "missing.json"
"""Beside the rows of `synthetic`, whose content hash covers it."""
SIGMAS = 4.76
"""One-sided: a normal variable exceeds so many of its standard deviations with probability 9.7e-7."""
MOSTLY = 0.5
"""A column is reported if its share of missing or unlisted values is certainly above this."""
MOSTLY_MISSING = "mostly_missing"
"""The fact of a record of `synthetic` that holds the words for such columns; absent without such columns."""


@dataclass(frozen=True)
class MissingShare:
    """The share of a column's records without a listed, learned or readable value. Public.

    Attributes:
        share: the estimate, in [0, 1], with the standard deviation `error` by the noise alone.
        at_least: the true share is lower with a probability below 1e-6, by the noise alone.
        nullable: whether missing values are released as such.
    """

    column: str
    share: float
    at_least: float
    error: float
    nullable: bool


def missing_shares(domain: Domain, one_way: Sequence[NoisyCounts]) -> tuple[MissingShare, ...]:
    """The shares of all columns, in their order, from the noisy counts of every column's cells.

    A share t of the total T is compared with the noisy count x of the last cell by x - t T, which is linear in all
    counts. T weights each column's sum by its inverse variance. So its variance is V = 1 / sum(1 / variances), and its
    covariance with x is that cell's variance times its column's weight. `at_least` is the largest t for which x - t T
    lies `SIGMAS` standard deviations above zero.
    """
    from dpsynth_platform.synth.tabular.compression import as_measurement
    from dpsynth_platform.synth.tabular.estimation import estimate_total

    total = estimate_total([as_measurement(noisy) for noisy in one_way])
    variances = [noisy.variance * noisy.counts.size for noisy in one_way]
    of_total = 1 / sum(1 / variance for variance in variances)
    found = []
    for column, noisy, variance in zip(domain, one_way, variances, strict=True):
        if column.part_of is not None:
            continue  # an hour is missing where its moment is
        count = float(noisy.counts[column.missing])
        deviation = functools.partial(_deviation, noisy.variance, noisy.variance * of_total / variance, of_total)
        share = min(max(count / total, 0.0), 1.0)
        at_least = _lowest(count, total, deviation) if total > SIGMAS * math.sqrt(of_total) else 0.0
        found.append(MissingShare(column.name, share, at_least, deviation(share) / total, column.nullable))
    return tuple(found)


def mostly_missing(shares: Iterable[MissingShare], most: float = MOSTLY) -> list[MissingShare]:
    """The columns whose share is certainly above `most`."""
    return [item for item in shares if item.at_least > most]


def write_missing(directory: Path, shares: Sequence[MissingShare]) -> None:
    """Writes the shares of all columns to a directory."""
    write_durably(directory / FILE, json.dumps([asdict(item) for item in shares], indent=1))


def read_missing(directory: Path) -> tuple[MissingShare, ...] | None:
    """The shares in a directory; None if it has none (drawn by an earlier version of the platform).

    Raises `ReleaseRefused` if the file cannot be read.
    """
    return read_beside_rows(directory / FILE, lambda items: tuple(MissingShare(**item) for item in items))


def check_missing(label: str, shares: Iterable[MissingShare], most: float | Mapping[str, float] | None) -> None:
    """Raises `ReleaseRefused` for rows with more missing or unlisted values than `release.max_missing` accepts.

    The message names such columns of the line `label`: the verdict follows from noisy counts alone, and may be shown.
    """
    limits = most if isinstance(most, Mapping) else {}
    default = 1.0 if most is None or isinstance(most, Mapping) else most
    found = [
        f"{item.column}: {share_in_words(item)}, accepted {limit:.1%}"
        for item in shares
        if item.at_least > (limit := limits.get(item.column, default))
    ]
    if found:
        raise ReleaseRefused(
            f"{label}/synthetic: more values are missing or unlisted than release.max_missing accepts "
            f"({'; '.join(found)}). What was paid stays paid. Accepted: a larger release.max_missing, which spends "
            "nothing; or columns declared as the source has them, which is another run at its own cost"
        )


def missing_in_words(
    shares: Iterable[MissingShare], names: Mapping[str, str] | None = None, *, advice: bool = True
) -> list[str]:
    """A line for each `mostly_missing` column, with its name for the reader from `names`.

    `advice` is for readers who can change the declaration.
    """
    return [
        f"Column {(names or {}).get(item.column, item.column)}: about {share_in_words(item)} of the values that were "
        f"read are missing, or neither declared nor learned. {_why(item, advice)}"
        for item in mostly_missing(shares)
    ]


def share_in_words(item: MissingShare) -> str:
    """The estimate with its lower bound."""
    return f"{item.share:.1%} (by noisy counts; surely above {math.floor(item.at_least * 1000) / 10:g}%)"


def _why(item: MissingShare, advice: bool) -> str:
    effect = (
        "They are released as missing." if item.nullable else "Values in their place follow the few others, or noise."
    )
    check = "compare the declared values, their spelling and their type with those of the source"
    return f"{effect} If so many are not expected, {check}." if advice else effect


def _deviation(own: float, shared: float, of_total: float, share: float) -> float:
    """Of a count less a share of the total: variance of the count, covariance of both, variance of the total."""
    return math.sqrt(max(own - 2 * share * shared + share**2 * of_total, 0.0))


def _lowest(count: float, total: float, deviation: Callable[[float], float]) -> float:
    """The largest t in [0, 1] with count - t total >= SIGMAS deviation(t); 0 if there is none.

    The difference of both sides falls as t grows if the total exceeds `SIGMAS` of its own deviations.
    """

    def is_certain(share: float) -> bool:
        return count - share * total >= SIGMAS * deviation(share)

    low, high = 0.0, 1.0
    if not is_certain(low):
        return low
    if is_certain(high):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_certain(middle) else (low, middle)
    return low
