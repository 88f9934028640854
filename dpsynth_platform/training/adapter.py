"""The trained parameters of a model by the plan: all, or those of a low-rank adapter.

What belongs here: making them trainable, and checking that they are. What does not: loading the model.
"""

from __future__ import annotations

import warnings
from typing import Any

from dpsynth_platform.foundation.errors import MechanismFailed, TrainingRefused
from dpsynth_platform.foundation.process_state import own_warning_filters
from dpsynth_platform.training.families import has_encoder
from dpsynth_platform.training.plan import Adapter, TrainingPlan

MARK = "lora_"
"""Part of the name of an adapter's parameters."""


def with_adapter(model: Any, plan: TrainingPlan) -> Any:
    """The model with the plan's adapter on all linear layers except the last (LoRA), or unchanged, all of it trainable.

    An adapter initially adds nothing: its second matrices are zero. It has no dropout.

    Raises:
        TrainingRefused: all weights of an encoder-decoder model. Encoder, decoder and head share one embedding, and
            positions are looked up once for a whole batch, so per-example gradients are not known.
    """
    if plan.adapter is None:
        if has_encoder(model):
            raise TrainingRefused(
                ["generate.training.adapter: all weights of an encoder-decoder model; accepted: an adapter (LoRA)"]
            )
        return model.requires_grad_(True)
    return adapted(model, plan.adapter)


def adapted(model: Any, adapter: Adapter) -> Any:
    """The model with a new adapter, which alone is trainable (`with_adapter`)."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    transposed = any(isinstance(layer, Conv1D) for layer in model.modules())
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        fan_in_fan_out=transposed,
        task_type="SEQ_2_SEQ_LM" if has_encoder(model) else "CAUSAL_LM",
    )
    with own_warning_filters():
        # PEFT uses a deprecated attribute; a plan would show the warning.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        return get_peft_model(model, config)


def check_trainable(model: Any, plan: TrainingPlan) -> None:
    """Raises `MechanismFailed` if the model's trainable parameters, or its adapter's rank, are not the plan's."""
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ranks = {min(value.shape) for name, value in trainable.items() if MARK in name}
    adapted = all(MARK in name for name in trainable)
    if ranks if plan.adapter is None else not adapted or ranks != {plan.adapter.rank}:
        wanted = "all parameters" if plan.adapter is None else f"an adapter of rank {plan.adapter.rank}"
        raise MechanismFailed(
            f"the plan trains {wanted}, but the model has other trainable parameters; accepted: "
            "with_adapter(model, plan)"
        )
