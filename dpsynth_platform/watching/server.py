"""Metrics and health over HTTP.

What belongs here: HTTP, and looking no more often than is good for what is looked at. What does not: what is told
(`metrics`, `health`).

    GET /metrics    Prometheus' text format
    GET /health     200 or 503, and which checks passed: {"ok": true, "checks": {"ledger": true, ...}}
    GET /live       200 while the process answers; looks at nothing

There is no password: what is told is for everybody who watches the deployment, so it names families and datasets, which
are the deployment's own words, and nobody. It listens on its own machine unless it is told otherwise.
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
_Seen = TypeVar("_Seen")


def application(settings: Settings, *, again: float = LOOK_AGAIN_SECONDS) -> Starlette:
    """The server as an ASGI application.

    Args:
        settings: the deployment.
        again: what was looked at less than so many seconds ago is told again.
    """
    well = _Looked(lambda: health.checks(settings), again)
    counted = _Looked(lambda: _deployment(settings), again)

    async def show_metrics(request: Request) -> Response:
        checks, text = await well.seen(), await counted.seen()
        return PlainTextResponse(metrics.text_of([metrics.of_health(checks)]) + text, media_type=metrics.CONTENT_TYPE)

    async def show_health(request: Request) -> Response:
        checks = await well.seen()
        ok = all(check.ok for check in checks)
        content = {"ok": ok, "checks": {check.name: check.ok for check in checks}}
        return JSONResponse(content, 200 if ok else 503)

    async def live(request: Request) -> Response:
        return PlainTextResponse("live")

    routes = (("/metrics", show_metrics), ("/health", show_health), ("/live", live))
    return Starlette(routes=[Route(path, answer, methods=["GET"]) for path, answer in routes])


def serve(listening: socket.socket, app: Starlette) -> None:
    """Serves until the process is asked to end."""
    serving.serve(listening, app, logs=(__name__,), connections=CONNECTIONS, ws="none", lifespan="off")


def _deployment(settings: Settings) -> str:
    """What is told of the deployment; nothing while that cannot be read, which `dpsynth_health` tells."""
    try:
        return metrics.text_of(metrics.of_deployment(settings, dt.datetime.now(dt.UTC)))
    except Exception as error:
        _log.error("no metrics but health: %s", ": ".join(safe_error(error)))
        return ""


@dataclass
class _Looked(Generic[_Seen]):
    """Something that takes its time to look at: by one thread at once, and not again for a while."""

    look: Callable[[], _Seen]
    again: float

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._kept: tuple[float, _Seen] | None = None

    async def seen(self) -> _Seen:
        async with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] >= self.again:
                self._kept = (time.monotonic(), await asyncio.to_thread(self.look))
            return self._kept[1]
