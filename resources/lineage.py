"""Where lineage events are kept; a further transport comes from the standard OpenLineage configuration."""

from pathlib import Path

import dagster as dg

from dpsynth_platform.lineage.emitter import LineageEmitter


class LineageResource(dg.ConfigurableResource[LineageEmitter]):
    """Path of the platform's own event record."""

    file: str

    def open(self) -> LineageEmitter:
        """The library's emitter writing to this record."""
        return LineageEmitter(Path(self.file))
