"""Privacy events: what a mechanism does to the data, as a tree of public parameters.

What belongs here: the two event classes that `dp_accounting` has no word for, the event tree of MST, and the trees'
JSON form with its validation. What does not: what an event costs (`accounting`). Composition is `dp_accounting`'s
own (`ComposedDpEvent`, `SelfComposedDpEvent`).

Every leaf states its adjacency and its contribution bound b, and its noise is given in records: the adjacency's factor
is part of the leaf's meaning and not something that an accountant adds later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import attr
from dp_accounting import dp_event

from dpsynth_platform.errors import AccountingError
from dpsynth_platform.privacy.units import check_adjacency

DpEvent: TypeAlias = dp_event.DpEvent

MAX_LEAVES = 100_000


def _positive(instance: object, attribute: attr.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise AccountingError(f"{type(instance).__name__}.{attribute.name}: {value!r}; accepted: finite, above 0")


@attr.frozen
class DiscreteGaussianCountsEvent(DpEvent):  # type: ignore[misc]
    """Counts of records over disjoint cells, each with independent noise from the discrete Gaussian N_Z(0, sigma^2).

    Neighbours differ by a vector v >= 0 of integers with sum at most b (`add-or-remove`, `zero-out`), or by the
    difference of two such vectors (`replace-one`). Canonne, Kamath & Steinke 2020.

    Attributes:
        sigma: the parameter of the noise, in records (not divided by the sensitivity).
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit.
    """

    sigma: float = attr.field(validator=_positive)
    adjacency: str
    max_contributions: int

    def __attrs_post_init__(self) -> None:
        check_adjacency(self.adjacency, self.max_contributions)


@attr.frozen
class BoundedRangeSelectionEvent(DpEvent):  # type: ignore[misc]
    """A choice by the exponential mechanism: P[y] proportional to exp(epsilon * score(y) / (2 * sensitivity)).

    epsilon-bounded-range (Durfee & Rogers 2019): the log-ratio of any two outcomes' probabilities moves by at most
    epsilon between neighbours, which is stronger than epsilon-DP.

    Attributes:
        epsilon: the range, for one unit under `adjacency`; the score's sensitivity is already divided out.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit.
    """

    epsilon: float = attr.field(validator=_positive)
    adjacency: str
    max_contributions: int

    def __attrs_post_init__(self) -> None:
        check_adjacency(self.adjacency, self.max_contributions)


class MstParameters(Protocol):
    """The noise of MST; `accounting.MstBudget` has it."""

    @property
    def sigma_one(self) -> float: ...  # noqa: D102
    @property
    def epsilon_select(self) -> float: ...  # noqa: D102
    @property
    def sigma_two(self) -> float: ...  # noqa: D102


def mst_event(columns: int, budget: MstParameters, adjacency: str, max_contributions: int) -> DpEvent:
    """The event of MST (McKenna, Miklau & Sheldon 2021) over a number of columns d.

    d one-way marginals, d - 1 choices of a tree's edge, d - 1 two-way marginals on the chosen edges; with one column
    nothing is chosen.

    Raises:
        AccountingError: d is below 1, or a parameter is not finite and positive.
    """
    if columns < 1:
        raise AccountingError(f"MST over {columns} columns; accepted: from 1")
    one_way = DiscreteGaussianCountsEvent(budget.sigma_one, adjacency, max_contributions)
    parts = [dp_event.SelfComposedDpEvent(one_way, columns)]
    if columns > 1:
        select = BoundedRangeSelectionEvent(budget.epsilon_select, adjacency, max_contributions)
        two_way = DiscreteGaussianCountsEvent(budget.sigma_two, adjacency, max_contributions)
        parts += [dp_event.SelfComposedDpEvent(select, columns - 1), dp_event.SelfComposedDpEvent(two_way, columns - 1)]
    return dp_event.ComposedDpEvent(parts)


def leaves(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The tree's mechanisms, each with the number of times it runs.

    Raises:
        AccountingError: an event of a kind that this platform does not account for, or a count below 1.
    """
    if isinstance(event, (DiscreteGaussianCountsEvent, BoundedRangeSelectionEvent)):
        yield event, 1
    elif isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from leaves(part)
    elif isinstance(event, dp_event.SelfComposedDpEvent):
        times = _count(event.count)
        for leaf, count in leaves(event.event):
            yield leaf, _count(count * times)
    else:
        raise AccountingError(
            f"event {type(event).__name__} cannot be accounted for; accepted: composition, discrete Gaussian counts, "
            "bounded-range selection"
        )


def adjacency_of(event: DpEvent) -> tuple[str, int]:
    """The one (adjacency, b) of all leaves. Raises `AccountingError` if they differ or there are none."""
    found = {(leaf.adjacency, leaf.max_contributions) for leaf, _ in leaves(event)}
    if len(found) != 1:
        raise AccountingError(f"an event must have one adjacency and one contribution bound, found {len(found)}")
    return found.pop()


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """A JSON value from which `event_from_json` makes an equal event. Raises `AccountingError` for unknown kinds."""
    if isinstance(event, dp_event.ComposedDpEvent):
        return {"kind": "composed", "events": [event_to_json(part) for part in event.events]}
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return {"kind": "repeated", "count": _count(event.count), "event": event_to_json(event.event)}
    for kind, leaf in _LEAVES.items():
        if isinstance(event, leaf):
            return {"kind": kind} | attr.asdict(event)
    raise AccountingError(f"event {type(event).__name__} has no JSON form")


def event_from_json(document: Any) -> DpEvent:
    """Reads what `event_to_json` wrote.

    Raises:
        AccountingError: an unknown kind or key, a missing key, or a parameter that is not finite, positive and of its
            type.
    """
    event = _parse(document, depth=0)
    adjacency_of(event)
    return event


_LEAVES: dict[str, type[Any]] = {
    "discrete-gaussian-counts": DiscreteGaussianCountsEvent,
    "bounded-range-selection": BoundedRangeSelectionEvent,
}
_KEYS = {"composed": {"events"}, "repeated": {"count", "event"}} | {
    kind: {field.name for field in attr.fields(leaf)} for kind, leaf in _LEAVES.items()
}


def _parse(document: Any, depth: int) -> DpEvent:
    if depth > 16 or not isinstance(document, dict):
        raise AccountingError("an event's JSON form is an object, nested at most 16 deep")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise AccountingError(f"event kind {kind!r} is unknown; accepted: {', '.join(sorted(_KEYS))}")
    values = {key: value for key, value in document.items() if key != "kind"}
    if values.keys() != _KEYS[kind]:
        raise AccountingError(f"event {kind}: accepted keys are {', '.join(sorted(_KEYS[kind]))}, all of them")
    if kind == "composed":
        if not isinstance(values["events"], list):
            raise AccountingError("event composed: events must be a list")
        return dp_event.ComposedDpEvent([_parse(part, depth + 1) for part in values["events"]])
    if kind == "repeated":
        return dp_event.SelfComposedDpEvent(_parse(values["event"], depth + 1), _count(values["count"]))
    return _LEAVES[kind](**values)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LEAVES:
        raise AccountingError(f"an event repeated {value!r} times; accepted: 1 to {MAX_LEAVES}")
    return value
