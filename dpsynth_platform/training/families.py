"""How the rows of a batch go into a model: as they are, or divided between an encoder and a decoder.

What belongs here: telling which of the two a model is, and what it is called with. What does not: passes and gradients
(`clipping`), and how batches are made. A batch is the same for both, and so is what a training costs: only the pass
forward differs.

An encoder-decoder model (T5, BART) is told a row's beginning, up to the first token that is predicted, by its encoder;
its decoder writes the rest, after a token of the model's own with which every text starts. A batch does not say where
a prompt ends: the labels do. The encoder sees a whole row at once, so there, and in the decoder's look at it, padding
is hidden by a mask; the decoder is causal, and its padding is on the right, where what counts cannot see it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.training.interface import Batch

IGNORED = -100
"""The label of a token that is not predicted."""


def has_encoder(model: Any) -> bool:
    """Whether a model reads by an encoder and writes by a decoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def decoder_start(model: Any) -> int:
    """The token that stands before every text that a decoder writes.

    Raises:
        ConfigurationError: the model's config does not say.
    """
    for source in (model.config, getattr(model, "generation_config", None)):
        token = getattr(source, "decoder_start_token_id", None)
        if isinstance(token, int):
            return token
    raise ConfigurationError("the encoder-decoder base model's config does not say its decoder_start_token_id")


def as_called(model: Any, batch: Batch, *, alike: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """What a model is called with for the scores of a batch, and their labels.

    Args:
        model: from transformers.
        batch: [rows, tokens] each; see `interface.Batch`.
        alike: whether an encoder-decoder's inputs are as wide as the batch, whatever is in the rows, and not as narrow
            as these allow. Then the mask hides something in every batch, too, so that kernels are chosen alike.

    Returns:
        The arguments, and labels of which each is predicted from those before it in its row, [rows, width of the
        scores].
    """
    if not has_encoder(model):
        return {name: values for name, values in batch.items() if name != "labels"}, batch["labels"]
    return _divided(batch, decoder_start(model), alike)


def _divided(batch: Batch, start: int, alike: bool) -> tuple[dict[str, Tensor], Tensor]:
    tokens, labels = batch["input_ids"], batch["labels"]
    most = tokens.shape[1]
    places = torch.arange(most, device=tokens.device)
    lengths = batch["attention_mask"].sum(1)
    predicted = (labels != IGNORED) & (places > 0)  # nothing stands before the first token
    prompts = torch.where(predicted.any(1), predicted.int().argmax(1), lengths).clamp(min=1)[:, None]
    told = places < prompts
    # In the decoder, a start token stands in place of the whole prompt.
    source = prompts + places - 1
    written = (places > 0) & (source < most)
    source = source.clamp(max=most - 1)
    begun = torch.where(written, tokens.gather(1, source), start)
    wanted = torch.where(written, labels.gather(1, source), IGNORED)
    wide, long = most, most
    if not alike:
        wide, long = int(prompts.max()), int((lengths[:, None] - prompts).max().clamp(min=0)) + 1
    inputs = {
        "input_ids": tokens[:, :wide],
        "attention_mask": told[:, :wide].long(),
        "decoder_input_ids": begun[:, :long],
    }
    return inputs, wanted[:, :long]
