"""Requests to an endpoint of a generative model, in parallel, with deadlines, repetitions and bounded answers.

What belongs here: sending documents, repeating, and counting what failed. What does not: what a document contains and
what an answer means (`text.endpoints`, `images.foundations_endpoint`), and the allowed endpoints with their keys
(`endpoint_access`).

**No endpoint delays a run without limit or fills its memory.** A request has one deadline, from its first byte to the
last one of its answer, and its own connection. At most a declared number of an answer's bytes is read, as a stream and
never decompressed. After `MOST_FAILED` requests in a row without an answer, no further one is sent.

No message and no log contains a document, an answer or the key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

import httpx2

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.endpoint_access import Access, Endpoint

Answer = TypeVar("Answer")

MOST_FAILED = 32
"""Requests in a row without an answer, after which the others are not sent."""
LONGEST_WAIT = 60.0
"""The most seconds before a request is repeated, even if the endpoint requests more."""
FIRST_WAIT = 0.5
"""Seconds before the first repetition, unless the endpoint requests more; doubled before each further one."""
_REFUSED = (401, 403, 404, 405)
"""Statuses of a wrong address, model or key."""

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each of thousands of requests


class UnusableAnswer(Exception):
    """An answer that is dropped; its argument is the reason. The request is repeated."""


@dataclass(frozen=True)
class Request:
    """A document for a path below the endpoint's address."""

    path: str
    document: dict[str, Any] = field(repr=False)


@dataclass
class EndpointCalls:
    """An endpoint that answers documents.

    Attributes:
        access: its key and transport, when a request is sent.
        setting: the endpoint's path in a contract, for messages.
        accepted: what an endpoint that refuses should be given, for messages.
        most_bytes: of an answer; a longer one is dropped, and not read to its end.
        dropped: how many requests were repeated or had no answer, by reason.
    """

    endpoint: Endpoint
    access: Callable[[], Access]
    setting: str
    accepted: str
    most_bytes: int
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._counting = Lock()
        self._failed = 0
        # No certificates, proxies or credentials from the environment.
        self._certificates = httpx2.create_ssl_context(trust_env=False)

    def answers(self, requests: Sequence[Request], read: Callable[[bytes | None], Answer]) -> list[Answer | None]:
        """What each answer says; None where there was none after all repetitions.

        Args:
            read: of an answer's content, None if it is compressed or too long. Raises `UnusableAnswer`.

        Raises:
            ConfigurationError: the endpoint does not accept the key, the model or the address.
        """
        self._failed = 0
        with ThreadPoolExecutor(self.access().transport.at_once) as workers:
            return list(workers.map(lambda request: self._answer(request, read), requests))

    @property
    def failures(self) -> str:
        """What failed so far, for messages."""
        return ", ".join(f"{reason} ({times})" for reason, times in sorted(self.dropped.items()))

    def _answer(self, request: Request, read: Callable[[bytes | None], Answer]) -> Answer | None:
        if self._failed >= MOST_FAILED:
            self._count("not asked")
            return None
        answer = self._retried(request, read)
        with self._counting:
            self._failed = self._failed + 1 if answer is None else 0
        return answer

    def _retried(self, request: Request, read: Callable[[bytes | None], Answer]) -> Answer | None:
        """The first answer to a request, after repetitions."""
        wait = FIRST_WAIT
        for attempt in range(self.access().transport.attempts):
            if attempt:
                time.sleep(min(wait, LONGEST_WAIT))
                wait *= 2
            try:
                status, requested_wait, content = asyncio.run(self._sent(request))
            except (TimeoutError, httpx2.TimeoutException):
                self._count("timeout")
            except (httpx2.HTTPError, OSError):
                self._count("unreachable")
            else:
                if status in _REFUSED:
                    raise ConfigurationError(
                        f"{self.setting}: {self.endpoint.host} answers with status {status}; accepted: {self.accepted}"
                    )
                if status == 200:
                    try:
                        return read(content)
                    except UnusableAnswer as unusable:
                        self._count(str(unusable))
                elif status in (408, 429) or status >= 500:
                    self._count("rate limit" if status == 429 else "server error")
                    wait = max(wait, requested_wait)
                else:
                    self._count("rejected")
                    return None
        self._count("given up")
        return None

    async def _sent(self, request: Request) -> tuple[int, float, bytes | None]:
        """Status, the seconds until the next request, and the content unless it is compressed or too long.

        Raises:
            TimeoutError: the request did not end in time, including name resolution and connection.
        """
        access, url = self.access(), f"{self.endpoint.url.rstrip('/')}/{request.path}"
        async with (
            asyncio.timeout(access.transport.seconds),
            self._client(access) as client,
            client.stream("POST", url, json=request.document) as response,
        ):
            wait = _seconds(response.headers.get("Retry-After"))
            if response.headers.get("Content-Encoding", "identity") != "identity":
                return response.status_code, wait, None  # it may decompress to much more
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > self.most_bytes:
                    return response.status_code, wait, None
            return response.status_code, wait, bytes(content)

    def _client(self, access: Access) -> httpx2.AsyncClient:
        """A client without proxies and credentials from the environment, and without redirects to other hosts."""
        key = {"Authorization": f"Bearer {access.key}"} if access.key else {}
        return httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity"} | key,
            timeout=access.transport.seconds,
            trust_env=False,
            follow_redirects=False,
            verify=self._certificates,
        )

    def _count(self, reason: str) -> None:
        with self._counting:
            self.dropped[reason] += 1


def _seconds(header: str | None) -> float:
    """The seconds of a `Retry-After`; dates count as 0."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
