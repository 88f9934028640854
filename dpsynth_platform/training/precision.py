"""In which precision a model's layers compute, and its weights in that precision.

What belongs here: the one decision, by the device and its hardware; and rounding weights. What does not: how batches
are shaped where computing is coarse (`physical`), and what stays in single precision whatever is decided here: trained
weights, sums of gradients, their norms, noise and the optimizer (`clipping`, `loop`).

bfloat16 has the range of single precision and eight binary digits. Hardware that multiplies matrices of it does so many
times as fast; elsewhere it is slower than single precision, and worse. That each gradient is rounded is no matter of
privacy: whatever a unit's gradient has become by rounding is clipped to C. That it could be rounded otherwise beside
other units is one; see `physical`. Experts take the tokens that are routed to them, whosever they are, so the shape in
which one unit's tokens are multiplied there does hang on the other units: models with experts compute in `EXACT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EXACT = torch.float32
"""The precision in which it hardly matters by what way a result is computed."""


def precision_of(device: torch.device) -> torch.dtype:
    """In which precision layers compute on a device: bfloat16 where it has units for products of such matrices."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = torch.cpu.get_capabilities()
        fast = device.type == "cpu" and any(known.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return torch.bfloat16 if fast else EXACT


def precision_of_training(device: torch.device, model: nn.Module) -> torch.dtype:
    """In which precision a model's layers compute while it is trained: the device's, but with experts `EXACT`."""
    return EXACT if has_experts(model) else precision_of(device)


@torch.no_grad()
def lower_frozen(model: nn.Module, precision: torch.dtype) -> None:
    """Rounds a model's frozen weights to a precision, in place and for good; trainable ones stay as they are."""
    for parameter in model.parameters():
        if not parameter.requires_grad and _is_finer(parameter, precision):
            parameter.data = parameter.data.to(precision)


@contextmanager
def frozen_lowered(model: nn.Module, precision: torch.dtype) -> Iterator[None]:
    """Frozen weights rounded to a precision inside, and the very same as before afterwards; takes memory for both."""
    before = [(parameter, parameter.data) for parameter in model.parameters() if not parameter.requires_grad]
    lower_frozen(model, precision)
    try:
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@torch.no_grad()
def lowered(model: nn.Module, precision: torch.dtype) -> dict[str, Tensor]:
    """Copies in this precision of those weights, by name, that are of a finer one."""
    return {
        name: parameter.to(precision) for name, parameter in model.named_parameters() if _is_finer(parameter, precision)
    }


def has_experts(model: nn.Module) -> bool:
    """Whether a layer, by its place or its kind, is one of experts."""
    names = (f"{path} {type(module).__name__}".lower() for path, module in model.named_modules())
    return any("expert" in name or "moe" in name for name in names)


def _is_finer(parameter: Tensor, precision: torch.dtype) -> bool:
    return parameter.is_floating_point() and parameter.element_size() > precision.itemsize
