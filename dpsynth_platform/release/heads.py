"""The ledger's chain as readers of releases know it: whether heads can be of one chain, and what was withdrawn.

What belongs here: what a reader was given (other releases, a ledger's export) and comparing releases with it. What does
not: the chain itself (`ledger`). A head is a number and a hash; two heads of one chain with the same number have the
same hash, and a later release has no smaller number. More cannot be told from heads alone: whether one leads to
another shows with an export of the ledger, which names every link.
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
"""Kind of the chain's events that withdraw a release (`ledger.chain`, which needs more than a reader has)."""
_AT_ONCE = dt.timedelta(hours=1)
"""Releases that were made so close to one another may have read the head in the other order."""


@dataclass(frozen=True)
class KnownChain:
    """Links of a chain, from an export of the ledger or from the ledger itself.

    Attributes:
        source: where they are from, for messages.
        hashes: every link's hash by its number, from 1 on.
        withdrawn: ids of the releases whose withdrawal it records.
    """

    source: str
    hashes: Mapping[int, str]
    withdrawn: frozenset[str] = frozenset()

    @classmethod
    def of_export(cls, path: Path) -> KnownChain:
        """The links of an export (`dpsynth ledger export`), as they are listed; whether they hang together is not
        checked (`dpsynth ledger check-export` does).

        Raises:
            VerificationFailed: the file cannot be read or is no export.
        """
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
            raise VerificationFailed(f"{path}: is no export of a ledger (dpsynth ledger export)") from None

    def problem(self, head: Mapping[str, Any]) -> str | None:
        """Why a head is none of this chain, or None."""
        sequence, last = head["sequence"], max(self.hashes, default=0)
        if sequence > last:
            return f"is number {sequence}, and the chain in {self.source} ends at {last}: it was cut, or is older"
        if self.hashes.get(sequence) != head["hash"]:
            return f"is not link {sequence} of the chain in {self.source}: that chain was rewritten, or is another one"
        return None


@dataclass(frozen=True)
class DatedHead:
    """The head that one release names.

    Attributes:
        release: its id.
        at: when the release was made, ISO 8601.
    """

    release: str
    at: str
    sequence: int
    hash: str


def contradictions(heads: Iterable[DatedHead]) -> list[tuple[str, str]]:
    """Why heads cannot be of one chain: the release where it shows, and the reason."""
    found = []
    for earlier, later in pairwise(sorted(heads, key=lambda head: (head.sequence, head.at))):
        if earlier.sequence == later.sequence and earlier.hash != later.hash:
            found.append(
                (later.release, f"is number {later.sequence}, as that of {earlier.release} is, with another hash")
            )
        elif _moment(earlier.at) - _moment(later.at) > _AT_ONCE:
            found.append(
                (
                    earlier.release,
                    f"is number {earlier.sequence}, which is before number {later.sequence} of {later.release}, a "
                    "release made earlier: the chain was cut in between",
                )
            )
    return found


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)
