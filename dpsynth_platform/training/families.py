"""Model inputs from the rows of a batch: unchanged, or split between an encoder and a decoder.

What belongs here: detecting encoder-decoder models, and their arguments. What does not: passes and gradients
(`clipping`), and making batches. Batches and privacy cost are the same for both kinds of models.

An encoder-decoder model (T5, BART) reads a row's prompt, up to the first predicted token, with its encoder. Its decoder
writes the rest, after the model's start token. The labels show where a prompt ends. The encoder attends to a whole row,
so a mask hides padding there and in cross-attention; the decoder is causal, with padding on the right, where no
relevant token attends to it.
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
    """Whether it is an encoder-decoder model."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def decoder_start(model: Any) -> int:
    """The token before every text of a decoder; raises `ConfigurationError` if the model's config lacks it."""
    for source in (model.config, getattr(model, "generation_config", None)):
        token = getattr(source, "decoder_start_token_id", None)
        if isinstance(token, int):
            return token
    raise ConfigurationError(
        "the encoder-decoder base model's config has no decoder_start_token_id; accepted: a token id there or in "
        "generation_config"
    )


def as_called(model: Any, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Arguments of a transformers model for the scores of a batch, and labels, [rows, width of the scores].

    Each label is predicted from those before it in its row. An encoder-decoder's inputs are as wide as the batch, and
    not as narrow as the rows allow, which would round a row by the others' lengths. So every batch has masked
    positions, too, and the choice of kernels does not depend on the rows.
    """
    if not has_encoder(model):
        return {name: values for name, values in batch.items() if name != "labels"}, batch["labels"]
    return _divided(batch, decoder_start(model))


def _divided(batch: Batch, start: int) -> tuple[dict[str, Tensor], Tensor]:
    tokens, labels = batch["input_ids"], batch["labels"]
    most = tokens.shape[1]
    places = torch.arange(most, device=tokens.device)
    lengths = batch["attention_mask"].sum(1)
    predicted = (labels != IGNORED) & (places > 0)  # no token precedes the first one
    prompts = torch.where(predicted.any(1), predicted.int().argmax(1), lengths).clamp(min=1)[:, None]
    is_prompt = places < prompts
    # In the decoder, a start token replaces the whole prompt.
    source = prompts + places - 1
    written = (places > 0) & (source < most)
    source = source.clamp(max=most - 1)
    begun = torch.where(written, tokens.gather(1, source), start)
    wanted = torch.where(written, labels.gather(1, source), IGNORED)
    inputs = {"input_ids": tokens, "attention_mask": is_prompt.long(), "decoder_input_ids": begun}
    return inputs, wanted
