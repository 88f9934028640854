"""Overlaps: how many people a run has in common with earlier ones, for reviewers.

What belongs here: the counts, and the restricted file that keeps them. What does not: who they are (the ledger's), and
any verdict: these are exact functions of who took part, so that nothing that shows depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dpsynth_platform.foundation.storage import Place, Storage, write_durably


@dataclass(frozen=True)
class Overlaps:
    """Counts of one reservation. Restricted.

    Attributes:
        offered: how many the mechanism was asked for.
        charged: how many of them take part; the others were left out.
        by_entry: of those offered, how many each earlier entry names; None for one that names nobody.
    """

    offered: int
    charged: int
    by_entry: Mapping[str, int | None]

    def write(self, storage: Storage, place: Place, entry_id: str) -> None:
        """Keeps the counts beside the clearance's record, in the restricted zone."""
        path = storage.location(place, "clearance") / f"{entry_id}.json"
        write_durably(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, storage: Storage, place: Place, entry_id: str) -> Overlaps | None:
        """The counts of an entry's reservation, or None where none were kept."""
        path = storage.location(place, "clearance") / f"{entry_id}.json"
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
