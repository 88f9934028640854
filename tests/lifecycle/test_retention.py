"""Expiry: what is due and when, deleted for real, with its two records; a run afterwards says what is gone."""

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from graph_cases import graph_of
from letters_cases import LETTERS, PLACE

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import LedgerError, PurgeFailed, StaleInput
from dpsynth_platform.foundation.scratch import abandoned, scratch_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import EXAMPLES, HANDED, SCORES, Place, Storage, held
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.purging import purge_due
from dpsynth_platform.lifecycle.retention import LOGS_KEPT, SUPERSEDED_AFTER, due, purge
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.watching.metrics import _sweep

NOW = dt.datetime.now(dt.UTC)
DOCUMENT: dict[str, Any] = LETTERS | {"retention": {"scrubbed": "2d", "bounded": "12h", "model": "4d"}}


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own, where commands of others leave nothing."""
    directory = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def contract() -> DataContract:
    return parse_contract(DOCUMENT, where="letters.yaml", variables={})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path)})


@pytest.fixture
def storage(settings: Settings) -> Storage:
    return Storage(settings.restricted)


def output(storage: Storage, step: str, age: dt.timedelta, *, recorded: bool = True, place: Place = PLACE) -> Path:
    """An output last written so long ago."""
    with storage.new_output(place, step) as directory:
        (directory / "table").mkdir()
        (directory / "table" / "part.parquet").write_text("rows")
    if recorded:
        facts = {"contract": DOCUMENT | {"retention": {"scrubbed": "3h"}}} if step == "raw" else {}
        storage.record(place, step, run_key="k", directory=directory, facts=facts)
    elif not storage.places():
        storage.record(place, "clearance", run_key="k", facts={"entry_id": "e"})
    make_old(directory, age)
    return directory


def log(storage: Storage, name: str, age: dt.timedelta) -> Path:
    path = storage.root / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("ValueError: Zaphodina")
    make_old(path, age)
    return path


def make_old(path: Path, age: dt.timedelta) -> None:
    moment = (NOW - age).timestamp()
    for item in (path, *path.rglob("*")):
        os.utime(item, (moment, moment))


def minutes(number: float) -> dt.timedelta:
    return dt.timedelta(minutes=number)


@pytest.mark.parametrize(
    ("step", "limit"),
    [("scrubbed", dt.timedelta(days=2)), ("bounded", dt.timedelta(hours=12)), ("model", dt.timedelta(days=4))],
)
def test_a_current_output_is_due_when_its_time_is_up(
    storage: Storage, contract: DataContract, step: str, limit: dt.timedelta
) -> None:
    directory = output(storage, step, limit - minutes(1))
    assert due(storage, [contract], NOW) == []
    make_old(directory, limit + minutes(1))
    (item,) = due(storage, [contract], NOW)
    assert (item.place, item.step, item.path, item.reason, item.label) == (PLACE, step, directory, "expired", "letters")
    assert item.age >= limit


@pytest.mark.parametrize("step", ["audit", "quality"])
def test_reports_stay(storage: Storage, contract: DataContract, step: str) -> None:
    output(storage, step, dt.timedelta(days=3650))
    assert due(storage, [contract], NOW) == []


def test_what_a_killed_worker_was_handed_does_not_wait_as_long_as_a_model(
    storage: Storage, contract: DataContract
) -> None:
    storage.record(PLACE, "clearance", run_key="k", facts={"entry_id": "e"})
    model, handed = (storage.named_output(PLACE, "model", name) for name in ("e", f"e{HANDED}"))
    for directory in (model, handed):
        (directory / "file").write_text("kept")
        make_old(directory, SUPERSEDED_AFTER + dt.timedelta(hours=1))
    (item,) = due(storage, [contract], NOW)
    assert item.path == handed


@pytest.mark.parametrize("recorded", [True, False])
def test_a_superseded_output_is_due_after_an_hour(storage: Storage, contract: DataContract, recorded: bool) -> None:
    """One that a newer record replaced, and one that no record ever named, as a killed step leaves it."""
    old = output(storage, "scrubbed", SUPERSEDED_AFTER - minutes(1), recorded=recorded)
    new = output(storage, "scrubbed", minutes(0))
    assert due(storage, [contract], NOW) == []
    make_old(old, SUPERSEDED_AFTER)
    (item,) = due(storage, [contract], NOW)
    assert (item.path, item.reason) == (old, "superseded")
    purge(item)
    assert not old.exists()
    assert storage.require(PLACE, "scrubbed").directory == new


def test_measurements_that_a_crash_left_wait_as_long_as_a_model_may(storage: Storage, contract: DataContract) -> None:
    left = output(storage, "model", dt.timedelta(days=3), recorded=False)
    assert due(storage, [contract], NOW) == []
    make_old(left, dt.timedelta(days=4))
    assert [item.path for item in due(storage, [contract], NOW)] == [left]


def test_an_output_that_is_still_written_is_not_due(storage: Storage, contract: DataContract) -> None:
    directory = output(storage, "scrubbed", dt.timedelta(days=9), recorded=False)
    os.utime(directory / "table" / "part.parquet", (NOW.timestamp(), NOW.timestamp()))
    assert due(storage, [contract], NOW) == []


def test_an_output_that_vanishes_meanwhile_is_no_error(
    storage: Storage, contract: DataContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = output(storage, "scrubbed", dt.timedelta(days=9))
    monkeypatch.setattr(type(directory), "rglob", lambda self, _: iter([self / "gone"]))
    assert due(storage, [contract], NOW) == []


def test_periods_expire_each_by_itself(storage: Storage, contract: DataContract) -> None:
    old = output(storage, "scrubbed", dt.timedelta(days=5), place=Place("letters", "2026-01"))
    output(storage, "scrubbed", dt.timedelta(days=1), place=Place("letters", "2026-02"))
    assert [(item.label, item.path) for item in due(storage, [contract], NOW)] == [("letters/2026-01", old)]


def test_a_dataset_without_a_contract_expires_as_the_sealed_one_says(storage: Storage) -> None:
    output(storage, "raw", minutes(0))
    directory = output(storage, "scrubbed", dt.timedelta(hours=2))
    assert due(storage, [], NOW) == []
    make_old(directory, dt.timedelta(hours=3))
    assert [item.path for item in due(storage, [], NOW)] == [directory]


def test_logs_expire_after_a_week(storage: Storage, contract: DataContract) -> None:
    assert dt.timedelta(days=7) == LOGS_KEPT
    old = log(storage, "worker-1.log", LOGS_KEPT + minutes(1))
    log(storage, "step-2.log", LOGS_KEPT - minutes(1))
    (item,) = due(storage, [contract], NOW)
    assert (item.place, item.step, item.path, item.label) == (None, "log", old, "logs")


def test_what_is_gone_already_is_fine(storage: Storage, contract: DataContract) -> None:
    output(storage, "scrubbed", dt.timedelta(days=5))
    log(storage, "step.log", dt.timedelta(days=9))
    found = due(storage, [contract], NOW)
    assert len(found) == 2
    for item in (*found, *found):
        purge(item)
        assert not item.path.exists()


def test_a_purge_deletes_for_real_and_leaves_two_records(
    settings: Settings, storage: Storage, contract: DataContract
) -> None:
    scrubbed = output(storage, "scrubbed", dt.timedelta(days=3))
    bounded = output(storage, "bounded", dt.timedelta(days=3))
    logs = [log(storage, f"step-{number}.log", dt.timedelta(days=8)) for number in range(3)]
    kept = output(storage, "synthetic", dt.timedelta(days=3))

    planned = purge_due(settings, [contract], dry_run=True)
    assert scrubbed.exists() and not settings.lineage_file.exists()
    found = purge_due(settings, [contract])
    assert [item.path for item in found] == [item.path for item in planned] == [scrubbed, bounded, *logs]
    assert not any(item.path.exists() for item in found)
    assert kept.exists()
    left = b"".join(path.read_bytes() for path in storage.root.rglob("*") if path.is_file())
    assert b"Zaphodina" not in left

    ledger = Ledger(settings.ledger_url)
    assert [(event.kind, event.subject, event.payload) for event in ledger.history()] == [
        ("purged", "letters", {"step": "scrubbed", "output": scrubbed.name, "reason": "expired"}),
        ("purged", "letters", {"step": "bounded", "output": bounded.name, "reason": "expired"}),
        ("purged", "logs", {"step": "log", "files": 3, "reason": "expired"}),
    ]
    assert ledger.verify().ok

    events = [json.loads(line) for line in settings.lineage_file.read_text().splitlines()]
    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        ("letters.purge", "START"),
        ("letters.purge", "COMPLETE"),
    ] * 2
    (ended,) = events[1]["outputs"]
    assert ended["name"] == str(scrubbed.parent)
    assert ended["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
    assert ended["facets"]["version"]["datasetVersion"] == scrubbed.name

    with pytest.raises(StaleInput, match="materialize letters/scrubbed again"):
        _ = storage.require(PLACE, "scrubbed").directory
    assert purge_due(settings, [contract]) == []
    assert len(ledger.history()) == 3


def test_nothing_due_touches_nothing(settings: Settings, contract: DataContract) -> None:
    assert purge_due(settings, [contract]) == []
    assert not settings.home.joinpath("ledger").exists()
    assert not settings.lineage_file.exists()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The name of files that cannot be deleted, wherever they are."""
    unlink = os.unlink

    def unwilling(path: str, **how: Any) -> None:
        if Path(path).name == "stuck":
            raise PermissionError(13, "Permission denied", "Zaphodina")
        unlink(path, **how)

    monkeypatch.setattr(os, "unlink", unwilling)
    return Path("stuck")


def told(settings: Settings) -> list[tuple[str, str]]:
    return [(event.subject, event.payload["step"]) for event in Ledger(settings.ledger_url).history(kinds=["purged"])]


def test_what_cannot_be_deleted_keeps_nothing_else(
    settings: Settings, storage: Storage, contract: DataContract, stuck: Path
) -> None:
    """It is named, is not recorded as deleted, and is due again: deleting a part of it has not made it young."""
    first, later = (Place("letters", f"2026-0{month}") for month in (1, 2))
    left = output(storage, "scrubbed", dt.timedelta(days=3), place=first)
    (left / stuck).write_text("rows")
    make_old(left, dt.timedelta(days=3))
    gone = [
        output(storage, "bounded", dt.timedelta(days=3), place=first),
        output(storage, "scrubbed", dt.timedelta(days=3), place=later),
        log(storage, "step.log", dt.timedelta(days=8)),
    ]
    for _ in range(2):
        with pytest.raises(PurgeFailed, match=r"in 1 places.*letters/2026-01/scrubbed \(permission denied\)") as caught:
            purge_due(settings, [contract])
        assert "Zaphodina" not in str(caught.value)
        assert [path.name for path in left.rglob("*")] == [str(stuck)]
        assert not any(path.exists() for path in gone)
        assert told(settings) == [("letters/2026-01", "bounded"), ("letters/2026-02", "scrubbed"), ("logs", "log")]


def test_what_the_ledger_cannot_record_any_more_is_told(
    settings: Settings, storage: Storage, contract: DataContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk fills in mid-sweep: all that is due goes, each with its lineage, and each is named."""
    gone = [output(storage, step, dt.timedelta(days=5)) for step in ("scrubbed", "bounded")]

    def full(*_: object) -> None:
        raise LedgerError("the ledger's disk is full")

    monkeypatch.setattr(Ledger, "record", full)
    with pytest.raises(
        PurgeFailed, match=r"in 2 places.*bounded \(deleted, and not in the ledger's history: the ledger"
    ):
        purge_due(settings, [contract])
    assert not any(path.exists() for path in gone)
    states = [(node.job, node.state) for node in graph_of(LineageStore(settings.ledger_url)).runs.values()]
    assert states == [("letters.purge", "COMPLETE")] * 2


def test_a_ledger_that_goes_away_in_the_sweep_ends_the_deleting_and_all_is_told(
    settings: Settings, storage: Storage, contract: DataContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, left = (output(storage, step, dt.timedelta(days=5)) for step in ("scrubbed", "bounded"))
    asked = iter([[]])

    def away(*_: object) -> Any:
        found = next(asked, None)
        if found is None:
            raise LedgerError("the ledger's database cannot be reached")
        return found

    monkeypatch.setattr("dpsynth_platform.lifecycle.purging.holds", away)
    monkeypatch.setattr(Ledger, "record", away)
    monkeypatch.setattr(
        "dpsynth_platform.lifecycle.purging.due_and_held", lambda *_, **__: [(item, None) for item in found]
    )
    found = due(storage, [contract], NOW)
    assert [item.path for item in found] == [gone, left]
    with pytest.raises(PurgeFailed) as caught:
        purge_due(settings, [contract])
    assert "scrubbed (deleted, and not in the ledger's history: " in str(caught.value)
    assert "bounded (the ledger's database cannot be reached)" in str(caught.value)
    assert left.is_dir() and not gone.exists()


@pytest.mark.parametrize("damage", ["{", "[]", '{"step": "scrubbed", "owner": "Zaphodina"}', "\udcff"])
def test_a_damaged_record_keeps_its_own_step_alone(
    settings: Settings, storage: Storage, contract: DataContract, damage: str
) -> None:
    """What it named may be current or not, so that it stays until somebody has looked."""
    first, later = (Place("letters", f"2026-0{month}") for month in (1, 2))
    left = output(storage, "scrubbed", dt.timedelta(days=3), place=first)
    storage.record_path(first, "scrubbed").write_bytes(damage.encode(errors="surrogateescape"))
    gone = [
        output(storage, "model", dt.timedelta(days=5), place=first),
        output(storage, "scrubbed", dt.timedelta(days=3), place=later),
    ]
    with pytest.raises(
        PurgeFailed, match=r"letters/2026-01/scrubbed: its record, scrubbed\.json, is damaged"
    ) as caught:
        purge_due(settings, [contract])
    assert "Zaphodina" not in str(caught.value)
    assert left.is_dir() and not any(path.exists() for path in gone)
    assert told(settings) == [("letters/2026-01", "model"), ("letters/2026-02", "scrubbed")]
    storage.record_path(first, "scrubbed").unlink()
    assert [item.path for item in purge_due(settings, [contract])] == [left]


def test_a_place_whose_terms_cannot_be_read_keeps_no_other(
    settings: Settings, storage: Storage, contract: DataContract
) -> None:
    """Without a contract they are those that `raw` sealed. The alert of a late sweep counts such a place."""
    gone = output(storage, "scrubbed", dt.timedelta(days=3))
    left = output(storage, "scrubbed", dt.timedelta(days=3), place=Place("forgotten"))
    storage.record(Place("forgotten"), "raw", run_key="k", facts={"contract": {"retention": {"scrubbed": "Zaphodina"}}})
    assert list(_sweep(settings, NOW).samples.values()) == [1.0]
    with pytest.raises(PurgeFailed, match=r"forgotten \(ValidationError\)"):
        purge_due(settings, [contract], dry_run=True)
    with pytest.raises(PurgeFailed, match=r"forgotten \(ValidationError\)"):
        purge_due(settings, [contract])
    assert left.is_dir() and not gone.exists()


def test_raw_scores_expire_with_the_model(contract: DataContract, storage: Storage) -> None:
    kept = output(storage, SCORES, dt.timedelta(days=3))
    assert SCORES not in [item.step for item in due(storage, [contract], NOW)]
    make_old(kept, dt.timedelta(days=5))
    assert [item.path for item in due(storage, [contract], NOW) if item.step == SCORES] == [kept]


def test_real_texts_of_an_interrupted_training_do_not_wait_as_long_as_it_does(
    settings: Settings, storage: Storage, contract: DataContract
) -> None:
    """A killed worker cannot take the names of their files away; the checkpoints stay, for training to go on."""
    storage.record(PLACE, "clearance", run_key="k", facts={"entry_id": "e"})
    model = storage.named_output(PLACE, "model", "e")
    examples = model / EXAMPLES
    examples.mkdir(parents=True)
    (examples / "tokens.i4").write_text("a letter")
    make_old(model, SUPERSEDED_AFTER - minutes(1))
    assert due(storage, [contract], NOW) == []
    make_old(model, SUPERSEDED_AFTER + minutes(1))
    (item,) = purge_due(settings, [contract])
    assert (item.path, item.reason) == (examples, "superseded")
    assert examples.parent.is_dir() and not examples.exists()
    assert not settings.lineage_file.exists()  # the output has not ended


@pytest.mark.parametrize("step", ["bounded", "model"])
def test_what_a_running_mechanism_reads_waits_for_its_end(storage: Storage, contract: DataContract, step: str) -> None:
    model = output(storage, "model", minutes(0))
    directory = output(storage, step, dt.timedelta(days=9), recorded=step == "bounded")
    scrubbed = output(storage, "scrubbed", dt.timedelta(days=9))
    with held(model):
        assert [item.path for item in due(storage, [contract], NOW)] == [scrubbed]
    assert {item.path for item in due(storage, [contract], NOW)} == {scrubbed, directory}


def test_what_a_killed_command_left_goes_with_the_sweep(settings: Settings, temporary: Path) -> None:
    with scratch_directory("dpsynth-bound-") as living:
        left, young, other = (temporary / f"dpsynth-{name}" for name in ("bound-1.work", "bound-2.work", "ranks-3"))
        for directory in (left, young, other):
            directory.mkdir()
            (directory / "ids").write_text("Zaphodina")
        (temporary / "dpsynth-link.work").symlink_to(other)
        for directory in (living, left, other):
            make_old(directory, SUPERSEDED_AFTER + minutes(1))
        (item,) = purge_due(settings, [])
        assert (item.place, item.step, item.path, item.label) == (None, "scratch", left, "temporary directories")
        assert living.is_dir() and young.is_dir() and other.is_dir() and not left.exists()
    assert not living.exists()
    (event,) = Ledger(settings.ledger_url).history()
    assert (event.subject, event.payload) == (
        "temporary directories",
        {"step": "scratch", "files": 1, "reason": "superseded"},
    )


def test_a_command_removes_what_a_killed_one_left_in_the_same_place(tmp_path: Path) -> None:
    """Where `--spill` names a place of its own, the sweep does not look."""
    left = tmp_path / "dpsynth-bound-1.work"
    left.mkdir()
    make_old(left, SUPERSEDED_AFTER + minutes(1))
    with scratch_directory("dpsynth-bound-", tmp_path) as living:
        assert [path.name for path in tmp_path.iterdir()] == [living.name]
        assert abandoned(NOW + dt.timedelta(days=9), tmp_path) == []
