"""A release proves itself: evidence, approval, publication, and what anyone can verify afterwards."""

import datetime as dt
import json
import os
import re
import shutil
import sqlite3
import time

import pytest
from inside import inside, worker_inside
from line_cases import PEOPLE, ledger_of, lineage_of, released, run_here, small_deployment, small_table, storage_of

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.release_layout import has_rows
from dpsynth_platform.foundation.storage import digest_directory, write_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.purging import purge_due
from dpsynth_platform.release import publish
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing import decisions, releases, verification
from dpsynth_platform.reviewing.withdrawing import withdraw
from dpsynth_platform.synth.planning import load_dataset
from dpsynth_platform.watching.metrics import of_deployment, text_of

pytestmark = pytest.mark.end_to_end


def candidate_on_terms(root, **release):
    """A deployment whose line has been run up to its candidate, with other conditions of release."""
    deployment = small_deployment(root)
    deployment.contract["release"].update(release)
    deployment.write()
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    return deployment


def try_release(deployment):
    """The release job's refusal, or None."""
    ran = run_here(deployment, "people_release")
    return None if ran.success else ran.failures["released"]


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    """Run, approve, verify; a second run spends nothing and says so; one changed byte is found."""
    deployment = small_deployment(tmp_path)
    with worker_inside():
        first = deployment.json("run", "people")
    assert len(first["new_entries"]) == 1
    assert first["release"] is None
    approved = deployment.json("release", "approve", "people", "--as", "reviewer", "--reason", "looks right")
    release = approved["release"]
    entries = ledger_of(deployment).entries()

    again = deployment.here("run", "people")
    assert again.returncode == 0
    assert "nothing new was spent" in again.stdout
    assert f"release: {release}" in again.stdout
    assert ledger_of(deployment).entries() == entries

    assert verification.verify(deployment.settings, "people", None).ok
    table = next((storage_of(deployment).root.parent / "public").rglob("*.parquet"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    found = deployment.dpsynth("release", "verify", release)
    assert found.returncode == 1
    assert f"data/{table.name}" in found.stdout + found.stderr


def test_one_changed_byte_is_found_wherever_it_is(published, tmp_path):
    deployment, release = published
    assert verification.verify(deployment.settings, str(release), None).ok
    files = [path.relative_to(release) for path in sorted(release.rglob("*")) if path.is_file()]
    assert {"dossier.json", "dossier.html", "attestation.dsse.json"} <= {path.as_posix() for path in files}
    assert any(path.suffix == ".parquet" for path in files)
    for name in files:
        for position in (0.0, 0.5, 1.0):
            copy = tmp_path / "copy"
            shutil.copytree(release, copy)
            content = bytearray((copy / name).read_bytes())
            content[int(position * (len(content) - 1))] ^= 1
            (copy / name).write_bytes(content)
            report = verification.verify(deployment.settings, str(copy), None)
            assert not report.ok, (name, position)
            assert name.as_posix() in " ".join(str(problem) for problem in report.problems), (name, position)
            shutil.rmtree(copy)


def test_a_stranger_can_verify_with_the_key_alone(published):
    deployment, release = published
    key, _ = verification.public_key(deployment.settings)
    report = verify_release(release, key.encode())
    assert report.ok
    assert report.key_trusted
    assert report.rows == 200


def test_releasing_again_changes_nothing(published):
    deployment, release = published
    before, history = digest_directory(release), ledger_of(deployment).history()
    ran = run_here(deployment, "people_release")
    assert ran.success
    assert ran.materializations["released"]["reused"]
    assert digest_directory(release) == before
    assert [path.name for path in release.parent.iterdir() if not path.name.startswith(".")] == [release.name]
    assert ledger_of(deployment).history() == history
    assert [event.subject for event in ledger_of(deployment).history(kinds=["released"])] == [release.name]


def test_the_dossier_holds_no_exact_count_and_no_restricted_hash(published):
    """Numbers of private rows and owners, and plain hashes of restricted content, stand nowhere in the release."""
    deployment, release = published
    storage, ledger = storage_of(deployment), ledger_of(deployment)
    (entry,) = ledger.entries()
    scrubbed, bounded = (storage.require(PEOPLE, step) for step in ("scrubbed", "bounded"))
    counts = {scrubbed.facts["rows"], bounded.facts["rows"], ledger.participants(entry.entry_id).size}
    counts.add((scrubbed.directory / "participants").stat().st_size // 16)
    assert len(counts) == 4
    records = [
        storage.require(PEOPLE, step) for step in ("raw", "scrubbed", "canaries", "bounded", "model", "synthetic")
    ]
    hashes = {record.content_hash for record in records} | {decisions.review(deployment.settings, PEOPLE).candidate}

    def values(node):
        for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from values(item)
            yield item

    dossier = json.loads((release / "dossier.json").read_text())
    # Noisy counts are near exact ones, and equal one now and then.
    told = values(dossier | {"fidelity": None})
    numbers = {item for item in told if isinstance(item, int | float) and not isinstance(item, bool)}
    assert len(numbers) > 20
    assert not numbers & counts
    everything = b"".join(path.read_bytes() for path in release.rglob("*") if path.is_file()).decode("latin-1")
    assert not [digest for digest in hashes if digest in everything]
    # What stands inside a tag is drawing (coordinates may equal anything) and not said to anybody.
    words = re.sub(r"<[^>]*>", " ", (release / "dossier.html").read_text()).replace(",", "").split()
    assert not {str(count) for count in counts} & set(words)
    runs = {item["step"]: item["run_id"] for item in dossier["lineage"]["steps"]}
    assert {"raw", "scrubbed", "model", "released"} <= runs.keys()
    assert set(runs.values()) <= lineage_of(deployment).runs.keys()


def test_the_ledger_is_held_against_the_head_in_the_dossier(candidate, tmp_path):
    """A ledger put back to an earlier state, or shortened, no longer fits what was published."""
    database = candidate.root / "home" / "ledger" / "ledger.db"
    with sqlite3.connect(database) as source, sqlite3.connect(tmp_path / "earlier.db") as copy:
        source.backup(copy)
    release = released(candidate)
    report = verification.verify_ledger(candidate.settings)
    assert report.ok
    head = json.loads((release / "dossier.json").read_text())["ledger"]["head"]
    assert head["sequence"] > 0
    with sqlite3.connect(tmp_path / "earlier.db") as earlier, sqlite3.connect(database) as now:
        earlier.backup(now)
    assert Ledger(candidate.settings.ledger_url).verify().ok  # whole in itself
    report = verification.verify_ledger(candidate.settings)
    assert not report.ok
    by_dossier, *by_traces = report.problems
    assert by_dossier.startswith(f"event {head['sequence']}: a dossier was published at this event, the chain ends at")
    assert by_traces == [
        "events.jsonl ends with an event that the lineage graph does not know: the ledger is older, or was cut"
    ]


def test_a_damaged_dossier_is_told_and_hides_no_other(candidate):
    release = released(candidate)
    (release / "dossier.json").write_text("{ torn")
    report = verification.verify_ledger(candidate.settings)
    assert not report.ok
    assert any(release.name in problem for problem in report.problems)
    (listed,) = releases.listing(candidate.settings)
    assert (listed["id"], listed["where"]) == (release.name, str(release))


@pytest.mark.parametrize(("point", "shown"), [("_show", False), ("_published", True)])
def test_killed_around_the_moment_of_publication(candidate, monkeypatch, point, shown):
    """Recorded and not shown, or shown and no more: the next run settles both, and what is shown can be withdrawn."""
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    ledger = ledger_of(candidate)
    with monkeypatch.context() as patch:
        patch.setattr(publish, point, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert not run_here(candidate, "people_release").success
    (recorded,) = ledger.history(kinds=["released"])
    target = candidate.root / "home" / "public" / "people"
    assert [path.name for path in target.glob("[!.]*")] == ([recorded.subject] if shown else [])
    assert storage_of(candidate).read(PEOPLE, "released") is None
    if shown:
        withdraw(candidate.settings, recorded.subject, "Cy", "why")
        assert not has_rows(target / recorded.subject)
        assert "withdrawn as release" in try_release(candidate)
        return
    assert try_release(candidate) is None
    assert ledger.history(kinds=["released"]) == [recorded]
    assert [path.name for path in target.glob("[!.]*")] == [recorded.subject]
    assert verification.verify(candidate.settings, recorded.subject).ok


def test_a_refusal_while_it_is_made_ready_stops_it(candidate, monkeypatch):
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    settle = publish._settle

    def refused_meanwhile(stage):
        settle(stage)
        decisions.refuse(candidate.settings, PEOPLE, "second reader", "the remark column")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_settle", refused_meanwhile)
        assert "refused by second reader" in try_release(candidate)
    assert [path.name for path in (candidate.root / "home" / "public" / "people").iterdir()] == [".lock"]
    assert ledger_of(candidate).history(kinds=["released"]) == []


def test_nothing_is_released_unapproved_or_refused(candidate):
    assert "0 of 1 approvals" in try_release(candidate)
    with pytest.raises(ReleaseRefused, match="ran this release"):
        decisions.approve(candidate.settings, PEOPLE, "RUNNER", "")
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    decisions.refuse(candidate.settings, PEOPLE, "second reader", "the remark column")
    assert "refused by second reader" in try_release(candidate)
    assert not (candidate.root / "home" / "public").exists()
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "talked about it")
    assert try_release(candidate) is None


def test_a_candidate_waits_longer_than_its_model(candidate):
    """The model goes after a week; who decides later can approve all the same, until the rows go, and is told so."""
    storage, settings = storage_of(candidate), candidate.settings
    before = decisions.review(settings, PEOPLE).candidate
    written = int(time.time()) - 8 * 86400  # whole, so that no rounding of a file's time moves it by a second
    for step in ("model", "synthetic"):
        directory = storage.require(PEOPLE, step).directory
        for path in (directory, *directory.rglob("*")):
            os.utime(path, (written, written))
    assert [item.step for item in purge_due(settings, [load_dataset(settings, "people")[0]])] == ["model"]

    until = f"{dt.datetime.fromtimestamp(written, dt.UTC) + dt.timedelta(days=30):%Y-%m-%d %H:%M:%S}"
    (listed,) = releases.listing(settings)
    assert (listed["state"], listed["id"]) == ("candidate", before[:16])
    assert listed["where"] == f"not published; it can be approved until {until} UTC, when its rows expire"
    assert until in decisions.review(settings, PEOPLE).standing
    decisions.approve(settings, PEOPLE, "reviewer", "")
    assert until not in decisions.review(settings, PEOPLE).standing
    assert try_release(candidate) is None
    release = storage.require(PEOPLE, "released").facts
    assert release["candidate"] == before
    assert verification.verify(settings, release["release_id"], None).ok
    assert ledger_of(candidate).verify().ok


def test_a_candidate_whose_rows_have_expired_waits_no_more(candidate):
    storage, settings = storage_of(candidate), candidate.settings
    shutil.rmtree(storage.require(PEOPLE, "model").directory)  # by hand, and not by a sweep
    with pytest.raises(
        ReleaseRefused, match="people/model: its output is gone, and the ledger does not record that it expired"
    ):
        decisions.approve(settings, PEOPLE, "reviewer", "")
    assert not releases.has_candidate(settings, PEOPLE)

    waiting = "dpsynth_candidates_waiting 1.0"
    assert waiting in text_of(of_deployment(settings, dt.datetime.now(dt.UTC)))
    directory = storage.require(PEOPLE, "synthetic").directory
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (1e9, 1e9))
    purge_due(settings, [load_dataset(settings, "people")[0]])
    assert waiting not in text_of(of_deployment(settings, dt.datetime.now(dt.UTC)))


def test_another_description_does_not_undo_a_refusal(tmp_path):
    """Where no approval is needed nothing else would stand between what was refused and the public."""
    deployment = candidate_on_terms(tmp_path, approvals=0)
    decisions.refuse(deployment.settings, PEOPLE, "second reader", "the remark column")
    before = decisions.review(deployment.settings, PEOPLE).candidate
    deployment.contract["description"] = "The same table in other words."
    deployment.write()
    assert run_here(deployment, accelerator=inside(deployment)).success
    assert decisions.review(deployment.settings, PEOPLE).candidate != before
    assert "refused by second reader" in try_release(deployment)
    assert [item["state"] for item in releases.listing(deployment.settings)] == ["refused"]
    decisions.approve(deployment.settings, PEOPLE, "reviewer", "talked about it")
    assert try_release(deployment) is None


def test_who_ran_a_step_that_was_made_anew_since_cannot_approve(candidate):
    """The mallory who drew rows until they pleased has somebody else run the line once more, and stays a runner."""
    for user in ("mallory", "bo"):
        shutil.rmtree(storage_of(candidate).require(PEOPLE, "synthetic").directory)
        assert run_here(candidate, steps=["synthetic", "audit", "quality"], user=user).success
    assert storage_of(candidate).require(PEOPLE, "synthetic").runner == "bo"
    with pytest.raises(ReleaseRefused, match="'mallory' ran this release"):
        decisions.approve(candidate.settings, PEOPLE, "mallory", "")
    entry = ledger_of(candidate).entries()[0].entry_id
    content = decisions.review(candidate.settings, PEOPLE).candidate
    ledger_of(candidate).approve(content, by="mallory", entry_id=entry)
    assert "0 of 1 approvals" in try_release(candidate)


def test_two_approvals_are_two_people(tmp_path):
    deployment = candidate_on_terms(tmp_path, approvals=2)
    decisions.approve(deployment.settings, PEOPLE, "reviewer", "")
    with pytest.raises(ReleaseRefused, match=r"'reviewer' has approved this content already.*another person must"):
        decisions.approve(deployment.settings, PEOPLE, " Reviewer", "")
    assert "1 of 2 approvals" in try_release(deployment)
    decisions.approve(deployment.settings, PEOPLE, "second reader", "")
    assert try_release(deployment) is None


def test_an_approval_is_of_one_content(candidate):
    """Other rows from the same model are another candidate, and a changed file is none."""
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    before = decisions.review(candidate.settings, PEOPLE).candidate
    shutil.rmtree(storage_of(candidate).require(PEOPLE, "synthetic").directory)
    assert run_here(candidate, steps=["synthetic", "audit", "quality"]).success
    assert decisions.review(candidate.settings, PEOPLE).candidate != before
    assert "0 of 1 approvals" in try_release(candidate)

    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    table = storage_of(candidate).require(PEOPLE, "synthetic").directory / "table"
    shutil.rmtree(table)
    rows = small_table(20).drop_columns(["person", "visit"])
    write_table(table, rows.schema, rows.to_batches())
    assert "its content is not what was recorded" in try_release(candidate)
    assert not (candidate.root / "home" / "public").exists()


def test_a_new_version_of_the_source_is_a_new_run(candidate):
    """What changed upstream makes the old candidate stale; the new one is paid for anew, and its dossier says so."""
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    shutil.rmtree(candidate.root / "home" / "sources" / "people")
    candidate.with_source(small_table(seed=11))
    assert run_here(candidate, steps=["raw"]).success
    assert "belongs to another contract, source version or plan" in try_release(candidate)
    assert run_here(candidate, accelerator=inside(candidate)).success
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent", "spent"]
    assert "0 of 1 approvals" in try_release(candidate)
    dossier = json.loads((released(candidate) / "dossier.json").read_text())
    assert (dossier["statement"]["tuning"]["runs"], dossier["statement"]["tuning"]["covered"]) == (1, False)


def test_without_a_passed_audit_nothing_is_released(candidate):
    decisions.approve(candidate.settings, PEOPLE, "reviewer", "")
    shutil.rmtree(storage_of(candidate).location(PEOPLE, "audit"))
    assert "evidence is missing" in try_release(candidate)
