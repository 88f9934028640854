"""Answers of a language model behind an OpenAI-compatible endpoint.

What belongs here: the documents of requests, and the texts in answers. What does not: sending them
(`synth.endpoint_calls`), prompts, which consist of public words (`evolution_prompts`), and the allowed endpoints with
their keys (`synth.endpoint_access`).

An endpoint sees prompts, their times and their number; in every round, they contain variations of texts that noisy
votes chose, before any approval of a release. The time between two rounds depends on the number of voting records,
among other things: the statement says so. Nothing here executes an answer: it is a text that is kept or dropped. Failed
requests are repeated, a bounded number of times, and then counted; none of it is a second spend, since no request
touches the data. At most as much of an answer is read as its tokens can take.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.endpoint_access import Access, Endpoint
from dpsynth_platform.synth.endpoint_calls import EndpointCalls, Request, UnusableAnswer
from dpsynth_platform.synth.text.public_text import Prompt, PublicText
from dpsynth_platform.synth.text.sampling import Sampling

ENVELOPE_BYTES = 2**16
"""Of an answer without its text; a longer answer is dropped, and not read to its end."""
BYTES_PER_TOKEN = 128
"""The most bytes of a token in an answer; JSON may write each character as six."""
CHARACTERS_PER_TOKEN = 32
"""The most characters of a token in a text."""
SETTING = "generate.text.evolution.endpoint"
TRIAL = Prompt(PublicText("Answer with one short sentence."), PublicText("What is the weather like?"))
"""Sent before anything is spent. It has no words of a contract."""


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
        self._calls = EndpointCalls(
            self.endpoint,
            lambda: self.access,
            SETTING,
            "its address, a model that it knows, and its key in the file that DPSYNTH_TEXT_KEY names",
            ENVELOPE_BYTES + BYTES_PER_TOKEN * self.longest,
            self.dropped,
        )

    def write(self, prompts: Sequence[Prompt]) -> list[PublicText | None]:
        """See `evolution_prompts.Writer.write`.

        Raises:
            ConfigurationError: the endpoint does not accept the key, the model or the address.
        """
        return self._calls.answers([self._request(prompt) for prompt in prompts], self._read)

    def trial(self) -> None:
        """Requests one text, so that nothing is spent if the endpoint writes none.

        Raises:
            ConfigurationError: there was no text.
        """
        (answer,) = self.write([TRIAL])
        if answer is None:
            raise ConfigurationError(
                f"{SETTING}: {self.endpoint.host} wrote no text on trial: {self._calls.failures}; accepted: an "
                "OpenAI-compatible endpoint that knows base_model and takes max_tokens, temperature and top_p"
            )

    def _request(self, prompt: Prompt) -> Request:
        return Request(
            "chat/completions",
            {
                "model": self.endpoint.model,
                "messages": prompt.messages,
                "temperature": self.sampling.temperature,
                "top_p": self.sampling.top_p,
                "max_tokens": self.longest,
            },
        )

    def _read(self, content: bytes | None) -> PublicText:
        """The first choice's text of an answer. Raises `UnusableAnswer` if there is none, it is blank or too long."""
        try:
            text = json.loads(content or b"")["choices"][0]["message"]["content"]
            text.encode("utf-8")  # a lone surrogate is no text
            blank = not text.strip()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            blank = True
        if blank:
            raise UnusableAnswer("garbage")
        if len(text) > CHARACTERS_PER_TOKEN * self.longest:
            raise UnusableAnswer("too long")
        return PublicText(text)
