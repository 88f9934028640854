"""Dagster resources: configuration around the library.

What belongs here: one small class a resource, telling Dagster where a part of the library finds its place. What does
not: anything that decides, computes or writes; the library does that and is usable without Dagster.

They are plain frozen dataclasses on purpose. Dagster's configurable resources offer their fields in the Launchpad,
where anybody who launches a run could point it at another ledger, vault or zone; a deployment's places are settings of
its code location and no word of a run.
"""

from resources.accelerator import AcceleratorResource
from resources.compute import ComputeResource
from resources.io_manager import RefusingIOManager
from resources.ledger import LedgerResource
from resources.lineage import LineageResource
from resources.storage import StorageResource
from resources.vault import VaultResource

__all__ = [
    "AcceleratorResource",
    "ComputeResource",
    "LedgerResource",
    "LineageResource",
    "RefusingIOManager",
    "StorageResource",
    "VaultResource",
]
