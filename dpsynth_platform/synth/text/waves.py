"""Texts that an encoder-decoder model writes together: their encoder's outputs, and kept keys and values.

What belongs here: the waves, and the check that a model computes the same with them as without. What does not: causal
models (`slots`), the choice of next tokens, and which text is in a wave (`sampling`).

A decoder of this family counts positions for the whole batch (BART's embeddings, T5's biases), so rows cannot begin at
different times as in slots. Texts begin together, as a wave, and all have the same number of tokens; a text that ends
leaves its row, which is computed no further. The next wave begins when all have ended. The encoder reads each prompt
once; where prompts are batched, a mask hides the padding of shorter ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

from dpsynth_platform.synth.text.slots import check_context, refuse_unlike
from dpsynth_platform.training.families import decoder_start


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt that the encoder has read.

    Attributes:
        hidden: the encoder's outputs, [tokens, width].
        logits: of the text's first token, [vocabulary].
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    length: int


class Waves:
    """A batch's rows. Rows 0 to `active` - 1 hold texts.

    Args:
        model: an encoder-decoder language model of transformers, in evaluation mode, maybe with an adapter of peft.
        rows: the most concurrent texts.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self._model = model
        self._start = decoder_start(model)
        self._prompts: list[EncodedPrompt] = []
        self._kept: Any = None
        self._hidden = self._mask = torch.empty(0)
        self.rows = rows

    @property
    def free(self) -> int:
        return self.rows - len(self._prompts) if self._kept is None else 0

    @property
    def device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    def read(self, prompts: Sequence[Sequence[int]]) -> list[EncodedPrompt]:
        tokens, mask = self._filled([torch.tensor(list(prompt), device=self.device) for prompt in prompts])
        begun = torch.full((len(prompts), 1), self._start, device=self.device)
        with torch.inference_mode():
            found = self._model(input_ids=tokens, attention_mask=mask, decoder_input_ids=begun, use_cache=False)
        hidden = found.encoder_last_hidden_state
        return [
            EncodedPrompt(hidden[row, : len(prompt)].clone(), found.logits[row, -1].clone(), len(prompt))
            for row, prompt in enumerate(prompts)
        ]

    def put(self, prompt: EncodedPrompt, row: int) -> None:
        """Begins a text in the next row. Raises `ValueError` if the wave has had a step, or is full."""
        if row != len(self._prompts) or not self.free:
            raise ValueError(f"row {row} cannot begin a text")
        self._prompts.append(prompt)

    def remove(self, row: int) -> None:
        last = self._prompts.pop()
        if row < len(self._prompts):
            self._prompts[row] = last
        if self._kept is None:
            return
        if not self._prompts:
            self._kept = None
            return
        order = torch.arange(len(self._prompts), device=self.device)
        if row < len(order):
            order[row] = len(order)
        self._kept.batch_select_indices(order)
        self._hidden, self._mask = self._hidden[order], self._mask[order]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        fed = tokens[:, None]
        if self._kept is None:
            self._hidden, self._mask = self._filled([prompt.hidden for prompt in self._prompts])
            fed = torch.cat([torch.full_like(fed, self._start), fed], dim=1)
        with torch.inference_mode():
            found = self._model(
                encoder_outputs=BaseModelOutput(last_hidden_state=self._hidden),
                attention_mask=self._mask,
                decoder_input_ids=fed,
                past_key_values=self._kept,
                use_cache=True,
            )
        self._kept = found.past_key_values
        logits: torch.Tensor = found.logits[:, -1]
        return logits

    def _filled(self, parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The padded rows, and the mask of their contents."""
        mask = pad_sequence([torch.ones(len(part), dtype=torch.long, device=self.device) for part in parts], True)
        return pad_sequence(parts, batch_first=True), mask


def check_waves(model: Any, tokens: int) -> None:
    """Checks that a model gives the same logits in a wave as in plain passes over single texts.

    Args:
        tokens: the most of one text, including its prompt.

    Raises:
        ConfigurationError: it does not, or it sees fewer tokens than one text has.
    """
    check_context(model, tokens)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(3 * 6, device=model.device) % vocabulary).reshape(3, 6)
    prompts, texts = [ids[0, :2], ids[1, :1], ids[2, :3]], ids[:, 3:5]
    start = torch.full((1, 1), decoder_start(model), device=model.device)
    with torch.inference_mode():
        plain = torch.cat(
            [
                model(input_ids=prompt[None], decoder_input_ids=torch.cat([start, text[None]], dim=1)).logits
                for prompt, text in zip(prompts, texts, strict=True)
            ]
        )
    waves = Waves(model, 3)
    read = waves.read([prompt.tolist() for prompt in prompts])
    for row, prompt in enumerate(read):
        waves.put(prompt, row)
    first = waves.step(texts[:, 0])
    waves.remove(0)
    second = waves.step(texts[[2, 1], 1])
    found = torch.cat([torch.stack([prompt.logits for prompt in read]), first, second])
    refuse_unlike(model, found, torch.cat([plain[:, 0], plain[:, 1], plain[[2, 1], 2]]), "an encoder-decoder")
