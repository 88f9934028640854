"""The commands of the budget's authority and of auditors, as `dpsynth ledger` will run them."""

import json
import stat

import numpy as np
import pytest
import typer

from dpsynth_platform.cli.ledger import ledger_app
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.words import in_words
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.secrets.vault import Vault

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
    app.add_typer(ledger_app)

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
    assert "families/surveys.yaml declares: cap: {epsilon: 8.0, delta: 1e-05}" in out
    assert ledger.account("surveys").epsilon == 8.0
    assert use("raise", "surveys", "--epsilon", "nan", "--delta", 1e-5, "--reason", "why")[0] == 1


def test_a_request_says_why_and_how_it_is_approved(ledger, use):
    assert use("raise", "surveys", "--epsilon", 8, "--delta", 1e-5)[0] == 2
    status, out, _ = use("raise", "surveys", "--epsilon", 8, "--delta", 1e-5, "--reason", "why")
    assert status == 0
    assert f"dpsynth ledger approve-raise surveys {ledger.head().sequence}" in out


def test_an_unknown_family_or_namespace_names_the_known_ones(ledger, use):
    status, _, err = use("raise", "nobody", "--epsilon", 9, "--delta", 1e-5, "--reason", "why")
    assert (status, "family 'nobody' has no account; accepted: surveys. The first run of" in err) == (1, True)
    status, _, err = use("rotate-key", "nobody", "--reason", "why")
    assert (status, "namespace 'nobody' has no account; accepted: person. The first run of" in err) == (1, True)


@pytest.mark.parametrize(("epsilon", "delta"), [(10.5, 1e-5), (8, 1e-3)])
def test_a_weak_cap_is_accepted_explicitly(ledger, use, epsilon, delta):
    asks = ("raise", "surveys", "--epsilon", epsilon, "--delta", delta, "--reason", "a third wave")
    before = ledger.head()
    status, _, err = use(*asks)
    assert (status, "is a weak guarantee" in err, "--accept-weak-guarantee REASON" in err) == (1, True, True)
    assert use(*asks, "--accept-weak-guarantee", " ")[0] == 1
    assert ledger.head() == before
    assert use(*asks, "--accept-weak-guarantee", "fictional people")[0] == 0
    (asked,) = ledger.history(kinds=["raise-asked"])
    assert asked.payload["reason"] == "a third wave; weak guarantee accepted: fictional people"
    assert use("raise", "surveys", "--epsilon", 10, "--delta", 9e-4, "--reason", "why")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("raise", "surveys", "--epsilon", 8, "--delta", 1e-5, "--reason", "why"),
        ("approve-raise", "surveys", 1),
        ("rotate-key", "person", "--reason", "why"),
        ("void", "0" * 32, "--reason", "why"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("told", ["\x1b[2Jgone", "two\nlines", "\u202eesrever"])
def test_nothing_that_steers_a_terminal_is_recorded(ledger, use, arguments, told):
    """Whoever reads the chain must see what was written."""
    before = ledger.head()
    for changed in ((*arguments, "--as", told), (*arguments, "--reason", told), (*arguments, "--as", "")):
        status, _, err = use(*changed)
        assert (status, changed[-2] in err, told in err) == (1, True, False)
    assert ledger.head() == before


def reserved(ledger):
    cost = CostRequest.of(
        DiscreteGaussianCountsEvent(20.0, "add-or-remove", 1),
        dataset="census",
        period=None,
        guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 1),
        plan_digest="a" * 64,
        runner="Ada",
    )
    people = np.array([b"a" * 16, b"b" * 16], dtype="S16")
    return ledger.reserve("surveys", "run", cost, people, "compose", key_ids=["key"]).entry_id


def test_a_reservation_is_withdrawn_and_by_whom(ledger, use):
    entry = reserved(ledger)
    status, out, _ = use("void", entry, "--reason", "a rotation is due", "--as", "Bo")
    assert (status, f"entry {entry} of census is void" in out) == (0, True)
    (event,) = ledger.history(kinds=["void"])
    assert (event.subject, event.payload) == (entry, {"reason": "a rotation is due", "by": "Bo"})
    assert in_words(ledger.history())[-1] == ("Bo", "a rotation is due")
    assert ledger.check_rotation("person")
    status, out, _ = use("void", entry, "--reason", "again", "--json")
    assert (status, json.loads(out)["reason"]) == (0, "a rotation is due")
    assert ledger.verify().ok
    status, _, err = use("void", "0" * 32, "--reason", "why")
    assert (status, "there is no ledger entry" in err) == (1, True)


def test_what_has_started_is_not_withdrawn(ledger, use):
    entry = reserved(ledger)
    with pytest.raises(LedgerError, match="dpsynth ledger void ENTRY"):
        ledger.check_rotation("person")
    ledger.start(entry)
    status, _, err = use("void", entry, "--reason", "why")
    assert (status, "is started; only a reserved entry can become void" in err) == (1, True)
    assert ledger.entry(entry).state == "started"


@pytest.mark.parametrize(
    "arguments",
    [
        ("raise", "surveys", "--epsilon", 8, "--delta", 1e-5, "--reason", "why"),
        ("approve-raise", "surveys", 1),
        ("void", "0" * 32, "--reason", "why"),
        ("export", "ledger.json"),
    ],
    ids=lambda words: words[0],
)
def test_a_home_without_a_ledger_stays_without(tmp_path, monkeypatch, use, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    status, _, err = use(*arguments)
    assert (status, "there is no ledger" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []


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
    assert f"namespace person: from now on, owners are fingerprinted with key {now[2]}" in out
    assert f"family surveys: event {ledger.head().sequence}" in out
    assert "visits/2026-01/scrubbed is outdated; renew it with: dpsynth run visits --period 2026-01" in out
    assert f"Back up {tmp_path / 'vault'} now" in out
    assert "not deleted yet" not in out
    event = ledger.history(kinds=["rekeyed"])[0]
    assert (event.payload["by"], event.payload["reason"]) == ("Bo", "a stolen disk")

    status, out, _ = use("rotate-key", "person", "--reason", "yearly", "--json")
    told = json.loads(out)
    assert (status, told["families"], told["outdated"]) == (0, ["surveys"], ["visits/2026-01"])
    assert (told["erased"], told["still_held"]) == (True, None)
    assert ledger.account("surveys").key_ids == (*now, told["key_id"])
    monkeypatch.setattr(Ledger, "erase_replaced", lambda _: "somebody reads")
    status, out, _ = use("rotate-key", "person", "--reason", "yearly")
    assert (status, "The earlier fingerprints are not deleted yet: somebody reads\n" in out) == (0, True)
    assert use("rotate-key", "person")[0] == 2


def test_an_export_is_written_once_for_its_owner_and_checked(ledger, use, tmp_path):
    file = tmp_path / "ledger.json"
    status, out, _ = use("export", file)
    assert (status, ledger.head().hash in out) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    status, _, err = use("export", file)
    assert (status, err) == (1, f"{file} exists and is not replaced; name another file\n")
    status, _, err = use("export", tmp_path / "none" / "ledger.json")
    assert (status, "cannot be written: there is no such file or directory" in err) == (1, True)
    status, out, _ = use("check-export", file)
    assert (status, "without --dossier, a chain whose end was cut off is not detected" in out) == (0, True)
    dossier = tmp_path / "dossier.json"
    head = ledger.head()
    dossier.write_text(json.dumps({"ledger": {"head": {"sequence": head.sequence, "hash": head.hash}}}))
    status, out, _ = use("check-export", file, "--dossier", dossier)
    assert (status, "family surveys: its cap holds for each owner" in out, "without" in out) == (0, True, False)
    last = ledger.history()[-1].at[:16].replace("T", " ")
    told = f"1 event and 0 entries, all as written; 1 published dossier leads into this chain; last event {last} UTC"
    assert told in out
    assert use("check-export", file, "--dossier", tmp_path)[1] == out, "a release's directory does as well"
    dossier.write_text(json.dumps({"ledger": {"head": {"sequence": 7, "hash": head.hash}}}))
    status, out, _ = use("check-export", file, "--dossier", dossier, "--json")
    assert (status, json.loads(out)["ok"]) == (1, False)
    status, out, _ = use("check-export", file, "--dossier", dossier)
    assert (status, "the chain ends at event 1: it is older, or its end was cut off" in out) == (1, True)
    dossier.write_text("{}")
    status, _, err = use("check-export", file, "--dossier", dossier)
    assert (status, "not a dossier" in err) == (1, True)


def test_an_export_is_signed_and_its_signature_checked(ledger, use, tmp_path):
    from dpsynth_platform.foundation.signature import fingerprint, public_pem
    from dpsynth_platform.secrets.vault import Vault

    file, pem = tmp_path / "ledger.json", tmp_path / "publisher.pem"
    _, out, _ = use("export", file)
    key = Vault(tmp_path / "vault").signing_key().public_key()
    assert f"signed by key {fingerprint(key)}" in out
    pem.write_bytes(public_pem(key))
    status, out, _ = use("check-export", file, "--public-key", pem)
    assert (status, "checked with your key" in out, "all as written" in out) == (0, True, True)
    status, out, _ = use("check-export", file)
    assert (status, "which the export itself names" in out) == (0, True)
    document = json.loads(file.read_text())
    del document["signature"]
    file.write_text(json.dumps(document))
    status, out, _ = use("check-export", file, "--public-key", pem)
    assert (status, "the export is not signed" in out) == (1, True)
    status, out, _ = use("check-export", file)
    assert (status, "anyone can have written this export" in out) == (0, True)
    pem.write_text("no key")
    status, _, err = use("check-export", file, "--public-key", pem)
    assert (status, "not an Ed25519 key" in err) == (1, True)
    status, _, err = use("check-export", file, "--public-key", tmp_path / "nothing.pem")
    assert (status, "cannot be read: there is no such file" in err) == (1, True)


def test_what_owners_have_left_goes_to_a_file_and_not_to_the_terminal(ledger, use, tmp_path):
    restricted = tmp_path / "restricted"
    restricted.mkdir()
    file = restricted / "owners.json"
    status, out, _ = use("owners", "surveys", file)
    assert (status, str(file) in out) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    report = json.loads(file.read_text())
    assert (report["family"], report["owners"], report["worst_epsilon_left"]) == ("surveys", 0, None)
    assert use("owners", "surveys", file)[0] == 1
    ledger.open_account(FamilyBudget.model_validate(BUDGET | {"family": "others", "mode": "family"}), ["key"])
    status, _, err = use("owners", "others", restricted / "more.json")
    assert (status, "charges every entry to everybody" in err) == (1, True)
    assert not (restricted / "more.json").exists()
    (restricted / "way-out").symlink_to(tmp_path)
    for outside in (tmp_path / "more.json", restricted / ".." / "more.json", restricted / "way-out" / "more.json"):
        status, _, err = use("owners", "surveys", outside)
        assert (status, f"accepted: a file below {restricted}" in err) == (1, True)
    assert not (tmp_path / "more.json").exists()


def test_a_changed_or_foreign_file_is_told(ledger, use, tmp_path):
    file = tmp_path / "ledger.json"
    use("export", file)
    file.write_text(file.read_text().replace("4.0", "9.0"))
    status, out, _ = use("check-export", file)
    assert (status, "not as written" in out) == (1, True)
    file.write_text("{}")
    status, _, err = use("check-export", file)
    assert (status, "no export" in err) == (1, True)
    status, _, err = use("check-export", tmp_path / "nothing")
    assert (status, "cannot be read: there is no such file" in err) == (1, True)
    status, _, err = use("check-export", tmp_path)
    assert (status, "cannot be read: is a directory" in err) == (1, True)
    file.write_bytes(b"\xff\xfe")
    status, _, err = use("check-export", file)
    assert (status, "cannot be read: it is not UTF-8 text" in err) == (1, True)
