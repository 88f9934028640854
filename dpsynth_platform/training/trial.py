"""Trials of a model before any spend: made-up batches, no dropout, and restoring the model.

What belongs here: common functions of `validators` and `probe` to run a model on random tokens. What does not: any
verdict, and real records.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpsynth_platform.training.families import IGNORED, has_encoder
from dpsynth_platform.training.interface import Batch, TrainingState

Losses = Callable[[nn.Module, Batch], Tensor]
"""From model and batch to the loss of each example: [examples]."""
ClippedSum = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""From model and batch to the sum of the examples' clipped gradients, by the name of each trainable parameter."""

_DEPTH = 4
_TORCH_OWN = frozenset(vars(nn.Module()))


class WithoutDropout(TorchFunctionMode):
    """While active, dropout of every kind returns its input, also in train mode and inside attention.

    Dropout is independent for each example and so harmless, but it would hide faults in a trial.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


class NoJournal:
    """Counts steps in memory only, for trainings that read no real record: `interface.Journal`."""

    def __init__(self) -> None:
        self._executed = 0

    def begin_step(self) -> int:
        self._executed += 1
        return self._executed

    def save(self, state: TrainingState, *, now: bool = False) -> None:
        pass

    def latest(self) -> None:
        pass


class Maker:
    """Makes random examples and batches of them; the randomness is new each time and protects nothing.

    Args:
        vocabulary: token ids are below it.
        length: tokens of the longest example, at least 8.
        device: of the batches.
        prompt_share: the part of an example without labels: at least one of its tokens and not all, or none at 0.
    """

    def __init__(self, vocabulary: int, length: int, device: torch.device, *, prompt_share: float = 0.0) -> None:
        self.vocabulary = vocabulary
        self.length = max(length, 8)
        self.device = device
        self.prompt_share = prompt_share
        self.generator = torch.Generator()
        self.generator.seed()

    @classmethod
    def like(cls, model: nn.Module, vocabulary: int, length: int, device: torch.device | None = None) -> Self:
        """For a model: by default on its device; with prompts for its encoder, if any."""
        return cls(vocabulary, length, device or device_of(model), prompt_share=0.5 if has_encoder(model) else 0.0)

    @property
    def reserved(self) -> int:
        """A token id that no random example has."""
        return self.vocabulary - 1

    def example(self, length: int) -> list[int]:
        return torch.randint(max(self.vocabulary - 1, 1), (length,), generator=self.generator).tolist()

    def batch(
        self, examples: Sequence[Sequence[int]], *, width: int | None = None, unlabelled: Sequence[int] = ()
    ) -> dict[str, Tensor]:
        """Examples padded on the right to `width`, by default the longest one's; `unlabelled` ones have no labels."""
        width = width or max(len(example) for example in examples)
        ids = torch.zeros(len(examples), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, IGNORED)
        for row, example in enumerate(examples):
            ids[row, : len(example)] = torch.tensor(example)
            mask[row, : len(example)] = 1
            if row not in unlabelled:
                begin = self._prompt_length(len(example))
                labels[row, begin : len(example)] = ids[row, begin : len(example)]
        positions = torch.arange(width).repeat(len(examples), 1)
        made = {"input_ids": ids, "attention_mask": mask, "labels": labels, "position_ids": positions}
        return {name: tensor.to(self.device) for name, tensor in made.items()}

    def _prompt_length(self, length: int) -> int:
        return min(max(1, int(length * self.prompt_share)), length - 1) if self.prompt_share else 0


def tolerance(model: nn.Module) -> float:
    """Relative difference of results that count as equal: sqrt(u), u the unit roundoff of the coarsest precision used.

    K consecutive roundings have a relative error of at most K * u (Higham 2002, section 3.1), and about sqrt(K) * u if
    independent (Higham & Mary 2019). sqrt(u) allows K = 1 / sqrt(u) of them in the first case (4096 in single
    precision) and 1 / u in the second (1.7e7): half of the digits are for rounding, half for the trial.
    """
    used = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    used.add(torch.float32)
    return math.sqrt(max(torch.finfo(dtype).eps for dtype in used) / 2)


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name; a shared one once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restores the tensors' values exactly."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Train mode without dropout inside; restores trainable parameters, buffers and modes exactly."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with restored((*trainable(model).values(), *model.buffers())), WithoutDropout():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def frozen_digests(model: nn.Module) -> dict[str, str]:
    """A digest of each frozen parameter, by name."""
    return {name: _digest(p) for name, p in model.named_parameters() if not p.requires_grad}


def state(model: nn.Module) -> dict[str, Any]:
    """A model's state except its parameters, by path: buffers, and attributes of its modules."""
    return {path: _print_of(value, _DEPTH) for path, value in _attributes(model)}


def switches(model: nn.Module) -> dict[str, str | bool]:
    """Attributes of a model's modules that are strings or booleans, by path: modules choose their behaviour by them."""
    return {path: value for path, value in _attributes(model) if isinstance(value, (str, bool))}


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items()):
            if name not in _TORCH_OWN:
                yield f"{path}.{name}".lstrip("."), value


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Paths at which two states differ."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def first_leak(model: nn.Module, losses: Losses, maker: Maker, near: float) -> str | None:
    """Path of the first module whose output for one example depends on other examples; None if there is none.

    Modules end in the order of the computation, inner ones first, so the first that differs is the origin.
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
    """Outputs of each module for the example at this place, in the order in which modules ended.

    Keys are a path and a number, since a module may have several outputs.
    """
    rows = len(batch["input_ids"])
    seen: dict[tuple[str, int], Tensor] = {}
    given: Counter[str] = Counter()

    def keep(path: str, _: nn.Module, __: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            given[path] += 1
            if tensor.is_floating_point() and tensor.dim() and tensor.shape[0] and tensor.shape[0] % rows == 0:
                seen[path, given[path]] = tensor.detach().reshape(rows, -1)[place].float().nan_to_num()

    with ExitStack() as hooks, torch.no_grad():
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(keep, path)))
        losses(model, batch)
    return seen


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a nested input or output of a module."""
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
    """A value that changes with the content of the given one, for numbers, strings and containers."""
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
