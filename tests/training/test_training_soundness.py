"""The gate before any spend, with training's own parts: it accepts sound models, and refuses a fault in any part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_cases import VOCABULARY, batch, model, plan

from dpsynth_platform.foundation.errors import TrainingRefused
from dpsynth_platform.training import hooked, loop, physical
from dpsynth_platform.training.adapter import with_adapter
from dpsynth_platform.training.clipping import ClippedSums, example_losses
from dpsynth_platform.training.head import FrozenHead
from dpsynth_platform.training.layers import Lookup
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import Adapter, TrainingPlan
from dpsynth_platform.training.precision import EXACT
from dpsynth_platform.training.sampler import PoissonSampler
from dpsynth_platform.training.soundness import losses, refuse_unsound


def judged(
    made: nn.Module, chosen: TrainingPlan | None = None, precision: torch.dtype | None = None
) -> tuple[str, ...]:
    try:
        chosen = chosen or plan(warmup_steps=1000)
        refuse_unsound(made, chosen, vocabulary=VOCABULARY, longest=24, precision=precision)
    except TrainingRefused as refused:
        return refused.faults
    return ()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("adapter", [None, Adapter(rank=2)], ids=["full", "lora"])
def test_sound_trainings_pass_and_the_model_is_left_as_it_was(name: str, adapter: Adapter | None) -> None:
    chosen = plan(adapter=adapter, weight_decay=0.1, sampled="user" if name == "gpt2" else "record")
    made = with_adapter(model(name, tied=True), chosen)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    trainable = {key for key, value in made.named_parameters() if value.requires_grad}
    assert judged(made, chosen) == ()
    assert all(torch.equal(made.state_dict()[key], value) for key, value in before.items())
    assert {key for key, value in made.named_parameters() if value.requires_grad} == trainable


@pytest.mark.filterwarnings("error")
def test_a_plan_shows_no_warning_of_the_adapter_s_library() -> None:
    assert with_adapter(model("llama"), plan(adapter=Adapter(rank=2))).peft_config


def test_the_losses_are_those_that_are_clipped() -> None:
    made, rows = model(), batch([9, 5])
    given = {name: values for name, values in rows.items() if name != "labels"}
    assert torch.equal(losses(made, rows), example_losses(made(**given).logits, rows["labels"]))


def test_faults_of_several_parts_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    made.model.norm = nn.BatchNorm1d(16)
    monkeypatch.setattr(PoissonSampler, "draw", lambda self: torch.randperm(self._number)[: self._number // 4])
    with pytest.raises(TrainingRefused) as raised:
        refuse_unsound(made, plan(), vocabulary=VOCABULARY + 1, longest=65)
    for part in ("model.norm: BatchNorm1d", "65 tokens", f"{VOCABULARY + 1} tokens", "batch sizes vary 0 times"):
        assert part in str(raised.value)


def test_clipping_that_counts_one_use_of_a_tied_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookup, "add_", lambda *_: None)
    assert any(
        fault.startswith("model.embed_tokens.weight: its clipped gradient is not the loss's gradient scaled down")
        for fault in judged(model(tied=True))
    )


def test_clipping_with_too_large_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    right = hooked.clipping_coefficients
    monkeypatch.setattr(hooked, "clipping_coefficients", lambda norms, plan: 1.01 * right(norms, plan))
    assert any("1.01 times as long as the clipping norm" in fault for fault in judged(model()))


def test_clipping_of_a_whole_physical_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ClippedSums.add
    monkeypatch.setattr(
        ClippedSums, "add", lambda self, rows, weights: right(self, rows, torch.ones_like(weights).T / len(weights))
    )
    assert any("depends on the others in its batch" in fault for fault in judged(model()))


def shifted_in_place(made: nn.Module) -> nn.Module:
    """In training, all scores of a batch are shifted together, which their softmax does not see, in the same tensor."""

    def shift(model: nn.Module, _: Any, output: Any) -> None:
        if not model.training:
            output.logits.sub_(output.logits.detach().nan_to_num().amax())

    made.register_forward_hook(shift)
    return made


def test_scores_that_are_changed_in_place_are_no_hidden_states() -> None:
    chosen, rows = plan(adapter=Adapter(rank=2), clipping_norm=1e-3), batch([12, 12, 12])
    made = shifted_in_place(with_adapter(model(), chosen)).eval()
    sums = []
    for some in ([0, 1, 2], [0], [1], [2]):
        with ClippedSums(made, chosen) as clipped:
            clipped.add({name: values[some] for name, values in rows.items()}, torch.ones(len(some), 1))
        sums.append(torch.cat([total.flatten() for total in clipped.totals.values()]))
    torch.testing.assert_close(sums[0], sums[1] + sums[2] + sums[3], rtol=1e-4, atol=1e-7)
    assert judged(made, chosen, precision=EXACT) == ()
    (fault,) = judged(made, chosen, precision=torch.bfloat16)
    assert "they change each other's rounding" in fault, "by how far scores are shifted hangs on all of them"


def test_a_head_that_takes_changed_scores_for_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried in the mode in which training computes: a model may do in it what it does not in the other."""
    chosen = plan(adapter=Adapter(rank=2))
    monkeypatch.setattr(FrozenHead, "gave", lambda self, scores: scores is self.hidden)
    faults = judged(shifted_in_place(with_adapter(model(), chosen)), chosen)
    assert any("is not the loss's gradient scaled down" in fault for fault in faults)


def test_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GaussianNoise.add_
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: right(self, sums, deviation / 2))
    assert any("the noise's deviation is 0." in fault for fault in judged(model()))


def test_a_step_that_moves_a_frozen_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan(adapter=Adapter(rank=2))
    made = with_adapter(model(), chosen)
    frozen = next(value for value in made.parameters() if not value.requires_grad)
    right = loop.Optimizer.step

    def step(self: Any, number: int, gradients: dict[str, Tensor]) -> None:
        right(self, number, gradients)
        frozen.data.add_(1e-3)

    monkeypatch.setattr(loop.Optimizer, "step", step)
    (fault,) = judged(made, chosen)
    assert fault.endswith("is frozen, but a step changes it")


def test_a_step_that_is_too_small() -> None:
    chosen = replace(plan(), learning_rate=1e-20)
    assert (
        "model.norm.weight: is trainable, but a step does not move it; freeze it, or raise the learning rate"
        in judged(model(), chosen)
    )


def test_the_planned_length_is_tried_too():
    """Other trials are of 16 tokens."""
    made = model()
    hook = made.model.embed_tokens.register_forward_hook(
        lambda layer, given, out: out if out.shape[1] < 24 else 2 * out
    )
    with pytest.raises(TrainingRefused, match="16 tokens changes beside one of 24"):
        refuse_unsound(made, plan(), vocabulary=VOCABULARY, longest=24)
    hook.remove()


COARSE = torch.bfloat16
"""The precision of another device, for any device of the tests."""


@pytest.mark.parametrize("adapter", [None, Adapter(rank=2)], ids=["full", "lora"])
def test_examples_do_not_round_each_other_where_layers_compute_in_bfloat16(
    adapter: Adapter | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = plan(adapter=adapter, warmup_steps=1000)
    made = with_adapter(model("gpt2", tied=True), chosen)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    assert judged(made, chosen, COARSE) == ()
    assert all(torch.equal(made.state_dict()[key], value) for key, value in before.items())
    assert {value.dtype for value in made.state_dict().values() if value.is_floating_point()} == {torch.float32}

    # A scale that all rows of a part have in common, as quantizing on the fly has it; single precision has none.
    def common(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        scale = out.detach().abs().max() / 127
        return out if out.dtype != COARSE else out + ((out.detach() / scale).round() * scale - out.detach())

    hook = made.get_submodule(next(name for name, _ in made.named_modules() if name.endswith("ln_f")))
    handle = hook.register_forward_hook(common)
    assert any("they change each other's rounding" in fault for fault in judged(made, chosen, COARSE))
    handle.remove()


def test_parts_whose_shape_hangs_on_others_are_refused_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan(warmup_steps=1000)

    def tight(rows: dict[str, Tensor], sizes: list[int], _: int, device: torch.device, *__: int) -> Any:
        units, long = physical._units(sizes), max(physical._lengths(rows["attention_mask"]))
        return [[physical._part(rows, units, (len(units), 1, long), None, device)]]

    monkeypatch.setattr(physical, "fixed_shape_parts", tight)
    faults = judged(model("gpt2", tied=True), chosen, COARSE)
    assert any("they change each other's rounding" in fault for fault in faults)


def test_clipping_to_more_than_the_norm_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the passes of a coarse precision are spoiled, so that nothing else finds it."""
    right = ClippedSums.add
    chosen = plan(warmup_steps=1000)

    def louder(self: ClippedSums, rows: dict[str, Tensor], weights: Tensor) -> None:
        right(self, rows, weights)
        for total in self.totals.values() if self.precision == COARSE else ():
            total.mul_(1.001)

    monkeypatch.setattr(ClippedSums, "add", louder)
    assert any("1.001 times as long as the clipping norm" in fault for fault in judged(model(), chosen, COARSE))
