"""What a language model says of the next token, by each record of a context: prompts, and kept keys and values.

What belongs here: the prompts, rows that are computed each by itself, and the trial of that. What does not: which
records are in a context (`inference_contexts`), and what becomes of the logits (`inference_choice`).

A record stands in a prompt of its own, by which the model is asked for another one like it, below public words of what
all of them are:

    News of all kinds, with their subject.

    One record:

    topic: Business
    text: the record's own

    Another record:

    topic: Business
    text:

Without a record, all ends with the first `text:`. A record is read once: its keys and values are kept for every
token of every document that the context writes. Of a context that has far more records than are expected, the rest is
read again for every token, so that memory hangs on public numbers alone.

**A row's numbers follow from its own prompt and the tokens so far**, or one owner more would move others by more than
accounting knows. So all batches have one shape, which is public: as many rows, read as one length and kept in as many
columns, whatever is in them; rows that are left over are filled up with the prompt without a record. And how many rows
that may be is tried before the data are read: the most, up to `MOST_ROWS`, for which a row's logits are the same to the
last bit in every place and beside other rows, the longest and the shortest among them; one alone is always the same. A
model with experts is asked about one row at a time: how these are computed follows from which rows went to each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from dpsynth_platform.synth.text.layout import Encoder, Given
from dpsynth_platform.synth.text.slots import Prompt, Slots
from dpsynth_platform.training.precision import has_experts

MOST_ROWS = 16
BREAK = "\n\n"
"""Between records of a prompt; in a record, blank lines are left out, so that this ends a document."""
_FIRST, _NEXT = f"{BREAK}One record:{BREAK}", f"{BREAK}Another record:{BREAK}"
_MOST_ABOUT = 500
"""Characters of the public words, so that a long description does not take the room of the records."""
_BLANK_LINES = re.compile(r"\n\s*\n")
_TRIED_STEPS = 3


class Prompts:
    """Prompts of a layout in a model's tokens.

    Attributes:
        longest: tokens of the longest prompt that there can be.

    Args:
        encoder: the layout in the model's tokens.
        about: what the records are. Public.
    """

    def __init__(self, encoder: Encoder, about: str) -> None:
        self._encoder = encoder
        said = " ".join(about.split())[:_MOST_ABOUT]
        self._first, self._next = encoder.bodies([said + _FIRST, _NEXT])
        self.longest = len(self._first) + encoder.layout.max_tokens + len(self._next) + encoder.longest_prompt()

    def public(self, given: Given) -> list[int]:
        """The prompt without a record."""
        start, *lines = self._encoder.prompt(given)
        return [start, *self._first, *lines]

    def of_records(self, given: Given, bodies: Sequence[str]) -> list[list[int]]:
        """A prompt for each record of this label, whose body is cut off as an example of training would be."""
        start, *lines = self._encoder.prompt(given)
        layout = self._encoder.layout
        room = layout.max_tokens - len(lines) - 1
        # What is cut off anyway need not be made tokens, however long it is.
        most = (layout.max_tokens + 1) * self._encoder.longest_token
        texts = [_BLANK_LINES.sub("\n", body[:most]).strip() for body in bodies]
        return [
            [start, *self._first, *lines, *tokens[:room], *self._next, *lines]
            for tokens in self._encoder.bodies([f" {text}" for text in texts])
        ]


class Rows(Slots):
    """As many rows as one batch has, each with a prompt, that all go on with the same tokens, again and again.

    Args:
        model: in evaluation mode.
        prompts: one for each row, of two tokens at least.
        longest: tokens of the longest prompt that there can be; public.
        more: the most tokens that follow.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], *, longest: int, more: int) -> None:
        super().__init__(model, len(prompts), longest + more)
        # The last token is a step of its own, so that every row's logits are those of one column.
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
        """Logits of the token after the prompts, shape (rows, vocabulary); what followed before is over."""
        self._lengths[:] = self._starts
        return self.step(self._last)

    def go_on(self, token: int) -> torch.Tensor:
        """Logits of the token after one more."""
        return self.step(torch.full_like(self._last, token))

    def _columns(self) -> int:
        return self._capacity


class Context:
    """What the model says by each record of a context. Sensitive, but for the shape of a batch.

    Args:
        model: in evaluation mode.
        prompts: of the records.
        filler: the prompt without a record.
        rows: of a batch (`rows_apart`).
        kept: records whose keys and values are kept, rounded up to batches. Those of more are computed again for every
            token, step by step as they would have been, so that a context takes no more memory than was planned for,
            however many records came; only time tells.
        longest: see `Rows`.
        more: see `Rows`.
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
        """Of each record, the logits of a document's first token, shape (vocabulary,). Used up before the next."""
        self._tokens = []
        for batch, used in self._kept:
            yield from batch.begin()[:used]
        yield from self._again()

    def go_on(self, token: int) -> Iterator[torch.Tensor]:
        """Of each record, the logits of the token after one more. Used up before the next."""
        self._tokens.append(token)
        for batch, used in self._kept:
            yield from batch.go_on(token)[:used]
        yield from self._again()

    def _again(self) -> Iterator[torch.Tensor]:
        for batch in self._others:
            read = self._read(batch)
            logits = read.begin()
            for token in self._tokens:
                logits = read.go_on(token)
            yield from logits[: len(batch)]
            del read, logits  # before the next batch is read

    def _read(self, batch: list[list[int]]) -> Rows:
        return Rows(self._model, [*batch, *[self._filler] * (self._rows - len(batch))], **self._shape)


def rows_apart(model: Any, *, longest: int, more: int) -> int:
    """The most rows of a batch, of 16, 8, 4 and 2, that are each computed by themselves to the last bit; else 1.

    Tried on random tokens, in the shapes that are used.

    Args:
        model: as it will be used, on its device.
        longest: see `Rows`.
        more: see `Rows`.
    """
    rows = 1 if has_experts(model) else MOST_ROWS
    while rows > 1 and not _apart(model, rows, longest, more):
        rows //= 2
    return rows


def _apart(model: Any, rows: int, longest: int, more: int) -> bool:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])

    def random_tokens(number: int) -> list[int]:
        return [int(token) for token in torch.randint(0, vocabulary, (number,))]

    own, follow = random_tokens((longest + 2) // 2), random_tokens(min(_TRIED_STEPS, more))

    def said(prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        batch = Rows(model, prompts, longest=longest, more=more)
        return torch.stack([batch.begin(), *(batch.go_on(token) for token in follow)])

    alike = said([own] * rows)
    expected = alike[:, 0]
    if not all(torch.equal(alike[:, row], expected) for row in range(rows)):
        return False
    lengths = [longest, 2, *(int(length) for length in torch.randint(2, longest + 1, (rows,)))]
    others = [random_tokens(length) for length in lengths[: rows - 1]]
    return all(
        torch.equal(said([*others[:row], own, *others[row:]])[:, row], expected) for row in (0, rows // 2, rows - 1)
    )
