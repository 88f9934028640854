"""A real daemon that is killed on the last day of a month: the watch, a process of its own, tells of it, once."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest
from year_cases import Simulation, simulated

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def looked(simulation: Simulation) -> list[dict[str, str]]:
    """What the watch tells of in one look."""
    before = len(told(simulation))
    done = subprocess.run(
        [sys.executable, "-m", "dpsynth_platform", "watch", "--once"],
        env=simulation.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return told(simulation)[before:]


def told(simulation: Simulation) -> list[dict[str, str]]:
    file = simulation.notices
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [item for item in found if str(item["id"]).startswith("watch-")]


def test_a_daemon_that_dies_on_the_last_day_of_a_month_is_told(tmp_path: Path) -> None:
    with simulated(tmp_path, cap=1.2, seed=1) as simulation:
        assert looked(simulation) == []
        daemon = simulation.services["daemon"]
        daemon.kill()
        daemon.wait()
        died = simulation.now()
        assert (died.month, died.day) == (1, 31)
        simulation.move_to(died + dt.timedelta(minutes=15))
        (silent,) = looked(simulation)
        assert silent["event"] == "daemon-silent"
        assert "has given no sign since 2026-01-31" in silent["text"]

        # The month ends and nobody starts its run. Three days later its release is overdue.
        simulation.move_to(dt.datetime(2026, 2, 3, 23, tzinfo=dt.UTC))
        assert looked(simulation) == []
        simulation.move_to(dt.datetime(2026, 2, 4, 1, tzinfo=dt.UTC))
        (late,) = looked(simulation)
        assert (late["event"], late["dataset"], late["period"]) == ("overdue", "people", "2026-01")
        assert "has given no sign since 2026-01-31" in late["text"]
        assert looked(simulation) == []

        # It is started again, and asks for the month by itself.
        simulation.start()
        run = simulation.wait_for(lambda: simulation._runs("people_candidate", "2026-01"), "a run of January")
        assert run
        assert [item["event"] for item in looked(simulation)] == ["daemon-back"]
