"""Answers of a language model behind an OpenAI-compatible endpoint.

What belongs here: requests, repetitions, and dropped answers. What does not: prompts, which consist of public words
(`evolution_prompts`), and the allowed endpoints with their keys (`endpoint_access`).

An endpoint sees prompts, their times and their number; in every round, they contain variations of texts that noisy
votes chose, before any approval of a release. The time between two rounds depends on the number of voting records,
among other things: the statement says so. Nothing here executes an answer: it is a text that is kept or dropped. Failed
requests are repeated, a bounded number of times, and then counted; none of it is a second spend, since no request
touches the data.

**No endpoint delays a run without limit or fills its memory.** A request has one deadline, from its first byte to the
last one of its answer, and its own connection. At most as much of an answer is read as its tokens can take, as a stream
and never decompressed. After `MOST_FAILED` prompts in a row without an answer, no further prompt is sent.

No message and no log contains a prompt, an answer or the key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import httpx2

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.endpoint_access import Access, Endpoint
from dpsynth_platform.synth.text.public_text import Prompt, PublicText
from dpsynth_platform.synth.text.sampling import Sampling

ENVELOPE_BYTES = 2**16
"""Of an answer without its text; a longer answer is dropped, and not read to its end."""
BYTES_PER_TOKEN = 128
"""The most bytes of a token in an answer; JSON may write each character as six."""
CHARACTERS_PER_TOKEN = 32
"""The most characters of a token in a text."""
MOST_FAILED = 32
"""Prompts in a row without an answer, after which the others are not sent."""
LONGEST_WAIT = 60.0
"""The most seconds before a request is repeated, even if the endpoint requests more."""
FIRST_WAIT = 0.5
"""Seconds before the first repetition, unless the endpoint requests more; doubled before each further one."""
_REFUSED = (401, 403, 404, 405)
"""Statuses of a wrong address, model or key."""
TRIAL = Prompt(PublicText("Answer with one short sentence."), PublicText("What is the weather like?"))
"""Sent before anything is spent. It has no words of a contract."""

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each of thousands of requests


@dataclass
class EndpointWriter:
    """An endpoint as a `Writer`.

    Attributes:
        sampling: how texts are drawn; `top_k` is not part of the protocol and not sent.
        longest: the most tokens of an answer.
        dropped: how many requests were repeated or had no answer, by reason.
    """

    endpoint: Endpoint
    access: Access
    sampling: Sampling
    longest: int
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._counting = Lock()
        self._failed = 0
        # No certificates, proxies or credentials from the environment.
        self._certificates = httpx2.create_ssl_context(trust_env=False)

    def write(self, prompts: Sequence[Prompt]) -> list[PublicText | None]:
        """See `evolution_prompts.Writer.write`.

        Raises:
            ConfigurationError: the endpoint does not accept the key, the model or the address.
        """
        self._failed = 0
        with ThreadPoolExecutor(self.access.transport.at_once) as workers:
            return list(workers.map(self._answer, prompts))

    def trial(self) -> None:
        """Requests one text, so that nothing is spent if the endpoint writes none.

        Raises:
            ConfigurationError: there was no text.
        """
        (answer,) = self.write([TRIAL])
        if answer is None:
            found = ", ".join(f"{reason} ({times})" for reason, times in sorted(self.dropped.items()))
            raise ConfigurationError(
                f"generate.text.evolution.endpoint: {self.endpoint.host} wrote no text on trial: {found}; accepted: an "
                "OpenAI-compatible endpoint that knows base_model and takes max_tokens, temperature and top_p"
            )

    def _answer(self, prompt: Prompt) -> PublicText | None:
        if self._failed >= MOST_FAILED:
            self._count("not asked")
            return None
        answer = self._retried(prompt)
        with self._counting:
            self._failed = self._failed + 1 if answer is None else 0
        return answer

    def _retried(self, prompt: Prompt) -> PublicText | None:
        """The first answer to a prompt, after repetitions."""
        wait = FIRST_WAIT
        for attempt in range(self.access.transport.attempts):
            if attempt:
                time.sleep(min(wait, LONGEST_WAIT))
                wait *= 2
            try:
                status, requested_wait, content = asyncio.run(self._sent(prompt))
            except (TimeoutError, httpx2.TimeoutException):
                self._count("timeout")
            except (httpx2.HTTPError, OSError):
                self._count("unreachable")
            else:
                if status in _REFUSED:
                    raise ConfigurationError(
                        f"generate.text.evolution.endpoint: {self.endpoint.host} answers with status {status}; "
                        "accepted: its address, a model that it knows, and its key in the file that "
                        "DPSYNTH_TEXT_KEY names"
                    )
                if status == 200:
                    text = _text_of(content)
                    if text is not None and len(text) <= CHARACTERS_PER_TOKEN * self.longest:
                        return PublicText(text)
                    self._count("garbage" if text is None else "too long")
                elif status in (408, 429) or status >= 500:
                    self._count("rate limit" if status == 429 else "server error")
                    wait = max(wait, requested_wait)
                else:
                    self._count("rejected")
                    return None
        self._count("given up")
        return None

    async def _sent(self, prompt: Prompt) -> tuple[int, float, bytes | None]:
        """Status, the seconds until the next request, and the content unless it is compressed or too long.

        Raises:
            TimeoutError: the request did not end in time, including name resolution and connection.
        """
        document: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": prompt.messages,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self.longest,
        }
        async with (
            asyncio.timeout(self.access.transport.seconds),
            self._client() as client,
            client.stream("POST", f"{self.endpoint.url.rstrip('/')}/chat/completions", json=document) as response,
        ):
            wait = _seconds(response.headers.get("Retry-After"))
            if response.headers.get("Content-Encoding", "identity") != "identity":
                return response.status_code, wait, None  # it may decompress to much more
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > ENVELOPE_BYTES + BYTES_PER_TOKEN * self.longest:
                    return response.status_code, wait, None
            return response.status_code, wait, bytes(content)

    def _client(self) -> httpx2.AsyncClient:
        """A client without proxies and credentials from the environment, and without redirects to other hosts."""
        key = {"Authorization": f"Bearer {self.access.key}"} if self.access.key else {}
        return httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity"} | key,
            timeout=self.access.transport.seconds,
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


def _text_of(content: bytes | None) -> str | None:
    """The first choice's text of an answer; None if there is none, or it is blank."""
    try:
        text = json.loads(content or b"")["choices"][0]["message"]["content"]
        text.encode("utf-8")  # a lone surrogate is no text
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return text if text.strip() else None
