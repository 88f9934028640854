"""Vault and ledger together: which keys are in use, and what happens when they do not agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger.records import Account
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.lifecycle.owner_keys import Rotation, keys_in_use
from dpsynth_platform.scrub.fingerprints import fingerprints_from_hex, owner_fingerprint, rotated
from dpsynth_platform.secrets.vault import Vault, key_id


def budget(name: str = "surveys", namespace: str = "person") -> FamilyBudget:
    return FamilyBudget.model_validate(
        {
            "family": name,
            "unit": "user",
            "namespace": namespace,
            "mode": "per-owner",
            "cap": {"epsilon": 4.0, "delta": 1e-5},
        }
    )


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}")


@pytest.fixture
def account(vault: Vault, ledger: Ledger) -> Account:
    return owner_keys.open_account(vault, ledger, budget())


@pytest.fixture
def rotate(vault: Vault, ledger: Ledger, tmp_path: Path) -> Callable[..., Rotation]:
    def once(namespace: str = "person") -> Rotation:
        return owner_keys.rotate(vault, ledger, Storage(tmp_path / "restricted"), namespace, by="Ada", reason="why")

    return once


def kept(tmp_path: Path) -> list[str]:
    return sorted(path.stem for path in (tmp_path / "vault").glob("*.key"))


def test_a_namespace_gets_its_keys_with_its_first_account(vault: Vault, ledger: Ledger, tmp_path: Path) -> None:
    first = owner_keys.open_account(vault, ledger, budget())
    assert kept(tmp_path) == ["owner-inner-person", "owner-outer-person"]
    assert owner_keys.open_account(vault, ledger, budget()) == first
    assert owner_keys.open_account(vault, ledger, budget("panel")).key_ids == first.key_ids
    other = owner_keys.open_account(vault, ledger, budget("clinic", "patient"))
    assert not set(other.key_ids) & set(first.key_ids)
    keys = keys_in_use(vault, first)
    assert first.key_ids == tuple(key_id(key) for key in (keys.inner, *keys.outer))


def test_a_rotation_nests_the_fingerprints(
    vault: Vault, ledger: Ledger, account: Account, rotate: Callable[..., Rotation]
) -> None:
    earlier = [keys_in_use(vault, account)]
    ids = [account.key_ids]
    for _ in range(2):
        done = rotate()
        account = ledger.account("surveys")
        assert account.key_ids == (*ids[-1], done.key_id)
        assert [event.subject for event in done.events] == ["surveys"]
        keys = keys_in_use(vault, account)
        assert (keys.inner, keys.outer[:-1]) == (earlier[-1].inner, earlier[-1].outer)
        before = fingerprints_from_hex([owner_fingerprint("P-1", earlier[-1])])
        assert np.array_equal(rotated(before, keys.outer[-1]), fingerprints_from_hex([owner_fingerprint("P-1", keys)]))
        earlier.append(keys)
        ids.append(account.key_ids)
    assert owner_keys.open_account(vault, ledger, budget()).key_ids == ids[-1]
    assert owner_keys.open_account(vault, ledger, budget("panel")).key_ids == ids[-1]
    assert ledger.verify().ok


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_lost_or_another_key_freezes_the_accounts(
    vault: Vault, ledger: Ledger, account: Account, rotate: Callable[..., Rotation], tmp_path: Path, which: int
) -> None:
    """Whichever it is; nothing is made anew, no account of the namespace opens, and no rotation hides it."""
    rotate()
    rotate()
    before = kept(tmp_path)
    path = tmp_path / "vault" / f"{before[which]}.key"
    head, content = ledger.head(), path.read_bytes()
    path.unlink()
    attempts: list[Callable[[], object]] = [
        lambda: owner_keys.open_account(vault, ledger, budget()),
        lambda: owner_keys.open_account(vault, ledger, budget("panel")),
        lambda: keys_in_use(vault, ledger.account("surveys")),
        rotate,
    ]
    for attempt in attempts:
        with pytest.raises(ConfigurationError, match="is missing from the vault; restore it from its backup"):
            attempt()
    path.write_bytes(b"x" * 32)
    for attempt in attempts:
        with pytest.raises(LedgerError, match="frozen until the vault is restored"):
            attempt()
    assert (ledger.head(), kept(tmp_path)) == (head, before)
    path.write_bytes(content)
    assert owner_keys.open_account(vault, ledger, budget()).family == "surveys"


def test_exchanged_keys_are_told_though_each_is_one_of_the_accounts(
    vault: Vault, account: Account, ledger: Ledger, rotate: Callable[..., Rotation], tmp_path: Path
) -> None:
    """The order in which keys are used makes the fingerprint."""
    first_two = ["owner-inner-person", "owner-outer-person"]
    further = [f"owner-rotated-person-{rotate().key_id}" for _ in range(2)]
    for names in (first_two, further, [first_two[1], further[0]]):
        paths = [tmp_path / "vault" / f"{name}.key" for name in names]
        contents = [path.read_bytes() for path in paths]
        for path, other in zip(paths, reversed(contents), strict=True):
            path.write_bytes(other)
        with pytest.raises(LedgerError, match="frozen"):
            keys_in_use(vault, ledger.account("surveys"))
        with pytest.raises(LedgerError, match="frozen"):
            owner_keys.open_account(vault, ledger, budget())
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
    assert keys_in_use(vault, ledger.account("surveys"))


def test_a_key_that_the_ledger_never_learned_of_is_not_used(
    vault: Vault,
    account: Account,
    ledger: Ledger,
    rotate: Callable[..., Rotation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed between the two: all goes on with the keys before, and the next rotation makes a key of its own."""

    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    keys = keys_in_use(vault, account)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "rotate_key", kill)
        with pytest.raises(Killed):
            rotate()
    (left,) = set(kept(tmp_path)) - {"owner-inner-person", "owner-outer-person"}
    assert owner_keys.open_account(vault, ledger, budget()) == account
    assert keys_in_use(vault, ledger.account("surveys")) == keys
    assert f"owner-rotated-person-{rotate().key_id}" != left
    assert len(ledger.account("surveys").key_ids) == 3
    assert left in kept(tmp_path)


def test_a_refused_rotation_makes_no_key(account: Account, rotate: Callable[..., Rotation], tmp_path: Path) -> None:
    before = kept(tmp_path)
    with pytest.raises(LedgerError, match="no account"):
        rotate("patient")
    assert kept(tmp_path) == before


def test_names_of_namespaces_cannot_meet(
    vault: Vault, ledger: Ledger, account: Account, rotate: Callable[..., Rotation]
) -> None:
    """A namespace may be called like another with an id behind it."""
    done = rotate()
    other = owner_keys.open_account(vault, ledger, budget("odd", f"person-{done.key_id}"))
    assert not set(other.key_ids) & set(ledger.account("surveys").key_ids)


def test_what_is_outdated_is_told(
    account: Account, ledger: Ledger, rotate: Callable[..., Rotation], tmp_path: Path
) -> None:
    storage = Storage(tmp_path / "restricted")

    def record(place: Place, namespace: str, **facts: object) -> None:
        contract = {"privacy": {"namespace": namespace}}
        storage.record(place, "raw", run_key="k", facts={"contract": contract})
        storage.record(place, "scrubbed", run_key="k", facts=dict(facts))

    record(Place("census"), "person", key_ids=list(account.key_ids))
    record(Place("panel", "2026-01"), "person")  # from before keys were recorded
    record(Place("visits", "2026-01"), "patient", key_ids=["p"])
    storage.record(Place("unread"), "raw", run_key="k", facts={"contract": {"privacy": {"namespace": "person"}}})
    assert rotate().outdated == (Place("census"), Place("panel", "2026-01"))
    record(Place("census"), "person", key_ids=list(ledger.account("surveys").key_ids))
    assert set(rotate().outdated) == {Place("census"), Place("panel", "2026-01")}
