"""An erasure request on a real small line, from an id on standard input to a later run without that person."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from inside import inside
from leak_cases import found
from line_cases import PEOPLE, ledger_of, run_here, small_deployment, small_table, storage_of

from dpsynth_platform.cli import main as cli
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.lifecycle.erasure import erased_owners, erasure_of
from dpsynth_platform.lifecycle.owner_keys import keys_in_use
from dpsynth_platform.scrub.fingerprints import fingerprint_hex, owner_fingerprint, read_fingerprints
from dpsynth_platform.secrets.vault import Vault

pytestmark = pytest.mark.end_to_end
ANNA, BERT = "P00007", "P00011"
Use = Callable[..., tuple[int, str]]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return small_deployment(tmp_path)


@pytest.fixture
def use(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs a command in this process, with standard input; returns its status and all that it wrote."""
    for name, value in deployment.environment.items():
        if name.startswith("DPSYNTH_"):
            monkeypatch.setenv(name, value)

    def dpsynth(*arguments: str, given: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.app(list(arguments))
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out + err

    return dpsynth


def run(deployment: Deployment, *steps: str) -> None:
    ran = run_here(deployment, accelerator=inside(deployment), steps=steps or None)
    assert ran.success, ran.failures


def owners(deployment: Deployment) -> set[str]:
    """Of the present scrubbed rows."""
    scrubbed = storage_of(deployment).require(PEOPLE, "scrubbed").directory
    return set(fingerprint_hex(read_fingerprints(scrubbed / "participants")))


def fingerprints(deployment: Deployment, people: Iterable[str]) -> set[str]:
    keys = keys_in_use(Vault(deployment.settings.vault), ledger_of(deployment).account("tests"))
    return {owner_fingerprint(person, keys) for person in people}


def fingerprint(deployment: Deployment, person: str) -> str:
    (found,) = fingerprints(deployment, [person])
    return found


def test_an_erased_owner_is_gone_and_stays_out_of_every_later_run(deployment: Deployment, use: Use) -> None:
    run(deployment, "raw", "scrubbed", "canaries", "clearance", "bounded")
    storage = storage_of(deployment)
    everybody, before = owners(deployment), {step: storage.require(PEOPLE, step) for step in ("scrubbed", "bounded")}
    status, said = use("owner", "fingerprint", "tests", given=f"{ANNA}\n")
    assert (status, said.strip()) == (0, fingerprint(deployment, ANNA))
    restricted = deployment.settings.restricted
    assert found((said.strip(),), restricted), "rows name her by her fingerprint"

    status, told = use("purge", "--owner", "-", "--as", "keeper", "--reason", "a letter", "--json", given=said)
    assert status == 0
    answer: dict[str, Any] = json.loads(told)
    assert {item["step"] for item in answer["deleted"]} >= {"scrubbed", "bounded"}
    assert any("source" in words for words in answer["remains"])
    assert not any(Path(record.path or "").is_dir() for record in before.values())
    assert found((said.strip(),), restricted) == {}

    # A mechanism does not start on what was made before, and a run makes it again without her.
    failed = run_here(deployment, accelerator=inside(deployment), steps=["bounded"])
    assert "materialize" in failed.failures["bounded"]
    run(deployment)
    assert owners(deployment) == everybody - {said.strip()}
    assert found((said.strip(),), restricted) == {}
    assert storage.require(PEOPLE, "scrubbed").facts["rows"] == before["scrubbed"].facts["rows"] - _people().count(ANNA)
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"

    # Keys that are rotated do not bring her back; a word does.
    owner_keys.rotate(
        Vault(deployment.settings.vault), ledger_of(deployment), storage, "person", by="keeper", reason="once a year"
    )
    run(deployment, "scrubbed")
    assert owners(deployment) == fingerprints(deployment, set(_people()) - {ANNA})
    assert use("owner", "readmit", "-", "--reason", "a mistake", given=fingerprint(deployment, ANNA))[0] == 0
    assert erased_owners_of(deployment) == 0
    for text in (told, *(path.read_text() for path in [deployment.settings.lineage_file])):
        assert said.strip() not in text and ANNA not in text
    assert ledger_of(deployment).verify().ok


def erased_owners_of(deployment: Deployment) -> int:
    ledger = ledger_of(deployment)
    account = ledger.account("tests")
    return len(erased_owners(deployment.settings.restricted, erasure_of(ledger, account.namespace), account))


def _people() -> list[str]:
    """The owner of each row of the source."""
    return list(small_table()["person"].to_pylist())


def test_a_legal_hold_outweighs_a_request_and_says_so(deployment: Deployment, use: Use) -> None:
    """The rows stay, and no mechanism reads them any more."""
    run(deployment, "raw", "scrubbed", "canaries", "clearance", "bounded")
    scrubbed = storage_of(deployment).require(PEOPLE, "scrubbed").directory
    status, said = use("hold", "add", "peple", "--reason", "a lawsuit")
    assert (status, "accepted: people" in said) == (1, True)
    status, said = use("hold", "add", "people", "--period", "2026-01", "--reason", "a lawsuit")
    assert (status, "has no outputs" in said) == (1, True)
    assert use("hold", "add", "people", "--as", "counsel", "--reason", "a lawsuit")[0] == 0
    (hold,) = json.loads(use("hold", "list", "--json")[1])
    assert (hold["dataset"], hold["period"], hold["by"], hold["reason"]) == ("people", None, "counsel", "a lawsuit")

    request = ("purge", "--owner", fingerprint(deployment, BERT), "--as", "keeper", "--reason", "a letter")
    status, said = use(*request)
    assert status == 0 and f"people/scrubbed is kept: hold {hold['number']} on people by counsel" in said
    assert "Legal holds have priority" in said
    assert scrubbed.is_dir()
    failed = run_here(deployment, accelerator=inside(deployment), steps=["model"])
    assert "made before the last erasure request" in failed.failures["model"]
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    run(deployment, "scrubbed")
    failed = run_here(deployment, accelerator=inside(deployment), steps=["model"])
    assert "made before the last erasure request" in failed.failures["model"]
    run(deployment, "bounded", "model")
    assert fingerprint(deployment, BERT) not in owners(deployment) and scrubbed.is_dir()

    status, said = use("hold", "remove", "people", "--as", "counsel", "--reason", "settled")
    assert (status, "is removed" in said) == (0, True)
    assert json.loads(use("hold", "list", "--json")[1]) == []
    gone = json.loads(use("purge", "--json")[1])["deleted"]
    assert [(item["step"], item["reason"]) for item in gone] == [("scrubbed", "erasure"), ("bounded", "erasure")]
    assert not scrubbed.exists()


def test_requests_that_cannot_be_meant_are_refused(deployment: Deployment, use: Use) -> None:
    run(deployment, "raw")
    for arguments, said in {
        ("--owner", "Anna Example", "--reason", "a letter"): "a fingerprint of 32 hexadecimal digits",
        ("--owner", "-", "--reason", "a letter"): "a fingerprint of 32 hexadecimal digits",
        ("--owner", "ab" * 16): "--reason",
        ("--owner", "ab" * 16, "--reason", "a letter", "--namespace", "patient"): "accepted: person",
        ("--owner", "ab" * 16, "--reason", "a letter", "--dry-run"): "--dry-run: accepted only without --owner",
        ("--reason", "a letter"): "with --owner only",
    }.items():
        status, told = use("purge", *arguments)
        assert status == 1 and said in told and "Anna" not in told, told
    assert ledger_of(deployment).history(kinds=["erased"]) == []
    status, told = use("owner", "readmit", "ab" * 16, "--reason", "a mistake")
    assert status == 1 and "not all of them are on the list" in told
    status, told = use("owner", "fingerprint", "tests", given="\n\n")
    assert (status, "no id" in told) == (1, True)
