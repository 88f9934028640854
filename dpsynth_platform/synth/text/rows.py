"""A batch of texts that a model of either family writes together.

What belongs here: the common interface of both families' rows, and the choice between them. What does not: the rows
(`slots` of causal models, `waves` of encoder-decoder ones), and the choice of next tokens (`sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.slots import Slots, check_slots
from dpsynth_platform.synth.text.waves import Waves, check_waves
from dpsynth_platform.training.families import has_encoder


class TextRows(Protocol):
    """A batch's rows, each with a text. Each family has its own prompts, with `logits` and `length`."""

    @property
    def free(self) -> int:
        """How many texts can begin now."""

    @property
    def device(self) -> torch.device: ...

    def read(self, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """Reads prompts (not empty), without rows."""

    def put(self, prompt: Any, row: int) -> None:
        """Begins a text in the next row."""

    def remove(self, row: int) -> None:
        """Ends the text of a row, and moves the last active row's text there."""

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Adds one token, shape (active,), to every active row; returns the next logits, shape (active, vocabulary)."""


def rows_for(model: Any, rows: int, capacity: int) -> TextRows:
    """An empty batch.

    Args:
        model: a language model of transformers, in evaluation mode.
        rows: the most concurrent texts.
        capacity: the most tokens of one text, including its prompt.
    """
    return Waves(model, rows) if has_encoder(model) else Slots(model, rows, capacity)


def check_rows(model: Any, tokens: int) -> None:
    """Checks that a model computes the same in rows as in plain passes.

    Args:
        tokens: the most of one text, including its prompt.

    Raises:
        ConfigurationError: it does not, it fails, or it sees fewer tokens than one text has.
    """
    try:
        (check_waves if has_encoder(model) else check_slots)(model, tokens)
    except ConfigurationError:
        raise
    except Exception as error:  # made-up tokens only: its message cannot quote the data
        raise ConfigurationError(
            f"no text can be drawn from the base model: it fails token by token with {type(error).__name__} ({error}); "
            "accepted: a causal or encoder-decoder language model with plain attention"
        ) from None
