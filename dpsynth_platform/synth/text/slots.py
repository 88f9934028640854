"""Keys and values of a batch of texts that begin and end independently.

What belongs here: the slots, and the check that a model computes the same with them as without. What does not: the
choice of next tokens, and which text gets a slot (`sampling`).

Most texts end long before the longest one, and in a plain batch their rows compute padding until all have ended. Here
every row has its own length: its next token has its own position and sees its own columns only, and when its text ends,
another text's prompt is copied into the row. Positions are in the keys (or in the embeddings), so that other contents
of a row's columns do not matter, as long as the mask hides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from dpsynth_platform.foundation.errors import ConfigurationError

_FIRST_CAPACITY = 64
_ORIGINAL = "original_max_position_embeddings"
_WINDOWS = ("max_position_embeddings", "sliding_window", "window_size", "attention_chunk_size")
"""The context length, as configs of several families name it."""


@dataclass(frozen=True)
class Prompt:
    """A prompt that the model has read.

    Attributes:
        layers: keys and values of each layer, each [heads, tokens, size].
        logits: of the token that follows, [vocabulary].
    """

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    logits: torch.Tensor
    length: int


class Slots:
    """A batch's rows. Rows 0 to `active` - 1 hold texts.

    Args:
        model: a causal language model of transformers, in evaluation mode, maybe with an adapter of peft.
        rows: the most concurrent texts.
        capacity: the most tokens of one text, including its prompt.
    """

    def __init__(self, model: Any, rows: int, capacity: int) -> None:
        self._model = model
        self._capacity = capacity
        self._lengths = np.zeros(rows, np.int64)
        self._layers: list[_SlotLayer] = []
        self.active = 0

    @property
    def free(self) -> int:
        return len(self._lengths) - self.active

    @property
    def device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    def read(self, prompts: Sequence[Sequence[int]]) -> list[Prompt]:
        """Reads prompts (not empty), without slots.

        Their common beginning is read once. They are padded on the right, where no used position sees the padding: the
        model is causal (`check_slots`). Models that can compute logits of some positions only compute those of the
        prompts' ends.
        """
        shared = _in_common(prompts)
        longest = max(len(prompt) for prompt in prompts)
        rests = [[*prompt[shared:], *[0] * (longest - len(prompt))] for prompt in prompts]
        ends = [len(prompt) - shared - 1 for prompt in prompts]
        kept = sorted(set(ends))
        with torch.inference_mode():
            found = self._model(
                input_ids=torch.tensor(rests, device=self.device),
                past_key_values=self._kept_of(prompts[0][:shared], len(prompts)) if shared else None,
                use_cache=True,
                logits_to_keep=torch.tensor(kept, device=self.device),
            )
        layers, logits = found.past_key_values.layers, found.logits
        if logits.shape[1] != len(kept):
            logits = logits[:, kept]  # the model has computed all of them
        return [
            Prompt(
                [(layer.keys[row, :, : len(prompt)], layer.values[row, :, : len(prompt)]) for layer in layers],
                logits[row, kept.index(end)].clone(),  # a view would keep the logits of all places
                len(prompt),
            )
            for row, (prompt, end) in enumerate(zip(prompts, ends, strict=True))
        ]

    def _kept_of(self, tokens: Sequence[int], rows: int) -> Cache:
        """Keys and values of the tokens, repeated for so many rows."""
        read = self._model(input_ids=torch.tensor([list(tokens)], device=self.device), use_cache=True, logits_to_keep=1)
        kept: Cache = read.past_key_values
        kept.batch_repeat_interleave(rows)
        return kept

    def put(self, prompt: Prompt, row: int) -> None:
        """Begins a text in a row: an active one whose text has ended, or the next one."""
        if not self._layers:
            columns = min(self._capacity, max(_FIRST_CAPACITY, prompt.length + 1))
            self._layers = [_SlotLayer(part, len(self._lengths), columns) for part in prompt.layers]
        self._reserve(prompt.length)
        for layer, part in zip(self._layers, prompt.layers, strict=True):
            layer.begin(row, part)
        self._lengths[row] = prompt.length
        self.active = max(self.active, row + 1)

    def remove(self, row: int) -> None:
        self.active -= 1
        for layer in self._layers:
            layer.move(self.active, row)
        self._lengths[row] = self._lengths[self.active]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        model, lengths = self._model, self._lengths[: self.active]
        width = self._columns()
        self._reserve(width)
        places = torch.as_tensor(lengths, device=model.device)
        hidden = torch.arange(width, device=model.device)[None, :] > places[:, None]
        mask = torch.zeros(hidden.shape, dtype=model.dtype, device=model.device)
        mask.masked_fill_(hidden, torch.finfo(model.dtype).min)
        for layer in self._layers:
            layer.aim(places, width)
        with torch.inference_mode():
            found = model(
                input_ids=tokens[:, None],
                position_ids=places[:, None],
                attention_mask=mask[:, None, None, :],
                past_key_values=Cache(layers=list(self._layers)),
                use_cache=True,
            )
        lengths += 1
        logits: torch.Tensor = found.logits[:, -1]
        return logits

    def _columns(self) -> int:
        """How many columns attention sees: those of the longest row, with the next token."""
        return int(self._lengths[: self.active].max()) + 1

    def _reserve(self, columns: int) -> None:
        present = self._layers[0].capacity
        if columns > present:
            for layer in self._layers:
                layer.widen(min(self._capacity, max(columns, 2 * present)))


def _in_common(prompts: Sequence[Sequence[int]]) -> int:
    """The number of tokens that several prompts begin with, without the last one of each; 0 for a single prompt."""
    if len(prompts) == 1:
        return 0
    most = min(len(prompt) for prompt in prompts) - 1
    return next((at for at in range(most) if len({prompt[at] for prompt in prompts}) > 1), most)


class _SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values, [rows, heads, columns, size], for attention in transformers."""

    def __init__(self, like: tuple[torch.Tensor, torch.Tensor], rows: int, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers = [part.new_zeros(rows, part.shape[0], capacity, part.shape[2]) for part in like]
        self.is_initialized = True

    @property
    def capacity(self) -> int:
        return int(self._buffers[0].shape[2])

    def begin(self, row: int, prompt: tuple[torch.Tensor, torch.Tensor]) -> None:
        for buffer, part in zip(self._buffers, prompt, strict=True):
            buffer[row, :, : part.shape[1]] = part

    def move(self, source: int, target: int) -> None:
        for buffer in self._buffers:
            buffer[target] = buffer[source]

    def widen(self, capacity: int) -> None:
        for place, old in enumerate(self._buffers):
            self._buffers[place] = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            self._buffers[place][:, :, : old.shape[2]] = old

    def aim(self, places: torch.Tensor, width: int) -> None:
        """Sets the column of every active row's next token, and how many columns attention sees."""
        self._places, self._width = places, width
        self._rows = torch.arange(len(places), device=places.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._buffers
        keys[self._rows, :, self._places] = key_states[:, :, 0]
        values[self._rows, :, self._places] = value_states[:, :, 0]
        return keys[: len(self._rows), :, : self._width], values[: len(self._rows), :, : self._width]

    # transformers calls these to make masks and positions, which are given here.

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._width, 0

    def get_seq_length(self) -> int:
        return self._width - 1

    def get_max_length(self) -> int:
        return self.capacity


def check_slots(model: Any, tokens: int) -> None:
    """Checks that a model gives the same logits in slots as in a plain pass, with different starts and common prefixes.

    Args:
        tokens: the most of one text.

    Raises:
        ConfigurationError: it does not (it is not causal, or its attention does not support such masks), or it sees
            fewer tokens than one text has.
    """
    check_context(model, tokens)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(3 * 7, device=model.device).reshape(3, 7) % vocabulary
    ids[:, :2] = ids[0, :2]
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        refuse_unlike(model, model(input_ids=ids[:, :3]).logits, expected[:, :3], "a causal")
    slots = Slots(model, 2, 9)
    prompts = slots.read([ids[0, :4].tolist(), ids[1, :3].tolist(), ids[2, :5].tolist()])
    found = [prompt.logits for prompt in prompts]
    slots.put(prompts[0], 0)
    found.append(slots.step(ids[0, 4:5])[0])
    slots.put(prompts[1], 1)
    found += list(slots.step(torch.stack([ids[0, 5], ids[1, 3]])))
    slots.put(prompts[2], 0)
    found += list(slots.step(torch.stack([ids[2, 5], ids[1, 4]])))
    slots.remove(0)
    found += list(slots.step(ids[1, 5:6]))
    places = ((0, 3), (1, 2), (2, 4), (0, 4), (0, 5), (1, 3), (2, 5), (1, 4), (1, 5))
    plain = [expected[row, place] for row, place in places]
    refuse_unlike(model, torch.stack(found), torch.stack(plain), "a causal")


def context_of(model: Any) -> int | None:
    """How many tokens a model sees uniformly; None if its config does not say."""
    config = model.config
    bounds = [getattr(config, name, None) for name in _WINDOWS]
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "longrope" in (rope.get("rope_type"), rope.get("type")):  # longer texts have other positions for all tokens
        bounds += [rope.get(_ORIGINAL), getattr(config, _ORIGINAL, None)]
    return min((bound for bound in bounds if isinstance(bound, int) and bound > 0), default=None)


def check_context(model: Any, tokens: int) -> None:
    """Raises `ConfigurationError` if a model sees fewer tokens than one text has."""
    seen = context_of(model)
    if seen is not None and seen < tokens:
        raise ConfigurationError(f"the model sees {seen} tokens, texts have {tokens}")


def refuse_unlike(model: Any, found: torch.Tensor, plain: torch.Tensor, family: str) -> None:
    """Compares a model's logits with kept keys and values (`found`) and without (`plain`).

    Raises:
        ConfigurationError: they differ by more than rounding; the message names the accepted `family`.
    """
    error = (found.float() - plain.float()).abs().max()
    if not error <= torch.finfo(model.dtype).eps ** 0.5 * plain.float().abs().max():
        raise ConfigurationError(
            "the base model computes other logits with kept keys and values than without them; accepted: "
            f"{family} language model with plain attention"
        )
