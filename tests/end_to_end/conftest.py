"""Lines that several test files begin from: run once in a test process, put back for each test. And what makes a line
quick where a test is about something else: mechanisms in this process, and no trial of the training before each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from deployment import Deployment
from frozen import Frozen
from inside import worker_inside
from line_cases import line_to_candidate, released

_from_config = ScriptDirectory.from_config
_scripts: dict[str | None, ScriptDirectory] = {}


def _loaded_once(config: Config) -> ScriptDirectory:
    place = config.get_main_option("script_location")
    if place not in _scripts:
        _scripts[place] = _from_config(config)
    return _scripts[place]


@pytest.fixture(scope="module", autouse=True)
def migrations_are_loaded_once() -> Iterator[None]:
    """Dagster marks each new storage with its newest migration, and would load all ninety of them every time."""
    with patch.object(ScriptDirectory, "from_config", _loaded_once):
        yield


@pytest.fixture(scope="session")
def kept_candidate(tmp_path_factory: pytest.TempPathFactory) -> Frozen[Deployment]:
    """The small deployment whose line was run up to its candidate."""
    directory = tmp_path_factory.mktemp("candidate")
    deployment = line_to_candidate(directory / "here")
    return Frozen.of(deployment, deployment.root, directory / "kept")


@pytest.fixture
def candidate(kept_candidate: Frozen[Deployment]) -> Deployment:
    """A deployment, for this test alone, whose candidate waits for its approval."""
    return kept_candidate.put_back()


@pytest.fixture(scope="session")
def kept_release(tmp_path_factory: pytest.TempPathFactory) -> Frozen[tuple[Deployment, Path]]:
    """The same with its candidate approved and published, in a place of its own."""
    directory = tmp_path_factory.mktemp("release")
    deployment = line_to_candidate(directory / "here")
    return Frozen.of((deployment, released(deployment)), deployment.root, directory / "kept")


@pytest.fixture
def published(kept_release: Frozen[tuple[Deployment, Path]]) -> tuple[Deployment, Path]:
    """A deployment, for this test alone, and the directory of its release."""
    return kept_release.put_back()


@pytest.fixture
def worker_here() -> Iterator[None]:
    """Mechanisms take place in this process: see `inside.worker_inside`."""
    with worker_inside():
        yield


@pytest.fixture
def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `text_line_cases.without_gate`."""
    from text_line_cases import without_gate  # which loads PyTorch

    without_gate(monkeypatch)
