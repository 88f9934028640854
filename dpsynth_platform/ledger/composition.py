"""What several entries promise together: one guarantee for a unit that took part in all of them.

What belongs here: composing the events of entries of one unit and one adjacency. What does not: which entries concern
the same people (`kinship`), and what an account may spend (`filter`).

The bound is for the worst case, a unit in all of the mechanisms; it depends on the entries alone and is public. It
holds if the plans were fixed in advance: parameters that depend on earlier results need a filter (Rogers, Roth, Ullman
& Vadhan 2016). Of whole accounts, the sum of their caps holds whatever follows: each filter makes its account one
interactive mechanism, and such mechanisms compose, also where they run at the same time (Vadhan & Zhang 2023; Lyu
2022). Entries of different units or adjacencies have no common guarantee here: they are not converted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import ChainEvent, CostRequest, Entry
from dpsynth_platform.privacy.renyi import RenyiCurve

Bound = Literal["pld", "renyi", "basic"]

# The most different mechanisms whose privacy loss distributions are composed; beyond, only Renyi curves are added.
MOST_LEAVES = 48
_UP = 1 + 2.0**-40


@dataclass(frozen=True)
class Composition:
    """Differential privacy of several mechanisms together, for a unit that took part in all. Public.

    Attributes:
        epsilon: the smallest of three bounds at `delta`.
        delta: the sum of the mechanisms' deltas.
        accounting: which bound it is: `pld` or `renyi` of the composed event, or `basic`, the sum of the epsilons.
        mechanisms: how many there are.
    """

    epsilon: float
    delta: float
    accounting: Bound
    unit: str
    adjacency: str
    mechanisms: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compose(requests: Sequence[CostRequest]) -> Composition | None:
    """The common guarantee of the mechanisms; None where units or adjacencies differ, or the deltas add up to 1.

    Each keeps its own contribution bound, which is in its event.
    """
    kinds = {(item.guarantee.unit, item.guarantee.adjacency) for item in requests}
    delta = math.fsum(item.guarantee.delta for item in requests)
    if len(kinds) != 1 or delta >= 1:
        return None
    ((unit, adjacency),) = kinds
    bounds: dict[Bound, float] = {
        "basic": math.fsum(item.guarantee.epsilon for item in requests) * _UP,
        "renyi": _renyi(requests, delta),
    }
    by_losses = _pld(requests, delta)
    if by_losses is not None:
        bounds["pld"] = by_losses
    least = min(bounds, key=lambda name: bounds[name])
    return Composition(bounds[least], delta, least, unit, adjacency, len(requests))


def _pld(requests: Sequence[CostRequest], delta: float) -> float | None:
    """By privacy loss distributions; None where they do not apply, or there are too many different mechanisms."""
    from dp_accounting import ComposedDpEvent

    from dpsynth_platform.privacy.accounting import pld_epsilon
    from dpsynth_platform.privacy.events import event_from_json, leaves

    event = ComposedDpEvent([event_from_json(item.event) for item in requests])
    if len({leaf for leaf, _ in leaves(event)}) > MOST_LEAVES:
        return None
    try:
        return pld_epsilon(event, delta)
    except AccountingError:  # too many ways through parallel branches together
        return None


def _renyi(requests: Sequence[CostRequest], delta: float) -> float:
    """By the ledger's curves, at the delta that their slacks leave."""
    total = RenyiCurve.upper(
        [math.fsum(values) for values in zip(*(item.curve.values for item in requests), strict=True)]
    )
    rest = delta - math.fsum(item.delta_slack for item in requests) * _UP
    return total.epsilon(rest)


@dataclass(frozen=True)
class Spent:
    """What a family had spent after one event of the chain. Public.

    Attributes:
        entry: what was charged or refunded; None where the cap was set or raised.
        epsilon: of all charged entries together, by their Renyi curves at the cap's delta, for a unit in all of them;
            infinite where slacks take all of that delta.
        cap: the cap's epsilon from then on.
    """

    event: ChainEvent
    entry: Entry | None
    epsilon: float
    cap: float


def spent_over_time(events: Iterable[ChainEvent], entries: Mapping[str, Entry], family: str) -> Iterator[Spent]:
    """What a family's account had spent after each event that changed it, in order.

    Holds, like `compose`, if the plans were fixed in advance. An entry is charged from its reservation on. `entries`
    are by id, and may include other families'.
    """
    cap: Mapping[str, float] = {}
    charged: dict[str, Entry] = {}
    for event in events:
        entry = entries.get(event.subject)
        if event.kind in (chain.OPENED, chain.RAISED) and event.subject == family:
            cap, entry = event.payload["cap"], None
        elif entry is None or entry.family != family or event.kind not in (chain.RESERVED, chain.VOID):
            continue
        elif event.kind == chain.RESERVED:
            charged[entry.entry_id] = entry
        else:
            charged.pop(entry.entry_id, None)
        yield Spent(event, entry, _composed(charged.values(), cap["delta"]), cap["epsilon"])


def _composed(entries: Collection[Entry], delta: float) -> float:
    """By Renyi curves alone; infinite where the slacks of thresholds take all of the delta."""
    if not entries:
        return 0.0
    requests = [entry.request for entry in entries]
    if math.fsum(item.delta_slack for item in requests) * _UP >= delta:
        return math.inf
    return _renyi(requests, delta)
