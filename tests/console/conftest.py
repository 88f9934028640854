"""What tests of the console share: a deployment that was filled once, by real runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deployment import Deployment
from filled_cases import fill
from frozen import Frozen


@pytest.fixture(scope="session")
def kept_filled(tmp_path_factory: pytest.TempPathFactory) -> Frozen[Deployment]:
    """The deployment of `filled_cases.fill`. Takes half a minute."""
    directory = tmp_path_factory.mktemp("filled")
    deployment = fill(directory / "here")
    return Frozen.of(deployment, deployment.root, directory / "kept")


@pytest.fixture(scope="session")
def filled(kept_filled: Frozen[Deployment]) -> Deployment:
    """For tests that only look."""
    return kept_filled.made


@pytest.fixture
def changeable(kept_filled: Frozen[Deployment]) -> Iterator[Deployment]:
    """The same deployment for a test that changes it: afterwards it is as it was."""
    yield kept_filled.made
    kept_filled.put_back()
