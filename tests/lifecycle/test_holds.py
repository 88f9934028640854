"""Legal holds: what is on hold is deleted by nothing, who said so stands in the chain, and its end is as it says."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from letters_cases import PLACE as ALL
from letters_cases import with_ledger

from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle import purging
from dpsynth_platform.lifecycle.holds import Hold, covering, holds, lift_hold, place_hold
from dpsynth_platform.lifecycle.purging import due_and_held, purge_due
from dpsynth_platform.watching.metrics import _sweep

JANUARY, FEBRUARY, OTHER = Place("letters", "2026-01"), Place("letters", "2026-02"), Place("parcels")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return with_ledger(tmp_path / "home")


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    made = Ledger(settings.ledger_url)
    assert made.history() == []
    return made


def expired(settings: Settings, place: Place) -> Path:
    """An output of a place that is due."""
    storage = Storage(settings.restricted)
    with storage.new_output(place, "bounded") as directory:
        (directory / "rows").write_text("rows")
    storage.record(place, "bounded", run_key="k", directory=directory)
    for path in (directory, directory / "rows"):
        os.utime(path, (1e9, 1e9))
    return directory


def held(ledger: Ledger, place: Place, reason: str = "a lawsuit") -> Hold:
    return place_hold(ledger, place, by="counsel", reason=reason)


def test_what_is_on_hold_stays_until_the_hold_ends(settings: Settings, ledger: Ledger) -> None:
    kept, free, other = (expired(settings, place) for place in (JANUARY, FEBRUARY, OTHER))
    hold = held(ledger, JANUARY)
    assert {item.path for item in purge_due(settings, [], dry_run=True)} == {free, other}
    assert {item.path for item in purge_due(settings, [])} == {free, other}
    assert kept.is_dir() and not free.exists() and not other.exists()
    ((item, keeps),) = due_and_held(settings, [])
    assert (item.path, keeps) == (kept, hold)
    assert purge_due(settings, []) == []

    lift_hold(ledger, JANUARY, by="counsel", reason="settled")
    assert [item.path for item in purge_due(settings, [])] == [kept]
    told = [(event.kind, event.subject, event.payload.get("by")) for event in ledger.history()]
    assert [item for item in told if item[0] != "purged"] == [
        ("hold-placed", "letters/2026-01", "counsel"),
        ("hold-lifted", "letters/2026-01", "counsel"),
    ]
    assert ledger.verify().ok


def test_what_is_on_hold_is_not_late(settings: Settings, ledger: Ledger) -> None:
    """Otherwise an alert of a late sweep would stand for as long as a lawsuit."""
    expired(settings, JANUARY), expired(settings, OTHER)
    now = dt.datetime.now(dt.UTC)
    assert list(_sweep(settings, now).samples.values()) == [2.0]
    held(ledger, JANUARY)
    assert list(_sweep(settings, now).samples.values()) == [1.0]


def test_a_hold_on_a_dataset_keeps_all_its_periods(settings: Settings, ledger: Ledger) -> None:
    kept = [expired(settings, place) for place in (JANUARY, FEBRUARY)]
    gone = expired(settings, OTHER)
    held(ledger, ALL)
    assert [item.path for item in purge_due(settings, [])] == [gone]
    assert all(path.is_dir() for path in kept)


def test_superseded_outputs_stay_too(settings: Settings, ledger: Ledger) -> None:
    earlier = expired(settings, OTHER)
    expired(settings, OTHER)
    held(ledger, OTHER)
    assert purge_due(settings, []) == []
    assert earlier.is_dir()


def test_two_holds_end_one_by_one(ledger: Ledger) -> None:
    first, second = held(ledger, OTHER), held(ledger, OTHER, "another lawsuit")
    with pytest.raises(NotFound, match=f"several holds on parcels; .*{first.number} on parcels, {second.number} on"):
        lift_hold(ledger, OTHER, by="counsel", reason="settled")
    assert lift_hold(ledger, OTHER, by="counsel", reason="settled", number=first.number) == first
    assert holds(ledger) == [second]
    assert covering(holds(ledger), OTHER) == second
    assert lift_hold(ledger, OTHER, by="counsel", reason="settled") == second
    assert covering(holds(ledger), OTHER) is None


@pytest.mark.parametrize("place", [JANUARY, OTHER])
def test_only_the_hold_that_is_named_can_end(ledger: Ledger, place: Place) -> None:
    held(ledger, ALL)
    with pytest.raises(NotFound, match=rf"no hold on {place.label}; active holds: \d+ on letters"):
        lift_hold(ledger, place, by="counsel", reason="settled")
    assert len(holds(ledger)) == 1


def test_a_hold_that_comes_while_the_sweep_deletes_is_in_time(
    settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = expired(settings, JANUARY), expired(settings, OTHER)
    emit = purging._emit

    def emitted(*arguments: object) -> None:
        held(ledger, OTHER)
        emit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(purging, "_emit", emitted)
    assert [item.path for item in purge_due(settings, [])] == [first]
    assert second.is_dir()


def test_a_ledger_that_is_away_keeps_everything(settings: Settings, ledger: Ledger) -> None:
    """Who cannot be asked may have said no."""
    directory = expired(settings, OTHER)
    held(ledger, OTHER)
    database = settings.ledger / "ledger.db"
    database.write_bytes(b"no database at all" * 100)
    with pytest.raises(Exception, match=r"(?i)database|ledger"):
        purge_due(settings, [])
    assert directory.is_dir()
