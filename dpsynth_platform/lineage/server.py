"""The receiver: an HTTP server to which other producers report lineage with OpenLineage's clients.

What belongs here: HTTP. What does not: reading and checking events (`ingest`), what they may report (`store`), and
tokens (`producers`).

    POST /api/v1/lineage         one run, job or dataset event
    POST /api/v1/lineage/batch   a list of them
    GET  /health

A success is 201, or 200 if everything was known before. Every other answer is problem JSON (RFC 9457), with a code and
what is accepted. Neither it nor the log quotes what was sent. A permanent refusal is 4xx. After 5xx a client may send
again, which changes nothing if the first attempt was recorded.

Without producers' tokens it serves its own machine only. A page in a local browser could still post. So events must
have the type `application/json`, which a page cannot send to another origin without permission, and this machine as
host. There is no encryption; a proxy must add it for other machines.
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
from dpsynth_platform.lineage.producers import Producer, owner_of
from dpsynth_platform.lineage.store import LineageStore

PATH = "/api/v1/lineage"
OWN_MACHINE = ("127.0.0.1", "localhost")
LOCAL_PRODUCER = "this-machine"
"""The producer's name of events without a token."""

_MOST_DISCARDED = 4
"""Of a body that is too large, bytes that are read and discarded, in multiples of `ingest.MOST_BYTES`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Attributes:
        at_once: requests that are being served; further ones are answered 503.
        connections: open connections; further ones are closed.
        seconds: the time for a request's body to arrive.
    """

    at_once: int = 16
    connections: int = 200
    seconds: float = 20.0


def application(store: LineageStore, producers: Sequence[Producer], limits: Limits | None = None) -> Starlette:
    """The receiver as an ASGI application; without producers it accepts all events from its own machine."""
    receiver = _Receiver(store, producers, limits or Limits())
    return Starlette(
        routes=[
            Route(PATH, receiver.one, methods=["POST"]),
            Route(f"{PATH}/batch", receiver.batch, methods=["POST"]),
            Route("/health", receiver.health, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _not_found},
    )


def listen(host: str, port: int, producers: Sequence[Producer]) -> socket.socket:
    """Listens at the receiver's address; port 0 chooses a free one.

    Raises:
        ConfigurationError: other machines can reach the address and there are no tokens, or it cannot be bound.
    """
    if not producers and host not in OWN_MACHINE:
        raise ConfigurationError(
            f"--host {host}: without tokens anyone who reaches the receiver may report; accepted: "
            f"{' or '.join(OWN_MACHINE)}, or DPSYNTH_LINEAGE_TOKENS with a file that `dpsynth lineage token` wrote"
        )
    return listening_at(host, port)


def serve(listening: socket.socket, app: Starlette, limits: Limits | None = None) -> None:
    """Serves until the process is asked to end, and then finishes the present requests."""
    connections = (limits or Limits()).connections
    serving.serve(listening, app, logs=(__name__,), connections=connections, ws="none", lifespan="off")


class _Problem(Exception):
    """An answer that is no success (RFC 9457). Its text is ours and safe."""

    def __init__(self, status: int, code: str, detail: str, *, headers: Mapping[str, str] = {}, **more: Any) -> None:
        self.status = status
        self._content = {"type": f"urn:dpsynth-platform:problem:{code}", "title": code, "status": status}
        self._content |= {"detail": detail, **more}
        self._headers = dict(headers)

    def response(self) -> Response:
        return JSONResponse(self._content, self.status, self._headers, media_type="application/problem+json")


_Answer = tuple[int, dict[str, Any]]
"""Status and content."""


class _Receiver:
    def __init__(self, store: LineageStore, producers: Sequence[Producer], limits: Limits) -> None:
        self._store = store
        self._producers = tuple(producers)
        self._limits = limits
        self._serving = 0

    async def one(self, request: Request) -> Response:
        return await self._answered(request, self._take)

    async def batch(self, request: Request) -> Response:
        return await self._answered(request, self._take_all)

    async def health(self, request: Request) -> Response:
        return await self._logged(request, "-", self._health)

    def _take(self, body: bytes, producer: str) -> _Answer:
        recorded = ingest.record(self._store, body, producer)
        return (201, {"state": "recorded"}) if recorded.new else (200, {"state": "known"})

    def _take_all(self, body: bytes, producer: str) -> _Answer:
        outcomes = ingest.record_all(self._store, body, producer)
        refused = [
            {"number": item.number, "state": item.state, "reason": item.reason}
            for item in outcomes
            if not item.accepted
        ]
        if refused:
            detail = f"{len(refused)} of {len(outcomes)} events were refused; the others were recorded"
            status = 409 if all(item["state"] == "conflict" for item in refused) else 400
            raise _Problem(status, "events-refused", detail, refused=refused)
        new = sum(item.state == "recorded" for item in outcomes)
        return (201 if new else 200), {"recorded": new, "known": len(outcomes) - new}

    async def _health(self) -> _Answer:
        await asyncio.to_thread(self._store.database.read, lambda connection: None)
        return 200, {"state": "ok"}

    async def _answered(self, request: Request, take: Callable[[bytes, str], _Answer]) -> Response:
        try:
            producer = self._producer(request)
        except _Problem as problem:
            _log_request(request, "-", problem.status)
            return problem.response()

        async def work() -> _Answer:
            body = await self._body(request)
            return await asyncio.to_thread(take, body, producer)

        return await self._logged(request, producer, work)

    async def _logged(self, request: Request, producer: str, work: Callable[[], Awaitable[_Answer]]) -> Response:
        """Serves one request within the limits; every outcome becomes an answer and a line of the log."""
        try:
            response = await self._served(work)
        except Exception as error:
            problem = _problem(error)
            if problem.status == 500:
                _log.error("unexpected error: %s", safe_error(error)[1])
            response = problem.response()
        _log_request(request, producer, response.status_code)
        return response

    async def _served(self, work: Callable[[], Awaitable[_Answer]]) -> Response:
        if self._serving >= self._limits.at_once:
            raise _Problem(503, "busy", "too many requests at once; send it again", headers={"Retry-After": "1"})
        self._serving += 1
        try:
            status, content = await work()
        finally:
            self._serving -= 1
        return JSONResponse(content, status)

    def _producer(self, request: Request) -> str:
        """The sender's name. Raises `_Problem`."""
        if not self._producers:
            if request.headers.get("host", "").rpartition(":")[0] not in OWN_MACHINE:
                raise _Problem(403, "another-host", f"accepted: {' or '.join(OWN_MACHINE)} with the port as the host")
            return LOCAL_PRODUCER
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        found = owner_of(token.strip(), self._producers) if kind.lower() == "bearer" else None
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
    """The body. One that is too large is read further and discarded, so that its sender can receive the answer."""
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= ingest.MOST_BYTES:
            body += part
        elif size > _MOST_DISCARDED * ingest.MOST_BYTES:
            break
    if size > ingest.MOST_BYTES:
        raise _too_large()
    return bytes(body)


def _unpacked(body: bytes) -> bytes:
    """The unpacked gzip body, never more than is accepted. Raises `_Problem`."""
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
    detail = (
        f"accepted: at most {ingest.MOST_BYTES:,} bytes, unpacked, in one request; send events one by one; of a larger "
        "one, leave out facets, or spread its datasets over several events of its run (eventType RUNNING)"
    )
    return _Problem(413, "too-large", detail)


def _problem(error: Exception) -> _Problem:
    """The answer to an error; it shows nothing of an error that is not ours."""
    if isinstance(error, _Problem):
        return error
    if isinstance(error, LineageRefused):
        return _Problem(409 if error.conflict else 400, "conflict" if error.conflict else "event-refused", str(error))
    if isinstance(error, LedgerError):
        detail = "the graph cannot be written now; nothing is lost if the event is sent again"
        return _Problem(503, "database-away", detail, headers={"Retry-After": "5"})
    return _Problem(500, "unexpected", "the receiver's log names the error")


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    _log_request(request, "-", status)
    return _Problem(status, "no-such-place", f"accepted: POST {PATH}, POST {PATH}/batch, GET /health").response()


def _log_request(request: Request, producer: str, status: int) -> None:
    """Writes one line of the log, which shows only paths and methods that we know."""
    path = request.url.path if request.url.path in (PATH, f"{PATH}/batch", "/health") else "*"
    method = request.method if request.method in ("GET", "POST") else "*"
    _log.info("%s %s %s %d", producer, method, path, status)
