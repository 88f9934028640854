"""The ledger's chain as readers of releases know it: whether heads can belong to one chain, and withdrawals.

What belongs here: comparing releases with other releases or with a ledger's export. What does not: the chain itself
(`ledger`). A head is a number and a hash. In one chain, equal numbers have equal hashes, and a later release has no
smaller number. Heads alone prove no more; an export names every link.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.errors import VerificationFailed, file_problem

WITHDRAWN = "withdrawn"
"""Kind of the chain's withdrawal events. Repeated here because `ledger.chain` imports more than readers install."""
_CONCURRENT = dt.timedelta(hours=1)
"""Releases made within this time may have read the head in either order."""


@dataclass(frozen=True)
class KnownChain:
    """The hashes of a chain's links by number (from 1), and withdrawn releases. `source` names it in messages."""

    source: str
    hashes: Mapping[int, str]
    withdrawn: frozenset[str] = frozenset()

    @classmethod
    def of_export(cls, path: Path) -> KnownChain:
        """Reads an export of a ledger without checking the chain. Raises `VerificationFailed` if it is not readable."""
        try:
            events = json.loads(path.read_text(encoding="utf-8"))["events"]
            return cls(
                path.name,
                {int(event["sequence"]): str(event["hash"]) for event in events},
                frozenset(str(event.get("subject")) for event in events if event.get("kind") == WITHDRAWN),
            )
        except OSError as error:
            raise VerificationFailed(f"{path}: {file_problem(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise VerificationFailed(f"{path}: is not an export of a ledger (dpsynth ledger export)") from None

    def problem(self, head: Mapping[str, Any]) -> str | None:
        """Why a head does not belong to this chain, or None."""
        sequence, last = head["sequence"], max(self.hashes, default=0)
        if sequence > last:
            return f"is number {sequence}, and the chain in {self.source} ends at {last}: it was cut, or is older"
        if self.hashes.get(sequence) != head["hash"]:
            return f"is not link {sequence} of the chain in {self.source}: that chain was rewritten, or is another one"
        return None


@dataclass(frozen=True)
class DatedHead:
    """The head that a release names; `at` is the release's time, ISO 8601."""

    release: str
    at: str
    sequence: int
    hash: str


def contradictions(heads: Iterable[DatedHead]) -> list[tuple[str, str]]:
    """Why heads cannot belong to one chain: pairs of a release and the reason."""
    parse = dt.datetime.fromisoformat
    found = []
    for earlier, later in pairwise(sorted(heads, key=lambda head: (head.sequence, head.at))):
        if earlier.sequence == later.sequence and earlier.hash != later.hash:
            reason = f"is number {later.sequence}, like the head of {earlier.release}, but has another hash"
            found.append((later.release, reason))
        elif parse(earlier.at) - parse(later.at) > _CONCURRENT:
            reason = (
                f"is number {earlier.sequence}, which is before number {later.sequence} of {later.release}, a release "
                "made earlier: the chain was cut in between"
            )
            found.append((earlier.release, reason))
    return found
