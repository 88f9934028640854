"""Writing documents from contexts, token by token.

What belongs here: the loop over contexts, documents and tokens, and the end of a document. What does not: the records
of a context (`inference_contexts`), and the numbers of the draws (`inference_model`, `inference_choice`).

A document ends with the model's end-of-text token, with a blank line, or after the most tokens of a document; a context
ends when its remaining tokens are too few for a whole document. Both follow from drawn tokens, which are paid for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.inference_choice import drawn, log_probabilities, owner_score, possible, scores
from dpsynth_platform.synth.text.inference_contexts import Contexts
from dpsynth_platform.synth.text.inference_model import BREAK, Context, Prompts, Rows, independent_rows
from dpsynth_platform.synth.text.inference_plan import InferencePlan
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.sampling import SyntheticText

STAGE = "contexts"
_REPORTS, _LEAST_CONTEXTS = 20, 10
"""About the number of progress reports, and the fewest contexts between two of them."""


class Writer:
    """Writes with one model.

    Args:
        model: in evaluation mode, on its device; public.
        never: tokens that no document has.
        blank: tokens that no document begins with, in addition to its end token.
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder,
        prompts: Prompts,
        plan: InferencePlan,
        *,
        never: Sequence[int] = (),
        blank: Sequence[int] = (),
    ) -> None:
        self._model, self._encoder, self._prompts, self._plan = model, encoder, prompts, plan
        self._never, self._never_first = tuple(never), (*never, *blank, encoder.eos)
        self._shape = shape_of(prompts, plan.document_tokens)
        self._rows = independent_rows(model, **self._shape)

    def texts(
        self, contexts: Contexts, owners: Sequence[Mapping[str, Sequence[str]]], progress: Progress = silent
    ) -> list[SyntheticText]:
        """All documents of all contexts.

        Args:
            owners: for each context, the bodies of each owner's records. Sensitive.
            progress: called after some contexts and at the end. The time of a context reveals its number of records, so
                that each report covers at least `_LEAST_CONTEXTS` contexts (or all), of mixed labels.
        """
        number = len(contexts.labels)
        between = max(_LEAST_CONTEXTS, number // _REPORTS)
        documents: dict[int, list[list[int]]] = {}
        progress(STAGE, 0, number)
        for place in _shuffled(number):
            documents[place] = list(self._documents(contexts.labels[place], owners[place]))
            if len(documents) % between == 0 and len(documents) <= number - _LEAST_CONTEXTS:
                progress(STAGE, len(documents), number)
        progress(STAGE, number, number)
        numbers: Counter[Given] = Counter()
        written: list[SyntheticText] = []
        for place, label in enumerate(contexts.labels):
            for tokens in documents[place]:
                written.append(self._text(label, numbers[label], tokens))
                numbers[label] += 1
        return written

    def _documents(self, label: Given, bodies: Mapping[str, Sequence[str]]) -> Iterator[list[int]]:
        without = self._prompts.public(label)
        if self._plan.in_series:
            records, sizes = self._prompts.of_series(label, list(bodies.values())), [1] * len(bodies)
        else:
            records = self._prompts.of_records(label, [body for own in bodies.values() for body in own])
            sizes = [len(own) for own in bodies.values()]
        of_none = Rows(self._model, [without], **self._shape)
        of_records = Context(
            self._model, records, without, rows=self._rows, kept=self._plan.prompts_kept, **self._shape
        )
        left = self._plan.tokens
        while left >= self._plan.document_tokens:
            tokens: list[int] = []
            public, private = of_none.begin(), of_records.begin()
            while True:
                tokens.append(self._next(public[0], private, sizes, first=not tokens))
                if self._is_over(tokens):
                    break
                public, private = of_none.advance(tokens[-1]), of_records.advance(tokens[-1])
            left -= len(tokens)
            yield tokens

    def _next(self, without: torch.Tensor, logits: Iterator[torch.Tensor], sizes: Sequence[int], *, first: bool) -> int:
        """One token: the only place where sensitive numbers become a published value."""
        plan = self._plan
        public = log_probabilities(without)
        total = torch.zeros(len(public), dtype=torch.int64, device=public.device)
        for size in sizes:
            own = torch.stack(list(islice(logits, size)))
            total += owner_score(own, public, clip=plan.clip, clipping_norm=plan.clipping_norm)
        scored = scores(total, public, clip=plan.clip, clipping_norm=plan.clipping_norm, batch_size=plan.batch_size)
        there = possible(public, top_k=plan.top_k, clipping_norm=plan.clipping_norm)
        barred = self._never_first if first else self._never
        return drawn(scored, there, plan.epsilon_of_choice, barred=barred)

    def _is_over(self, tokens: Sequence[int]) -> bool:
        full = len(tokens) == self._plan.document_tokens
        return full or tokens[-1] == self._encoder.eos or BREAK in self._encoder.text(tokens)

    def _text(self, label: Given, number: int, tokens: list[int]) -> SyntheticText:
        ended = tokens[-1] == self._encoder.eos
        body, blank, _ = self._encoder.text(tokens[:-1] if ended else tokens).partition(BREAK)
        # The blank before a field is public: a model that omits it must not lose a text.
        return SyntheticText(label, number, f" {body.strip()}", ended or bool(blank), len(tokens))


def _shuffled(number: int) -> Sequence[int]:
    """An order of contexts that depends on no data; contexts are independent of each other."""
    return random.SystemRandom().sample(range(number), number)


def shape_of(prompts: Prompts, document_tokens: int) -> dict[str, int]:
    """The public shape of every row: tokens of the longest prompt, and of the document after it."""
    return {"longest": prompts.longest, "more": document_tokens}
