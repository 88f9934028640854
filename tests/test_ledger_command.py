"""The commands of the budget's authority and of auditors, as `dpsynth ledger` will run them."""

import json
import stat

import pytest
import typer

from dpsynth_platform import owner_keys
from dpsynth_platform.contracts import FamilyBudget
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger_command import authority_app
from dpsynth_platform.storage import Place, Storage
from dpsynth_platform.vault import Vault

BUDGET = {
    "family": "surveys",
    "unit": "user",
    "namespace": "person",
    "mode": "per-owner",
    "cap": {"epsilon": 4.0, "delta": 1e-5},
}


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", url)
    monkeypatch.setenv("DPSYNTH_USER", "Ada")
    opened = Ledger(url)
    opened.open_account(FamilyBudget.model_validate(BUDGET), ["key"])
    return opened


@pytest.fixture
def use(capfd):
    """Runs a command; returns status, standard output and standard error."""
    app = typer.Typer()
    app.add_typer(authority_app)

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(list(map(str, arguments)))
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


def test_a_cap_is_raised_by_two(ledger, use):
    status, out, _ = use("raise", "surveys", "--epsilon", 8, "--delta", 1e-5, "--reason", "a second wave", "--json")
    asked = json.loads(out)
    assert (status, asked["by"], asked["reason"]) == (0, "Ada", "a second wave")
    status, _, err = use("approve-raise", "surveys", asked["asked"])
    assert (status, "somebody else" in err) == (1, True)
    status, out, _ = use("approve-raise", "surveys", asked["asked"], "--as", "Bo")
    assert (status, "epsilon 8" in out) == (0, True)
    assert ledger.account("surveys").epsilon == 8.0
    assert use("raise", "surveys", "--epsilon", "nan", "--delta", 1e-5)[0] == 1
    assert use("raise", "nobody", "--epsilon", 9, "--delta", 1e-5)[0] == 1


def test_a_request_says_how_it_is_approved(ledger, use):
    status, out, _ = use("raise", "surveys", "--epsilon", 8, "--delta", 1e-5)
    assert status == 0
    assert f"dpsynth ledger approve-raise surveys {ledger.head().sequence}" in out


def test_keys_are_rotated_and_the_report_says_what_follows(tmp_path, monkeypatch, use):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setenv("DPSYNTH_USER", "Ada")
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    status, _, err = use("rotate-key", "person", "--reason", "a stolen disk")
    assert (status, "there is no ledger" in err) == (1, True)
    ledger, storage = Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}"), Storage(tmp_path / "restricted")
    before = owner_keys.open_account(Vault(tmp_path / "vault"), ledger, FamilyBudget.model_validate(BUDGET))
    storage.record(
        Place("visits", "2026-01"), "raw", run_key="k", facts={"contract": {"privacy": {"namespace": "person"}}}
    )
    storage.record(Place("visits", "2026-01"), "scrubbed", run_key="k", facts={"key_ids": list(before.key_ids)})

    status, out, _ = use("rotate-key", "person", "--reason", "a stolen disk", "--as", "Bo")
    now = ledger.account("surveys").key_ids
    assert (status, now[:2]) == (0, before.key_ids)
    assert f"namespace person: owners are fingerprinted under key {now[2]} from now on" in out
    assert f"family surveys: event {ledger.head().sequence}" in out
    assert "visits/2026-01/scrubbed is outdated; made anew by: dpsynth run visits --period 2026-01" in out
    assert f"Back up {tmp_path / 'vault'} now" in out
    event = ledger.history(kinds=["rekeyed"])[0]
    assert (event.payload["by"], event.payload["reason"]) == ("Bo", "a stolen disk")

    status, out, _ = use("rotate-key", "person", "--reason", "yearly", "--json")
    told = json.loads(out)
    assert (status, told["families"], told["outdated"]) == (0, ["surveys"], ["visits/2026-01"])
    assert ledger.account("surveys").key_ids == (*now, told["key_id"])
    assert use("rotate-key", "person")[0] == 2
    status, _, err = use("rotate-key", "nobody", "--reason", "why")
    assert (status, "namespace 'nobody' has no account" in err) == (1, True)


def test_an_export_is_written_once_for_its_owner_and_checked(ledger, use, tmp_path):
    file = tmp_path / "ledger.json"
    status, out, _ = use("export", file)
    assert (status, ledger.head().hash in out) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert use("export", file)[0] == 1
    dossier = tmp_path / "dossier.json"
    head = ledger.head()
    dossier.write_text(json.dumps({"ledger": {"head": {"sequence": head.sequence, "hash": head.hash}}}))
    status, out, _ = use("check-export", file, "--dossier", dossier)
    assert (status, "family surveys: its cap holds owner by owner" in out, "whole" in out) == (0, True, True)
    dossier.write_text(json.dumps({"ledger": {"head": {"sequence": 7, "hash": head.hash}}}))
    status, out, _ = use("check-export", file, "--dossier", dossier, "--json")
    assert (status, json.loads(out)["ok"]) == (1, False)
    dossier.write_text("{}")
    status, _, err = use("check-export", file, "--dossier", dossier)
    assert (status, "no dossier" in err) == (1, True)


def test_an_export_is_signed_and_its_signature_checked(ledger, use, tmp_path):
    from dpsynth_platform.release.signature import fingerprint, public_pem
    from dpsynth_platform.vault import Vault

    file, pem = tmp_path / "ledger.json", tmp_path / "publisher.pem"
    _, out, _ = use("export", file)
    key = Vault(tmp_path / "vault").signing_key().public_key()
    assert f"signed by key {fingerprint(key)}" in out
    pem.write_bytes(public_pem(key))
    status, out, _ = use("check-export", file, "--public-key", pem)
    assert (status, "held against your key" in out, "whole" in out) == (0, True, True)
    status, out, _ = use("check-export", file)
    assert (status, "which the export itself names" in out) == (0, True)
    document = json.loads(file.read_text())
    del document["signature"]
    file.write_text(json.dumps(document))
    status, out, _ = use("check-export", file, "--public-key", pem)
    assert (status, "the export is not signed" in out) == (1, True)
    status, out, _ = use("check-export", file)
    assert (status, "anybody can have written this" in out) == (0, True)
    pem.write_text("no key")
    status, _, err = use("check-export", file, "--public-key", pem)
    assert (status, "not an Ed25519 key" in err) == (1, True)
    status, _, err = use("check-export", file, "--public-key", tmp_path / "nothing.pem")
    assert (status, "cannot be read (FileNotFoundError)" in err) == (1, True)


def test_what_owners_have_left_goes_to_a_file_and_not_to_the_terminal(ledger, use, tmp_path):
    file = tmp_path / "owners.json"
    status, out, _ = use("owners", "surveys", file)
    assert (status, str(file) in out) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    report = json.loads(file.read_text())
    assert (report["family"], report["owners"], report["worst_epsilon_left"]) == ("surveys", 0, None)
    assert use("owners", "surveys", file)[0] == 1
    ledger.open_account(FamilyBudget.model_validate(BUDGET | {"family": "others", "mode": "family"}), ["key"])
    status, _, err = use("owners", "others", tmp_path / "more.json")
    assert (status, "charges every entry to everybody" in err) == (1, True)
    assert not (tmp_path / "more.json").exists()


def test_a_changed_or_foreign_file_is_told(ledger, use, tmp_path):
    file = tmp_path / "ledger.json"
    use("export", file)
    file.write_text(file.read_text().replace("4.0", "9.0"))
    status, out, _ = use("check-export", file)
    assert (status, "NOT as it was written" in out) == (1, True)
    file.write_text("{}")
    status, _, err = use("check-export", file)
    assert (status, "no export" in err) == (1, True)
    status, _, err = use("check-export", tmp_path / "nothing")
    assert (status, "cannot be read (FileNotFoundError)" in err) == (1, True)
