"""Erasure: owners who requested the deletion of their records and are excluded from later runs.

What belongs here: the list of erased owners, the ledger's record of each request, and removing their records from
scrubbed rows. What does not: which outputs must be deleted (`retention`), deleting them (`purging`), and fingerprints
of ids (`scrub.fingerprints`).

The effects of a request do not depend on the data: every output with rows of the owner's identity namespace is deleted
as a whole and made again without the owner. So neither the chain, which auditors receive, nor a lineage event reveals
the datasets that contained the owner. Rows cannot be removed from a Delta table without traces anyway.

Excluding an owner does not weaken the guarantee. The list does not depend on the data, so the mechanism's input changes
with the records of any other owner exactly as before (stability 1), and no mechanism reads a record of an owner on the
list. A record with several owners is removed if one of them is on the list. That is a function of the ownership graph
and the list, and so fixed under `fixed-graph`.

The list is restricted: one file for each namespace, of fingerprints under the keys in use. The chain contains its
length. If the file has fewer entries, scrubbing stops: a lost list would silently readmit all owners.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import ConfigurationError, NotFound
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import HeldByAnother, StepRecord, held
from dpsynth_platform.ledger.records import Account, ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.scrub.fingerprints import (
    FINGERPRINT_BYTES,
    FINGERPRINT_DTYPE,
    Fingerprints,
    fingerprints_from_hex,
    flat_owners,
    hex_column,
    owner_column,
    read_fingerprints,
    rotated,
    write_fingerprints,
)
from dpsynth_platform.secrets.vault import key_id

ERASED, READMITTED = "erased", "readmitted"
HONOURED = "erasures"
"""The fact of a scrubbed step's record with the last event of the chain whose erasures it honours."""
REMAINS = (
    "The ledger keeps their fingerprint, and what was spent on them: it is never given back, and without it they could "
    "be charged beyond the cap",
    "Published releases, and models and synthetic rows that were made before, stay: they are differentially private. "
    "Models and rows go when their retention is over; a release can be withdrawn",
    "Reports for reviewers stay: they contain counts and measures, and no rows",
    "The source is outside of this platform: its operator must delete their records there",
    "Backups of the restricted zone still contain their records; let the backups expire, or delete them",
)
"""What a request does not remove."""
DIRECTORY = "erased-owners"
"""Directory of the lists, below the restricted zone."""


@dataclass(frozen=True)
class Erasure:
    """The last request of an identity namespace.

    Attributes:
        event: its number in the chain.
        owners: the length of the list since.
    """

    namespace: str
    event: int
    at: dt.datetime
    owners: int


def erasures(ledger: Ledger) -> dict[str, Erasure]:
    """The last request of each namespace."""
    return _last(ledger.history(kinds=[ERASED, READMITTED]))


def erasure_of(ledger: Ledger, namespace: str) -> Erasure | None:
    """The last request of one namespace, or None."""
    return _last(ledger.history(kinds=[ERASED, READMITTED], subject=namespace)).get(namespace)


def _last(events: Iterable[ChainEvent]) -> dict[str, Erasure]:
    """A readmission does not require new rows, so the last request for erasure stays the one to honour."""
    found: dict[str, Erasure] = {}
    for event in events:
        owners = event.payload["owners"]
        if event.kind == ERASED:
            at = dt.datetime.fromisoformat(event.at)
            found[event.subject] = Erasure(event.subject, event.sequence, at, owners)
        else:
            found[event.subject] = replace(found[event.subject], owners=owners)
    return found


def honoured(scrubbed: StepRecord, asked: Erasure | None) -> bool:
    """Whether scrubbed rows were made after the last request, and so without all erased owners."""
    return asked is None or bool(scrubbed.facts.get(HONOURED, 0) >= asked.event)


def parse_owners(texts: list[str]) -> Fingerprints:
    """Parses fingerprints. A text that is none may be an id, so the message shows nothing of it.

    Raises:
        ConfigurationError: a text is no fingerprint, or there is none.
    """
    try:
        found = fingerprints_from_hex(texts)
    except ValueError:
        found = np.empty(0, FINGERPRINT_DTYPE)
    if len(found) == 0:
        raise ConfigurationError(
            f"--owner: accepted: a fingerprint of {2 * FINGERPRINT_BYTES} hexadecimal digits, or - for one a line on "
            "standard input; an id becomes one by: dpsynth owner fingerprint FAMILY"
        )
    return found


def account_of(ledger: Ledger, namespace: str | None) -> Account:
    """An account of the namespace; without a name, of the only namespace.

    Raises:
        NotFound: there is none, or several and no name was given.
    """
    accounts = {account.namespace: account for account in ledger.accounts()}
    chosen = next(iter(accounts)) if namespace is None and len(accounts) == 1 else namespace
    if chosen not in accounts:
        wanted = "--namespace: missing" if namespace is None else f"identity namespace {namespace!r}: there is none"
        raise NotFound(f"{wanted}; accepted: {', '.join(sorted(accounts)) or 'none yet; the first run opens one'}")
    return accounts[chosen]


def erase(restricted: Path, ledger: Ledger, account: Account, owners: Fingerprints, *, by: str, reason: str) -> None:
    """Adds owners to the list of their namespace and records the request.

    It neither checks nor reveals whether any data contains them. The list is durable before the ledger counts them.

    Args:
        owners: fingerprints under the keys in use.

    Raises:
        ConfigurationError: the list is incomplete, or another request or a rotation of keys is running.
    """
    with _alone(restricted, account.namespace):
        listed = np.union1d(_whole(restricted, ledger, account), owners)
        write_fingerprints(_list(restricted, account.namespace, account.key_ids[-1]), listed)
        ledger.record(ERASED, account.namespace, {"owners": len(listed), "by": by, "reason": reason})


def readmit(restricted: Path, ledger: Ledger, account: Account, owners: Fingerprints, *, by: str, reason: str) -> None:
    """Removes owners from the list and records it: later scrubbed rows contain their records again.

    The ledger's count decreases before the list does: a crash in between readmits no owner.

    Raises:
        ConfigurationError: an owner is not on the list, which then stays unchanged. Otherwise as `erase`.
    """
    with _alone(restricted, account.namespace):
        listed = _whole(restricted, ledger, account)
        kept = np.setdiff1d(listed, owners)
        if len(kept) != len(listed) - len(np.unique(owners)):
            raise ConfigurationError(
                f"not all of them are on the list of erased owners of namespace {account.namespace}; accepted: "
                "fingerprints of owners who were erased, under the keys in use"
            )
        ledger.record(READMITTED, account.namespace, {"owners": len(kept), "by": by, "reason": reason})
        write_fingerprints(_list(restricted, account.namespace, account.key_ids[-1]), kept)


def _whole(restricted: Path, ledger: Ledger, account: Account) -> Fingerprints:
    return erased_owners(restricted, erasure_of(ledger, account.namespace), account)


def erased_owners(restricted: Path, known: Erasure | None, account: Account) -> Fingerprints:
    """The list of a namespace under the keys in use: sorted, distinct.

    Args:
        known: the namespace's last request, read earlier.

    Raises:
        ConfigurationError: it has fewer entries than were recorded.
    """
    path = _list(restricted, account.namespace, account.key_ids[-1])
    listed = read_fingerprints(path) if path.is_file() else np.empty(0, FINGERPRINT_DTYPE)
    if known is not None and len(listed) < known.owners:
        raise ConfigurationError(
            f"{path}: {len(listed)} erased owners, but the ledger has recorded {known.owners} (event {known.event}); "
            "restore the file from its backup, or repeat the requests: dpsynth purge --owner -"
        )
    return listed


def without(batches: Iterator[pa.RecordBatch], erased: Fingerprints) -> Iterator[pa.RecordBatch]:
    """Scrubbed rows without those that have an erased owner."""
    gone = hex_column(erased)
    for batch in batches:
        owned_by = batch.column(owner_column(batch.schema))
        leaves = pc.is_in(flat_owners(owned_by), value_set=gone)
        if pa.types.is_list(owned_by.type):
            stays = np.ones(batch.num_rows, np.bool_)
            stays[pc.list_parent_indices(owned_by).filter(leaves).to_numpy()] = False
            yield batch.filter(pa.array(stays))
        else:
            yield batch.filter(pc.invert(leaves))


def carry_over(restricted: Path, account: Account, key: bytes, known: Erasure | None) -> None:
    """Writes the list under an additional outer key, before the ledger uses that key; the present list stays.

    Raises:
        ConfigurationError: the list is incomplete, or a request is running.
    """
    if known is not None:
        with _alone(restricted, account.namespace):
            listed = erased_owners(restricted, known, account)
            write_fingerprints(_list(restricted, account.namespace, key_id(key)), rotated(listed, key))


def forget_earlier(restricted: Path, account: Account) -> None:
    """Deletes lists under other keys than the last one in use."""
    current = _list(restricted, account.namespace, account.key_ids[-1])
    for path in current.parent.glob("*.owners"):
        if path != current:
            path.unlink()


def _list(restricted: Path, namespace: str, last_key: str) -> Path:
    # No dataset has a hyphen in its name.
    return restricted / DIRECTORY / namespace / f"{last_key}.owners"


@contextmanager
def _alone(restricted: Path, namespace: str) -> Iterator[None]:
    """Prevents concurrent requests: each would write a list without the other's owners."""
    try:
        with held(private_directory(restricted / DIRECTORY / namespace)):
            yield
    except HeldByAnother:
        raise ConfigurationError(
            f"namespace {namespace}: another request for erasure, or a rotation of keys, is running; repeat this one"
        ) from None
