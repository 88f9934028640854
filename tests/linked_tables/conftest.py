"""A clinic's tables in files, and one run over them for all tests that only look at its result."""

from __future__ import annotations

from pathlib import Path

import pytest
from clinic import clinic, written

from dpsynth_platform.linked_tables import SyntheticTables, TablesOptions, synthesize_tables


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the deployment's settings finds an empty one."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_USER", "tester")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("data") / "clinic", clinic())


@pytest.fixture(scope="session")
def made(files: Path, tmp_path_factory: pytest.TempPathFactory) -> SyntheticTables:
    """The result of a run at epsilon 8, not to be changed."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(place / "home"))
        patch.setenv("DPSYNTH_USER", "tester")
        options = TablesOptions(epsilon=8, delta=1e-6, schema=files.with_suffix(".yaml"))
        return synthesize_tables(files, place / "out", options)
