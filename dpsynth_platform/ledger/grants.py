"""Grants: signed, one-time permissions for the worker to read bounded data for one started ledger entry.

What belongs here: making and checking a grant's text. What does not: the ledger's database, which the worker has no
access to, and the claim beside the model that makes a grant one-time (the worker's own). A grant names by digest all
that the mechanism reads and writes, so that it is valid for no other plan, rows, people or place.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpsynth_platform.foundation.errors import GrantRefused

FORMAT = "dpsynth-grant-1"
DEFAULT_LIFETIME = dt.timedelta(hours=24)

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Clocks of two machines may differ by this much.
_CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class Grant:
    """What one worker may do, once.

    Attributes:
        entry_id: the ledger entry, which is started.
        plan_digest: SHA-256 (hex) of the sealed plan.
        data_digest: content hash of the bounded table's directory.
        participants_digest: SHA-256 (hex) of the reserved participants' file.
        canaries_digest: content hash of the canaries with their coins. The worker only keeps it beside the model, so
            that the audit can only be made with the canaries that the model was trained with.
        model_directory: name of the directory for the model (a name, not a path).
        issued_at: ISO 8601, UTC.
        expires_at: ISO 8601, UTC; no reading may begin after it.
    """

    entry_id: str
    plan_digest: str
    data_digest: str
    participants_digest: str
    canaries_digest: str
    model_directory: str
    issued_at: str
    expires_at: str


def issue_grant(
    private_key: Ed25519PrivateKey,
    *,
    entry_id: str,
    plan_digest: str,
    data_digest: str,
    participants_digest: str,
    canaries_digest: str,
    model_directory: str,
    lifetime: dt.timedelta = DEFAULT_LIFETIME,
) -> str:
    """The text of a signed grant. Call it only after `Ledger.start` has returned for the entry.

    Raises:
        GrantRefused: a digest is not 64 hex digits, or the model directory is a path and not a name.
    """
    now = _now()
    grant = Grant(
        entry_id=entry_id,
        plan_digest=plan_digest,
        data_digest=data_digest,
        participants_digest=participants_digest,
        canaries_digest=canaries_digest,
        model_directory=model_directory,
        issued_at=now.isoformat(),
        expires_at=(now + lifetime).isoformat(),
    )
    _check_shape(grant)
    payload = asdict(grant)
    return json.dumps({"grant": payload, "signature": private_key.sign(_signed_bytes(payload)).hex()}, sort_keys=True)


def verify_grant(
    text: str,
    public_key: bytes,
    *,
    plan_digest: str,
    data_digest: str,
    participants_digest: str,
    model_directory: str,
) -> Grant:
    """The grant of an `issue_grant` text, if it is valid, has not expired, and names exactly what the caller has.

    Args:
        text: what `issue_grant` returned.
        public_key: 32 raw bytes of the deployment's Ed25519 public key.
        plan_digest: digest of the caller's plan.
        data_digest: content hash of the caller's data.
        participants_digest: digest of the caller's participants.
        model_directory: name of the directory that the caller will write to.

    Raises:
        GrantRefused: otherwise; the message names the part that differs.
    """
    grant = _read_signed(text, public_key)
    found = {
        "plan": (grant.plan_digest, plan_digest),
        "data": (grant.data_digest, data_digest),
        "participants": (grant.participants_digest, participants_digest),
        "model directory": (grant.model_directory, model_directory),
    }
    for part, (granted, mine) in found.items():
        if granted != mine:
            raise GrantRefused(f"the grant is for another {part}; materialize the model step again")
    now = _now()
    if now < _time(grant.issued_at) - _CLOCK_SKEW:
        raise GrantRefused("the grant was issued in the future; check the machines' clocks")
    if now >= _time(grant.expires_at):
        raise GrantRefused("the grant has expired; materialize the model step again")
    return grant


def _read_signed(text: str, public_key: bytes) -> Grant:
    try:
        document = json.loads(text)
        payload, signature = document["grant"], bytes.fromhex(document["signature"])
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _signed_bytes(payload))
        grant = Grant(**payload)
    except InvalidSignature:
        raise GrantRefused("the grant's signature is invalid") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise GrantRefused("the grant cannot be read") from None
    _check_shape(grant)
    return grant


def _check_shape(grant: Grant) -> None:
    for name in ("plan_digest", "data_digest", "participants_digest", "canaries_digest"):
        value = getattr(grant, name)
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            raise GrantRefused(f"the grant's {name} is not a SHA-256 in hex")
    if not isinstance(grant.model_directory, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", grant.model_directory):
        raise GrantRefused("the grant's model_directory is not a plain directory name")


def _signed_bytes(payload: Any) -> bytes:
    body = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"{FORMAT}\n{body}".encode()


def _time(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise GrantRefused("the grant's times cannot be read") from None
    if moment.tzinfo is None:
        raise GrantRefused("the grant's times lack a zone")
    return moment


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
