"""The auditor's export: the whole ledger except its participants in one JSON document, and its offline verification.

What belongs here: writing the document, and checking it without a database, a vault or this deployment. What does not:
fingerprints, nonces, or anything else about owners. So the caps of single owners cannot be recomputed from an export
(their accounts are named as unchecked); all that the chain decides and every cap of `family` mode can.

The document holds `events` (the chain; each payload as the text that was hashed), `accounts` and `entries` (the tables,
which must follow from the chain) and `head`. `sign_export` adds `signature`: Ed25519 over "FORMAT DIGEST", with the
SHA-256 (hex) of everything else as canonical JSON (sorted keys, no spaces, UTF-8). The chain proves that the export is
consistent; only the signature proves its origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import Connection, select

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, LedgerError, VerificationFailed
from dpsynth_platform.foundation.signature import fingerprint, is_valid, public_pem, read_public_key, sign
from dpsynth_platform.ledger import chain, schema
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.ledger.verification import check_chain, check_curves, check_family_caps, check_sums

FORMAT = "dpsynth-ledger-export-1"

_LINK: dict[str, type] = {"sequence": int} | dict.fromkeys(
    ("at", "kind", "subject", "payload", "previous", "hash"), str
)


@dataclass(frozen=True)
class ExportReport:
    """The result of `verify_export`.

    Attributes:
        events: how many events it has.
        entries: how many entries it has.
        unchecked: families whose cap applies to each owner, which only the ledger itself can verify.
        last_at: the time of the last event, ISO 8601, UTC; None where there is none.
        key_fingerprint: the key that verified the signature; None without a readable signature.
        key_trusted: whether the caller gave that key; otherwise the export itself names it.
        problems: empty if the export is intact.
    """

    head: Head
    events: int
    entries: int
    unchecked: tuple[str, ...]
    last_at: str | None
    key_fingerprint: str | None
    key_trusted: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
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


def sign_export(document: dict[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """The export with the deployment's signature over all of its content."""
    return document | {
        "signature": {
            "public_key": public_pem(key.public_key()).decode(),
            "value": sign(key, _signed_bytes(document)).hex(),
        }
    }


def verify_export(text: str, known_heads: Iterable[Head] = (), public_key: bytes | None = None) -> ExportReport:
    """Checks an export offline: signature, links, what follows from them, costs, caps of `family` mode, known heads.

    Args:
        text: the export, JSON.
        known_heads: heads from dossiers that were published before the export was made.
        public_key: the deployment's key as PEM or 32 raw bytes, from another channel; then a missing signature, or one
            by another key, is a problem. Without it the key that the export names is used (`key_trusted` False).

    Raises:
        LedgerError: the text is no export.
        VerificationFailed: the given key is none.
    """
    trusted = read_public_key(public_key) if public_key is not None else None
    document = _read(text)
    named, signature_problems = _check_signature(document, trusted)
    events, problems = chain.linked(document["events"])
    problems = signature_problems + problems
    last = events[-1] if events else None
    head = Head(last.sequence, last.hash) if last else Head(0, chain.GENESIS)
    if document["head"] != asdict(head):
        problems.append("the export's head is not its last event")
    accounts = {row.pop("family"): row for row in document["accounts"]}
    entries = {row.pop("entry_id"): row for row in document["entries"]}
    if (len(accounts), len(entries)) != (len(document["accounts"]), len(document["entries"])):
        problems.append("the export has an account or an entry twice")
    try:
        problems += check_chain(events, accounts, entries, known_heads)
        problems += check_curves(entries)
        if problems == signature_problems:
            problems += check_sums(events, accounts, entries)
            problems += check_family_caps(accounts, entries)
        per_owner = tuple(name for name, row in accounts.items() if chain.parse(row["terms"])["mode"] == "per-owner")
    except (KeyError, TypeError, ValueError, AccountingError, LedgerError):
        raise LedgerError("the export's accounts or entries cannot be read") from None
    return ExportReport(
        head=head,
        events=len(events),
        entries=len(entries),
        unchecked=per_owner,
        last_at=last.at if last else None,
        key_fingerprint=named,
        key_trusted=trusted is not None,
        problems=tuple(problems),
    )


def _signed_bytes(document: dict[str, Any]) -> bytes:
    content = {name: part for name, part in document.items() if name != "signature"}
    return f"{FORMAT} {canonical_digest(content)}".encode()


def _check_signature(document: dict[str, Any], trusted: Ed25519PublicKey | None) -> tuple[str | None, list[str]]:
    """The fingerprint of the key that verified the signature, and the signature's problems."""
    if "signature" not in document:
        return None, ["the export is not signed"] if trusted else []
    try:
        own = read_public_key(document["signature"]["public_key"].encode())
        value = bytes.fromhex(document["signature"]["value"])
    except (AttributeError, KeyError, TypeError, ValueError, VerificationFailed):
        return None, ["the export's signature cannot be read"]
    key = trusted or own
    if fingerprint(own) != fingerprint(key):
        return fingerprint(key), [f"the export is signed by another key, {fingerprint(own)}"]
    try:
        whole = is_valid(key, _signed_bytes(document), value)
    except ValueError:  # a number that JSON cannot hold
        whole = False
    return fingerprint(key), [] if whole else ["the export's content is not what its key signed"]


def _read(text: str) -> dict[str, Any]:
    try:
        document = chain.load(text)
        shaped = (
            document["format"] == FORMAT
            and isinstance(document["head"], dict)
            and all(link.keys() == _LINK.keys() for link in document["events"])
            and all(type(link[name]) is kind for link in document["events"] for name, kind in _LINK.items())
            and all(isinstance(row["family"], str) for row in document["accounts"])
            and all(isinstance(row["entry_id"], str) for row in document["entries"])
        )
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
        shaped = False
    if not shaped:
        raise LedgerError(f"this is no export of a ledger; accepted: a JSON file of the format {FORMAT!r}")
    return dict(document)
