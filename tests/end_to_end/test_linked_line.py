"""The whole line of linked tables: from a directory of tables to a verified release."""

from __future__ import annotations

from pathlib import Path

import pytest
from line_cases import run_here
from linked_line_cases import clinic_deployment

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


def test_a_release_of_linked_tables(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    ran = run_here(deployment)
    assert ran.success, ran.failures
