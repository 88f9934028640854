"""What tests of the console share: a deployment that was filled once, by real runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment
from filled_cases import fill, put_back


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """For tests that only look: see `filled_cases.fill`. Takes half a minute."""
    return fill(tmp_path_factory.mktemp("filled"))


@pytest.fixture
def changeable(filled: Deployment, tmp_path: Path) -> Iterator[Deployment]:
    """The same deployment for a test that changes it: afterwards it is as it was."""
    with put_back(filled.settings, tmp_path):
        yield filled
