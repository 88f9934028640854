"""Models that are unsound in one part, and an explicit clipped sum as a reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_cases import VOCABULARY

from dpsynth_platform.training.interface import Batch

WIDTH, CLIP = 32, 0.5


def losses(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of each example's labelled tokens."""
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"]
    )
    logits = logits if isinstance(logits, Tensor) else logits.logits
    targets = functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    each = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return each.sum(1) / (targets != -100).sum(1).clamp(min=1)


class Explicit:
    """Sums of clipped gradients, one backward pass for each example of a batch that goes through the model together."""

    def __init__(self, of: Any = losses, clip: float = CLIP) -> None:
        self.of, self.clip = of, clip

    def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        with torch.no_grad():
            finite = torch.isfinite(self.of(model, batch))  # a NaN in another example would spoil a gradient, too
        for loss in self.of(model, {name: value[finite] for name, value in batch.items()}):
            gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
            present = {name: one for name, one in zip(parameters, gradients, strict=True) if one is not None}
            norm = sum(one.double().square().sum() for one in present.values()) ** 0.5
            for name, one in present.items():
                sums[name] += one * self.coefficient(float(norm))
        return sums

    def coefficient(self, norm: float) -> float:
        return min(1.0, self.clip / norm) if norm else 0.0


class Toy(nn.Module):
    """Embedding, a layer in the middle that may be unsound, and a head: logits of each token alone."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.middle = middle or nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.embedding(input_ids))))


class BatchMean(nn.Module):
    """Takes a small part of the batch's mean off each example."""

    def forward(self, x: Tensor) -> Tensor:
        return x - 0.01 * x.mean(0, keepdim=True)


class Remembering(nn.Module):
    """Keeps a running mean in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.running = 0.9 * self.running + 0.1 * float(x.detach().mean())
        return x + self.running


class SecretlyRemembering(nn.Module):
    """Keeps a running mean where no attribute shows it."""

    def __init__(self) -> None:
        super().__init__()
        held = [0.0]

        def add(x: Tensor) -> Tensor:
            held[0] = 0.9 * held[0] + 0.1 * float(x.detach().mean())
            return x + held[0]

        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x)


class LearningBuffer(nn.Module):
    """Keeps the last batch's mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.centre.copy_(x.detach().mean((0, 1)))
        return x


class AcrossExamples(nn.Module):
    """Attention with the batch and the tokens confused: each token sees the same token of the other examples."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(WIDTH, 4, batch_first=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(x, x, x, need_weights=False)[0]


class Capped(nn.Module):
    """Two experts; the second takes the first tokens of the batch that are sent to it, up to its capacity."""

    def __init__(self, capacity: int = 12) -> None:
        super().__init__()
        self.expert_capacity = capacity
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        taken = (torch.arange(len(flat)) < self.expert_capacity)[:, None]
        return torch.where(taken, self.expert(flat), flat).view_as(x)


class Scaled(nn.Module):
    """A trainable weight outside of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale
