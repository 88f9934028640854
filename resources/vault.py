"""Where the keys live, outside every table's directory."""

from pathlib import Path

import dagster as dg

from dpsynth_platform.vault import Vault


class VaultResource(dg.ConfigurableResource[Vault]):
    """Directory of the keys."""

    directory: str

    def open(self) -> Vault:
        """The library's vault at this place."""
        return Vault(Path(self.directory))
