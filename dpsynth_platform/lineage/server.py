"""The receiver: an HTTP server at which other producers report lineage, as OpenLineage's clients send it.

What belongs here: HTTP. What does not: reading and checking events (`ingest`), what they may say (`store`), and whose
a token is (`producers`).

    POST /api/v1/lineage         one run, job or dataset event
    POST /api/v1/lineage/batch   a list of them
    GET  /health

A success is 201, or 200 where everything was known before. Every other answer is problem JSON (RFC 9457), with a code
and a way out and without a word of what was sent; so is the log. What is refused for good answers 4xx; 503 and the like
may be tried again, which changes nothing where the first try was recorded after all.

Without producers' tokens it serves its own machine alone. Even there a page in somebody's browser could post: events
must come as `application/json`, which a page cannot send elsewhere unasked, and name this machine as their host. There
is no encryption here; elsewhere a proxy in front of it has that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpsynth_platform.foundation import serving
from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError, LineageRefused
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.serving import listening_at
from dpsynth_platform.lineage import ingest
from dpsynth_platform.lineage.producers import Producer, whose
from dpsynth_platform.lineage.store import LineageStore

PATH = "/api/v1/lineage"
OWN_MACHINE = ("127.0.0.1", "localhost")
ANYBODY_HERE = "this-machine"
"""Under which name events are recorded that came without a token."""

_HEARD_OUT = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one request may take, and how many may be served.

    Attributes:
        at_once: requests that are being served; further ones are told to come again.
        connections: open connections; further ones are closed.
        seconds: within which a request's body has arrived.
    """

    at_once: int = 16
    connections: int = 200
    seconds: float = 20.0


def application(store: LineageStore, producers: Sequence[Producer], limits: Limits | None = None) -> Starlette:
    """The receiver as an ASGI application.

    Args:
        producers: who may report; if empty, whoever reaches it from its own machine.
    """
    receiver = _Receiver(store, producers, limits or Limits())
    return Starlette(
        routes=[
            Route(PATH, receiver.one, methods=["POST"]),
            Route(f"{PATH}/batch", receiver.batch, methods=["POST"]),
            Route("/health", receiver.health, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_such_place},
    )


def listen(host: str, port: int, producers: Sequence[Producer]) -> socket.socket:
    """Listens at the receiver's address; port 0 takes a free one.

    Raises:
        ConfigurationError: the address is other machines' to reach and there are no tokens, or cannot be bound.
    """
    if not producers and host not in OWN_MACHINE:
        raise ConfigurationError(
            f"--host {host}: without tokens whoever reaches the receiver may report; accepted: "
            f"{' or '.join(OWN_MACHINE)}, or DPSYNTH_LINEAGE_TOKENS with a file that `dpsynth lineage token` wrote"
        )
    return listening_at(host, port)


def serve(listening: socket.socket, app: Starlette, limits: Limits | None = None) -> None:
    """Serves until the process is asked to end; requests that are being served are finished first."""
    connections = (limits or Limits()).connections
    serving.serve(listening, app, logs=(__name__,), connections=connections, ws="none", lifespan="off")


class _Problem(Exception):
    """An answer that is no success (RFC 9457). Its words are ours and safe."""

    def __init__(self, status: int, code: str, detail: str, *, headers: Mapping[str, str] = {}, **more: Any) -> None:
        self.status = status
        self._content = {"type": f"urn:dpsynth-platform:problem:{code}", "title": code, "status": status}
        self._content |= {"detail": detail, **more}
        self._headers = dict(headers)

    def response(self) -> Response:
        return JSONResponse(self._content, self.status, self._headers, media_type="application/problem+json")


_Told = tuple[int, dict[str, Any]]


class _Receiver:
    def __init__(self, store: LineageStore, producers: Sequence[Producer], limits: Limits) -> None:
        self._store = store
        self._producers = tuple(producers)
        self._limits = limits
        self._serving = 0

    async def one(self, request: Request) -> Response:
        """One event."""
        return await self._answered(request, self._take)

    async def batch(self, request: Request) -> Response:
        """A list of events."""
        return await self._answered(request, self._take_all)

    async def health(self, request: Request) -> Response:
        """Whether events could be recorded now."""
        return await self._logged(request, "-", self._health)

    def _take(self, body: bytes, producer: str) -> _Told:
        recorded = ingest.take(self._store, body, producer)
        return (201, {"state": "recorded"}) if recorded.new else (200, {"state": "known"})

    def _take_all(self, body: bytes, producer: str) -> _Told:
        outcomes = ingest.take_all(self._store, body, producer)
        refused = [
            {"number": item.number, "state": item.state, "reason": item.reason} for item in outcomes if not item.taken
        ]
        if refused:
            words = f"{len(refused)} of {len(outcomes)} events were not taken in; the others were"
            status = 409 if all(item["state"] == "conflict" for item in refused) else 400
            raise _Problem(status, "events-refused", words, refused=refused)
        new = sum(item.state == "recorded" for item in outcomes)
        return (201 if new else 200), {"recorded": new, "known": len(outcomes) - new}

    async def _health(self) -> _Told:
        await asyncio.to_thread(self._store.database.read, lambda connection: None)
        return 200, {"state": "ok"}

    async def _answered(self, request: Request, take: Callable[[bytes, str], _Told]) -> Response:
        try:
            producer = self._producer(request)
        except _Problem as problem:
            _told(request, "-", problem.status)
            return problem.response()

        async def work() -> _Told:
            body = await self._body(request)
            return await asyncio.to_thread(take, body, producer)

        return await self._logged(request, producer, work)

    async def _logged(self, request: Request, producer: str, work: Callable[[], Awaitable[_Told]]) -> Response:
        """Serves one request if there is room for it; whatever happens becomes an answer and a line of the log."""
        try:
            response = await self._served(work)
        except Exception as error:
            problem = _problem(error)
            if problem.status == 500:
                _log.error("unexpected error: %s", safe_error(error)[1])
            response = problem.response()
        _told(request, producer, response.status_code)
        return response

    async def _served(self, work: Callable[[], Awaitable[_Told]]) -> Response:
        if self._serving >= self._limits.at_once:
            raise _Problem(503, "busy", "too many requests at once; send it again", headers={"Retry-After": "1"})
        self._serving += 1
        try:
            status, content = await work()
        finally:
            self._serving -= 1
        return JSONResponse(content, status)

    def _producer(self, request: Request) -> str:
        """Who sends. Raises `_Problem`."""
        if not self._producers:
            if request.headers.get("host", "").rpartition(":")[0] not in OWN_MACHINE:
                raise _Problem(403, "another-host", f"accepted: {' or '.join(OWN_MACHINE)} with the port as the host")
            return ANYBODY_HERE
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        found = whose(token.strip(), self._producers) if kind.lower() == "bearer" else None
        if found is None:
            raise _Problem(
                401, "no-token", "accepted: Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"}
            )
        return found

    async def _body(self, request: Request) -> bytes:
        """The request's body, unpacked. Raises `_Problem`."""
        kind, _, parameters = request.headers.get("content-type", "").partition(";")
        charset = parameters.strip().lower().replace('"', "")
        if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
            raise _Problem(415, "content-type", "accepted: application/json in UTF-8")
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip"):
            raise _Problem(415, "content-encoding", "accepted: gzip or none", headers={"Accept-Encoding": "gzip"})
        try:
            async with asyncio.timeout(self._limits.seconds):
                body = await _bounded(request)
        except TimeoutError:
            raise _Problem(408, "too-slow", f"the body took more than {self._limits.seconds:g} s") from None
        except ClientDisconnect:
            raise _Problem(400, "cut-off", "the connection ended within the body") from None
        return body if encoding == "identity" else _unpacked(body)


async def _bounded(request: Request) -> bytes:
    """The body; one that is too large is not kept, but read on for a while, so that its sender can hear the answer."""
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= ingest.MOST_BYTES:
            body += part
        elif size > _HEARD_OUT * ingest.MOST_BYTES:
            break
    if size > ingest.MOST_BYTES:
        raise _too_large()
    return bytes(body)


def _unpacked(body: bytes) -> bytes:
    """What was packed by gzip, without ever holding more of it than is accepted. Raises `_Problem`."""
    unpacking = zlib.decompressobj(wbits=31)
    try:
        found = unpacking.decompress(body, ingest.MOST_BYTES + 1)
    except zlib.error:
        raise _Problem(400, "not-gzip", "the body is not packed as its header says") from None
    if len(found) > ingest.MOST_BYTES:
        raise _too_large()
    if not unpacking.eof or unpacking.unused_data:
        raise _Problem(400, "not-gzip", "accepted: one gzip member, whole, and nothing after it")
    return found


def _too_large() -> _Problem:
    words = (
        f"accepted: at most {ingest.MOST_BYTES:,} bytes, unpacked, in one request; send events one by one; of a larger "
        "one, leave out facets, or spread its datasets over several events of its run (eventType RUNNING)"
    )
    return _Problem(413, "too-large", words)


def _problem(error: Exception) -> _Problem:
    """What an error is answered with; of one that is not ours nothing is told."""
    if isinstance(error, _Problem):
        return error
    if isinstance(error, LineageRefused):
        return _Problem(409 if error.conflict else 400, "conflict" if error.conflict else "event-refused", str(error))
    if isinstance(error, LedgerError):
        words = "the graph cannot be written now; nothing is lost if the event is sent again"
        return _Problem(503, "database-away", words, headers={"Retry-After": "5"})
    return _Problem(500, "unexpected", "the receiver's log names the error")


async def _no_such_place(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    _told(request, "-", status)
    words = f"accepted: POST {PATH}, POST {PATH}/batch, GET /health"
    return _Problem(status, "no-such-place", words).response()


def _told(request: Request, producer: str, status: int) -> None:
    """One line of the log; of what the client wrote, only what we know."""
    path = request.url.path if request.url.path in (PATH, f"{PATH}/batch", "/health") else "*"
    method = request.method if request.method in ("GET", "POST") else "*"
    _log.info("%s %s %s %d", producer, method, path, status)
