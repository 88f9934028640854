"""Links from Dagster's asset pages to the console, where a deployment has one."""

from dataclasses import dataclass, replace

import dagster as dg
import pytest
from deployment import Deployment
from line_cases import run_here, small_deployment

from assets.line import LINE
from assets.shown import console_page
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, StepRecord
from dpsynth_platform.operations.step import Outcome
from dpsynth_platform.release.publish import Published

pytestmark = pytest.mark.end_to_end
CONSOLE = "https://console.example.org"


@dataclass
class WithConsole(Deployment):
    """A deployment that says where its console is."""

    @property
    def settings(self) -> Settings:
        return replace(super().settings, console_url=CONSOLE)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    small = small_deployment(tmp_path_factory.mktemp("links"))
    return WithConsole(small.root, small.contract, small.family)


def test_every_asset_and_every_run_of_one_leads_to_the_console(deployment):
    specs = build_definitions(deployment.settings).resolve_all_asset_specs()
    assert {spec.metadata["console"] for spec in specs} == {dg.MetadataValue.url(f"{CONSOLE}/datasets/people")}
    ran = run_here(deployment, steps=["raw"])
    assert ran.success, ran.failures
    assert ran.materializations["raw"]["console"] == f"{CONSOLE}/datasets/people"


def test_without_a_console_there_is_no_link(deployment):
    specs = build_definitions(replace(deployment.settings, console_url="")).resolve_all_asset_specs()
    assert not any("console" in spec.metadata for spec in specs)


@pytest.mark.parametrize(
    "step, page",
    [
        ("model", "/datasets/visits"),
        ("audit", "/candidates/visits/2026-01"),
        ("released", "/releases/visits-2026-01-abc"),
    ],
)
def test_a_step_leads_to_the_page_that_shows_what_it_made(step, page, tmp_path):
    (known,) = [item for item in LINE if item.name == step]
    record = StepRecord(step, "visits", "2026-01", "key", None, "hash", "2026-02-01T00:00:00+00:00")
    published = Published(
        "visits-2026-01-abc", tmp_path, rows=1, tables={"": 1}, size=1, file_count=1, key_fingerprint="", reused=False
    )
    outcome = Outcome(record, published=published if step == "released" else None)
    assert console_page(CONSOLE, known, Place("visits", "2026-01"), outcome).url == CONSOLE + page
