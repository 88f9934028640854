"""Metrics and health over HTTP.

What belongs here: HTTP, and caching of results for a short time. What does not: the results (`metrics`, `health`).

    GET /metrics    Prometheus' text format
    GET /health     200 or 503, and which checks passed: {"ok": true, "checks": {"ledger": true, ...}}
    GET /live       200 while the process answers; checks nothing

There is no password: all monitoring may read the results, so they name families and datasets but no people. By default
it listens on the local machine only.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dpsynth_platform.foundation import serving
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.watching import health, metrics

LOOK_AGAIN_SECONDS = 15.0
CONNECTIONS = 50

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def application(settings: Settings, *, again: float = LOOK_AGAIN_SECONDS) -> Starlette:
    """The server as an ASGI application; results are cached for `again` seconds."""
    health_results = _Cached(lambda: health.checks(settings), again)
    deployment_text = _Cached(lambda: _deployment(settings), again)

    async def show_metrics(request: Request) -> Response:
        checks, text = await health_results.get(), await deployment_text.get()
        return PlainTextResponse(metrics.text_of([metrics.of_health(checks)]) + text, media_type=metrics.CONTENT_TYPE)

    async def show_health(request: Request) -> Response:
        checks = await health_results.get()
        ok = all(check.ok for check in checks)
        content = {"ok": ok, "checks": {check.name: check.ok for check in checks}}
        return JSONResponse(content, 200 if ok else 503)

    async def live(request: Request) -> Response:
        return PlainTextResponse("live")

    routes = (("/metrics", show_metrics), ("/health", show_health), ("/live", live))
    return Starlette(routes=[Route(path, answer, methods=["GET"]) for path, answer in routes])


def serve(listening: socket.socket, app: Starlette) -> None:
    """Serves until the process gets a signal to end."""
    serving.serve(listening, app, logs=(__name__,), connections=CONNECTIONS, ws="none", lifespan="off")


def _deployment(settings: Settings) -> str:
    """The deployment's metrics; empty while its ledger cannot be read, which `dpsynth_health` reports."""
    try:
        return metrics.text_of(metrics.of_deployment(settings, dt.datetime.now(dt.UTC)))
    except Exception as error:
        _log.error("no metrics but health: %s", ": ".join(safe_error(error)))
        return ""


@dataclass
class _Cached(Generic[_Result]):
    """A cached result of a slow function, which runs once at a time."""

    compute: Callable[[], _Result]
    again: float

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._kept: tuple[float, _Result] | None = None

    async def get(self) -> _Result:
        async with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] >= self.again:
                self._kept = (time.monotonic(), await asyncio.to_thread(self.compute))
            return self._kept[1]
