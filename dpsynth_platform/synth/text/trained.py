"""A trained language model: its trained weights on disk, and loading them into their base model.

What belongs here: the file of trained weights, the base model that belongs to it, and the likelihood of texts under
either. What does not: training, sampling, and the model of the columns. Nothing here reads the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.base_models import BaseModel, base_model, load
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.training import weights
from dpsynth_platform.training.plan import TrainingPlan

if TYPE_CHECKING:
    import torch

_AT_ONCE = 16
"""Texts of a batch."""


_HANDED: ContextVar[BaseModel | None] = ContextVar("handed", default=None)


@contextmanager
def handed(base: BaseModel | None) -> Iterator[None]:
    """Inside, `deployed` gives this model for its name: a worker does not know the deployment, nor a hub."""
    token = _HANDED.set(base)
    try:
        yield
    finally:
        _HANDED.reset(token)


def deployed(declared: str) -> BaseModel:
    """The base model that a contract names, in this deployment; raises as `base_models.base_model`."""
    if (base := _HANDED.get()) is not None and base.declared == declared:
        return base
    settings = Settings.from_environment()
    return base_model(declared, settings.base_models, hub=settings.model_hub)


def check_digest(base: BaseModel, expected: str) -> None:
    """Raises `ConfigurationError` if a base model is not the one that a plan was sealed for."""
    if base.digest != expected:
        raise ConfigurationError(
            f"base model {base.declared!r} is not the one that the plan was made for; accepted: its earlier files, or "
            "a new run from raw, which has a cost of its own"
        )


def save_weights(model: Any, directory: Path, executed: int) -> None:
    """Writes the trained parameters durably (`training.weights`)."""
    weights.save_weights(_trainable(model), directory, executed)


def load_trained(base: BaseModel, plan: TrainingPlan, directory: Path) -> tuple[Any, Any]:
    """The trained model in evaluation mode, and its tokenizer.

    Raises:
        MechanismFailed: the weights are incomplete, damaged or of another plan.
        ConfigurationError: the base model cannot be loaded.
    """
    from dpsynth_platform.training.adapter import with_adapter

    model, tokenizer = load(base)
    model = with_adapter(model, plan)
    weights.load_weights(_trainable(model), directory)
    return model.eval(), tokenizer


def load_for_sampling(base: BaseModel, plan: TrainingPlan, directory: Path, device: str) -> tuple[Any, Any]:
    """`load_trained` for drawing texts: on a device, in its precision, with the adapter added to the weights.

    The adapter is added in single precision, before weights are rounded: its changes are kept on average.
    """
    import torch

    from dpsynth_platform.training.precision import precision_of

    model, tokenizer = load_trained(base, plan, directory)
    if plan.adapter is not None:
        model = model.merge_and_unload()
    return model.to(device, precision_of(torch.device(device))), tokenizer


def encoded(encoder: Encoder, records: Sequence[tuple[Given, str]]) -> list[tuple[list[int], list[int]]]:
    """The tokens of each record's prompt, and of its body with its end token, cut off as in training."""
    rows = []
    for (given, _), body in zip(records, encoder.bodies([body for _, body in records]), strict=True):
        prompt = encoder.prompt(given)
        rows.append((prompt, [*body, encoder.eos][: encoder.layout.max_tokens - len(prompt)]))
    return rows


def rows_log_likelihoods(
    model: Any, rows: Sequence[tuple[Sequence[int], Sequence[int]]], filler: int
) -> npt.NDArray[np.float64]:
    """The mean log-likelihood per token of the tokens that follow each prompt, shape (rows,).

    Args:
        model: in evaluation mode; the encoder of an encoder-decoder model reads the prompt.
        rows: tokens of prompts and of their continuations, at least one each.
        filler: the token that pads shorter rows, under a mask.
    """
    import torch

    from dpsynth_platform.training.clipping import example_losses
    from dpsynth_platform.training.families import as_called

    found: list[float] = []
    for start in range(0, len(rows), _AT_ONCE):
        inputs, labels = as_called(model, batch_of(rows[start : start + _AT_ONCE], filler))
        with torch.no_grad():
            logits = model(**inputs).logits
        found += (-example_losses(logits, labels)).tolist()
    return np.array(found, dtype=np.float64)


def batch_of(rows: Sequence[tuple[Sequence[int], Sequence[int]]], filler: int) -> dict[str, torch.Tensor]:
    """Prompts and their continuations as a batch, [rows, longest], with labels for the continuations alone.

    Args:
        filler: the token that pads shorter rows, under a mask.
    """
    import torch

    from dpsynth_platform.training.families import IGNORED

    width = max(len(prompt) + len(body) for prompt, body in rows)
    tokens = torch.full((len(rows), width), filler)
    mask = torch.zeros_like(tokens)
    labels = torch.full_like(tokens, IGNORED)
    for row, (prompt, body) in enumerate(rows):
        length = len(prompt) + len(body)
        tokens[row, :length] = torch.tensor([*prompt, *body])
        mask[row, :length] = 1
        labels[row, len(prompt) : length] = tokens[row, len(prompt) : length]
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def _trainable(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
