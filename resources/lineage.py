"""Where lineage events are kept; a further transport comes from the standard OpenLineage configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpsynth_platform.lineage.emitter import LineageEmitter


@dataclass(frozen=True)
class LineageResource:
    """The stored graph's database, which is the ledger's and may hold a password, and the record's directory."""

    directory: str
    url: str = field(repr=False)

    def open(self) -> LineageEmitter:
        """The library's emitter into this graph."""
        from dpsynth_platform.lineage.emitter import LineageEmitter

        return LineageEmitter(self.url, Path(self.directory))
