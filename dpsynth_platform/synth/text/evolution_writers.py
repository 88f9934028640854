"""Answers of a language model on this machine, in batches.

What belongs here: a prompt in the model's tokens, and drawing its answer. What does not: prompts
(`evolution_prompts`), models behind endpoints (`endpoints`), and texts of one layout (`sampling`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.public_text import Prompt, PublicText
from dpsynth_platform.synth.text.rows import check_rows
from dpsynth_platform.synth.text.sampling import Sampling, drawn, probabilities
from dpsynth_platform.synth.text.slots import Slots, context_of

_AT_ONCE = 32
"""Prompts of a batch."""


class LocalWriter:
    """A model of transformers as a `Writer`.

    Args:
        model: causal, in evaluation mode, on its device.
        tokenizer: its chat template formats the prompts, if it has one.
        longest: the most tokens of an answer, which is cut off there.

    Raises:
        ConfigurationError: the model cannot be sampled from; see `rows.check_rows`.
    """

    def __init__(self, model: Any, tokenizer: Any, sampling: Sampling, longest: int) -> None:
        self.dropped: Counter[str] = Counter()
        self._model, self._tokenizer, self._sampling, self._longest = model, tokenizer, sampling, longest
        self._ends = _ends(model, tokenizer)
        self._room = (context_of(model) or 0) - longest
        if self._room < longest:
            raise ConfigurationError(
                f"generate.text.max_tokens: {longest} of {self._room + longest} that the model sees; accepted: at most "
                "half of them, since the prompt for a variation contains the text"
            )
        check_rows(model, self._room + longest)
        self._random = np.random.default_rng()

    def write(self, prompts: Sequence[Prompt]) -> list[PublicText | None]:
        """Prompts that are too long for the model have no answer."""
        tokens = [self._tokens(prompt) for prompt in prompts]
        fitting = [at for at in range(len(prompts)) if len(tokens[at]) <= self._room]
        self.dropped["prompt too long"] += len(prompts) - len(fitting)
        found: list[PublicText | None] = [None] * len(prompts)
        for part in _batches(fitting, lambda at: prompts[at].instruction.words, lambda at: len(tokens[at])):
            for at, answer in zip(part, self._answers([tokens[at] for at in part]), strict=True):
                text = self._tokenizer.decode(answer, skip_special_tokens=False, clean_up_tokenization_spaces=False)
                found[at] = PublicText(str(text))
        return found

    def _tokens(self, prompt: Prompt) -> list[int]:
        if getattr(self._tokenizer, "chat_template", None):
            text = self._tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True, tokenize=False)
        else:
            text = f"{prompt.instruction.words}\n\n{prompt.request.words}\n\nAnswer:\n"
        found: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def _answers(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The tokens that follow each prompt, up to an end token."""
        import torch

        slots = Slots(self._model, len(prompts), max(map(len, prompts)) + self._longest + 1)
        read = slots.read(prompts)
        for row, prompt in enumerate(read):
            slots.put(prompt, row)
        logits = torch.stack([prompt.logits for prompt in read])
        answers: list[list[int]] = [[] for _ in prompts]
        open_ = set(range(len(prompts)))
        for _ in range(self._longest):
            uniforms = torch.tensor(self._random.random(len(prompts)), dtype=torch.float64, device=logits.device)
            tokens = drawn(probabilities(logits, self._sampling), uniforms)
            for row, token in enumerate(tokens.tolist()):
                if row in open_ and token in self._ends:
                    open_.remove(row)
                elif row in open_:
                    answers[row].append(token)
            if not open_:
                break
            logits = slots.step(tokens)
        return answers


def _batches(
    places: Sequence[int], instruction: Callable[[int], str], length: Callable[[int], int]
) -> Iterator[list[int]]:
    """Batches of prompts with one instruction, which the model reads once, and of similar lengths."""
    for _, alike in groupby(sorted(places, key=lambda at: (instruction(at), length(at))), key=instruction):
        own = list(alike)
        yield from (own[start : start + _AT_ONCE] for start in range(0, len(own), _AT_ONCE))


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer, of the tokenizer and of the model's config."""
    configured = getattr(model.config, "eos_token_id", None)
    of_config = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in (tokenizer.eos_token_id, *of_config) if token is not None)
