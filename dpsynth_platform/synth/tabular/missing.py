"""How much of each column is missing or unlisted, by the noisy counts that are paid for.

What belongs here: the share of records in a column's last cell (`domain`), with a bound that its noise cannot explain;
the file that says it beside drawn rows; the words for a column that has hardly any usable value; and the limit that a
contract may set (`release.max_missing`). What does not: counting, and any look at the data.

A declaration that does not fit the data is paid for like one that does: `values: [yes, no]` for data that hold "Yes"
counts every record as missing, and the model draws noise. The one-way counts know it, and whatever follows from them is
post-processing: it costs nothing, may be published, and a verdict that rests on it tells nothing else of the data.

Light at load, with nothing of torch: reviewers' pages and plans read it, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.storage import write_durably

if TYPE_CHECKING:
    from dpsynth_platform.synth.tabular.domain import Domain
    from dpsynth_platform.synth.tabular.measurements import NoisyCounts

FILE = "missing.json"
"""Beside the rows of `synthetic`, whose content hash covers it."""
SIGMAS = 4.76
"""One-sided: a normal variable exceeds so many of its standard deviations once in a million times (9.7e-7)."""
MOSTLY = 0.5
"""A column is reported whose share of missing or unlisted values is surely above this."""


MOSTLY_MISSING = "mostly_missing"
"""The fact of a record of `synthetic` that holds the words for such columns; absent where there are none."""


@dataclass(frozen=True)
class MissingShare:
    """The share of a column's records that have no value which is listed, learned or readable. Public.

    Attributes:
        share: the estimate, in [0, 1].
        at_least: the true share is below this less than once in a million times, by the noise alone.
        error: standard deviation of the estimate, by the noise alone.
        nullable: whether the column is declared so; then missing values are released as such.
    """

    column: str
    share: float
    at_least: float
    error: float
    nullable: bool

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def missing_shares(domain: Domain, one_way: Sequence[NoisyCounts]) -> tuple[MissingShare, ...]:
    """The shares of all columns, in their order.

    A share t of the total T is held against the noisy count x of the last cell by x - t T, which is linear in all
    counts. T weighs each column's sum by its inverse variance, so that it has variance V = 1 / sum(1 / variances), and
    its covariance with x is that cell's variance times its column's weight. `at_least` is the largest t for which
    x - t T lies `SIGMAS` standard deviations above zero.

    Args:
        domain: the columns, with all their values known.
        one_way: noisy counts of every column, over cells.
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
        own, shared = noisy.variance, noisy.variance * of_total / variance
        share = min(max(count / total, 0.0), 1.0)
        error = math.sqrt(max(own - 2 * share * shared + share**2 * of_total, 0.0)) / total
        found.append(
            MissingShare(
                column=column.name,
                share=share,
                at_least=_lowest(count, total, own, shared, of_total),
                error=error,
                nullable=column.nullable,
            )
        )
    return tuple(found)


def mostly_missing(shares: Iterable[MissingShare], most: float = MOSTLY) -> list[MissingShare]:
    """The columns whose share is surely above `most`."""
    return [item for item in shares if item.at_least > most]


def write_missing(directory: Path, shares: Sequence[MissingShare]) -> None:
    """Keeps the shares of all columns in a directory."""
    write_durably(directory / FILE, json.dumps([item.to_json() for item in shares], indent=1))


def read_missing(directory: Path) -> tuple[MissingShare, ...] | None:
    """The shares that a directory keeps; None where it keeps none (drawn by an earlier version of the platform).

    Raises:
        ReleaseRefused: the file cannot be read.
    """
    try:
        return tuple(MissingShare(**item) for item in json.loads((directory / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        problem = f"{directory / FILE} cannot be read"
    raise ReleaseRefused(f"{problem}; accepted: as the step synthetic wrote it; materialize synthetic again")


def check_missing(label: str, shares: Iterable[MissingShare], most: float | Mapping[str, float] | None) -> None:
    """Refuses rows that are drawn from counts with more missing or unlisted values than a contract accepts.

    Args:
        label: of the line, for the message.
        shares: of all columns.
        most: the contract's `release.max_missing`.

    Raises:
        ReleaseRefused: names each such column. The verdict follows from noisy counts alone, so it may be seen.
    """
    found = [f"{item.column}: {share_in_words(item)}, accepted {limit:.1%}" for item, limit in _beyond(shares, most)]
    if found:
        raise ReleaseRefused(
            f"{label}/synthetic: more values are missing or unlisted than release.max_missing accepts "
            f"({'; '.join(found)}). What was paid stays paid. Accepted: a larger release.max_missing, which spends "
            "nothing; or columns that are declared as the source has them, which is another run with a cost of its own"
        )


def _beyond(
    shares: Iterable[MissingShare], most: float | Mapping[str, float] | None
) -> list[tuple[MissingShare, float]]:
    """The columns whose share is surely above what is accepted, each with that; without a limit all is accepted."""
    limits = most if isinstance(most, Mapping) else {}
    default = 1.0 if most is None or isinstance(most, Mapping) else most
    return [(item, limit) for item in shares if item.at_least > (limit := limits.get(item.column, default))]


def missing_in_words(
    shares: Iterable[MissingShare], names: Mapping[str, str] | None = None, *, advice: bool = True
) -> list[str]:
    """A line for each column that is mostly missing or unlisted; see `mostly_missing`.

    Args:
        shares: of all columns.
        names: the columns' names for the reader, where they are others.
        advice: whether the reader can see to the declaration.
    """
    return [
        f"Column {(names or {}).get(item.column, item.column)}: about {share_in_words(item)} of the values that were "
        f"read are missing, or neither declared nor learned. {_why(item, advice)}"
        for item in mostly_missing(shares)
    ]


def share_in_words(item: MissingShare) -> str:
    """The estimate with the bound that noise cannot explain."""
    return f"{item.share:.1%} (by noisy counts; surely above {math.floor(item.at_least * 1000) / 10:g}%)"


def _why(item: MissingShare, advice: bool) -> str:
    said = (
        "They are released as missing." if item.nullable else "Values in their place follow the few others, or noise."
    )
    check = "compare the declared values, their spelling and their type with those of the source"
    return f"{said} If so many are not expected, {check}." if advice else said


def _lowest(count: float, total: float, own: float, shared: float, of_total: float) -> float:
    """The largest t in [0, 1] with count - t total >= SIGMAS sqrt(own - 2 t shared + t^2 of_total); 0 if there is none.

    The difference of both sides falls as t grows wherever the total is known better than to `SIGMAS` deviations;
    elsewhere nothing is certain.
    """
    if total <= SIGMAS * math.sqrt(of_total):
        return 0.0

    def is_sure(share: float) -> bool:
        spread = math.sqrt(max(own - 2 * share * shared + share**2 * of_total, 0.0))
        return count - share * total >= SIGMAS * spread

    if not is_sure(0.0):
        return 0.0
    low, high = 0.0, 1.0
    if is_sure(high):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_sure(middle) else (low, middle)
    return low
