"""Which database holds the privacy budget."""

import dagster as dg

from dpsynth_platform.ledger.store import Ledger


class LedgerResource(dg.ConfigurableResource[Ledger]):
    """SQLAlchemy URL of the ledger. Give it as an `EnvVar` where it holds a password: Dagster shows resource values."""

    url: str

    def open(self) -> Ledger:
        """The library's ledger in this database."""
        return Ledger(self.url)
