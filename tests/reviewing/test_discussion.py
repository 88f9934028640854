"""What people say about a candidate is kept, by one and by many, and stops nothing."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dpsynth_platform.backup.manifest import DIRECTORIES
from dpsynth_platform.foundation.errors import ConfigurationError, ReleaseRefused, StaleInput
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing import discussion

CANDIDATE = "a" * 64


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings.from_environment({}), home=tmp_path)


def test_remarks_come_back_in_their_order_and_nobody_else_can_read_them(settings: Settings) -> None:
    assert discussion.remarks(settings, CANDIDATE) == ()
    discussion.comment(settings, CANDIDATE, "Erik", "ready")
    discussion.assign(settings, CANDIDATE, "Rita", "Rob")
    discussion.assign(settings, CANDIDATE, "Rob", "Rita")
    found = discussion.remarks(settings, CANDIDATE)
    assert [(item.kind, item.by, item.text) for item in found] == [
        ("comment", "Erik", "ready"),
        ("assignment", "Rita", "Rob"),
        ("assignment", "Rob", "Rita"),
    ]
    assert discussion.assigned(found) == "Rita" and discussion.assigned(found[:1]) is None
    assert discussion.remarks(settings, "b" * 64) == ()
    (file,) = (settings.restricted / discussion.NAME).iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert discussion.NAME in DIRECTORIES, "a backup has them, too"


@pytest.mark.parametrize("text", ["", " ", "two\nlines", "x" * 1001])
def test_what_cannot_be_kept_is_refused(settings: Settings, text: str) -> None:
    with pytest.raises(ConfigurationError):
        discussion.comment(settings, CANDIDATE, "Erik", text)
    with pytest.raises(ConfigurationError):
        discussion.assign(settings, CANDIDATE, "Rita", "\u3164")
    assert discussion.remarks(settings, CANDIDATE) == ()


def test_no_remark_of_many_people_is_lost(settings: Settings) -> None:
    def say(number: int) -> int:
        try:
            discussion.comment(settings, CANDIDATE, "Erik", f"number {number}")
        except ReleaseRefused:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        kept = sum(pool.map(say, range(40)))
    assert len(discussion.remarks(settings, CANDIDATE)) == kept > 0


def test_a_damaged_file_stops_no_reading_and_is_not_overwritten(settings: Settings) -> None:
    discussion.comment(settings, CANDIDATE, "Erik", "ready")
    (file,) = (settings.restricted / discussion.NAME).iterdir()
    file.write_text("{")
    assert discussion.remarks(settings, CANDIDATE) == ()
    with pytest.raises(StaleInput, match="damaged"):
        discussion.comment(settings, CANDIDATE, "Erik", "again")
    assert file.read_text() == "{"
    many = [{"kind": "comment", "by": "Erik", "at": "2026-01-01T00:00:00+00:00", "text": "x"}] * discussion.MOST_REMARKS
    file.write_text(json.dumps(many))
    with pytest.raises(ReleaseRefused, match="no more are kept"):
        discussion.comment(settings, CANDIDATE, "Erik", "one more")
