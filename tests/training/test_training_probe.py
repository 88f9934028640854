"""The probe detects numerically what violates the guarantee, in any part, and accepts sound models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_cases import KINDS, VOCABULARY, model, plan
from unsound_models import (
    CLIP,
    WIDTH,
    AcrossExamples,
    BatchMean,
    Capped,
    Explicit,
    LearningBuffer,
    Remembering,
    Scaled,
    SecretlyRemembering,
    Toy,
    losses,
)

from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.probe import (
    SAMPLER_UNITS,
    faults_of_clipping,
    faults_of_noise,
    faults_of_sampler,
    faults_of_step,
)


def probed(model: nn.Module, clipped_sum: Any = None, of: Any = losses) -> list[str]:
    return faults_of_clipping(
        model, clipped_sum or Explicit(of), of, clipping_norm=CLIP, vocabulary=VOCABULARY, length=8
    )


class Ours:
    """The clipped sum that training uses."""

    def __init__(self, clipping: str = "flat") -> None:
        self.plan = plan(clipping=clipping, clipping_norm=CLIP)

    def __call__(self, made: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with ClippedSums(made, self.plan) as sums:
            sums.add(batch, torch.ones(len(batch["input_ids"]), 1))
        return sums.totals


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_sound_models_pass_and_are_left_as_they_were(name: str, tied: bool, adapter: bool) -> None:
    made = model(name, tied, adapter)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    assert probed(made, Ours("automatic" if tied else "flat")) == []
    after = made.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert not any(module.training for module in made.modules())


def test_large_gradients_are_tried_with_the_scores_as_they_are() -> None:
    """Scaled scores would have larger rounding: the larger of two close ones would be random."""
    made = model("llama", tied=False)
    scores: list[float] = []
    gradients: list[float] = []

    def recorded(made: nn.Module, batch: Batch) -> Tensor:
        found = losses(made, batch)
        scores.append(float(found.detach().nan_to_num().max()))
        return found

    made.lm_head.register_full_backward_hook(lambda *given: gradients.append(float(given[2][0].nan_to_num().norm())))
    assert probed(made, Explicit(recorded), recorded) == []
    assert max(scores) < 100 < max(gradients)


def test_another_way_to_the_same_sum_passes() -> None:
    assert probed(model("gpt2", tied=True)) == []
    assert probed(Toy()) == []
    tied = Toy()
    tied.head.weight = tied.embedding.weight
    assert probed(tied) == []


@pytest.mark.parametrize(
    ("middle", "place"),
    [
        (BatchMean, "middle"),
        (AcrossExamples, "middle.mix"),
        (Capped, "middle"),
        (lambda: nn.BatchNorm1d(8), "middle"),
    ],
    ids=["batch mean", "attention across examples", "capped routing", "batch normalization"],
)
def test_examples_that_touch_each_other(middle: Callable[[], nn.Module], place: str) -> None:
    class Square(Toy):
        """Pads all batches to one width, which BatchNorm1d wants."""

        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
            width = input_ids.shape[1]
            padded = nn.functional.pad(input_ids, (0, max(0, 8 - width)))[:, :8]
            logits = super().forward(padded, attention_mask, position_ids)
            return nn.functional.pad(logits, (0, 0, 0, max(0, width - 8)))[:, :width]

    faults = probed(Square(middle()))
    assert any(
        fault.startswith(f"{place}: the clipped gradient of an example depends on the others in its batch (by ")
        and fault.endswith("every example must be computed, and clipped, separately")
        for fault in faults
    ), faults


def test_a_loss_over_the_batchs_tokens() -> None:
    def over_the_batch(model: nn.Module, batch: Batch) -> Tensor:
        labelled = (batch["labels"] != -100).sum(1)
        return losses(model, batch) * labelled / labelled.sum().clamp(min=1)

    (fault, *_) = probed(Toy(), of=over_the_batch)
    assert fault.startswith("the loss or the clipping: the clipped gradient of an example depends on the others")


def test_clipping_of_micro_batches() -> None:
    """Clips the sum of a batch: an example moves it by up to twice the clipping norm (guide, section 7.3)."""

    def whole_batch(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        sums = Explicit(clip=float("inf"))(model, batch)
        norm = float(sum(one.square().sum() for one in sums.values()) ** 0.5)
        return {name: one * min(1.0, CLIP / norm) if norm else one for name, one in sums.items()}

    (fault, *_) = probed(Toy(), whole_batch)
    assert fault.startswith("the loss or the clipping: the clipped gradient of an example depends on the others")


def test_a_contribution_that_is_longer_than_the_bound() -> None:
    class Floored(Explicit):
        """Never scales by less than a twentieth: small gradients are clipped right, large ones escape."""

        def coefficient(self, norm: float) -> float:
            return max(super().coefficient(norm), 0.05)

    class LayerByLayer(Explicit):
        def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            sums = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
            for loss in losses(model, batch):
                for name, parameter in model.named_parameters():
                    (one,) = torch.autograd.grad(loss, parameter, retain_graph=True)
                    sums[name] += one * self.coefficient(float(one.norm()))
            return sums

    for clipper in (Floored(), LayerByLayer(), Explicit(clip=2 * CLIP)):
        assert any("times as long as the clipping norm" in fault for fault in probed(Toy(), clipper)), clipper


def test_a_parameter_that_the_clipper_does_not_see() -> None:
    class Blind(Explicit):
        """Gives zeros for parameters that are not of a layer, or leaves them out."""

        def __init__(self, leave_out: bool) -> None:
            super().__init__()
            self.leave_out = leave_out

        def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            model.middle.scale.requires_grad_(False)
            sums = super().__call__(model, batch)
            model.middle.scale.requires_grad_(True)
            return sums if self.leave_out else sums | {"middle.scale": torch.zeros(WIDTH)}

    assert probed(Toy(Scaled()), Blind(leave_out=True)) == [
        "middle.scale: trainable, but missing from the clipped sum, so neither clipped nor noised; freeze it"
    ]
    assert probed(Toy(Scaled()), Blind(leave_out=False)) == [
        "middle.scale: the loss depends on it outside of the layer that owns it, which the clipper does not see; "
        "compute with it in that layer only, or freeze it"
    ]


def test_a_shared_weight_of_which_one_use_is_counted() -> None:
    class OnlyTheHead(Explicit):
        """Forgets what the embedding's use gives to the tied weight, as a clipper by layers may."""

        def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            handle = model.embedding.register_forward_hook(lambda _, __, output: output.detach())
            try:
                return super().__call__(model, batch)
            finally:
                handle.remove()

    model = Toy()
    model.head.weight = model.embedding.weight
    assert any(
        fault.startswith("embedding.weight: its clipped gradient is not the loss's gradient scaled down")
        for fault in probed(model, OnlyTheHead())
    )


def test_a_parameter_that_nothing_moves() -> None:
    model = Toy()
    model.idle = nn.Linear(WIDTH, WIDTH)
    assert probed(model) == [
        f"idle.{name}: no example moves it, so that training would add noise to it alone; freeze it"
        for name in ("bias", "weight")
    ]


@pytest.mark.parametrize(("middle", "place"), [(Remembering, "middle.running"), (LearningBuffer, "middle.centre")])
def test_memory_of_batches(middle: Callable[[], nn.Module], place: str) -> None:
    model = Toy(middle())
    faults = probed(model)
    assert f"{place}: changes when examples pass through; keep nothing from one batch for the next" in faults


def test_memory_that_no_attribute_shows() -> None:
    assert any(
        "the same example gives another clipped gradient after other batches" in fault
        for fault in probed(Toy(SecretlyRemembering()))
    )


def test_a_hook_that_writes_a_gradient() -> None:
    model = Toy()

    def write(module: nn.Module, _: Any, __: Any) -> None:
        module.weight.grad = torch.ones_like(module.weight)

    model.head.register_forward_hook(write)
    assert probed(model) == ["head.weight: something writes its gradient beside the clipped sum; remove that hook"]
    assert model.head.weight.grad is None


def test_a_hook_that_changes_a_gradient() -> None:
    """A clipper that gets its gradients elsewhere than the hook is caught by the difference."""
    model = Toy()
    plain = Explicit()
    model.head.weight.register_hook(lambda gradient: 100 * gradient)

    def behind(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        sums = plain(model, batch)
        return sums | {"head.weight": sums["head.weight"] / 100}

    assert any("its clipped gradient is not the loss's gradient" in fault for fault in probed(model, behind))


def test_a_frozen_weight_that_moves() -> None:
    model = Toy()
    model.embedding.weight.requires_grad_(False)

    def renormalizing(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        model.embedding.weight.data.mul_(1.001)
        return Explicit()(model, batch)

    assert any(
        fault == "embedding.weight: is frozen, but changes when the clipped sum is taken; nothing may write it"
        for fault in probed(model, renormalizing)
    )


def test_padding_that_is_seen() -> None:
    def padding_too(model: nn.Module, batch: Batch) -> Tensor:
        return losses(model, dict(batch) | {"labels": batch["input_ids"]})

    assert any("depends on how far it is padded" in fault for fault in probed(Toy(), of=padding_too))


def test_gradients_that_are_not_finite() -> None:
    class Poisoned(Explicit):
        """Clips by a factor of zero, which does not help against NaN."""

        def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            sums = super().__call__(model, batch)
            spoiled = not bool(torch.isfinite(losses(model, batch)).all())
            return {name: one * float("nan") if spoiled else one for name, one in sums.items()}

    assert any("whose gradient is not finite is not left out of the sum" in f for f in probed(Toy(), Poisoned()))


def test_an_example_without_labels() -> None:
    def mean_of_nothing(model: nn.Module, batch: Batch) -> Tensor:
        none = (batch["labels"] == -100).all(1)
        return torch.where(none, losses(model, batch) + model.head.bias.sum(), losses(model, batch))

    assert any("an example without labels adds something" in f for f in probed(Toy(), of=mean_of_nothing))


def test_a_clipper_that_fails_is_reported() -> None:
    def failing(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        raise RuntimeError("mat1 and mat2")

    assert probed(Toy(), failing) == [
        "the clipped sum fails on random tokens with RuntimeError (mat1 and mat2); fix that first"
    ]


def test_noise_in_every_coordinate() -> None:
    model = Toy()
    rng = np.random.default_rng(1)

    def noise(deviation: float = 2.0) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(rng.normal(0, deviation, tuple(value.shape)))
            for name, value in model.named_parameters()
        }

    def found(noised: dict[str, Tensor]) -> list[str]:
        return faults_of_noise(noised, model, deviation=2.0)

    assert found(noise()) == []
    whole = noise()
    assert found({name: value for name, value in whole.items() if name != "head.bias"}) == [
        "head.bias: trainable, but gets no noise; freeze it"
    ]
    assert found(whole | {"head.bias": torch.zeros(VOCABULARY)}) == [
        "head.bias: coordinates without noise; noise every coordinate of the sum"
    ]
    assert any("the noise's deviation is" in fault for fault in found(noise(1.5))), "a quarter too little"
    again = {name: value.clone() for name, value in whole.items()}
    again["head.weight"] = again["embedding.weight"]
    assert any(fault.endswith("get the same noise; draw it separately for each") for fault in found(again))


def poisson(probability: float) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(1)
    while True:
        yield np.flatnonzero(rng.random(SAMPLER_UNITS) < probability)


def shuffled(size: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(1)
    while True:
        yield from rng.permutation(SAMPLER_UNITS).reshape(-1, size)


def fixed_size(size: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(1)
    while True:
        yield rng.choice(SAMPLER_UNITS, size, replace=False)


def test_samplers_other_than_the_accountants() -> None:
    def found(batches: Iterator[np.ndarray]) -> list[str]:
        return faults_of_sampler(lambda: next(batches).tolist(), probability=0.25)

    assert found(poisson(0.25)) == []
    assert len(found(shuffled(100))) == 2
    (fault,) = found(fixed_size(100))
    assert fault.startswith(
        "the sampler's batch sizes vary 0 times as much as independent coins make them; draw Poisson"
    )
    (fault,) = found(poisson(0.3))
    assert fault.startswith("the sampler draws a unit with probability 0.")
    assert found(iter([np.array([3, 3])])) == ["the sampler draws a unit twice into one batch; draw each by one coin"]


def test_a_step_moves_what_is_trainable_and_nothing_else() -> None:
    model = Toy(LearningBuffer())
    model.embedding.weight.requires_grad_(False)

    def step() -> None:
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter.add_(torch.randn_like(parameter))

    def careless() -> None:
        with torch.no_grad():
            model.embedding.weight.add_(1)
            model.middle.centre.add_(1)
            model.head.weight.add_(1)

    def failing() -> None:
        raise RuntimeError("out of range")

    assert faults_of_step(model, step) == []
    assert faults_of_step(model, failing) == [
        "a step of training fails on random tokens with RuntimeError (out of range); fix that first"
    ]
    assert faults_of_step(model, careless) == [
        "embedding.weight: is frozen, but a step changes it",
        "middle.centre: a step changes it; nothing but trainable parameters may move",
        "head.bias: is trainable, but a step does not move it; freeze it, or raise the learning rate",
    ]
