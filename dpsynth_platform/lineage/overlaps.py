"""Overlaps: how many people a run shares with earlier ones, for reviewers.

What belongs here: the counts, and their restricted file. What does not: fingerprints (the ledger's), and any verdict:
the counts are exact functions of who took part, so nothing public depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dpsynth_platform.foundation.storage import Place, Storage, write_durably


@dataclass(frozen=True)
class Overlaps:
    """Counts of one reservation. Restricted.

    Attributes:
        offered: owners for whom the reservation was requested.
        charged: how many of them take part.
        by_entry: how many of the offered owners each earlier entry names; None for an entry without named owners.
    """

    offered: int
    charged: int
    by_entry: Mapping[str, int | None]

    def write(self, storage: Storage, place: Place, entry_id: str) -> None:
        """Writes the counts into the clearance's directory, in the restricted zone."""
        write_durably(_path(storage, place, entry_id), json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, storage: Storage, place: Place, entry_id: str) -> Overlaps | None:
        """The counts of an entry's reservation, or None if there is no file."""
        try:
            return cls(**json.loads(_path(storage, place, entry_id).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None


def _path(storage: Storage, place: Place, entry_id: str) -> Path:
    return storage.location(place, "clearance") / f"{entry_id}.json"
