"""The precision in which a model's layers compute, and its weights in that precision.

What belongs here: the decision, by the device and its hardware; and rounding weights. What does not: the shape of
batches (`physical`), and values that always have single precision: trained weights, sums of
gradients, their norms, noise and the optimizer (`clipping`, `loop`).

bfloat16 has the range of single precision and eight binary digits. Hardware with bfloat16 matrix products is many times
as fast; elsewhere it is slower than single precision, and less accurate. Rounding a gradient does not affect privacy,
since the rounded gradient is clipped to C. Rounding that depends on other units does; see `physical`. Experts receive
tokens of several units, so the shape of their products depends on other units: models with experts compute in `EXACT`,
where that matters less, and is not excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.process_state import ChangedWhileNeeded

EXACT = torch.float32
"""The precision in which the order of operations hardly changes a result."""


def precision_of(device: torch.device) -> torch.dtype:
    """The precision of layers on a device: bfloat16 where it has hardware for such matrix products."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = torch.cpu.get_capabilities()
        fast = device.type == "cpu" and any(known.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return torch.bfloat16 if fast else EXACT


def precision_of_training(device: torch.device, model: nn.Module) -> torch.dtype:
    """The precision of a model's layers in training: the device's, or `EXACT` with experts."""
    return EXACT if has_experts(model) else precision_of(device)


def _without_coarse_modes() -> Callable[[], None]:
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def restore() -> None:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return restore


_EXACTLY = ChangedWhileNeeded(_without_coarse_modes)


def exact_products() -> AbstractContextManager[None]:
    """Inside, matrix products and convolutions in single precision use no faster, coarser mode, in all threads."""
    return _EXACTLY


@torch.no_grad()
def lower_frozen(model: nn.Module, precision: torch.dtype) -> None:
    """Rounds a model's frozen weights to a precision, in place and irreversibly."""
    for parameter in model.parameters():
        if not parameter.requires_grad and _is_finer(parameter, precision):
            parameter.data = parameter.data.to(precision)


@contextmanager
def frozen_lowered(model: nn.Module, precision: torch.dtype) -> Iterator[None]:
    """Frozen weights are rounded inside and restored exactly afterwards; takes memory for both."""
    before = [(parameter, parameter.data) for parameter in model.parameters() if not parameter.requires_grad]
    lower_frozen(model, precision)
    try:
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


@torch.no_grad()
def lowered(model: nn.Module, precision: torch.dtype) -> dict[str, Tensor]:
    """Copies in this precision of all finer weights, by name."""
    return {
        name: parameter.to(precision) for name, parameter in model.named_parameters() if _is_finer(parameter, precision)
    }


def has_experts(model: nn.Module) -> bool:
    """Whether a layer's path or type names experts."""
    names = (f"{path} {type(module).__name__}".lower() for path, module in model.named_modules())
    return any("expert" in name or "moe" in name for name in names)


def _is_finer(parameter: Tensor, precision: torch.dtype) -> bool:
    return parameter.is_floating_point() and parameter.element_size() > precision.itemsize
