"""A release is withdrawn: nothing of it can be read any more, nothing is given back, and everybody can see it."""

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from typer.testing import CliRunner

from dpsynth_platform.cli import main as cli
from dpsynth_platform.foundation.errors import LedgerError, ReleaseRefused, VerificationFailed
from dpsynth_platform.foundation.release_layout import has_rows
from dpsynth_platform.release.tombstone import read_tombstone
from dpsynth_platform.reviewing import decisions, releases, verification
from dpsynth_platform.reviewing.withdrawing import withdraw

pytestmark = pytest.mark.end_to_end

DIES = """
import sys
if "withdraw" in sys.orig_argv:
    import os, signal, threading
    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)
    from {module} import {owner}
    {owner}.{name} = die
"""


def again(deployment, by="reviewer"):
    """Approves and publishes after a withdrawal; the new release's directory."""
    decisions.approve(deployment.settings, PEOPLE, by, "looked again", after_withdrawal=True)
    ran = run_here(deployment, "people_release")
    assert ran.success, ran.failures
    return Path(storage_of(deployment).require(PEOPLE, "released").facts["path"])


def states(deployment):
    return {item["id"]: item["state"] for item in releases.listing(deployment.settings)}


def ends_of(deployment, release):
    """COMPLETE events that end a release."""
    events = [json.loads(line) for line in deployment.settings.lineage_file.read_text().splitlines()]
    return [
        output
        for event in events
        if event["eventType"] == "COMPLETE"
        for output in event["outputs"]
        if output["facets"].get("lifecycleStateChange", {}).get("lifecycleStateChange") == "DROP"
        and output["facets"].get("version", {}).get("datasetVersion") == release
    ]


def test_withdrawn_from_the_command_line_and_published_anew(published, tmp_path, monkeypatch):
    deployment, release = published
    for name, value in deployment.environment.items():
        if name.startswith("DPSYNTH_"):
            monkeypatch.setenv(name, value)
    ledger = ledger_of(deployment)
    left = ledger.left("tests", 1e-6)

    def use(*words):
        result = CliRunner().invoke(cli.app, ["release", *words, "--json"])
        return result.exit_code, result.output

    arguments = ("withdraw", release.name, "--as", "Cy", "--reason", "A column was mislabelled")
    shown = CliRunner().invoke(cli.app, ["release", *arguments])
    assert shown.exit_code == 0, shown.output
    assert read_tombstone(release).tombstone.reason == "A column was mislabelled"
    assert not has_rows(release)
    assert (release / "dossier.json").is_file()
    assert ledger.left("tests", 1e-6) == left
    assert [entry.state for entry in ledger.entries()] == ["spent"]
    assert storage_of(deployment).require(PEOPLE, "model").directory.is_dir()
    assert states(deployment) == {release.name: "withdrawn"}
    assert len(ends_of(deployment, release.name)) == 1
    assert use("verify", release.name)[0] == use("verify", "people")[0] == 4
    assert use(*arguments)[0] == 0
    assert len(ends_of(deployment, release.name)) == 1
    assert len(ledger.history(kinds=["withdrawn"])) == 1

    # Whoever takes the tombstone away does not make it a release again.
    kept = (release / "tombstone.json").rename(tmp_path / "kept")
    assert use("verify", release.name)[0] == 1
    told = verification.verify(deployment.settings, release.name)
    assert told.to_json()["failures"][-1] == "withdrawn"
    assert "this deployment's ledger records that this release was withdrawn" in told.words
    kept.rename(release / "tombstone.json")

    # Nothing publishes it again by itself, and neither an old approval nor one without the word does.
    refused = run_here(deployment, "people_release").failures["released"]
    assert f"withdrawn as release {release.name}" in refused
    assert "--after-withdrawal" in refused
    assert use("approve", "people", "--as", "reviewer")[0] == 1
    assert use("approve", "people", "--as", "cy ", "--after-withdrawal")[0] == 1
    assert states(deployment) == {release.name: "withdrawn"}
    second = again(deployment)
    assert second.name != release.name
    assert states(deployment) == {release.name: "withdrawn", second.name: "published"}
    assert verification.verify(deployment.settings, "people", None).path == second
    assert verification.verify(deployment.settings, "people", None).ok
    assert not has_rows(release)
    assert len(ledger.entries()) == 1
    assert verification.verify_ledger(deployment.settings).ok
    commitments = [json.loads((path / "dossier.json").read_text())["commitments"] for path in (release, second)]
    assert not set(commitments[0].values()) & set(commitments[1].values())


def test_it_goes_by_what_was_published_whatever_became_of_the_contract(published):
    """Another target with a second copy, then an unsound contract, then none: every directory loses its rows."""
    deployment, release = published
    moved = release.parents[1] / "elsewhere" / release.name
    shutil.copytree(release, moved)
    deployment.contract["release"]["uri"] = "${DPSYNTH_HOME}/public/elsewhere"
    deployment.write()
    done = withdraw(deployment.settings, release.name, "Cy", "why")
    assert done.paths == (str(release), str(moved))
    assert not has_rows(release)
    assert not has_rows(moved)
    assert read_tombstone(release) == read_tombstone(moved)
    assert {output["name"] for output in ends_of(deployment, release.name)} == {
        str(path / "data") for path in (release, moved)
    }
    second = again(deployment)
    assert second.parent == release.parent  # as the contract said that was sealed with its rows
    contract = deployment.settings.contracts / "people.yaml"
    for unsound in ("privacy: {}", None):
        if unsound is None:
            contract.unlink()
        else:
            contract.write_text(contract.read_text() + f"\n{unsound}\n")
        assert states(deployment)[second.name] == "published"
        assert verification.verify_ledger(deployment.settings).dossiers == 2
    withdraw(deployment.settings, second.name, "Di", "why")
    assert not has_rows(second)
    assert read_tombstone(second).tombstone.contacts == ("tests@example.org",)
    assert set(states(deployment).values()) == {"withdrawn"}


@pytest.mark.slow
def test_killed_between_any_two_effects(published, tmp_path, monkeypatch):
    """The process is killed before the tombstone, before the deletion, before the lineage event; repeating finishes."""
    deployment, release = published
    sabotage = tmp_path / "sabotage"
    sabotage.mkdir()
    points = [
        ("dpsynth_platform.reviewing", "withdrawing", "bury"),
        ("dpsynth_platform.release", "withdrawal", "_delete"),
        ("dpsynth_platform.reviewing", "withdrawing", "_emit"),
    ]
    for number, (module, owner, name) in enumerate(points):
        (sabotage / "sitecustomize.py").write_text(DIES.format(module=module, owner=owner, name=name))
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", ":".join([str(sabotage), *filter(None, sys.path)]))
            done = deployment.dpsynth("release", "withdraw", release.name, "--as", "Cy", "--reason", "why")
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert [item.release for item in ledger_of(deployment).withdrawals()][number:] == [release.name]
        assert (read_tombstone(release) is not None, has_rows(release)) == [(False, True), (True, True), (True, False)][
            number
        ]
        assert states(deployment)[release.name].startswith("withdrawn")
        assert ("not to its end" in states(deployment)[release.name]) == has_rows(release)
        assert ends_of(deployment, release.name) == []
        assert "withdrawn as release" in run_here(deployment, "people_release").failures["released"]

        finished = withdraw(deployment.settings, release.name, "Di", "other words")
        assert (finished.by, finished.reason, finished.deleted) == ("Cy", "why", number < 2)
        assert states(deployment)[release.name] == "withdrawn"
        assert len(ends_of(deployment, release.name)) == 1
        release = again(deployment)
    assert [item.decision for item in ledger_of(deployment).withdrawals()] == ["withdraw"] * 3
    assert verification.verify_ledger(deployment.settings).ok


def test_what_cannot_be_withdrawn(candidate, tmp_path):
    with pytest.raises(VerificationFailed, match="no publication of this release; accepted: none"):
        withdraw(candidate.settings, "people-0", "Cy", "why")
    release = released(candidate)
    for by, reason in (("", "why"), ("Cy", " ")):
        with pytest.raises(LedgerError):
            withdraw(candidate.settings, release.name, by, reason)
    elsewhere = release.rename(tmp_path / "elsewhere")
    with pytest.raises(VerificationFailed, match="its directory is not at"):
        withdraw(candidate.settings, release.name, "Cy", "why")
    assert ledger_of(candidate).withdrawals() == []
    assert has_rows(elsewhere)
    release.mkdir()  # the word that every copy is gone
    withdraw(candidate.settings, release.name, "Cy", "why")
    assert read_tombstone(release) is not None


def test_only_what_could_be_released_is_approved(candidate):
    """A candidate that something else stands in the way of is not approved, and the reason is named."""
    report = storage_of(candidate).require(PEOPLE, "audit").directory / "report.json"
    kept = report.read_text()
    report.write_text(kept.replace("inconclusive", "fail"))
    with pytest.raises(ReleaseRefused, match="people/audit: its content is not what was recorded"):
        decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    report.write_text(kept)
    with pytest.raises(LedgerError, match="needs a reason"):
        decisions.refuse(candidate.settings, PEOPLE, "reviewer", "")
    assert ledger_of(candidate).history(kinds=["approved", "refused"]) == []
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")


def test_a_candidate_is_recorded_once_for_each_content(candidate):
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    ledger = ledger_of(candidate)
    assert run_here(candidate).success
    (event,) = ledger.history(kinds=["candidate"])
    assert event.subject == decisions.review(candidate.settings, PEOPLE).candidate
    assert event.payload == {"entry": ledger.entries()[0].entry_id}
