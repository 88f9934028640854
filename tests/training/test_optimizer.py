"""Learning rates, and steps equal to torch's own."""

import pytest
import torch
from training_cases import plan

from dpsynth_platform.training.optimizer import BETAS, EPSILON, Optimizer, learning_rate


def test_learning_rates():
    constant = plan(steps=10, warmup_steps=4, learning_rate=1.0)
    assert [learning_rate(constant, step) for step in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1, 1, 1]
    linear = plan(steps=10, learning_rate=1.0, decay="linear")
    assert [learning_rate(linear, step) for step in (1, 6, 10)] == pytest.approx([1, 0.5, 0.1])
    cosine = plan(steps=10, warmup_steps=2, learning_rate=2.0, decay="cosine")
    assert [learning_rate(cosine, step) for step in (2, 3, 7)] == pytest.approx([2, 2, 1])
    assert 0 < learning_rate(cosine, 10) < 0.1
    assert learning_rate(plan(steps=2, warmup_steps=9, learning_rate=9.0), 2) == 2


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_steps_are_those_of_torch(kind, weight_decay):
    chosen = plan(steps=5, optimizer=kind, weight_decay=weight_decay, learning_rate=0.01)
    ours = {"a": torch.randn(4, 3), "b": torch.randn(7)}
    theirs = [torch.nn.Parameter(value.clone()) for value in ours.values()]
    if kind == "adamw":
        reference = torch.optim.AdamW(theirs, 0.01, BETAS, EPSILON, weight_decay)
    else:
        reference = torch.optim.SGD(theirs, 0.01)  # whose weight decay is part of the gradient
    optimizer = Optimizer(chosen, ours)
    for step in range(1, 6):
        gradients = {name: torch.randn_like(value) for name, value in ours.items()}
        for parameter, gradient in zip(theirs, gradients.values(), strict=True):
            parameter.grad = gradient.clone()
            if kind == "sgd":
                parameter.data.mul_(1 - 0.01 * weight_decay)
        reference.step()
        optimizer.step(step, gradients)
    for found, expected in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(found, expected.detach())
    assert len(optimizer.state) == (4 if kind == "adamw" else 0)
