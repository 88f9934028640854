"""The auditor's export: the whole ledger but its participants in one JSON document, and its offline verification.

What belongs here: writing the document, and checking it without a database, a vault or this deployment. What does not:
fingerprints, nonces, or anything else about owners; so the caps of single owners cannot be recomputed from an export
(their accounts are named as unchecked), while everything that the chain decides and every cap of `family` mode can.

The document holds `events` (the chain; each payload as the very text that was hashed), `accounts` and `entries` (the
tables, which must follow from the chain) and `head`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select

from dpsynth_platform.errors import AccountingError, LedgerError
from dpsynth_platform.ledger import chain, schema
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.ledger.verification import check_chain, check_curves, check_family_caps, check_sums

FORMAT = "dpsynth-ledger-export-1"

_LINK = ("sequence", "at", "kind", "subject", "payload", "previous", "hash")


@dataclass(frozen=True)
class ExportReport:
    """What `verify_export` found.

    Attributes:
        head: the last link of the exported chain.
        events: how many events it has.
        entries: how many entries it has.
        unchecked: families whose cap holds owner by owner, which only the ledger itself can verify.
        problems: what does not fit; empty if the export is whole.
    """

    head: Head
    events: int
    entries: int
    unchecked: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def export_document(connection: Connection) -> dict[str, Any]:
    """The export as a JSON value, from one snapshot."""
    links = connection.execute(select(schema.event).order_by(schema.event.c.sequence))
    accounts = connection.execute(select(schema.account).order_by(schema.account.c.family))
    entries = connection.execute(select(schema.entry).order_by(schema.entry.c.entry_id))
    return {
        "format": FORMAT,
        "head": asdict(chain.head(connection)),
        "events": [row._asdict() for row in links],
        "accounts": [row._asdict() for row in accounts],
        "entries": [row._asdict() for row in entries],
    }


def verify_export(text: str, known_heads: Iterable[Head] = ()) -> ExportReport:
    """Checks an export offline: links, what follows from them, curves, caps of `family` mode, and published heads.

    Args:
        text: the export, JSON.
        known_heads: heads from dossiers that were published before the export was made.

    Raises:
        LedgerError: the text is no export.
    """
    document = _read(text)
    events, problems = chain.linked(document["events"])
    last = events[-1] if events else None
    head = Head(last.sequence, last.hash) if last else Head(0, chain.GENESIS)
    if document["head"] != asdict(head):
        problems.append("the export's head is not its last event")
    accounts = {row.pop("family"): row for row in document["accounts"]}
    entries = {row.pop("entry_id"): row for row in document["entries"]}
    try:
        problems += check_chain(events, accounts, entries, known_heads)
        problems += check_curves(entries)
        if not problems:
            problems += check_sums(events, accounts, entries)
            problems += check_family_caps(accounts, entries)
        per_owner = tuple(name for name, row in accounts.items() if chain.parse(row["terms"])["mode"] == "per-owner")
    except (KeyError, TypeError, ValueError, AccountingError, LedgerError):
        raise LedgerError("the export's accounts or entries cannot be read") from None
    return ExportReport(head, len(events), len(entries), per_owner, tuple(problems))


def _read(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
        shaped = (
            document["format"] == FORMAT
            and isinstance(document["head"], dict)
            and all(set(link) == set(_LINK) for link in document["events"])
            and all(
                type(link[name]) is (int if name == "sequence" else str)
                for link in document["events"]
                for name in _LINK
            )
            and all(isinstance(row["family"], str) for row in document["accounts"])
            and all(isinstance(row["entry_id"], str) for row in document["entries"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        shaped = False
    if not shaped:
        raise LedgerError(f"this is no export of a ledger; accepted: a JSON file of the format {FORMAT!r}")
    return dict(document)
