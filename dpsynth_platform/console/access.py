"""Access control: who may reach a page, the API or a page's websocket, and the security headers of every answer.

What belongs here: the middleware, cookies, and the checks of a request's origin. What does not: the sign-in
(`sign_in`), and what a role allows (the API and the pages ask `identity`).

Everything is closed except the sign-in, the health check, and NiceGUI's scripts and styles, which are the same for
everybody. The checks, in this order:

1. `Host` must be the console's own, against DNS rebinding.
2. Headers that claim an identity must come from the trusted proxy, or the request is refused.
3. A change must come from the console's own pages (`Origin`) and carry the session's CSRF token; the cookie, which
   browsers send by themselves, is not enough.
4. There must be a live session. Pages redirect to the sign-in, everything else answers 401.
5. A page's websocket must come from the console's own pages and belong to the session for which the page was made. It
   ends with that session and may name that page only; every message on it is checked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from dpsynth_platform.console.attempts import Attempts
from dpsynth_platform.console.configuration import ConsoleSettings
from dpsynth_platform.console.identity import Identity, SignedIn
from dpsynth_platform.console.oidc import OIDC, Provider
from dpsynth_platform.console.problems import UNEXPECTED, Problem, problem_of
from dpsynth_platform.console.proxy import PROXY, identity_from_proxy
from dpsynth_platform.console.sessions import LONGEST_TOKEN, Sessions, csrf_of, equal_secrets, handle_of
from dpsynth_platform.console.store import Store
from dpsynth_platform.console.users import PASSWORD, Users
from dpsynth_platform.foundation.errors import DpsynthError, SignedOut
from dpsynth_platform.foundation.redaction import safe_error

API = "/api/"
HEALTH = "/health"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
OIDC_START, OIDC_BACK = "/sign-in/oidc", "/sign-in/oidc/back"
CSRF_HEADER = "X-CSRF-Token"
MOST_BYTES = 64 * 1024
"""Largest body of a request: decisions with their reasons."""

_AT_ONCE = 2
_BODY_SECONDS = 10.0
_WEBSOCKET = "/_nicegui_ws/"
_FORMS = (SIGN_IN, SIGN_OUT)
_OPEN = (HEALTH, SIGN_IN, OIDC_START, OIDC_BACK)
_SAFE = ("GET", "HEAD", "OPTIONS")
_METHODS = (*_SAFE, "POST", "PUT", "PATCH", "DELETE")
_PLACES = (
    *("", "families", "datasets", "candidates", "releases", "lineage", "ledger"),
    *("api", "health", "sign-in", "sign-out", "_nicegui", "_nicegui_ws"),
)
"""First parts of paths that the log may contain."""
_UNKNOWN_PAGE = b"EIO=4&transport=websocket&implicit_handshake=true&client_id=signed-out"

# NiceGUI writes each page's start and import map as inline scripts and compiles Vue's templates in the browser, hence
# 'unsafe-inline' and 'unsafe-eval'; Quasar sets styles on elements. Values are inserted as text, never as markup.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
PLAIN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AccessServices:
    """What signing in and access control need.

    Attributes:
        hashing: limits concurrent password checks, which take much memory.
        asking: limits concurrent requests to the provider, which may be slow.
        computing: see `compute`.
    """

    console: ConsoleSettings
    users: Users
    sessions: Sessions
    attempts: Attempts
    provider: Provider | None
    hashing: asyncio.Semaphore
    asking: asyncio.Semaphore
    computing: asyncio.Semaphore

    @classmethod
    def of(cls, console: ConsoleSettings, clock: Callable[[], float] = time.time) -> AccessServices:
        """The services of a console. Raises `ConfigurationError` if its database cannot be used."""
        methods = ((PASSWORD, console.local), (OIDC, console.oidc), (PROXY, console.proxy))
        store = Store(console.home)
        sessions = Sessions(store, console.sessions, [name for name, enabled in methods if enabled], clock)
        back = f"{console.url}{OIDC_BACK}"
        provider = Provider(console.oidc, console.oidc_secret, back, store, clock) if console.oidc else None
        return cls(
            console,
            Users(store),
            sessions,
            Attempts(clock),
            provider,
            asyncio.Semaphore(_AT_ONCE),
            asyncio.Semaphore(_AT_ONCE),
            asyncio.Semaphore(1),
        )

    @property
    def cookie(self) -> str:
        """Name of the session's cookie; browsers accept the prefix only from the console's own host."""
        return "__Host-dpsynth" if self.console.secure else "dpsynth"

    async def compute(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Runs work that takes seconds, one at a time, so that other requests are not blocked."""
        async with self.computing:
            return await run_in_threadpool(work, *args, **kwargs)

    def set_cookie(self, response: Response, name: str, value: str, seconds: int | None = None) -> None:
        response.set_cookie(
            name, value, path="/", secure=self.console.secure, httponly=True, samesite="lax", max_age=seconds
        )

    def delete_cookie(self, response: Response, name: str) -> None:
        response.delete_cookie(name, path="/", secure=self.console.secure, httponly=True, samesite="lax")

    def signed_in(self, token: str, identity: Identity) -> SignedIn:
        handle = handle_of(token)

        def again() -> Identity:
            found = self.sessions.find(handle)
            if found is None:
                raise SignedOut("the session has ended, and nothing was done; sign in again")
            return found

        return SignedIn(identity, csrf_of(token), again, handle)


@dataclass(frozen=True)
class AccessMiddleware:
    """ASGI middleware in front of `app`.

    Attributes:
        session_of_page: the session for which a page was made, by the page's id; None if there is no such page.
        shown: removes this machine's paths from an error's text.
        shared_files: path of the scripts and styles that are open to everybody; empty: none.
    """

    app: App
    services: AccessServices
    session_of_page: Callable[[str], str | None]
    shown: Callable[[str], str]
    shared_files: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Request(self, scope, send).serve(receive)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, services = HTTPConnection(scope), self.services
        try:
            _check_host(services.console, connection.headers)
            _check_origin(services.console, connection.headers)
            claimed = identity_from_proxy(services.console, connection.headers, _address(connection))
        except Problem as problem:
            _log.warning("websocket refused: %s", problem.code)
            await send({"type": "websocket.close", "code": 4403})  # before it is accepted: HTTP 403
            return
        handle = handle_of(_token(services, connection))
        identity = await run_in_threadpool(services.sessions.find, handle, active=False)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        page = (query.get("client_id") or [""])[0]
        if identity is None or not _agree(identity, claimed) or self.session_of_page(page) != handle:
            # NiceGUI's own answer to an unknown page makes the browser reload it, which leads to the sign-in. Only the
            # first message passes; a second one ends the websocket.
            scope = dict(scope) | {"query_string": _UNKNOWN_PAGE}
            passes = iter([True])

            async def may_pass(message: Message) -> bool:
                return next(passes, False)

        else:

            async def may_pass(message: Message) -> bool:
                found = await run_in_threadpool(services.sessions.find, handle, active=False)
                return found is not None and _is_about(page, message)

        socket = _GuardedSocket(receive, send, may_pass)
        await self.app(scope, socket.receive, socket.send)


class _GuardedSocket:
    """A websocket that is closed at the first message that may not pass, as if the browser had closed it."""

    def __init__(self, receive: Receive, send: Send, may_pass: Callable[[Message], Awaitable[bool]]) -> None:
        self._receive = receive
        self._send = send
        self._may_pass = may_pass
        self._over = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.receive" and not self._over and not await self._may_pass(message):
            await self._send({"type": "websocket.close", "code": 4401})
            self._over = True
        return {"type": "websocket.disconnect", "code": 4401} if self._over else message

    async def send(self, message: Message) -> None:
        """Sends nothing after the end, which the application may not know of yet."""
        if not self._over:
            await self._send(message)


def _is_about(page: str, message: Message) -> bool:
    """Whether a message on a page's websocket is about that page.

    NiceGUI trusts the page's name in each event (Socket.IO: type 4, event 2, and a list). So a client that knew the
    name of another person's page could press its buttons.
    """
    text = message.get("text") or ""
    if text[:1] in ("2", "3") or text[:2] in ("40", "41"):  # ping, pong, connect, disconnect
        return True
    if text[:2] != "42":
        return False
    try:
        event = json.loads(text[text.index("[") :])
    except (ValueError, RecursionError):
        return False
    return all(item.get("client_id", page) == page for item in event if isinstance(item, dict))


class _Request:
    def __init__(self, gate: AccessMiddleware, scope: Scope, send: Send) -> None:
        self._gate = gate
        self._services = gate.services
        self._scope = scope
        self._send = send
        self._path: str = scope["path"]
        self._method = str(scope["method"])
        self._started = False
        self._cookie: str | None = None

    async def serve(self, receive: Receive) -> None:
        try:
            await self._admit()
            await self._gate.app(self._scope, _bounded(receive), self._answer)
        except Problem as problem:
            _log.info("%s refused: %d %s", self._log_words, problem.status, problem.code)
            await self._refuse(problem)
        except DpsynthError as error:
            await self._refuse(problem_of(error, self._gate.shown))
        except Exception as error:
            # Its text and its traceback may quote anything.
            _log.error("%s: unexpected error: %s", self._log_words, safe_error(error)[1])
            await self._refuse(UNEXPECTED)

    async def _admit(self) -> None:
        """Attaches the signed-in person to the request. Raises `Problem`."""
        console, connection = self._services.console, HTTPConnection(self._scope)
        # NiceGUI would trust a client's header for the path under which a proxy serves it.
        self._scope["headers"] = [item for item in self._scope["headers"] if item[0] != b"x-forwarded-prefix"]
        self._scope["state"] = dict(self._scope.get("state") or {}) | {"services": self._services}
        if self._path == HEALTH:
            return
        _check_host(console, connection.headers)
        claimed = identity_from_proxy(console, connection.headers, _address(connection))
        changing = self._method not in _SAFE
        if changing:
            _check_origin(console, connection.headers)
        if changing and not self._is_api and self._path not in _FORMS:
            raise Problem(405, "method", "accepted: GET", {"Allow": "GET, HEAD"})
        if self._path.startswith(_WEBSOCKET):
            raise Problem(400, "websocket", "accepted: a websocket")
        token = _token(self._services, connection)
        identity = await run_in_threadpool(self._services.sessions.find, handle_of(token)) if token else None
        if identity is not None and not _agree(identity, claimed):
            identity = None
        if claimed is not None and identity is None:
            token = await run_in_threadpool(self._new_session, token, claimed)
            self._cookie, identity = token, claimed
        if identity is not None:
            self._scope["state"]["signed_in"] = self._services.signed_in(token, identity)
        if self._path in _OPEN or self._is_shared_file:
            return
        if identity is None:
            raise SignedOut("nobody is signed in, or the session has ended; sign in at /sign-in")
        if changing and self._is_api and not equal_secrets(connection.headers.get(CSRF_HEADER, ""), csrf_of(token)):
            raise Problem(403, "csrf", f"accepted: the header {CSRF_HEADER} with the csrf token of GET /api/v1/session")

    def _new_session(self, token: str, claimed: Identity) -> str:
        """Ends the session of `token`, if any; returns the token of a new one for the proxy's identity."""
        if token:
            self._services.sessions.end(handle_of(token))
        return self._services.sessions.begin(claimed)

    async def _refuse(self, problem: Problem) -> None:
        """Answers with a problem, unless an answer has begun."""
        if self._started:
            return
        response = problem.response()
        if not self._is_api and problem.status == HTTPStatus.UNAUTHORIZED and problem.code == SignedOut.code:
            response = RedirectResponse(f"{SIGN_IN}?next={quote(self._asked_for, safe='')}", status_code=303)
        elif not self._is_api:
            response = problem.page()

        async def nothing() -> Message:
            return {"type": "http.disconnect"}

        await response(self._scope, nothing, self._answer)

    async def _answer(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            page = headers.get("x-nicegui-content") == "page"
            headers["Content-Security-Policy"] = _PAGE_POLICY if page else PLAIN_POLICY
            if self._services.console.secure:
                headers["Strict-Transport-Security"] = "max-age=31536000"
            if not (self._is_shared_file and message["status"] == HTTPStatus.OK):
                headers["Cache-Control"] = "no-store"
            if self._cookie is not None:
                carrier = Response()
                self._services.set_cookie(carrier, self._services.cookie, self._cookie)
                headers.append("Set-Cookie", carrier.headers["set-cookie"])
            if not self._is_shared_file:
                _log.info("%s %d", self._log_words, message["status"])
        await self._send(message)

    @property
    def _is_api(self) -> bool:
        return self._path.startswith(API)

    @property
    def _is_shared_file(self) -> bool:
        """Whether it is a file that is the same for everybody, unlike NiceGUI's `dynamic_resources`."""
        shared = self._gate.shared_files
        below = self._path.removeprefix(shared) if shared else self._path
        return below != self._path and not below.startswith("dynamic_resources")

    @property
    def _log_words(self) -> str:
        """What the log may contain of a request: of the client's text, only known words."""
        method = self._method if self._method in _METHODS else "*"
        first = self._path.split("/", 2)[1]
        return f"{method} /{first}" if first in _PLACES else f"{method} *"

    @property
    def _asked_for(self) -> str:
        query = self._scope.get("query_string", b"").decode("latin-1")
        return f"{quote(self._path)}?{query}" if query else quote(self._path)


def _token(services: AccessServices, connection: HTTPConnection) -> str:
    return connection.cookies.get(services.cookie, "")[:LONGEST_TOKEN]


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def _agree(identity: Identity, claimed: Identity | None) -> bool:
    """Whether a session matches the proxy's claim and its present roles. Without a claim, proxy sessions have ended."""
    return claimed == identity if claimed is not None else identity.how != PROXY


def _check_host(console: ConsoleSettings, headers: Headers) -> None:
    named = headers.getlist("host")
    if len(named) != 1 or named[0] not in console.hosts:
        raise Problem(421, "host", f"accepted: {console.url}")


def _check_origin(console: ConsoleSettings, headers: Headers) -> None:
    """Raises `Problem` for a request from elsewhere than the console's own pages. Call `_check_host` before."""
    own = f"{urlsplit(console.url).scheme}://{headers['host']}"
    foreign = headers.get("sec-fetch-site", "same-origin") != "same-origin"
    if foreign or headers.getlist("origin") != [own]:
        raise Problem(403, "origin", f"accepted: from the console's own pages, or with Origin: {own}")


def _bounded(receive: Receive) -> Receive:
    """A request's body within limits of size and time; reading raises `Problem` beyond them."""
    seen, whole, end = 0, False, asyncio.get_running_loop().time() + _BODY_SECONDS

    async def counted() -> Message:
        nonlocal seen, whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout_at(end):
                message = await receive()
        except TimeoutError:
            raise Problem(408, "too-slow", f"the body took more than {_BODY_SECONDS:g} s") from None
        seen += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if seen > MOST_BYTES:
            raise Problem(413, "too-large", f"accepted: at most {MOST_BYTES} bytes")
        return message

    return counted
