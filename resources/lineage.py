"""Where lineage events are kept; a further transport comes from the standard OpenLineage configuration."""

from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.lineage.emitter import LineageEmitter


@dataclass(frozen=True)
class LineageResource:
    """Path of the platform's own event record."""

    file: str

    def open(self) -> LineageEmitter:
        """The library's emitter writing to this record."""
        return LineageEmitter(Path(self.file))
