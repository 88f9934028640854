"""What noisy tables in a dossier must be like before anything is computed from them.

What belongs here: sizes, labels and noise of tables that may be hostile, whoever signed them. What does not: counting
rows and the bars (`fidelity`), and making such tables (`synth.tabular.measured`). Verifiers need this module without
pyarrow.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

_EPOCH = dt.datetime(1970, 1, 1)
_DAY = dt.timedelta(days=1)
_SHOWN = 1e-5
"""Relative rounding of real numbers in labels, which have six digits."""
ROUNDING = 0.50001
"""Most error of one rounding to whole records; where owners are weighed, of two: to 1/65536 of a record before."""
COUNTS = frozenset({"gaussian-counts", "discrete-gaussian-counts", "thresholded-counts", "thresholded-gaussian-counts"})


def faults(published: Mapping[str, Any], event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where tables that match their schema are none that a mechanism's noisy counts make.

    Pairs of a JSON path below the comparison and what is wrong. The time is linear in the document.

    Args:
        published: with `axes` and `tables`.
        event: the mechanism's event, as in the privacy statement.
    """
    axes, tables = published["axes"], published["tables"]
    for place, axis in enumerate(axes):
        if not _is_labelled(axis):
            yield f".axes[{place}]", "has labels that are not those of its groups"
    for place, table in enumerate(tables):
        if not _is_whole(table, axes):
            yield f".tables[{place}]", "does not have one figure for each cell of its columns"
    orders = [table["order"] for table in tables if table["order"]]
    single = [table["axes"][0] for table in tables if not table["order"]]
    columns = [axes[place]["column"] for place in single if place < len(axes)]
    if any(later <= earlier for earlier, later in itertools.pairwise(orders)) or len(set(columns)) < len(columns):
        yield ".tables", "are not in the order in which a mechanism counts them, each once"
    precision = sum(1 / table["sigma"] ** 2 for table in tables)
    allowed = precision_of(event, COUNTS)
    if allowed and not precision <= allowed * (1 + 1e-6):  # also if it is no number
        yield ".tables", "claim less noise than the event of the privacy statement has"


def _is_whole(table: Mapping[str, Any], axes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all lists have one figure for each cell, of columns that are named once."""
    if any(place >= len(axes) for place in table["axes"]):
        return False
    columns = [axes[place]["column"] for place in table["axes"]]
    cells = math.prod(len(axes[place]["labels"]) for place in table["axes"])
    lists = [table[name] for name in ("measured", "synthetic", "bars", "parts") if name in table]
    shape = len(columns) == 1 if not table["order"] else "parts" not in table
    return shape and len(set(columns)) == len(columns) and all(len(figures) == cells for figures in lists)


def _is_labelled(axis: Mapping[str, Any]) -> bool:
    """Whether labels say which values are in each group."""
    labels, missing = axis["labels"], axis["missing"]
    if "groups" in axis:
        groups = axis["groups"]
        values = list(itertools.chain.from_iterable(groups))
        named = [", ".join([*group, *(["missing"] if place == missing else [])]) for place, group in enumerate(groups)]
        return missing < len(groups) and labels == named and len(set(values)) == len(values)
    cuts = axis["cuts"]
    if len(labels) != len(cuts) + 2 or missing != len(labels) - 1 or labels[missing] != "missing":
        return False
    try:
        return _agree(axis["kind"], cuts, [label.split(" to ") for label in labels[:-1]])
    except (ValueError, InvalidOperation, OverflowError):
        return False


def _agree(kind: str, cuts: Sequence[float], ranges: Sequence[Sequence[str]]) -> bool:
    """Whether ranges (their ends, or one value) follow upon each other at the cuts."""
    if any(len(ends) > 2 for ends in ranges) or not all(map(math.isfinite, cuts)):
        return False
    numbers = [[label_number(kind, end) for end in ends] for ends in ranges]
    rising = all(ends[0] <= ends[-1] for ends in numbers)
    rising = rising and all(earlier < later for earlier, later in itertools.pairwise(cuts))
    steps = [cut - before[-1] for cut, before in zip(cuts, numbers[:-1], strict=True)]
    ahead = [after[0] - cut for cut, after in zip(cuts, numbers[1:], strict=True)]
    if kind == "float":
        # Real numbers meet at the cut; decimals have it in their middle. Both are rounded as their labels are.
        allowed = [
            _SHOWN * abs(cut) + 0.501 * max(_last_digit(ranges[place][-1]), _last_digit(ranges[place + 1][0]))
            for place, cut in enumerate(cuts)
        ]
        return rising and all(
            max(abs(step), abs(more)) <= most for step, more, most in zip(steps, ahead, allowed, strict=True)
        )
    whole = not steps or (steps[0] > 0 if kind == "datetime" else steps[0] == 1)  # a moment's step is the contract's
    return rising and whole and len(set(steps)) <= 1 and not any(ahead)


def label_number(kind: str, text: str) -> float:
    """A label's end in the unit of cuts: a number, days, or microseconds since 1970."""
    if kind == "date":
        return (dt.datetime.combine(dt.date.fromisoformat(text), dt.time()) - _EPOCH) // _DAY
    if kind == "datetime":
        return (dt.datetime.fromisoformat(text).replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
    return int(text) if kind == "integer" else float(text)


def _last_digit(text: str) -> float:
    """The weight of a number's last digit, at most 1."""
    exponent = Decimal(text).as_tuple().exponent
    return 10.0 ** min(int(exponent), 0)


def precision_of(event: Any, kinds: frozenset[str], times: int = 1) -> float:
    """Sum of 1 / sigma^2 over an event's leaves of these kinds; 0 without any that is known here."""
    if event.get("kind") == "repeated":
        return precision_of(event["event"], kinds, times * event["count"])
    if event.get("kind") in ("composed", "parallel"):
        return sum(precision_of(part, kinds, times) for part in event["events"])
    return times / event["sigma"] ** 2 if event.get("kind") in kinds else 0.0
