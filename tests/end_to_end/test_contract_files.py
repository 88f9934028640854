"""Contract files that changed since Dagster loaded them are loaded again, once, and while no run is in progress."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import dagster as dg
import pytest
from line_cases import small_deployment

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.settings import Settings

pytestmark = pytest.mark.end_to_end


class WebServer(BaseHTTPRequestHandler):
    """Answers as Dagster's web server does, and keeps what was asked."""

    asked: ClassVar[list[dict[str, str]]] = []
    loaded = "RepositoryLocation"

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["variables"])
        answer = {"data": {"reloadRepositoryLocation": {"locationOrLoadError": {"__typename": self.loaded}}}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    WebServer.asked, WebServer.loaded = [], "RepositoryLocation"
    with HTTPServer(("127.0.0.1", 0), WebServer) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


class Ticks:
    """The sensor's ticks on one loaded code location, each with the cursor of the one before."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance) -> None:
        sensors = build_definitions(settings).sensors or ()
        self.sensor = next(sensor for sensor in sensors if sensor.name == "contract_files")
        self.instance, self.cursor = instance, None

    def tick(self) -> str:
        data = self.sensor.evaluate_tick(dg.build_sensor_context(self.instance, cursor=self.cursor))
        self.cursor = data.cursor
        assert not data.run_requests
        return data.skip_message or ""


def test_changed_files_are_loaded_again_once(tmp_path: Path, server: str) -> None:
    deployment = small_deployment(tmp_path)
    settings = replace(deployment.settings, dagster_url=server)
    with dg.DagsterInstance.ephemeral() as instance:
        ticks = Ticks(settings, instance)
        assert "as they were loaded" in ticks.tick()
        (settings.contracts / "new.yaml").write_text("dataset: new\n")
        run = instance.create_run_for_job(dg.job(name="other")(lambda: None), status=dg.DagsterRunStatus.STARTED)
        assert "when no run is in progress" in ticks.tick()
        assert WebServer.asked == []
        instance.report_run_canceled(run)
        assert "were loaded again" in ticks.tick()
        assert "requested already" in ticks.tick()
        assert WebServer.asked == [{"name": "dpsynth_platform.definitions"}]
        assert "as they were loaded" in Ticks(settings, instance).tick()


def test_a_tick_says_how_where_no_server_does_it(tmp_path: Path, server: str) -> None:
    deployment = small_deployment(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        alone, refused, unreachable = (
            Ticks(replace(deployment.settings, dagster_url=url), instance) for url in ("", server, "http://127.0.0.1:9")
        )
        (deployment.settings.contracts / "people.yaml").unlink()
        assert "Deployment, dpsynth_platform.definitions, Reload, or name its address" in alone.tick()
        WebServer.loaded = "PythonError"
        for ticks in (refused, unreachable):
            assert "DPSYNTH_DAGSTER_URL did not do it" in ticks.tick()
            assert ticks.cursor is None, "it tries again"
