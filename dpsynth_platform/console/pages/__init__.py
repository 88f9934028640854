"""The console's pages, on NiceGUI: what people see.

What belongs here: how the views (`views`) look, the address of each page, and the dialogs in which people decide. What
does not: what the pages say, who may see it, and access control, which the middleware enforces.
"""

from __future__ import annotations

from dpsynth_platform.console.pages import datasets, families, ledger, lineage, overview, releases
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Registers every page at its address."""
    for module in (overview, families, datasets, releases, lineage, ledger):
        module.register(settings)
