"""The ledger: the durable record of what every mechanism cost, and the only place that lets one start.

What belongs here: accounts, entries, the hash chain over all events, decisions on requests, and the one-time grants
that carry a started entry to the worker. What does not: what an event costs (`privacy`), lineage checks (`lineage`),
publication (`release`). `Ledger` is imported on first use: the worker imports `ledger.grants` and has no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsynth_platform.ledger.store import Ledger

__all__ = ["Ledger"]


def __getattr__(name: str) -> Any:
    if name != "Ledger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dpsynth_platform.ledger.store import Ledger

    return Ledger
