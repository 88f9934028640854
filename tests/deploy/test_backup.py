"""Backup and restore: nothing is lost, nothing damaged comes back, and no ledger that is older than what it led to."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deploy_cases import deployment, spend, spent
from event_cases import model, own
from ledger_cases import KEYS, family, people
from sqlalchemy import create_engine, select
from typer.testing import CliRunner

from dpsynth_platform.backup.copying import copied
from dpsynth_platform.backup.restoring import check, restore
from dpsynth_platform.backup.taking import take
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import BackupRefused, ConfigurationError, LedgerError
from dpsynth_platform.foundation.signature import public_pem
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.lifecycle.erasure import DIRECTORY as ERASED
from dpsynth_platform.lifecycle.erasure import erase, erased_owners, erasure_of
from dpsynth_platform.lifecycle.owner_keys import open_account
from dpsynth_platform.lineage.outbox import FILE, flush
from dpsynth_platform.lineage.receivers import RecordFile
from dpsynth_platform.lineage.record import JsonLines
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.release.register import Register
from dpsynth_platform.reviewing.ledger_witnesses import check_not_behind
from dpsynth_platform.reviewing.verification import public_key, verify_ledger
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.worker.inputs import CLAIM_FILE

TESTS = Path(__file__).resolve().parents[1]
CENSUS = Place("census")


@pytest.fixture
def settings(tmp_path):
    return deployment(tmp_path / "home")


@pytest.fixture(params=["sqlite", "postgresql"])
def filled(request, settings):
    """A deployment that has spent, on either database."""
    if request.param == "postgresql":
        settings = replace(settings, ledger_url=request.getfixturevalue("new_postgresql")())
    return spent(settings)


def content(settings):
    """Every row of every table that a backup holds."""
    engine = create_engine(settings.ledger_url)
    with engine.connect() as connection:
        return {table.name: sorted(map(repr, connection.execute(select(table)).all())) for table in copied()}


def moved(settings, tmp_path, url=None):
    """Another machine of the same deployment: its vault is there, its ledger is not."""
    other = deployment(tmp_path / "other")
    shutil.copytree(settings.vault, other.vault)
    return replace(other, ledger_url=url) if url else other


def loses_its_ledger(settings):
    shutil.rmtree(settings.ledger)


# What comes back


def test_nothing_is_lost(filled, tmp_path, new_postgresql):
    """From either database, and into either."""
    manifest = take(filled, tmp_path / "backup")
    before = content(filled)
    assert len(before["entry"]) == 4
    assert len(before["participants"]) == 2
    assert len(before["lineage_edge"]) > 0
    assert (manifest.head, manifest.entries) == (Ledger(filled.ledger_url).head(), 4)
    for place, url in (("a", None), ("b", new_postgresql())):
        other = moved(filled, tmp_path / place, url)
        restore(other, tmp_path / "backup")
        assert content(other) == before
        assert verify_ledger(other).ok
        assert Register(other.restricted).find("census-0001").contacts == ("a@example.org",)
        assert list(JsonLines(other.lineage_file).read()) == list(JsonLines(filled.lineage_file).read())
        spend(other, "everyone", "later")  # it goes on
        LineageStore(other.ledger_url).record(own("COMPLETE", ["net"], ["rows"], run="r2"))
        assert verify_ledger(other).ok
        assert not (other.home / "restoring").exists()


def test_a_backup_holds_no_key_and_is_private(settings, tmp_path):
    spent(settings)
    key = Vault(settings.vault).create("fingerprints")
    for place in ("census/all/scrubbed/one", "census/all/model/two", "logs", "synthesis"):
        directory = settings.restricted / place
        directory.mkdir(parents=True)
        (directory / "part.parquet").write_text("Zaphodina")
    take(settings, tmp_path / "backup")
    files = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"manifest.json", "ledger.db", "census-0001.json"}
    signing = Vault(settings.vault).read("signing")
    hidden = (key, signing, key.hex().encode(), signing.hex().encode(), b"Zaphodina")
    assert not any(secret in path.read_bytes() for path in files for secret in hidden)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700
    names = json.loads((tmp_path / "backup" / "manifest.json").read_text())["key_ids"]
    assert names == sorted(KEYS)


def test_who_was_erased_stays_erased(settings, tmp_path):
    ledger = Ledger(spent(settings).ledger_url)
    erase(settings.restricted, ledger, ledger.account("each"), people(7), by="Ada", reason="asked for it")
    take(settings, tmp_path / "backup")
    other = moved(settings, tmp_path)
    restore(other, tmp_path / "backup")
    again = Ledger(other.ledger_url)
    listed = erased_owners(other.restricted, erasure_of(again, "person"), again.account("each"))
    assert listed.tolist() == people(7).tolist()
    shutil.rmtree(settings.restricted / ERASED)
    with pytest.raises(ConfigurationError, match="0 erased owners, but the ledger has recorded 1"):
        take(settings, tmp_path / "without")
    assert not (tmp_path / "without").exists()


def test_an_account_whose_keys_are_there_is_not_frozen(settings, tmp_path):
    spent(settings)
    budget = family("known", mode="per-owner", namespace="patient")
    open_account(Vault(settings.vault), Ledger(settings.ledger_url), budget)
    take(settings, tmp_path / "backup")
    other = moved(settings, tmp_path)
    assert restore(other, tmp_path / "backup").frozen == ("each", "everyone")


def test_keys_in_a_programs_care_sign_and_check_backups(settings, tmp_path):
    script = tmp_path / "keys.sh"
    script.write_text('case $1 in read) cat "$0.d/$2" || exit 3;; keep) mkdir -p "$0.d"; cat > "$0.d/$2";; esac')
    settings.vault.mkdir(parents=True, mode=0o700)
    (settings.vault / "command").write_text(f"sh {script}")
    (settings.vault / "command").chmod(0o600)
    with pytest.raises(ConfigurationError, match="holds no signing key"):
        public_key(settings)
    take(spent(settings), tmp_path / "backup")
    assert public_key(settings)[0].startswith("-----BEGIN PUBLIC KEY")
    other = moved(settings, tmp_path)
    restore(other, tmp_path / "backup")
    assert [path.name for path in other.vault.iterdir()] == ["command"]


def test_backups_are_of_one_moment_while_another_process_writes(settings, tmp_path):
    """Each is sound (`take` verifies what it wrote) and the beginning of the chain as it became."""
    spent(settings)
    told = tmp_path / "told"
    path = os.pathsep.join([str(TESTS / "ledger"), str(TESTS.parent)])
    code = f"from race_worker import live; live({settings.ledger_url!r}, 'w', {str(told)!r})"
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}) as writer:
        try:
            heads = []
            for count in range(3):
                wait_for_another(told)
                heads.append(take(settings, tmp_path / f"backup-{count}").head)
            wait_for_another(told)
        finally:
            writer.kill()
    hashes = {event.sequence: event.hash for event in Ledger(settings.ledger_url).history()}
    assert [hashes[head.sequence] for head in heads] == [head.hash for head in heads]
    assert heads[0].sequence < heads[1].sequence < heads[2].sequence < max(hashes)


def wait_for_another(told, most=300):
    def lines():
        return told.read_text().count("\n") if told.exists() else 0

    before, end = lines(), time.monotonic() + most
    while lines() <= before:
        assert time.monotonic() < end
        time.sleep(0.01)


# What is refused


def change_middle(path):
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def change_manifest(path):
    document = json.loads(path.read_text())
    document["entries"] += 1
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda backup: change_middle(backup / "ledger.db"), r"ledger\.db is changed: the backup is damaged"),
        (lambda backup: (backup / "ledger.db").unlink(), r"ledger\.db is missing"),
        (lambda backup: (backup / "releases" / "more.json").write_text("{}"), r"more\.json is not of this backup"),
        (lambda backup: (backup / "manifest.json").unlink(), r"manifest\.json cannot be read"),
        (lambda backup: (backup / "manifest.json").write_text("{}"), r"manifest\.json is damaged"),
        (lambda backup: change_manifest(backup / "manifest.json"), "does not match its signature"),
        (shutil.rmtree, "cannot be read"),
    ],
)
def test_a_damaged_backup_is_refused_and_changes_nothing(settings, tmp_path, damage, told):
    spent(settings)
    take(settings, tmp_path / "backup")
    damage(tmp_path / "backup")
    loses_its_ledger(settings)
    with pytest.raises(BackupRefused, match=told):
        restore(settings, tmp_path / "backup")
    assert not settings.ledger.exists()


def test_a_ledger_that_was_changed_and_signed_again_is_refused(settings, tmp_path):
    """Whoever has the key is still held to the chain."""
    spent(settings)
    backup = tmp_path / "backup"
    manifest = take(settings, backup)
    with closing(sqlite3.connect(backup / "ledger.db")) as connection, connection:
        connection.execute("UPDATE entry SET state = 'void' WHERE state = 'spent'")
    from dpsynth_platform.backup.manifest import digests

    signed = replace(manifest, files=digests(backup)).signed(Vault(settings.vault).signing_key())
    (backup / "manifest.json").write_text(signed)
    loses_its_ledger(settings)
    with pytest.raises(BackupRefused, match="state differs from what the chain records"):
        restore(settings, backup)


def test_a_backup_is_of_its_own_deployment(settings, tmp_path):
    spent(settings)
    take(settings, tmp_path / "backup")
    other = deployment(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="Restore the vault first"):
        restore(other, tmp_path / "backup")
    with pytest.raises(BackupRefused, match="backup of another deployment"):
        restore(other, tmp_path / "backup", public_key=public_pem(Ed25519PrivateKey.generate().public_key()))
    public = public_pem(Vault(settings.vault).signing_key().public_key())
    assert restore(other, tmp_path / "backup", public_key=public).frozen == ("each", "everyone")
    assert not (other.vault / "signing.key").exists()  # looking makes no key


def test_a_live_ledger_is_never_overwritten(filled, tmp_path):
    take(filled, tmp_path / "backup")
    before = content(filled)
    with pytest.raises(BackupRefused, match="a ledger exists already and is never overwritten"):
        restore(filled, tmp_path / "backup")
    assert content(filled) == before
    with pytest.raises(ConfigurationError, match="exists already"):
        take(filled, tmp_path / "backup")


def test_a_damaged_ledger_or_its_log_is_moved_away_by_a_person(settings, tmp_path):
    spent(settings)
    take(settings, tmp_path / "backup")
    (settings.ledger / "ledger.db").write_bytes(b"no ledger" * 1000)
    with pytest.raises(LedgerError, match=r"move .* away as it is, and keep it"):
        restore(settings, tmp_path / "backup")
    (settings.ledger / "ledger.db").unlink()
    (settings.ledger / "ledger.db-wal").write_bytes(b"of the damaged one")
    with pytest.raises(BackupRefused, match="belongs to another ledger"):
        restore(settings, tmp_path / "backup")


def test_a_ledger_that_is_not_sound_is_not_backed_up(settings, tmp_path):
    spent(settings)
    with closing(sqlite3.connect(settings.ledger / "ledger.db")) as connection, connection:
        connection.execute("UPDATE account SET settled = '[0.0]' WHERE family = 'everyone'")
    with pytest.raises(BackupRefused, match="keep the last one"):
        take(settings, tmp_path / "backup")
    assert list(tmp_path.glob("*backup*")) == []


# What is older than what it led to


def publish(settings, entry_id):
    """A dossier where the register says; what it holds beside the head is nothing to this."""
    directory = settings.home / "public" / "census-0001"
    directory.mkdir(parents=True)
    head = Ledger(settings.ledger_url).head()
    document = {"ledger": {"head": {"sequence": head.sequence, "hash": head.hash}}}
    (directory / "dossier.json").write_text(json.dumps(document))
    (directory / "attestation.dsse.json").write_text("{}")


def clear(settings, entry_id):
    Storage(settings.restricted).record(CENSUS, "clearance", run_key="r", facts={"entry_id": entry_id})


def complete(settings, entry_id):
    Storage(settings.restricted).record(CENSUS, "model", run_key="r", facts={"entry_id": entry_id})


def complete_the_audited(settings, entry_id):
    Storage(settings.restricted).record(CENSUS, "audited", run_key="r", facts={"entry_id": entry_id})


def clear_the_audited(settings, entry_id):
    known = spend(settings, "everyone", "known")
    facts = {"entry_id": known, "audited_entry_id": entry_id}
    Storage(settings.restricted).record(CENSUS, "clearance", run_key="r", facts=facts)


def begin(settings, entry_id):
    """A mechanism that was killed: a claim, no record."""
    clear(settings, spend(settings, "each", "known", people(3)))
    (Storage(settings.restricted).named_output(CENSUS, "model", entry_id) / CLAIM_FILE).write_text("{}")


def notice(settings, entry_id):
    (settings.home / "notify").mkdir()
    after = Ledger(settings.ledger_url).head().sequence
    (settings.home / "notify" / "webhook.json").write_text(json.dumps({"receiver": "webhook", "after": after}))


def emit(settings, entry_id):
    lineage = LineageStore(settings.ledger_url)
    lineage.record(own("COMPLETE", ["raw"], [model("later")], run="r9"), targets=(FILE,))
    flush(lineage, [RecordFile(settings.lineage_file)])


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        (publish, "a dossier was published at this event"),
        (clear, "census/clearance rests on ledger entry .* is missing"),
        (complete, "census/model rests on ledger entry .* is missing"),
        (complete_the_audited, "census/audited rests on ledger entry .* is missing"),
        (clear_the_audited, "census/clearance rests on ledger entry .* is missing"),
        (begin, "census/model/.* rests on ledger entry .* is missing"),
        (notice, r"notify/webhook\.json tells of event"),
        (emit, r"events\.jsonl ends with an event that the lineage graph does not know"),
    ],
)
def test_whatever_survived_a_later_spend_refuses_the_backup(settings, tmp_path, leave, told):
    """Each trace by itself. A ledger that lost nothing is at one with all of them."""
    spent(settings)
    take(settings, tmp_path / "old")
    leave(settings, spend(settings, "everyone", "later"))
    assert verify_ledger(settings).ok
    check_not_behind(Storage(settings.restricted), Ledger(settings.ledger_url))
    take(settings, tmp_path / "new")
    loses_its_ledger(settings)
    with pytest.raises(BackupRefused, match=told):
        restore(settings, tmp_path / "old")
    assert not settings.ledger.exists()
    restore(settings, tmp_path / "new")
    assert verify_ledger(settings).ok


def test_a_ledger_that_was_rewritten_is_found_by_what_was_published(settings):
    """As long as before, whole in itself, and of another history."""
    spent(settings)
    publish(settings, "unused")
    before = Ledger(settings.ledger_url)
    check_not_behind(Storage(settings.restricted), before)
    length = before.head().sequence
    loses_its_ledger(settings)
    made = Ledger(settings.ledger_url)
    made.open_account(family("everyone", mode="family"), KEYS)
    while made.head().sequence < length:
        spend(settings, "everyone", f"again-{made.head().sequence}")
    assert made.verify().ok
    with pytest.raises(LedgerError, match=f"is not link {length} of the chain .* was rewritten, or is another one"):
        check_not_behind(Storage(settings.restricted), made)
    assert not verify_ledger(settings).ok


def test_a_ledger_rolled_back_behind_the_platforms_back_is_found(settings, tmp_path):
    """As by a snapshot of the disk: `dpsynth ledger verify` holds it against the same traces."""
    spent(settings)
    shutil.copytree(settings.ledger, tmp_path / "snapshot")
    complete(settings, spend(settings, "everyone", "later"))
    loses_its_ledger(settings)
    shutil.copytree(tmp_path / "snapshot", settings.ledger)
    ledger, storage = Ledger(settings.ledger_url), Storage(settings.restricted)
    assert ledger.verify().ok  # nothing in it tells
    with pytest.raises(LedgerError, match=r"census/model rests on .* older than what it led to"):
        check_not_behind(storage, ledger)
    (problem,) = verify_ledger(settings).problems
    assert "census/model rests on ledger entry" in problem
    assert "the ledger is older, or was cut" in problem


def test_nothing_is_spent_on_a_ledger_that_lacks_a_published_head(settings, tmp_path):
    spent(settings)
    shutil.copytree(settings.ledger, tmp_path / "snapshot")
    publish(settings, spend(settings, "everyone", "later"))
    loses_its_ledger(settings)
    shutil.copytree(tmp_path / "snapshot", settings.ledger)
    with pytest.raises(LedgerError, match=r"census-0001: its dossier's head is number .* cut, or is older"):
        check_not_behind(Storage(settings.restricted), Ledger(settings.ledger_url))


def test_what_somebody_kept_elsewhere_counts(settings, tmp_path):
    spent(settings)
    take(settings, tmp_path / "backup")
    known = Ledger(settings.ledger_url).head()
    spend(settings, "everyone", "later")
    last = Ledger(settings.ledger_url).head()
    loses_its_ledger(settings)
    check(settings, tmp_path / "backup", known=[known], at_least=known.sequence)
    with pytest.raises(BackupRefused, match=f"the chain had {last.sequence} events"):
        restore(settings, tmp_path / "backup", at_least=last.sequence)
    with pytest.raises(BackupRefused, match=f"event {last.sequence}"):
        restore(settings, tmp_path / "backup", known=[last])
    with pytest.raises(BackupRefused, match="names another chain"):
        restore(settings, tmp_path / "backup", known=[Head(known.sequence, "0" * 64)])
    assert not settings.ledger.exists()


def test_the_commands(settings, tmp_path, monkeypatch):
    spent(settings)
    monkeypatch.setenv("DPSYNTH_HOME", str(settings.home))
    monkeypatch.setenv("DPSYNTH_USER", "Ada")

    def use(*arguments):
        return CliRunner().invoke(app, list(map(str, arguments)))

    assert use("ledger", "export", tmp_path / "export.json").exit_code == 0
    assert use("backup", "--out", tmp_path / "backup").exit_code == 0
    refused = use("restore", tmp_path / "backup")
    assert (refused.exit_code, refused.stdout) == (1, "")
    loses_its_ledger(settings)
    assert use("restore", tmp_path / "backup", "--check").exit_code == 0
    assert not settings.ledger.exists()
    assert use("restore", tmp_path / "backup", "--ledger-export", tmp_path / "export.json").exit_code == 0
    assert use("ledger", "verify").exit_code == 0
