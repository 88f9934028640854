"""Answers of a language model behind an OpenAI-compatible endpoint.

What belongs here: requests, what is tried again and what is dropped. What does not: prompts, which hold public words
alone (`evolution_prompts`), and who may be asked, with which key (`endpoint_access`).

What an endpoint sees are prompts, when they come and how many there are; of these, variations of texts
that noisy votes chose, in every round, before anybody has approved of a release. How much time lies between two rounds
follows from how many records vote, among other things: the statement says so. What it answers is no instruction to
anything here: it is a text that is taken or dropped. Requests that fail are repeated, a bounded number of times, and
then counted; none of it is a second spend, since no request touches the data.

**No endpoint holds a run up or fills its memory.** A request has one deadline, from its first byte to the last one of
its answer, and a connection of its own. Of an answer no more is read than its tokens can take, as it comes and never
unpacked. After `MOST_FAILED` prompts in a row that nobody answers, nobody is asked any more.

No message and no log holds a prompt, an answer or the key.
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
"""Of an answer beside its text; one that is longer than both is dropped, and not read to its end."""
BYTES_PER_TOKEN = 128
"""The most that a token takes in an answer, where JSON may spell each character as six."""
CHARACTERS_PER_TOKEN = 32
"""The most that a token is worth in a text."""
MOST_FAILED = 32
"""Prompts in a row without an answer, after which the rest of them is not asked for."""
LONGEST_WAIT = 60.0
"""Seconds before a request is repeated, whatever the endpoint asks for."""
FIRST_WAIT = 0.5
"""Seconds before the first repetition where the endpoint asks for nothing; twice as many before each further one."""
_REFUSED = (401, 403, 404, 405)
"""Statuses by which an endpoint says that it is the wrong one, or that the key is."""
TRIAL = Prompt(PublicText("Answer with one short sentence."), PublicText("What is the weather like?"))
"""Asked before anything is spent. Nothing of a contract."""

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request, and there are thousands


@dataclass
class EndpointWriter:
    """An endpoint as a `Writer`.

    Attributes:
        endpoint: where it is.
        access: the key, and how requests are sent.
        sampling: how texts are drawn; `top_k` is not part of the protocol and not sent.
        longest: tokens of an answer.
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
        # Nothing that happens to stand in the environment: no other certificates, proxies or credentials.
        self._certificates = httpx2.create_ssl_context(trust_env=False)

    def write(self, prompts: Sequence[Prompt]) -> list[PublicText | None]:
        """See `evolution_prompts.Writer.write`.

        Raises:
            ConfigurationError: the endpoint refuses the key or knows no such model or address.
        """
        self._failed = 0
        with ThreadPoolExecutor(self.access.transport.at_once) as workers:
            return list(workers.map(self._answer, prompts))

    def trial(self) -> None:
        """Asks for one text, as later requests will be sent, so that nothing is spent for an endpoint that has none.

        Raises:
            ConfigurationError: no text came.
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
        answer = self._asked(prompt)
        with self._counting:
            self._failed = self._failed + 1 if answer is None else 0
        return answer

    def _asked(self, prompt: Prompt) -> PublicText | None:
        """The answer to one of a prompt's requests."""
        wait = FIRST_WAIT
        for attempt in range(self.access.transport.attempts):
            if attempt:
                time.sleep(min(wait, LONGEST_WAIT))
                wait *= 2
            try:
                status, asked_wait, content = asyncio.run(self._sent(prompt))
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
                    wait = max(wait, asked_wait)
                else:
                    self._count("rejected")
                    return None
        self._count("given up")
        return None

    async def _sent(self, prompt: Prompt) -> tuple[int, float, bytes | None]:
        """Status, the seconds that the endpoint wants to be left alone, and the content unless it is none to be read.

        Raises:
            TimeoutError: it has not ended in time, whatever it waits for: a name, a connection, headers or content.
        """
        document: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [
                {"role": "system", "content": prompt.instruction.words},
                {"role": "user", "content": prompt.request.words},
            ],
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
                return response.status_code, wait, None  # a little can be made much of
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > ENVELOPE_BYTES + BYTES_PER_TOKEN * self.longest:
                    return response.status_code, wait, None
            return response.status_code, wait, bytes(content)

    def _client(self) -> httpx2.AsyncClient:
        """No proxy and no credentials that happen to stand in the environment; no way to another host."""
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


def _seconds(asked: str | None) -> float:
    """Seconds that a `Retry-After` asks for; dates count as none."""
    try:
        return max(0.0, float(asked or 0))
    except ValueError:
        return 0.0


def _text_of(content: bytes | None) -> str | None:
    """The first choice's text of an answer, or None where it is none, or empty."""
    try:
        text = json.loads(content or b"")["choices"][0]["message"]["content"]
        text.encode("utf-8")  # half of a surrogate pair is no text
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return text if text.strip() else None
