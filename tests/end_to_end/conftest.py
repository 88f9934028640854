"""Lines that several test files begin from: run once in a test process, put back for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment import Deployment
from frozen import Frozen
from line_cases import line_to_candidate, released


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
