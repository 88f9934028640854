"""Dagster's own pages in a browser: what an engineer sees there of a finished line, and of a refusal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.request import urlopen

import pytest
from browser_cases import chromium
from line_cases import small_deployment
from playwright.sync_api import Page, expect

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.operations.running import open_instance, run_line

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
WITHIN, SLOW = 300, 300_000
REFUSAL = "people: 0 of 1 approvals are recorded for this content"


@pytest.fixture(scope="module")
def dagster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of Dagster's UI of a deployment with a candidate, and the run that did not publish it."""
    deployment = small_deployment(tmp_path_factory.mktemp("dagster"))
    done = deployment.here("run", "people")
    assert done.returncode == 0, done.stderr
    settings = deployment.settings
    with open_instance(settings) as instance, pytest.MonkeyPatch.context() as patch:
        for name, value in deployment.environment.items():
            patch.setenv(name, value)
        refused = run_line(settings, instance, "people_release", in_process=build_definitions)
    assert [name for name, _ in refused.failures] == ["released"]
    with socket.socket() as held:  # bound and not listening: nobody else is given the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        up = deployment.start("up", "--port", str(port))
        try:
            url = f"http://127.0.0.1:{port}"
            _await(up, f"{url}/server_info")
            yield url, refused.run_id
        finally:
            with suppress(ProcessLookupError):
                os.killpg(up.pid, signal.SIGKILL)
            up.communicate(timeout=WITHIN)


def _await(process: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        with suppress(OSError), urlopen(url, timeout=WITHIN):
            return
        time.sleep(0.5)
    pytest.fail("Dagster did not start")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser:
        opened = browser.new_page()
        opened.set_default_timeout(SLOW)
        yield opened


def test_numbers_of_a_report_are_plotted(dagster: tuple[str, str], page: Page) -> None:
    page.goto(f"{dagster[0]}/assets/people/quality")
    page.get_by_text("Plots", exact=True).click()
    for label in ("distance of pairs, mean", "classifier on synthetic rows, ROC AUC"):
        expect(page.get_by_text(label, exact=True)).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("Row count")).to_have_count(0)


def test_quality_is_a_check_that_blocks_nothing(dagster: tuple[str, str], page: Page) -> None:
    page.goto(f"{dagster[0]}/assets/people/quality?view=checks")
    expect(page.get_by_text("Compares all that the contract asks for.", exact=True)).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("This is a non-blocking asset check.")).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("Restricted: this report compares with real data")).to_be_visible(timeout=SLOW)


def test_synthetic_rows_are_drawn_beside_noisy_counts(dagster: tuple[str, str], page: Page) -> None:
    page.goto(f"{dagster[0]}/assets/people/synthetic")
    page.get_by_text("[Show Markdown]").click()
    for name in ("region", "score", "outcome"):
        drawn = page.get_by_role("img", name=f"{name}: ")
        expect(drawn).to_be_visible(timeout=SLOW)
        assert drawn.evaluate("image => image.decode().then(() => image.naturalWidth)") > 600


def test_a_refusal_is_its_message(dagster: tuple[str, str], page: Page) -> None:
    url, run = dagster
    page.goto(f"{url}/runs/{run}")
    expect(page.get_by_text(REFUSAL).first).to_be_visible(timeout=SLOW)
    assert "Stack Trace" not in page.content()
    assert "Traceback" not in page.content()
