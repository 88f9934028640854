"""The gate before everything: who may reach a page, the API or a page's websocket, and what every answer carries.

What belongs here: the middleware, cookies, the checks of a request's origin, and security headers. What does not: how
somebody signs in (`sign_in`), and what a role allows (the API and the pages ask `identity`).

Closed by default. Open are the sign-in itself, whether the console lives, and NiceGUI's own scripts and styles, which
are the same for everybody. Then, in this order:

1. The `Host` must be the console's own: a page of elsewhere whose name was made to point here gets nothing.
2. Headers that claim an identity must be the trusted proxy's, or the request is refused.
3. What changes something must come from the console's own pages (`Origin`), and carry the session's CSRF token. What a
   browser sends along by itself, the cookie, is not enough.
4. There must be a live session; pages lead to the sign-in, everything else answers 401.
5. A page's websocket must come from the console's own pages, and belong to the session that the page was made for. It
   lives as long as that session, and speaks of that page alone: whatever comes through it is looked at again.
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
from dpsynth_platform.console.proxy import PROXY, told_by_proxy
from dpsynth_platform.console.sessions import LONGEST_TOKEN, Sessions, csrf_of, handle_of, same
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
"""The most that a request's body may hold: decisions with their reasons."""

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
"""First parts of the paths that the log may tell."""
_NOBODYS_PAGE = b"EIO=4&transport=websocket&implicit_handshake=true&client_id=signed-out"

# NiceGUI writes each page's start and import map as inline scripts and compiles Vue's templates in the browser, hence
# 'unsafe-inline' and 'unsafe-eval'; Quasar sets styles on elements. What is shown is put in as text, never as markup.
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
    # Not `no-referrer`: with it browsers send `Origin: null` with the console's own forms.
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

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Desk:
    """All that is needed to let somebody in.

    Attributes:
        hashing: held while a password is looked at, which takes much memory.
        asking: held while the provider is asked, which may not answer for long.
        computing: held while something is computed that takes seconds: see `compute`.
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
    def of(cls, console: ConsoleSettings, clock: Callable[[], float] = time.time) -> Desk:
        """The desk of a console. Raises `ConfigurationError` where its database cannot be used."""
        ways = [
            way for way, there in ((PASSWORD, console.local), (OIDC, console.oidc), (PROXY, console.proxy)) if there
        ]
        store = Store(console.home)
        sessions = Sessions(store, console.sessions, ways, clock)
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
        """The name of the session's cookie; with this prefix browsers take it from the console's own host alone."""
        return "__Host-dpsynth" if self.console.secure else "dpsynth"

    async def compute(self, work: Callable[_Given, _Made], *given: _Given.args, **named: _Given.kwargs) -> _Made:
        """Does what takes seconds, one at a time: it would keep everybody from what does not."""
        async with self.computing:
            return await run_in_threadpool(work, *given, **named)

    def keep(self, response: Response, name: str, value: str, seconds: int | None = None) -> None:
        """Puts a cookie of ours on an answer."""
        response.set_cookie(
            name, value, path="/", secure=self.console.secure, httponly=True, samesite="lax", max_age=seconds
        )

    def signed_in(self, token: str, identity: Identity) -> SignedIn:
        """What is left with a request of a session."""
        handle = handle_of(token)

        def again() -> Identity:
            found = self.sessions.find(handle)
            if found is None:
                raise SignedOut("the session has ended, and nothing was done; sign in again")
            return found

        return SignedIn(identity, csrf_of(token), again, handle)


class Access:
    """The gate, as ASGI middleware.

    Args:
        app: what is behind it.
        desk: who may pass.
        session_of_page: the session for which a page was made, by the page's id; None: there is no such page.
        shown: makes an error's text one for people who need not know where on this machine things are.
        library: where scripts and styles are that everybody may have; nothing: nowhere.
    """

    def __init__(
        self,
        app: App,
        desk: Desk,
        session_of_page: Callable[[str], str | None],
        shown: Callable[[str], str],
        library: str = "",
    ) -> None:
        self._app = app
        self._shown = shown
        self._desk = desk
        self._session_of_page = session_of_page
        self._library = library

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection."""
        if scope["type"] == "http":
            await _Request(self._app, self._desk, self._shown, self._library, scope, send).serve(receive)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        try:
            _check_host(self._desk.console, connection.headers)
            _check_origin(self._desk.console, connection.headers)
            told = told_by_proxy(self._desk.console, connection.headers, _address(connection))
        except Problem as problem:
            _log.warning("websocket refused: %s", problem.code)
            await send({"type": "websocket.close", "code": 4403})  # before it is accepted: HTTP 403
            return
        handle = handle_of(_token(self._desk, connection))
        identity = await run_in_threadpool(self._desk.sessions.find, handle, active=False)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        page = (query.get("client_id") or [""])[0]
        if identity is None or not _agree(identity, told) or self._session_of_page(page) != handle:
            # NiceGUI's own answer to a page that it does not know makes the browser load it again, which leads to the
            # sign-in. It can be asked for nothing else: a second message ends it.
            scope = dict(scope) | {"query_string": _NOBODYS_PAGE}
            nobodys = _Ending(receive, send, _Countdown(1))
            await self._app(scope, nobodys.receive, nobodys.send)
            return

        async def lives(message: Message) -> bool:
            found = await run_in_threadpool(self._desk.sessions.find, handle, active=False)
            return found is not None and _is_about(page, message)

        living = _Ending(receive, send, lives)
        await self._app(scope, living.receive, living.send)


class _Countdown:
    """Lets a number of messages pass."""

    def __init__(self, messages: int) -> None:
        self._left = messages

    async def __call__(self, message: Message) -> bool:
        self._left -= 1
        return self._left >= 0


class _Ending:
    """A websocket as long as it may live; then it is closed, and looks as if the browser had closed it."""

    def __init__(self, receive: Receive, send: Send, lives: Callable[[Message], Awaitable[bool]]) -> None:
        self._receive = receive
        self._send = send
        self._lives = lives
        self._over = False

    async def receive(self) -> Message:
        """The next message, if it still may come."""
        message = await self._receive()
        if message["type"] == "websocket.receive" and not self._over and not await self._lives(message):
            await self._send({"type": "websocket.close", "code": 4401})
            self._over = True
        return {"type": "websocket.disconnect", "code": 4401} if self._over else message

    async def send(self, message: Message) -> None:
        """Sends a message; none any more after the end, of which whoever answers may not know yet."""
        if not self._over:
            await self._send(message)


def _is_about(page: str, message: Message) -> bool:
    """Whether what comes through a page's websocket is about that page.

    NiceGUI believes the name of the page that each event carries (Socket.IO: type 4, event 2, and a list), so that one
    who knew the name of somebody else's page could press its buttons in their name.
    """
    text = message.get("text") or ""
    if text[:1] in ("2", "3") or text[:2] in ("40", "41"):  # whether somebody is there, coming, going
        return True
    if text[:2] != "42":
        return False
    try:
        told = json.loads(text[text.index("[") :])
    except (ValueError, RecursionError):
        return False
    return all(item.get("client_id", page) == page for item in told if isinstance(item, dict))


class _Request:
    """One HTTP request on its way through the gate."""

    def __init__(
        self, app: App, desk: Desk, shown: Callable[[str], str], library: str, scope: Scope, send: Send
    ) -> None:
        self._app = app
        self._desk = desk
        self._shown = shown
        self._library = library
        self._scope = scope
        self._send = send
        self._path: str = scope["path"]
        self._started = False
        self._cookie: str | None = None

    async def serve(self, receive: Receive) -> None:
        """Lets it pass, or answers it."""
        try:
            await self._admit()
            await self._app(self._scope, _bounded(receive), self._answer)
        except Problem as problem:
            _log.info("%s refused: %d %s", self._told, problem.status, problem.code)
            await self._say(problem)
        except DpsynthError as error:
            await self._say(problem_of(error, self._shown))
        except Exception as error:
            # Its text may quote anything; so may the traceback.
            _log.error("%s: unexpected error: %s", self._told, safe_error(error)[1])
            await self._say(UNEXPECTED)

    async def _admit(self) -> None:
        """Raises `Problem`, or leaves with the request who made it."""
        console, connection = self._desk.console, HTTPConnection(self._scope)
        # NiceGUI would take a client's word for the place at which a proxy shows it.
        self._scope["headers"] = [item for item in self._scope["headers"] if item[0] != b"x-forwarded-prefix"]
        self._scope["state"] = dict(self._scope.get("state") or {}) | {"desk": self._desk}
        if self._path == HEALTH:
            return
        _check_host(console, connection.headers)
        told = told_by_proxy(console, connection.headers, _address(connection))
        changing = self._method not in _SAFE
        if changing:
            _check_origin(console, connection.headers)
        if changing and not self._is_api and self._path not in _FORMS:
            raise Problem(405, "method", "accepted: GET", {"Allow": "GET, HEAD"})
        if self._path.startswith(_WEBSOCKET):
            raise Problem(400, "websocket", "accepted: a websocket")
        token = _token(self._desk, connection)
        identity = await run_in_threadpool(self._desk.sessions.find, handle_of(token)) if token else None
        if identity is not None and not _agree(identity, told):
            identity = None
        if told is not None and identity is None:
            token = await run_in_threadpool(self._exchanged, token, told)
            self._cookie, identity = token, told
        if identity is not None:
            self._scope["state"]["signed_in"] = self._desk.signed_in(token, identity)
        if self._path in _OPEN or self._is_library:
            return
        if identity is None:
            raise SignedOut("nobody is signed in, or the session has ended; sign in at /sign-in")
        if changing and self._is_api and not same(connection.headers.get(CSRF_HEADER, ""), csrf_of(token)):
            raise Problem(403, "csrf", f"accepted: the header {CSRF_HEADER} with what GET /api/v1/session tells")

    def _exchanged(self, token: str, told: Identity) -> str:
        """The token of a new session of whom the proxy names, after whatever was there before has ended."""
        if token:
            self._desk.sessions.end(handle_of(token))
        return self._desk.sessions.begin(told)

    async def _say(self, problem: Problem) -> None:
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
            if self._desk.console.secure:
                headers["Strict-Transport-Security"] = "max-age=31536000"
            if not (self._is_library and message["status"] == HTTPStatus.OK):
                headers["Cache-Control"] = "no-store"
            if self._cookie is not None:
                carrier = Response()
                self._desk.keep(carrier, self._desk.cookie, self._cookie)
                headers.append("Set-Cookie", carrier.headers["set-cookie"])
            if not self._is_library:
                _log.info("%s %d", self._told, message["status"])
        await self._send(message)

    @property
    def _method(self) -> str:
        return str(self._scope["method"])

    @property
    def _is_api(self) -> bool:
        return self._path.startswith(API)

    @property
    def _is_library(self) -> bool:
        """Whether it is a file that is the same for everybody; NiceGUI makes its `dynamic_resources` as it goes."""
        below = self._path.removeprefix(self._library) if self._library else self._path
        return below != self._path and not below.startswith("dynamic_resources")

    @property
    def _told(self) -> str:
        """What of a request may be logged: of what the client wrote, only what we know."""
        method = self._method if self._method in _METHODS else "*"
        first = self._path.split("/", 2)[1]
        return f"{method} /{first}" if first in _PLACES else f"{method} *"

    @property
    def _asked_for(self) -> str:
        query = self._scope.get("query_string", b"").decode("latin-1")
        return f"{quote(self._path)}?{query}" if query else quote(self._path)


def _token(desk: Desk, connection: HTTPConnection) -> str:
    return connection.cookies.get(desk.cookie, "")[:LONGEST_TOKEN]


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def _agree(identity: Identity, told: Identity | None) -> bool:
    """Whether a session is of whom the proxy names, with the roles of now. Without the proxy, its sessions are over."""
    return told == identity if told is not None else identity.how != PROXY


def _check_host(console: ConsoleSettings, headers: Headers) -> None:
    named = headers.getlist("host")
    if len(named) != 1 or named[0] not in console.hosts:
        raise Problem(421, "host", f"accepted: {console.url}")


def _check_origin(console: ConsoleSettings, headers: Headers) -> None:
    """Raises `Problem` for what does not come from a page of the console's own. The host was checked before."""
    own = f"{urlsplit(console.url).scheme}://{headers['host']}"
    elsewhere = headers.get("sec-fetch-site", "same-origin") != "same-origin"
    if elsewhere or headers.getlist("origin") != [own]:
        raise Problem(403, "origin", f"accepted: from the console's own pages, or with Origin: {own}")


def _bounded(receive: Receive) -> Receive:
    """What a request brings, within limits of size and time. Raises `Problem` beyond them."""
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
