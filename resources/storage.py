"""Where step outputs live (the restricted zone)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.foundation.volumes import require_encrypted


@dataclass(frozen=True)
class StorageResource:
    """Root directory of the restricted zone, and what must hold of the disks below it.

    Attributes:
        places: all places of the deployment with rows, fingerprints or keys, by their names in messages.
        encrypted: whether these must be encrypted (`volumes.require_encrypted`).
    """

    restricted: str
    places: Mapping[str, Path] = field(default_factory=dict)
    encrypted: str = "no"

    def open(self) -> Storage:
        """The library's storage at this place."""
        return Storage(Path(self.restricted))

    def check(self) -> None:
        """Raises `ConfigurationError` where what a step writes would reach a disk in clear, and must not."""
        require_encrypted(self.places, self.encrypted)
