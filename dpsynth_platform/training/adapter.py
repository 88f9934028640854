"""Which parameters of a model are trained: all, or those of a low-rank adapter, as the plan says.

What belongs here: making a model trainable that way, and checking that one is. What does not: loading it.
"""

from __future__ import annotations

import warnings
from typing import Any

from dpsynth_platform.foundation.errors import MechanismFailed, TrainingRefused
from dpsynth_platform.training.families import has_encoder
from dpsynth_platform.training.plan import TrainingPlan

MARK = "lora_"
"""Part of the name of every parameter of an adapter."""


def with_adapter(model: Any, plan: TrainingPlan) -> Any:
    """The model with the plan's adapter on all its linear layers but the last (LoRA), or as it is, all of it trainable.

    An adapter begins as nothing: its second matrices are zero. It has no dropout.

    Raises:
        TrainingRefused: all weights of an encoder-decoder model. Encoder, decoder and head share one embedding, and
            positions are looked up once for a whole batch, so gradients of single examples are not known.
    """
    if plan.adapter is None:
        if has_encoder(model):
            raise TrainingRefused(
                ["generate.training.adapter: all weights of an encoder-decoder model; accepted: an adapter (LoRA)"]
            )
        return model.requires_grad_(True)
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    transposed = any(isinstance(layer, Conv1D) for layer in model.modules())
    config = LoraConfig(
        r=plan.adapter.rank,
        lora_alpha=plan.adapter.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        fan_in_fan_out=transposed,
        task_type="SEQ_2_SEQ_LM" if has_encoder(model) else "CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # PEFT asks models by a name that they are about to lose, and a plan would show the warning.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        return get_peft_model(model, config)


def check_trainable(model: Any, plan: TrainingPlan) -> None:
    """Refuses a model whose trainable parameters are not those that the plan says.

    Raises:
        MechanismFailed: it trains other parameters, or an adapter of another rank.
    """
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ranks = {min(value.shape) for name, value in trainable.items() if MARK in name}
    adapted = all(MARK in name for name in trainable)
    right = not ranks if plan.adapter is None else adapted and ranks == {plan.adapter.rank}
    if not right:
        wanted = "all parameters" if plan.adapter is None else f"an adapter of rank {plan.adapter.rank}"
        raise MechanismFailed(
            f"the plan trains {wanted}, and the model another choice; accepted: with_adapter(model, plan)"
        )
