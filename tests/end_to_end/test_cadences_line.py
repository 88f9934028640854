"""Weeks and quarters on the whole line: each release reads its period only, and is verified under its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from deployment import Deployment
from inside import inside
from line_cases import NO_CHANCE, ledger_of, run_here, storage_of

from dpsynth_platform.contracts.periods import period_bounds
from dpsynth_platform.demo.visits import prepare_visits, visits_table
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.storage import Place, read_table
from dpsynth_platform.lineage.export import VERSION
from dpsynth_platform.reviewing import decisions, forecasts, releases, verification

pytestmark = pytest.mark.end_to_end


@pytest.mark.parametrize(
    ("cadence", "first", "period"),
    [("weekly", "2026-01-05-week", "2026-03-30-week"), ("quarterly", "2026-01-quarter", "2026-04-quarter")],
)
def test_a_release_is_of_its_period(tmp_path: Path, cadence: str, first: str, period: str) -> None:
    documents = [
        yaml.safe_load((PACKAGE_ROOT / "deploy" / path).read_text())
        for path in ("contracts/visits.yaml", "families/clinic-patients.yaml")
    ]
    documents[0]["audit"] |= NO_CHANCE
    documents[0]["release"] |= {"cadence": cadence, "start": first}
    visits, place = Deployment(tmp_path, *documents).write(), Place("visits", period)
    prepare_visits(visits.settings.home)
    assert forecasts.forecast(visits.settings, "visits", period).fits
    ran = run_here(visits, "visits_candidate", period=period, accelerator=inside(visits))
    assert ran.success, ran.failures
    decisions.approve(visits.settings, place, "reviewer", "")
    ran = run_here(visits, "visits_release", period=period)
    assert ran.success, ran.failures

    start, end = period_bounds(period)
    inside_it = [day for day in visits_table().column("visit_date").to_pylist() if start <= day <= end]
    storage = storage_of(visits)
    assert storage.require(place, "scrubbed").facts["rows"] == len(inside_it) > 0
    drawn = storage.require(place, "synthetic").directory / "table"
    days = {day for batch in read_table(drawn, columns=["visit_date"]) for day in batch.column(0).to_pylist()}
    assert min(days) >= start
    assert max(days) <= end
    (entry,) = ledger_of(visits).entries()
    assert entry.request.place == f"visits/{period}"
    (listed,) = releases.listing(visits.settings)
    assert listed["id"].startswith(f"visits-{period}-")
    assert VERSION(listed["id"]) == listed["id"]
    assert verification.verify(visits.settings, "visits", None).ok
