"""Which database holds the privacy budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpsynth_platform.ledger.store import Ledger
    from dpsynth_platform.lineage.store import LineageStore


@dataclass(frozen=True)
class LedgerResource:
    """SQLAlchemy URL of the ledger. It may hold a password, so it is not shown."""

    url: str = field(repr=False)

    def open(self) -> Ledger:
        """The library's ledger in this database."""
        from dpsynth_platform.ledger.store import Ledger

        return Ledger(self.url)

    def graph(self) -> LineageStore:
        """The stored lineage graph, which is kept in the same database."""
        from dpsynth_platform.lineage.store import LineageStore

        return LineageStore(self.url)
