"""The console assembled from access control, sign-in, API and pages.

What belongs here: the order of the parts, and turning off what NiceGUI must not do. What does not: any of the parts.
"""

from __future__ import annotations

import logging
import socket
from http import HTTPStatus

import nicegui
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from nicegui import Client, ui
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpsynth_platform.console import access, api, oidc, pages, sign_in
from dpsynth_platform.console.access import AccessMiddleware, AccessServices
from dpsynth_platform.console.configuration import ConsoleSettings
from dpsynth_platform.console.identity import signed_in
from dpsynth_platform.console.problems import UNEXPECTED, Problem, problem_of
from dpsynth_platform.foundation import serving
from dpsynth_platform.foundation.errors import DpsynthError, SignedOut
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.restricted_log import without_words
from dpsynth_platform.foundation.settings import Settings

TITLE = "dpsynth governance console"
CONNECTIONS = 500
_RECONNECT_SECONDS = 30.0
"""How long a page waits for a busy server before it is reloaded, which loses what was typed."""
MOST_IN_MESSAGE = 2**20
"""Bytes of a websocket message."""
_SHARED_FILES = f"/_nicegui/{nicegui.__version__}/"
_FOREIGN_LOGS = ("nicegui", "asyncio", "concurrent.futures")

_log = logging.getLogger(__name__)


def application(settings: Settings, console: ConsoleSettings) -> FastAPI:
    """The console as an ASGI application; NiceGUI allows one per process.

    Raises `ConfigurationError` if the console's database cannot be used.
    """
    app = without_pages(settings, AccessServices.of(console))

    def refused(request: Request, error: Exception) -> Response:
        return (problem_of(error, settings.shown) if isinstance(error, DpsynthError) else UNEXPECTED).page()

    for kind, answer in ((404, _no_such_page), (DpsynthError, refused), (Exception, _page_failed)):
        nicegui.app.add_exception_handler(kind, answer)
    pages.register(settings)
    # Quasar's loading bar has no name for a screen reader, and pages load nothing to wait for.
    nicegui.app.config.quasar_config["loadingBar"] = {"skipHijack": True}
    # No compression: a page contains a token and parts of its address, so its length would reveal the token.
    ui.run_with(
        app,
        title=TITLE,
        language="en-US",
        dark=None,  # as the reader's system is set
        tailwind=False,
        show_welcome_message=False,
        gzip_middleware_factory=None,
        reconnect_timeout=_RECONNECT_SECONDS,
    )
    return app


def without_pages(settings: Settings, services: AccessServices) -> FastAPI:
    """Access control, the sign-in and the API."""
    app = FastAPI(
        title=TITLE,
        version="1",
        openapi_url=f"{api.PREFIX}/openapi.json",
        docs_url=None,  # its scripts come from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(
        AccessMiddleware,
        services=services,
        session_of_page=_session_of_page,
        shown=settings.shown,
        shared_files=_SHARED_FILES,
    )
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _not_acceptable)
    app.router.routes.extend([Route(access.HEALTH, _health, methods=["GET"]), *sign_in.routes()])
    app.include_router(api.router(settings, services))
    return app


def serve(listening: socket.socket, app: FastAPI) -> None:
    """Serves the console until the process is asked to end."""
    for name in _FOREIGN_LOGS:
        logging.getLogger(name).addFilter(without_words)
    logs = (access.__name__, sign_in.__name__, oidc.__name__, __name__, *_FOREIGN_LOGS)
    serving.serve(listening, app, logs=logs, connections=CONNECTIONS, ws_max_size=MOST_IN_MESSAGE)


def _session_of_page(page: str) -> str | None:
    """The session for which NiceGUI made a page."""
    client = Client.instances.get(page)
    try:
        return signed_in(client.request).handle if client else None
    except (RuntimeError, SignedOut):  # it was made without a session
        return None


async def _health(request: Request) -> Response:
    return JSONResponse({"state": "ok"})


def _http_problem(request: Request, error: Exception) -> Response:
    """The framework's own refusals: unknown address, wrong method, unreadable body."""
    if isinstance(error, Problem):
        raise error
    status = error.status_code if isinstance(error, HTTPException) else 400
    code = HTTPStatus(status).phrase.lower().replace(" ", "-")
    headers = error.headers if isinstance(error, HTTPException) else None
    return Problem(status, code, f"accepted: what {api.PREFIX}/openapi.json describes", headers).response()


def _not_acceptable(request: Request, error: Exception) -> Response:
    """A request that does not match its description; the answer contains nothing of what was sent."""
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    words = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
    return Problem(422, "not-acceptable", visible(words)).response()


def _no_such_page(request: Request, error: Exception) -> Response:
    problem = Problem(404, "no-such-place", "there is no such address")
    return problem.response() if request.url.path.startswith(access.API) else problem.page()


def _page_failed(request: Request, error: Exception) -> Response:
    return UNEXPECTED.page()
