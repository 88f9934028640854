"""A language model's logits of the next token for each record of a context: prompts, and kept keys and values.

What belongs here: the prompts, rows that are computed independently, and the trial of that. What does not: the records
of a context (`inference_contexts`), and the use of the logits (`inference_choice`).

Each record has its own prompt, which requests another record like it, below public words about all of them:

    News of all kinds, with their subject.

    One record:

    topic: Business
    text: the record's own

    Another record:

    topic: Business
    text:

A topic (`topic_sorting`) has no line: it decides the context alone. Records of the same owner can follow each other in
one prompt. Without a record, the prompt ends at the first `text:`. A record is read once: its keys and values are kept
for every token of every document of the context. In a context with far more records than expected, the others are read
again for every token, so that memory depends on public numbers only.

**A row's numbers depend on its own prompt and the tokens so far**, otherwise one owner more would change others by more
than the accounting assumes. So all batches have one public shape: a fixed number of rows of one length and with one
number of kept columns, whatever they contain; unused rows have the prompt without a record. A trial before the data are
read finds the number of rows: the most, up to `MOST_ROWS`, for which a row's logits are the same to the last bit in
every place and next to other rows, the longest and the shortest among them. A single row is always the same. A model
with experts computes one row at a time: its experts' batches depend on the other rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.slots import Prompt, Slots
from dpsynth_platform.training.precision import has_experts

MOST_ROWS = 16
BREAK = "\n\n"
"""Separates the records of a prompt; records have no blank lines, so that this ends a document."""
_FIRST, _NEXT = f"{BREAK}One record:{BREAK}", f"{BREAK}Another record:{BREAK}"
_MOST_ABOUT = 500
"""The most characters of the public words, so that a long description leaves room for the records."""
_BLANK_LINES = re.compile(r"\n\s*\n")
_TRIED_STEPS = 3


class Prompts:
    """Prompts of a layout in a model's tokens.

    Attributes:
        longest: tokens of the longest possible prompt.

    Args:
        about: what the records are; may be empty. Public.
        most: records of one prompt.
    """

    def __init__(self, encoder: Encoder, about: str, most: int = 1) -> None:
        conditions = encoder.layout.conditions
        self._sorted = sum(condition.column == KEYWORDS_COLUMN for condition in conditions)  # the first, or none
        encoder = encoder.without(self._sorted)
        self._encoder = encoder
        described = " ".join(about.split())[:_MOST_ABOUT]
        self._first, self._next = encoder.bodies([(described + _FIRST).lstrip("\n"), _NEXT])
        record = encoder.layout.max_tokens + len(self._next)
        self.longest = len(self._first) + most * record + encoder.longest_prompt()

    def public(self, given: Given) -> list[int]:
        """The prompt without a record."""
        start, *lines = self._encoder.prompt(given[self._sorted :])
        return [start, *self._first, *lines]

    def of_records(self, given: Given, bodies: Sequence[str]) -> list[list[int]]:
        """A prompt for each record of this label."""
        return self.of_series(given, [[body] for body in bodies])

    def of_series(self, given: Given, series: Sequence[Sequence[str]]) -> list[list[int]]:
        """A prompt for each series of records of this label; bodies are cut off like examples of training."""
        start, *lines = self._encoder.prompt(given[self._sorted :])
        layout = self._encoder.layout
        room = layout.max_tokens - len(lines) - 1
        # Longer bodies are cut off before tokenizing.
        most = (layout.max_tokens + 1) * self._encoder.longest_token
        texts = [_BLANK_LINES.sub("\n", body[:most]).strip() for bodies in series for body in bodies]
        read = iter(
            [[*lines, *tokens[:room], *self._next] for tokens in self._encoder.bodies([f" {text}" for text in texts])]
        )
        return [
            [start, *self._first, *(token for record in islice(read, len(bodies)) for token in record), *lines]
            for bodies in series
        ]


class Rows(Slots):
    """The rows of one batch, each with a prompt, that all continue with the same tokens, repeatedly.

    Args:
        model: in evaluation mode.
        prompts: one for each row, of at least two tokens.
        longest: tokens of the longest possible prompt; public.
        more: the most tokens that follow.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], *, longest: int, more: int) -> None:
        super().__init__(model, len(prompts), longest + more)
        # The last token is a separate step, so that all rows' logits are those of one column.
        read = [prompt[:-1] for prompt in prompts]
        filled = [[*prompt, *[0] * (longest - len(prompt))] for prompt in read]
        with torch.inference_mode():
            found = model(input_ids=torch.tensor(filled, device=self.device), use_cache=True, logits_to_keep=1)
        for row, prompt in enumerate(read):
            layers = [
                (layer.keys[row, :, : len(prompt)], layer.values[row, :, : len(prompt)])
                for layer in found.past_key_values.layers
            ]
            self.put(Prompt(layers, found.logits[row, -1], len(prompt)), row)
        self._starts = np.array([len(prompt) for prompt in read])
        self._last = torch.tensor([prompt[-1] for prompt in prompts], device=self.device)

    def begin(self) -> torch.Tensor:
        """Logits of the token after the prompts, shape (rows, vocabulary); earlier tokens are discarded."""
        self._lengths[:] = self._starts
        return self.step(self._last)

    def advance(self, token: int) -> torch.Tensor:
        """Logits of the token after this one."""
        return self.step(torch.full_like(self._last, token))

    def _columns(self) -> int:
        return self._capacity


class Context:
    """The model's logits for each record of a context. Sensitive, except the shape of a batch.

    Args:
        model: in evaluation mode.
        prompts: of the records.
        filler: the prompt without a record.
        rows: of a batch (`independent_rows`).
        kept: records whose keys and values are kept, rounded up to batches. The others are computed again for every
            token, in the same steps, so that a context never takes more memory than planned; only its time depends on
            the number of records.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[list[int]],
        filler: list[int],
        *,
        rows: int,
        kept: int,
        longest: int,
        more: int,
    ) -> None:
        self._model, self._filler, self._rows = model, filler, rows
        self._shape = {"longest": longest, "more": more}
        batches = [list(prompts[start : start + rows]) for start in range(0, len(prompts), rows)]
        most = -(-kept // rows)
        self._kept = [(self._read(batch), len(batch)) for batch in batches[:most]]
        self._others = batches[most:]
        self._tokens: list[int] = []

    def begin(self) -> Iterator[torch.Tensor]:
        """Each record's logits of a document's first token, shape (vocabulary,). Consume them before the next call."""
        self._tokens = []
        for batch, used in self._kept:
            yield from batch.begin()[:used]
        yield from self._again()

    def advance(self, token: int) -> Iterator[torch.Tensor]:
        """Each record's logits of the token after this one. Consume them before the next call."""
        self._tokens.append(token)
        for batch, used in self._kept:
            yield from batch.advance(token)[:used]
        yield from self._again()

    def _again(self) -> Iterator[torch.Tensor]:
        for batch in self._others:
            read = self._read(batch)
            logits = read.begin()
            for token in self._tokens:
                logits = read.advance(token)
            yield from logits[: len(batch)]
            del read, logits  # before the next batch is read

    def _read(self, batch: list[list[int]]) -> Rows:
        return Rows(self._model, [*batch, *[self._filler] * (self._rows - len(batch))], **self._shape)


def independent_rows(model: Any, *, longest: int, more: int) -> int:
    """The most rows of a batch, of 16, 8, 4 and 2, that are independent of each other to the last bit; else 1.

    The trial uses random tokens in the final shapes, with the model on its device.
    """
    rows = 1 if has_experts(model) else MOST_ROWS
    while rows > 1 and not _independent(model, rows, longest, more):
        rows //= 2
    return rows


def _independent(model: Any, rows: int, longest: int, more: int) -> bool:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])

    def random_tokens(number: int) -> list[int]:
        return [int(token) for token in torch.randint(0, vocabulary, (number,))]

    own, follow = random_tokens((longest + 2) // 2), random_tokens(min(_TRIED_STEPS, more))

    def logits(prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        batch = Rows(model, prompts, longest=longest, more=more)
        return torch.stack([batch.begin(), *(batch.advance(token) for token in follow)])

    alike = logits([own] * rows)
    expected = alike[:, 0]
    if not all(torch.equal(alike[:, row], expected) for row in range(rows)):
        return False
    lengths = [longest, 2, *(int(length) for length in torch.randint(2, longest + 1, (rows,)))]
    others = [random_tokens(length) for length in lengths[: rows - 1]]
    return all(
        torch.equal(logits([*others[:row], own, *others[row:]])[:, row], expected) for row in (0, rows // 2, rows - 1)
    )
