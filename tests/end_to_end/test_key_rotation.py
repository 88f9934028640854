"""Fingerprint keys rotated between releases: the second composes with the first for the same people."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deployment import FAMILY, Deployment
from frozen import Frozen
from inside import inside
from line_cases import (
    PEOPLE,
    Ran,
    add_dataset,
    ledger_of,
    released,
    run_here,
    small_deployment,
    small_table,
    storage_of,
)

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.lifecycle.owner_keys import keys_in_use
from dpsynth_platform.reviewing import decisions, verification
from dpsynth_platform.scrub.fingerprints import fingerprint_hex, owner_fingerprint
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.worker.job import WorkerJob

pytestmark = pytest.mark.end_to_end
SECOND = Place("second")
STALE = "/scrubbed has fingerprints that are no longer in use: the keys were rotated since; materialize "


def rotate(deployment: Deployment) -> owner_keys.Rotation:
    settings = deployment.settings
    return owner_keys.rotate(
        Vault(settings.vault),
        ledger_of(deployment),
        storage_of(deployment),
        "person",
        by="keeper",
        reason="a stolen disk",
    )


def run(deployment: Deployment, dataset: str = "people", steps: Iterable[str] | None = None) -> Ran:
    chosen = None if steps is None else list(steps)
    return run_here(deployment, f"{dataset}_candidate", accelerator=inside(deployment), steps=chosen)


def fingerprints(deployment: Deployment, table: pa.Table) -> set[str]:
    """The people of a table under the keys that are in use now."""
    keys = keys_in_use(Vault(deployment.settings.vault), ledger_of(deployment).account("tests"))
    return {owner_fingerprint(text, keys) for text in set(table["person"].to_pylist())}


def charged(deployment: Deployment, dataset: str) -> set[str]:
    """Whom a dataset's latest entry charges."""
    entry = next(item for item in reversed(ledger_of(deployment).entries()) if item.request.dataset == dataset)
    return set(fingerprint_hex(ledger_of(deployment).participants(entry.entry_id)))


def with_room_for_one(root: Path) -> Deployment:
    """A family that keeps spend for each person, with room for one release each."""
    made = small_deployment(root)
    made.family = copy.deepcopy(FAMILY) | {"mode": "per-owner", "cap": {"epsilon": 1.2, "delta": 1.0e-5}}
    made.contract["quality"]["holdout"] = 0.2
    return made.write()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """Such a deployment, of which nothing has run."""
    return with_room_for_one(tmp_path)


@pytest.fixture(scope="module")
def kept_line(tmp_path_factory: pytest.TempPathFactory) -> Frozen[Deployment]:
    """Such a deployment whose line has run up to its candidate."""
    directory = tmp_path_factory.mktemp("rotation")
    made = with_room_for_one(directory / "here")
    ran = run(made)
    assert ran.success, ran.failures
    return Frozen.of(made, made.root, directory / "kept")


@pytest.fixture
def done(kept_line: Frozen[Deployment]) -> Deployment:
    """The same, for this test alone."""
    return kept_line.put_back()


def test_the_second_release_leaves_out_whom_the_first_exhausted(done: Deployment) -> None:
    first, second = small_table(), small_table(seed=5, first_person=500)
    add_dataset(done, "second", second)
    published = released(done)
    (entry,) = ledger_of(done).entries()
    in_first = {entry.commitment}

    assert rotate(done).outdated == (PEOPLE,)
    ran = run(done, "second")
    assert ran.success, ran.failures

    both, only_second = fingerprints(done, first), fingerprints(done, second)
    exhausted = charged(done, "people")
    assert exhausted < both
    newcomers = charged(done, "second")
    assert newcomers and newcomers < only_second - exhausted
    # Nobody but the exhausted and the held out is missing: those of the first release's hold-out may take part. Some
    # 480 of 600, with a deviation of 10.
    assert len(newcomers) > 0.6 * len(only_second - exhausted)
    verified = verification.verify_ledger(done.settings)
    assert verified.ok, verified.problems
    assert ledger_of(done).entry(entry.entry_id).commitment in in_first
    assert verification.verify(done.settings, "people", None).ok
    assert published.is_dir()


def test_without_a_rotation_the_same_people_are_left_out(done: Deployment) -> None:
    """The test above would find a platform that counts nobody, too: this one shows whom it should count."""
    assert [entry.state for entry in ledger_of(done).entries()] == ["spent"]
    first, second = small_table(), small_table(seed=5, first_person=500)
    add_dataset(done, "second", second)
    assert run(done, "second").success
    left = fingerprints(done, second) - charged(done, "people")
    newcomers = charged(done, "second")
    assert newcomers < left
    # Of the first release's people in it, some 100 are held out, and are again; of 500 others some 400 are not. The
    # difference of 400 and 0.5 * 600 is ten deviations of both (9 and 0.5 * 9).
    assert len(newcomers) > 0.5 * len(left)
    assert fingerprints(done, first) & fingerprints(done, second)


def test_a_candidate_from_before_is_released_after_and_running_it_again_is_free(done: Deployment) -> None:
    assert [entry.state for entry in ledger_of(done).entries()] == ["spent"]
    candidate = decisions.review(done.settings, PEOPLE).to_json()
    model = storage_of(done).require(PEOPLE, "model").content_hash
    rotate(done)
    # What was made from the model alone needs no fingerprints.
    ran = run(done, steps=["model", "synthetic", "audit"])
    assert ran.success, ran.failures
    # A whole run makes scrubbed and what depends on it anew, and spends nothing.
    ran = run(done)
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(done).entries()] == ["spent"]
    assert storage_of(done).require(PEOPLE, "model").content_hash == model
    scrubbed = storage_of(done).require(PEOPLE, "scrubbed")
    assert scrubbed.facts["key_ids"] == list(ledger_of(done).account("tests").key_ids)
    assert storage_of(done).require(PEOPLE, "bounded").facts["owners"] > 100
    again = decisions.review(done.settings, PEOPLE).to_json()
    assert again["candidate"] == candidate["candidate"]
    path = released(done)
    assert path.is_dir()
    assert verification.verify(done.settings, "people", None).ok
    assert verification.verify_ledger(done.settings).ok


@pytest.mark.parametrize("upto", ["scrubbed", "canaries"])
def test_an_unfinished_run_stops_before_it_counts_people_as_strangers(deployment: Deployment, upto: str) -> None:
    done = ["raw", "scrubbed", "canaries"][: 2 if upto == "scrubbed" else 3]
    assert run(deployment, steps=done).success
    rotate(deployment)
    refused = run(deployment, steps=["clearance"]).failures["clearance"]
    assert refused.startswith(f"people{STALE}people/scrubbed again")
    assert ledger_of(deployment).entries() == []
    ran = run(deployment)
    assert ran.success, ran.failures
    assert charged(deployment, "people") <= fingerprints(deployment, small_table())


def test_a_reservation_holds_a_rotation_up(deployment: Deployment) -> None:
    """Between clearance and mechanism rows are made for the reserved participants, whose names must stay."""
    assert run(deployment, steps=["raw", "scrubbed", "canaries", "clearance"]).success
    keys = sorted(path.name for path in deployment.settings.vault.iterdir())
    with pytest.raises(Exception, match="the keys cannot change between a reservation and its mechanism: people"):
        rotate(deployment)
    assert sorted(path.name for path in deployment.settings.vault.iterdir()) == keys
    assert run(deployment).success


@pytest.mark.parametrize("step", ["bounded", "quality"])
def test_rows_of_earlier_keys_meet_no_participants_of_present_ones(done: Deployment, step: str) -> None:
    """Bounded rows are purged early: made anew from old scrubbed rows they would hold nobody."""
    assert [entry.state for entry in ledger_of(done).entries()] == ["spent"]
    rotate(done)
    storage = storage_of(done)
    record = storage.require(PEOPLE, step)
    storage.record(PEOPLE, step, run_key="purged", directory=record.directory)
    refused = run(done, steps=[step]).failures[step]
    assert refused.startswith(f"people{STALE}people/scrubbed again")
    ran = run(done)
    assert ran.success, ran.failures


def test_a_rotation_while_the_mechanism_runs(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between start and worker, and while it works: the worker holds the participants that its rows were made for."""
    rotated = []
    start = Ledger.start

    def start_and_rotate(ledger: Ledger, entry_id: str) -> object:
        entry = start(ledger, entry_id)
        rotated.append(rotate(deployment))
        return entry

    monkeypatch.setattr(Ledger, "start", start_and_rotate)
    from dpsynth_platform.worker import run as worker

    work = worker.run

    def run_and_rotate(job: WorkerJob, progress: object) -> None:
        rotated.append(rotate(deployment))
        work(job, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "run", run_and_rotate)
    ran = run(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded", "model"])
    assert ran.success, ran.failures
    assert len(rotated) == 2
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
    assert verification.verify_ledger(deployment.settings).ok
    assert charged(deployment, "people") <= fingerprints(deployment, small_table())


def test_held_out_rows_are_those_of_people_who_took_no_part(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold-out falls upon other people after a rotation; a model made before must not be tested on its own."""
    from assets import quality

    seen: list[set[str]] = []
    held_out = quality._held_out

    def told(*arguments: object) -> pa.Table:
        table = held_out(*arguments)  # type: ignore[arg-type]
        seen.append(set(table["_owner"].to_pylist()))
        return table

    monkeypatch.setattr(quality, "_held_out", told)
    assert run(deployment).success
    rotate(deployment)
    assert run(deployment).success
    before, after = seen
    assert before and after
    assert len(after) < len(before)
    assert not after & charged(deployment, "people")


def test_a_key_lost_after_a_rotation_stops_the_line(deployment: Deployment) -> None:
    assert run(deployment, steps=["raw"]).success
    done = rotate(deployment)
    path = deployment.settings.vault / f"owner-rotated-person-{done.key_id}.key"
    content = path.read_bytes()
    path.unlink()
    for steps in (["raw"], ["scrubbed"]):
        (message,) = run(deployment, steps=steps).failures.values()
        assert "is missing from the vault; restore it from its backup" in message
    with pytest.raises(ConfigurationError, match="restore it"):
        rotate(deployment)
    path.write_bytes(content)
    ran = run(deployment)
    assert ran.success, ran.failures
