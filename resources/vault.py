"""Where the keys live, outside every table's directory."""

from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.secrets.vault import Vault


@dataclass(frozen=True)
class VaultResource:
    """Directory of the keys."""

    directory: str

    def open(self) -> Vault:
        """The library's vault at this place."""
        return Vault(Path(self.directory))
