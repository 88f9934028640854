"""The fingerprint keys in use by an identity namespace, and adding one.

What belongs here: combining vault and ledger. What does not: hashing (`scrub.fingerprints`), files of keys (`vault`),
and applying a new key to accounts (`ledger.rekeying`).

The ledger alone determines the keys in use, by their ids, and not the files in the vault: a rotation that was
interrupted between the two leaves an unused key, and the earlier keys stay in use. All accounts of a namespace have the
same keys, otherwise an owner in two families would not be recognized as one person.

| key | kept as | its id in an account's `key_ids` |
| --- | --- | --- |
| inner | `owner-inner-<namespace>` | the first |
| first outer | `owner-outer-<namespace>` | the second |
| further outer | `owner-rotated-<namespace>-<its id>` | from the third on, in the order of their use |

The order matters: with two keys exchanged, no owner would be recognized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger.records import Account, ChainEvent
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.ledger.verdicts import check_keys
from dpsynth_platform.lifecycle import erasure
from dpsynth_platform.scrub.fingerprints import FingerprintKeys, rotated
from dpsynth_platform.secrets.vault import Vault, key_id

KEY_IDS = "key_ids"
"""The fact of a step's record with the keys of its fingerprints."""


@dataclass(frozen=True)
class Rotation:
    """The result of a rotation.

    Attributes:
        events: the accounts' `rekeyed` events.
        still_held: the part of the ledger that may still contain fingerprints of earlier keys, in words, or None.
        outdated: places whose scrubbed rows have fingerprints of earlier keys.
    """

    namespace: str
    key_id: str
    events: tuple[ChainEvent, ...]
    still_held: str | None
    outdated: tuple[Place, ...]


def open_account(vault: Vault, ledger: Ledger, family: FamilyBudget) -> Account:
    """The family's account, opened at the first call; a namespace's first account gets new keys.

    Raises:
        ConfigurationError: a key is missing or damaged.
        LedgerError: a key or the family's file is not that of the account.
    """
    kin = [account for account in ledger.accounts() if account.namespace == family.namespace]
    if kin:
        keys = keys_in_use(vault, kin[0])
    else:
        inner, outer = (vault.create(name) for name in _first_names(family.namespace))
        keys = FingerprintKeys(inner, (outer,))
    return ledger.open_account(family, key_ids=ids_of(keys))


def keys_in_use(vault: Vault, account: Account) -> FingerprintKeys:
    """The keys for fingerprints of an account's owners.

    Raises:
        ConfigurationError: one is missing or damaged.
        LedgerError: one is not the account's.
    """
    further = [f"{_further_prefix(account.namespace)}-{name}" for name in account.key_ids[2:]]
    inner, *outer = (vault.read(name) for name in (*_first_names(account.namespace), *further))
    keys = FingerprintKeys(inner, tuple(outer))
    check_keys(account, ids_of(keys))
    return keys


def ids_of(keys: FingerprintKeys) -> tuple[str, ...]:
    """The keys' public ids in the order of `Account.key_ids`."""
    return tuple(key_id(key) for key in (keys.inner, *keys.outer))


def rotate(vault: Vault, ledger: Ledger, storage: Storage, namespace: str, *, by: str, reason: str) -> Rotation:
    """Adds an outer key to a namespace and applies it to all its accounts.

    The new key is durable in the vault, and the list of erased owners under it on disk, before the ledger records it. A
    later failure leaves an unused key, which is not deleted: it is not always known whether the ledger recorded it.

    Raises:
        ConfigurationError: a key in use, or the list of erased owners, is missing or damaged.
        LedgerError: see `Ledger.rotate_key`.
    """
    account = ledger.check_rotation(namespace)[0]
    keys_in_use(vault, account)
    key = vault.add(_further_prefix(namespace))
    erasure.carry_over(storage.root, account, key, erasure.erasure_of(ledger, namespace))
    events = ledger.rotate_key(namespace, key_id(key), lambda owners: rotated(owners, key), by=by, reason=reason)
    now_in_use = events[0].payload["key_ids"]["now"]
    erasure.forget_earlier(storage.root, ledger.account(account.family))
    return Rotation(namespace, key_id(key), events, ledger.erase_replaced(), _outdated(storage, namespace, now_in_use))


def _outdated(storage: Storage, namespace: str, key_ids: Sequence[str]) -> tuple[Place, ...]:
    """Places of the namespace whose current scrubbed rows were made with other keys."""
    found = []
    for place in storage.places():
        raw, scrubbed = storage.read(place, "raw"), storage.read(place, "scrubbed")
        if raw is None or scrubbed is None or raw.facts["contract"]["privacy"]["namespace"] != namespace:
            continue
        if scrubbed.facts.get(KEY_IDS) != list(key_ids):
            found.append(place)
    return tuple(found)


def _first_names(namespace: str) -> tuple[str, str]:
    return f"owner-inner-{namespace}", f"owner-outer-{namespace}"


def _further_prefix(namespace: str) -> str:
    # Not `owner-outer-...`, which could be the first key of a namespace whose name ends like an id.
    return f"owner-rotated-{namespace}"
