"""Where step outputs live (the restricted zone)."""

from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.storage import Storage


@dataclass(frozen=True)
class StorageResource:
    """Root directory of the restricted zone."""

    restricted: str

    def open(self) -> Storage:
        """The library's storage at this place."""
        return Storage(Path(self.restricted))
