"""Trials of a model before any spend: made-up batches, no dropout, and a model that is left as it was found.

What belongs here: what `validators` and `probe` need in common to run a model on random tokens. What does not: any
verdict, and any record of the data: nothing here has a way to reach one.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpsynth_platform.training.families import IGNORED, has_encoder
from dpsynth_platform.training.interface import Batch

Losses = Callable[[nn.Module, Batch], Tensor]
"""Of a model and a batch, the loss of each example: [examples]."""
ClippedSum = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""Of a model and a batch, the sum of the examples' clipped gradients, by the name of each trainable parameter."""

_DEPTH = 4
_TORCH_OWN = frozenset(vars(nn.Module()))


class WithoutDropout(TorchFunctionMode):
    """While it is open, dropout of every kind passes its input on, also in train mode and inside attention.

    Dropout is independent for each example and so harmless, but it would hide what a trial looks for.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one of torch's functions, without its dropout."""
        kwargs = dict(kwargs or {})
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


class Maker:
    """Makes random examples and batches of them; the randomness is new each time and protects nothing.

    Args:
        vocabulary: token ids are below it.
        length: tokens of the longest example, at least 8.
        device: of the batches.
        told: the part of an example that is its prompt, which has no labels: at least one of its tokens and not all of
            them, or none at 0.
    """

    def __init__(self, vocabulary: int, length: int, device: torch.device, *, told: float = 0.0) -> None:
        self.vocabulary = vocabulary
        self.length = max(length, 8)
        self.device = device
        self.told = told
        self.generator = torch.Generator()
        self.generator.seed()

    @classmethod
    def like(cls, model: nn.Module, vocabulary: int, length: int, device: torch.device | None = None) -> Self:
        """For a model: on its device, if none is named; with prompts where it has an encoder, which reads them."""
        return cls(vocabulary, length, device or device_of(model), told=0.5 if has_encoder(model) else 0.0)

    @property
    def reserved(self) -> int:
        """A token id that no random example holds, so that one can be told by it."""
        return self.vocabulary - 1

    def example(self, length: int) -> list[int]:
        """Random tokens."""
        return torch.randint(max(self.vocabulary - 1, 1), (length,), generator=self.generator).tolist()

    def batch(
        self, examples: Sequence[Sequence[int]], *, width: int | None = None, unlabelled: Sequence[int] = ()
    ) -> dict[str, Tensor]:
        """Examples padded on the right, with position ids of their own.

        Args:
            examples: token ids.
            width: of the batch; by default the longest example's.
            unlabelled: positions of examples that have no labels at all.
        """
        width = width or max(len(example) for example in examples)
        ids = torch.zeros(len(examples), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, IGNORED)
        for row, example in enumerate(examples):
            ids[row, : len(example)] = torch.tensor(example)
            mask[row, : len(example)] = 1
            if row not in unlabelled:
                begin = self._prompt(len(example))
                labels[row, begin : len(example)] = ids[row, begin : len(example)]
        positions = torch.arange(width).repeat(len(examples), 1)
        made = {"input_ids": ids, "attention_mask": mask, "labels": labels, "position_ids": positions}
        return {name: tensor.to(self.device) for name, tensor in made.items()}

    def _prompt(self, length: int) -> int:
        """How many tokens of an example are its prompt."""
        return min(max(1, int(length * self.told)), length - 1) if self.told else 0


def tolerance(model: nn.Module) -> float:
    """Up to which share two results count as equal: sqrt(u), u the unit roundoff of the coarsest precision in use.

    K roundings in a row amount to a relative error of at most K * u (Higham 2002, section 3.1), and about sqrt(K) * u
    where they are independent (Higham & Mary 2019). sqrt(u) leaves room for K = 1 / sqrt(u) of them in the first case
    (4096 in single precision) and 1 / u in the second (1.7e7): half of the digits are for rounding, half for the trial.
    """
    used = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    used.add(torch.float32)
    return math.sqrt(max(torch.finfo(dtype).eps for dtype in used) / 2)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name; a shared one once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Train mode without dropout inside; afterwards trainable parameters, buffers and modes are as before, exactly."""
    modes = {module: module.training for module in model.modules()}
    kept = [(tensor, tensor.detach().clone()) for tensor in (*trainable(model).values(), *model.buffers())]
    model.train()
    try:
        with WithoutDropout():
            yield
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
        for module, mode in modes.items():
            module.training = mode


def frozen_digests(model: nn.Module) -> dict[str, str]:
    """A digest of each parameter that training must not move, by name."""
    return {name: _digest(p) for name, p in model.named_parameters() if not p.requires_grad}


def state(model: nn.Module) -> dict[str, Any]:
    """All that a model can remember besides its parameters, by path: buffers, and the attributes of its modules."""
    remembered: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items()):
            if name not in _TORCH_OWN:
                remembered[f"{path}.{name}".lstrip(".")] = _print_of(value, _DEPTH)
    return remembered


def switches(model: nn.Module) -> dict[str, str | bool]:
    """Words and yes or no among the attributes of a model's modules, by path: by these, modules choose what they do."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (str, bool)) and name not in _TORCH_OWN
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Paths at which two states differ."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def first_leak(model: nn.Module, losses: Losses, maker: Maker, near: float) -> str | None:
    """Path of the first module whose output for one example depends on the examples beside it; None if there is none.

    Modules end in the order of the computation, inner ones first, so the first that differs is where it begins.
    """
    own = maker.example(maker.length)
    others = [maker.example(maker.length), [maker.reserved] * maker.length]
    alone = _outputs(model, losses, maker.batch([own]), 0)
    for place, beside in ((0, [own, *others]), (-1, [*others, own])):
        accompanied = _outputs(model, losses, maker.batch(beside), place)
        for (path, number), one in alone.items():
            other = accompanied.get((path, number))
            if other is not None and one.shape == other.shape and not (one - other).norm() <= near * one.norm():
                return path
    return None


def _outputs(model: nn.Module, losses: Losses, batch: Batch, place: int) -> dict[tuple[str, int], Tensor]:
    """What each module gave out for the example at this place, in the order in which they ended.

    By path and a number, since a module may give out several tensors.
    """
    rows = len(batch["input_ids"])
    seen: dict[tuple[str, int], Tensor] = {}
    given: Counter[str] = Counter()

    def keep(path: str, output: Any) -> None:
        for tensor in tensors_in(output):
            given[path] += 1
            if tensor.is_floating_point() and tensor.dim() and tensor.shape[0] and tensor.shape[0] % rows == 0:
                seen[path, given[path]] = tensor.detach().reshape(rows, -1)[place].float().nan_to_num()

    handles = [
        module.register_forward_hook(lambda _, __, output, path=path: keep(path, output))
        for path, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            losses(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a module's input or output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def _digest(tensor: Tensor) -> str:
    raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(raw.tobytes()).hexdigest()


def _print_of(value: Any, depth: int) -> Any:
    """A value that changes with the content of the given one, where the content is numbers, words or containers."""
    if isinstance(value, Tensor):
        return _digest(value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, nn.Module) or callable(value) or depth == 0:
        return type(value).__name__
    if isinstance(value, Mapping):
        return [(repr(key), _print_of(part, depth - 1)) for key, part in value.items()]
    if isinstance(value, Collection):
        return [_print_of(part, depth - 1) for part in value]
    if hasattr(value, "__dict__"):
        return [(key, _print_of(part, depth - 1)) for key, part in vars(value).items()]
    return type(value).__name__
