"""The register of publications: what is known of a release whatever became of its contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.release.register import Register, Registered

RELEASE = "visits-2026-01-0123456789abcdef"


def test_every_place_is_kept_once(tmp_path: Path) -> None:
    register = Register(tmp_path / "restricted")
    assert register.find(RELEASE) == Registered()
    assert register.directories() == []
    for place in ("here", "there", "here"):
        register.note(RELEASE, tmp_path / place / RELEASE, [f"{place}@example.org"])
    places = (tmp_path / "here" / RELEASE, tmp_path / "there" / RELEASE)
    assert register.find(RELEASE) == Registered(places, ("here@example.org",))
    register.note("visits-0", tmp_path / "visits-0", ["a@example.org"])
    assert register.directories() == [tmp_path / "visits-0", *places]


def test_it_is_private_and_no_place_of_a_dataset(tmp_path: Path) -> None:
    Register(tmp_path / "restricted").note(RELEASE, tmp_path / RELEASE, ["a@example.org"])
    (file,) = (path for path in (tmp_path / "restricted").rglob("*") if path.is_file())
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert Storage(tmp_path / "restricted").places() == []


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"directories": 5, "contacts": []}'])
def test_damage_is_told(tmp_path: Path, content: str) -> None:
    register = Register(tmp_path)
    register.note(RELEASE, tmp_path / RELEASE, ["a@example.org"])
    (tmp_path / "releases" / f"{RELEASE}.json").write_text(content)
    with pytest.raises(StaleInput, match="register of publications is damaged"):
        register.find(RELEASE)
