"""The console's pages, on NiceGUI: what people see.

What belongs here: how the read models (`views`) look, where each page is, and the dialogs in which people decide. What
does not: what the pages say, who may see it, and who may come in.
"""

from __future__ import annotations

from dpsynth_platform.console.pages import datasets, families, ledger, lineage, overview, releases
from dpsynth_platform.foundation.settings import Settings


def register(settings: Settings) -> None:
    """Puts every page at its address. Each asks for somebody who is signed in; the middleware sees to it."""
    for pages in (overview, families, datasets, releases, lineage, ledger):
        pages.register(settings)
