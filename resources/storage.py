"""Where step outputs live (the restricted zone)."""

from pathlib import Path

import dagster as dg

from dpsynth_platform.storage import Storage


class StorageResource(dg.ConfigurableResource[Storage]):
    """Root directory of the restricted zone."""

    restricted: str

    def open(self) -> Storage:
        """The library's storage at this place."""
        return Storage(Path(self.restricted))
