"""Keys: made once, private, never made anew in silence; a lost one freezes the account."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.secrets.files import FileKeeper
from dpsynth_platform.secrets.program import ProgramKeeper
from dpsynth_platform.secrets.vault import KEY_BYTES, Vault, key_id, keyed_name

FAMILY = FamilyBudget(
    family="tests", unit="user", namespace="person", mode="family", cap={"epsilon": 1.0, "delta": 1e-6}
)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault")


def test_a_key_is_made_once_and_read_back(vault: Vault, tmp_path: Path) -> None:
    key = vault.create("owner-inner-person")
    assert len(key) == KEY_BYTES
    assert vault.create("owner-inner-person") == vault.read("owner-inner-person") == key
    assert vault.create("another") != key
    directory = tmp_path / "vault"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert sorted(path.name for path in directory.iterdir()) == ["another.key", "owner-inner-person.key"]


def test_an_added_key_is_always_new_and_named_by_its_id(vault: Vault, tmp_path: Path) -> None:
    first, second = (vault.add("owner-rotated-person") for _ in range(2))
    assert first != second
    for key in (first, second):
        assert vault.read(f"owner-rotated-person-{key_id(key)}") == key
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "vault").iterdir()} == {0o600}


def test_many_makers_agree(vault: Vault, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: Vault(tmp_path / "vault").create("shared"), range(40)))
    assert len(keys) == 1
    assert [path.name for path in (tmp_path / "vault").iterdir()] == ["shared.key"]


def test_a_missing_key_is_not_made_by_reading(vault: Vault, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="key 'lost' is missing from the vault; restore it from its backup"):
        vault.read("lost")
    assert not (tmp_path / "vault").exists()


def test_what_was_open_to_others_is_closed(vault: Vault, tmp_path: Path) -> None:
    """A vault that was restored from a backup; and one that is not this user's to close."""
    key, directory = vault.create("key"), tmp_path / "vault"
    path = directory / "key.key"
    path.chmod(0o644)
    directory.chmod(0o755)
    assert vault.read("key") == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert vault.create("key") == key
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o1777)
    with pytest.raises(ConfigurationError, match="this user cannot close it"):
        vault.create("another")


def test_missing_parents_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Vault(tmp_path / "a" / "b").create("key")
    finally:
        os.umask(old)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_key_is_refused_and_left_alone(vault: Vault, tmp_path: Path, content: bytes) -> None:
    vault.create("key")
    path = tmp_path / "vault" / "key.key"
    path.write_bytes(content)
    for use in (vault.read, vault.create):
        with pytest.raises(ConfigurationError, match=rf"key 'key' is damaged \({len(content)} bytes, not 32\)"):
            use("key")
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["", "../escape", "a/b", "a.b", "a b", "ä\n"])
def test_names_that_could_leave_the_directory_are_refused(vault: Vault, name: str) -> None:
    with pytest.raises(ConfigurationError, match="accepted: letters, digits"):
        vault.create(name)


def test_a_key_id_tells_keys_apart_and_nothing_else() -> None:
    first, second = bytes(32), bytes(31) + b"\1"
    assert key_id(first) == key_id(bytes(32)) != key_id(second)
    assert len(key_id(first)) == 16
    assert first.hex()[:16] != key_id(first)


def test_the_signing_key_stays_the_same_and_is_written_once(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = vault.signing_key().sign(b"x")
    monkeypatch.setattr(FileKeeper, "store", lambda *_: pytest.fail("a key that is there is written again"))
    assert vault.signing_key().sign(b"x") == signed
    assert [path.name for path in (tmp_path / "vault").iterdir()] == ["signing.key"]


def test_another_fingerprint_key_freezes_the_account(vault: Vault, tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}")
    keys = [vault.create("owner-inner-person"), vault.create("owner-outer-person")]
    ledger.open_account(FAMILY, key_ids=[key_id(key) for key in keys])
    ledger.open_account(FAMILY, key_ids=[key_id(key) for key in keys])
    (tmp_path / "vault" / "owner-inner-person.key").unlink()
    remade = [vault.create("owner-inner-person"), keys[1]]
    with pytest.raises(LedgerError, match="frozen"):
        ledger.open_account(FAMILY, key_ids=[key_id(key) for key in remade])


def test_a_keyed_name_follows_from_key_purpose_and_content() -> None:
    given = [(bytes(32), "run", "a"), (b"\1" * 32, "run", "a"), (bytes(32), "ru", "na"), (bytes(32), "run", "b")]
    names = [keyed_name(*one) for one in given]
    assert names == [keyed_name(*one) for one in given]
    assert len(set(names)) == 4
    assert {len(name) for name in names} == {32}
    assert hashlib.sha256(b"a").hexdigest()[:32] not in names


# Keys in a program's care

PROGRAM = """#!/bin/sh
# A secret manager of files: `read NAME` and `keep NAME`.
file="$1/$3"
echo "$2 $3" >> "$1/asked"
case $2 in
  read) [ -f "$file" ] || exit 3; cat "$file" ;;
  keep) [ -f "$file" ] || cat > "$file" ;;
esac
"""
FROM_ENVIRONMENT = """#!/bin/sh
name="DPSYNTH_KEY_$(echo "$2" | tr 'a-z-' 'A-Z_')"
[ "$1" = read ] || { echo "set $name to 64 hexadecimal digits" >&2; exit 1; }
printenv "$name" || exit 3
"""


def program(vault: Path, text: str, *words: str) -> Path:
    """Puts keys into a program's care; returns the directory in which the first program keeps them."""
    kept = vault.parent / "kept"
    kept.mkdir()
    script = vault.parent / "keys of ours.sh"
    script.write_text(text)
    script.chmod(0o700)
    vault.mkdir(mode=0o700)
    (vault / "command").write_text(f"{shlex.join([str(script), *words])}\n")
    (vault / "command").chmod(0o600)
    return kept


def test_a_program_keeps_the_keys_and_no_file_here_has_one(vault: Vault, tmp_path: Path) -> None:
    kept = program(tmp_path / "vault", PROGRAM, str(tmp_path / "kept"))
    with pytest.raises(ConfigurationError, match="key 'owner-inner-person' is missing from the vault"):
        vault.read("owner-inner-person")
    key = vault.create("owner-inner-person")
    assert vault.create("owner-inner-person") == vault.read("owner-inner-person") == key
    further = vault.add("owner-rotated-person")
    assert vault.read(f"owner-rotated-person-{key_id(further)}") == further
    assert (kept / "owner-inner-person").read_text() == key.hex()
    assert [path.name for path in (tmp_path / "vault").iterdir()] == ["command"]
    assert (kept / "asked").read_text().split("\n").count("keep owner-inner-person") == 1


def test_of_two_makers_the_first_one_s_key_counts(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = program(tmp_path / "vault", PROGRAM, str(tmp_path / "kept"))
    (kept / "signing").write_text("ab" * 32)
    looks = iter([None])  # as if the other one had made it in between
    really = ProgramKeeper.read
    monkeypatch.setattr(ProgramKeeper, "read", lambda self, name: next(looks, really(self, name)))
    assert vault.create("signing") == bytes.fromhex("ab" * 32)


def test_keys_from_the_environment(vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "vault", FROM_ENVIRONMENT)
    monkeypatch.setenv("DPSYNTH_KEY_OWNER_INNER_PERSON", "cd" * 32)
    assert vault.create("owner-inner-person") == bytes.fromhex("cd" * 32)
    with pytest.raises(ConfigurationError, match=r"key 'signing': the vault's command \(keep\) ended with status 1"):
        vault.signing_key()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#!/bin/sh\necho SECRET >&2; exit 1\n", r"\(read\) ended with status 1"),
        ("#!/bin/sh\necho SECRET\n", "is damaged: the vault's command wrote 6 characters"),
        ("#!/bin/sh\nsleep 20\n", "did not end within 0.3 seconds"),
        ("no program", r"cannot be started \(OSError\)"),
    ],
)
def test_a_program_that_fails_is_told_without_its_words(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    if "sleep" in text:  # the others may take as long as a busy machine needs
        monkeypatch.setattr("dpsynth_platform.secrets.program._SECONDS", 0.3)
    program(tmp_path / "vault", text)
    with pytest.raises(ConfigurationError, match=told) as refused:
        vault.read("signing")
    assert "SECRET" not in str(refused.value) and refused.value.__cause__ is None


def test_others_cannot_put_another_program_in_its_place(vault: Vault, tmp_path: Path) -> None:
    program(tmp_path / "vault", PROGRAM, str(tmp_path / "kept"))
    (tmp_path / "vault" / "command").chmod(0o622)
    with pytest.raises(ConfigurationError, match="other users can write to it"):
        vault.create("signing")


@pytest.mark.parametrize("words", ["", "\n", "'open"])
def test_a_program_must_be_named(vault: Vault, tmp_path: Path, words: str) -> None:
    program(tmp_path / "vault", PROGRAM)
    (tmp_path / "vault" / "command").write_text(words)
    with pytest.raises(ConfigurationError, match="a program and its words"):
        vault.create("signing")


def test_the_program_of_the_page_is_the_one_that_is_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "retention.md").read_text(encoding="utf-8")
    assert FROM_ENVIRONMENT in page


# A secret manager's own library: what the file says (`test_vault_aws`, `test_vault_google` have the keys)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("manager: azure", "manager.yaml.manager: 'azure'; accepted: aws, google"),
        ("{}", "manager.yaml.manager: None; accepted: aws, google"),
        ("[aws]", "a list; accepted: a mapping"),
        ("manager: [", "not valid YAML"),
        ("manager: aws", "manager.yaml: region: "),
        ("{manager: aws, region: 'eu/x'}", "manager.yaml: region: 'eu/x'"),
        ("{manager: aws, region: r, secret_key: s}", "manager.yaml: secret_key: unknown key"),
        ("{manager: aws, region: r, region: s}", "region"),
        ("{manager: aws, region: r, endpoint: 'http://example.org'}", "accepted: https://HOST"),
        ("{manager: aws, region: r, endpoint: 'https://example.org/path'}", "without a path"),
        ("{manager: google, project: p, endpoint: 'http://localhost:1'}", "accepted: https://HOST.*requires TLS"),
        ("{manager: google, project: p, prefix: 'a/'}", "manager.yaml: prefix: 'a/'"),
    ],
)
def test_a_manager_s_file_is_read_strictly(vault: Vault, tmp_path: Path, said: str, told: str) -> None:
    (tmp_path / "vault").mkdir(mode=0o700)
    (tmp_path / "vault" / "manager.yaml").write_text(said)
    with pytest.raises(ConfigurationError, match=told):
        vault.read("signing")


def test_a_manager_needs_its_library_and_be_alone(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vault").mkdir(mode=0o700)
    file = tmp_path / "vault" / "manager.yaml"
    for said, lock, module in (
        ("{manager: aws, region: r}", "requirements/aws.lock", "dpsynth_platform.secrets.aws"),
        ("{manager: google, project: p}", "requirements/google.lock", "dpsynth_platform.secrets.google"),
    ):
        file.write_text(said)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigurationError, match=rf"install it first: pip install -r {lock}"):
            vault.create("signing")
    file.chmod(0o602)
    with pytest.raises(ConfigurationError, match="other users can write to it"):
        vault.create("signing")
    file.chmod(0o600)
    (tmp_path / "vault" / "command").write_text("true")
    with pytest.raises(ConfigurationError, match=r"command and manager.yaml; accepted: one of them"):
        vault.create("signing")
    assert not list((tmp_path / "vault").glob("*.key"))


def test_the_locks_of_the_extras_agree() -> None:
    """Those that are installed together, in an image or by CI, name one version of each library."""
    root = Path(__file__).parents[2]
    versions: dict[str, set[str]] = {}
    for name in ("platform", "kubernetes", "deploy", "ray", "aws", "google", "clouds", "dg"):
        for line in (root / "requirements" / f"{name}.lock").read_text(encoding="utf-8").splitlines():
            library, _, version = line.partition("==")
            if version:
                versions.setdefault(library.lower().replace("_", "-"), set()).add(version)
    assert {library: found for library, found in versions.items() if len(found) > 1} == {}
