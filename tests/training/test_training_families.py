"""Encoder-decoder models train like causal ones: equal sums (`test_clipping`), the same gate, another forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_training_soundness import judged
from torch import nn
from training_cases import ENCODERS, START, batch, flat, model, plan

from dpsynth_platform.foundation.errors import ConfigurationError, TrainingRefused
from dpsynth_platform.training import families
from dpsynth_platform.training.adapter import check_trainable, with_adapter
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.families import as_called, decoder_start, has_encoder
from dpsynth_platform.training.plan import Adapter
from dpsynth_platform.training.probe import moved
from dpsynth_platform.training.soundness import losses, refuse_unsound
from dpsynth_platform.training.trial import Maker
from dpsynth_platform.training.validators import faults_of_width

LENGTHS = [9, 12, 3, 7, 1, 12]
EXACT = 1e-5
"""As in `test_clipping`."""
RANK_2 = plan(adapter=Adapter(rank=2))


def sums_of(made: nn.Module, rows: Any, precision: torch.dtype = torch.float32, **changes: Any) -> torch.Tensor:
    with ClippedSums(made, plan(**changes), precision) as sums:
        sums.add(rows, torch.ones(len(rows["input_ids"]), 1))
    assert not sums.unused_layers()
    return flat(sums.totals.values())


def only(rows: Any, chosen: list[int]) -> Any:
    return {name: values[chosen] for name, values in rows.items()}


@pytest.mark.parametrize("name", ENCODERS)
def test_both_stacks_are_trained_and_nothing_else(name: str) -> None:
    made = with_adapter(model(name), RANK_2)
    check_trainable(made, RANK_2)
    trained = {path for path, value in made.named_parameters() if value.requires_grad}
    linear = sum(type(layer) is nn.Linear for layer in made.get_base_model().modules())
    adapted = {path.rsplit(".lora_", 1)[0] for path in trained}
    assert {path.split(".lora_")[0] for path in trained if ".encoder." in path}
    assert {path.split(".lora_")[0] for path in trained if ".decoder." in path}
    assert not any("lm_head" in path for path in adapted)
    # Of a linear layer with an adapter there are three, and the head has none.
    assert linear == 3 * len(adapted) + 1


@pytest.mark.parametrize("name", ENCODERS)
def test_width_and_company_change_nobody_s_gradient(name: str) -> None:
    made, rows = model(name, adapter=True), batch(LENGTHS)
    whole = sums_of(made, rows)
    for own in (0, 2, 5):
        alone = sums_of(made, {key: values[:, : LENGTHS[own]] for key, values in only(rows, [own]).items()})
        for precision, near in ((torch.float32, EXACT), (torch.bfloat16, 0.15)):
            wide = sums_of(made, widened(only(rows, [own]), 40), precision)
            assert (wide - alone).norm() <= near * alone.norm()
        others = sums_of(made, only(rows, [other for other in range(len(LENGTHS)) if other != own]))
        assert (whole - others - alone).norm() <= EXACT * whole.norm()


@pytest.mark.parametrize("name", [*ENCODERS, "llama", "gpt2"])
def test_no_other_row_changes_how_one_is_rounded(name: str) -> None:
    """In a part of one shape: at each place, whatever the others' lengths and numbers of predictions are."""
    made, seed = with_adapter(model(name), RANK_2), torch.Generator().manual_seed(3)
    maker = Maker.like(made, 61, 24, torch.device("cpu"))
    own = maker.example(20)
    with moved(made, seed), ClippedSums(made, RANK_2) as sums:
        found = []
        for lengths in ([24] * 5, [3] * 5, [20, 4, 9, 24, 15]):
            for place, silent in ((0, ()), (0, (1, 2, 3, 4, 5)), (0, (2, 4)), (3, (0, 5)), (5, ())):
                rows = list(map(maker.example, lengths))
                batch = maker.batch([*rows[:place], own, *rows[place:]], width=24, unlabelled=silent)
                sums.reset()
                sums.add(batch, (torch.arange(6) == place).float()[:, None])
                found.append(torch.cat([total.flatten().clone() for total in sums.totals.values()]))
    assert all(torch.equal(found[0], each) for each in found)
    assert found[0].norm() > 0.1


def widened(rows: Any, width: int) -> Any:
    """With more padding, of tokens that would show."""
    missing = width - rows["input_ids"].shape[1]
    fill = {"labels": -100, "input_ids": 5}
    return {key: nn.functional.pad(values, (0, missing), value=fill.get(key, 0)) for key, values in rows.items()}


def test_a_row_is_divided_where_its_prompt_ends() -> None:
    made = model("bart")
    rows = {
        "input_ids": torch.tensor([[7, 8, 9, 10, 0], [11, 12, 0, 0, 0], [13, 14, 15, 16, 17], [18, 19, 20, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1] * 5, [1, 1, 1, 0, 0]]),
        "labels": torch.tensor([[-100, -100, 9, 10, -100], [11, 12, -100, -100, -100], [-100] * 4 + [17], [-100] * 5]),
    }
    inputs, labels = as_called(made, rows)
    seen = [inputs["input_ids"][row][inputs["attention_mask"][row] == 1].tolist() for row in range(4)]
    assert seen == [[7, 8], [11], [13, 14, 15, 16], [18, 19, 20]]
    assert labels[:, :3].tolist() == [[-100, 9, 10], [-100, 12, -100], [-100, 17, -100], [-100] * 3]
    assert (labels[:, 3:] == -100).all()
    assert [row[:most] for row, most in zip(inputs["decoder_input_ids"].tolist(), (3, 2, 2, 1), strict=True)] == [
        [START, 9, 10],
        [START, 12],
        [START, 17],
        [START],
    ]
    assert {name: values.shape for name, values in inputs.items()} == dict.fromkeys(inputs, (4, 5))
    assert torch.equal(as_called(model("llama"), rows)[1], rows["labels"])


@pytest.mark.parametrize("name", ENCODERS)
def test_sound_trainings_pass_and_the_model_is_left_as_it_was(name: str) -> None:
    made = with_adapter(model(name), RANK_2)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    assert judged(made, RANK_2) == ()
    assert all(torch.equal(made.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_sound_trainings_pass_where_layers_compute_coarsely(name: str) -> None:
    made = with_adapter(model(name), RANK_2)
    refuse_unsound(made, RANK_2, vocabulary=61, longest=40, precision=torch.bfloat16)


class AcrossExamples(nn.Module):
    """A norm that takes a small part of the batch's mean off each example."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.plain(hidden - 0.01 * hidden.mean(0, keepdim=True))


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_that_mixes_examples_is_refused_by_the_lists_and_by_the_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(name)
    stack = made.get_encoder()
    place = "final_layer_norm" if name == "t5" else "layernorm_embedding"
    setattr(stack, place, AcrossExamples(getattr(stack, place)))
    made = with_adapter(made, RANK_2)
    assert any(f"encoder.{place}" in fault and "depends on the others" in fault for fault in judged(made, RANK_2))
    monkeypatch.setattr("dpsynth_platform.training.validators.faults_of_forward", lambda *_, **__: [])
    monkeypatch.setattr("dpsynth_platform.training.validators.faults_of_width", lambda *_, **__: [])
    assert any("clipped gradient of an example depends on the others" in fault for fault in judged(made, RANK_2))


class Stretching(nn.Module):
    """A norm of wide batches, which is another one than that of narrow ones."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.plain(hidden)
        return found if hidden.shape[1] <= 24 else 0.5 * found


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_stack_that_computes_otherwise_in_wide_batches_is_refused(stack: str) -> None:
    """Prompts that are half of an example would make neither stack as wide as training does."""
    made = model("t5")
    wide = getattr(made, stack)
    wide.final_layer_norm = Stretching(wide.final_layer_norm)
    made = with_adapter(made, RANK_2)
    assert faults_of_width(made, losses, vocabulary=61, short=16, longest=24) == []
    [fault] = faults_of_width(made, losses, vocabulary=61, short=16, longest=32)
    assert fault.startswith("the loss of an example of 16 tokens changes beside one of 32")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_that_sees_padding_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = families._divided

    def unmasked(batch: Any, start: int) -> Any:
        inputs, labels = right(batch, start)
        return inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}, labels

    monkeypatch.setattr(families, "_divided", unmasked)
    assert judged(with_adapter(model(name), RANK_2), RANK_2)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_all_weights_are_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(TrainingRefused, match=r"adapter: all weights of an encoder-decoder model; accepted"):
        with_adapter(model(name), plan())


def test_the_losses_are_those_that_are_clipped() -> None:
    made, rows = model("t5", adapter=True), batch([9, 5])
    parameters = [value for value in made.parameters() if value.requires_grad]
    expected = torch.autograd.grad(losses(made, rows).sum(), parameters)
    found = sums_of(made, rows, clipping="flat", clipping_norm=1e4)
    assert (found - flat(expected)).norm() <= EXACT * found.norm()


def test_a_decoder_begins_with_a_token_that_the_model_names() -> None:
    made = model("t5")
    assert has_encoder(made) and has_encoder(with_adapter(made, RANK_2)) and not has_encoder(model("llama"))
    assert decoder_start(made) == START
    del made.config.decoder_start_token_id
    made.generation_config.decoder_start_token_id = 7
    assert decoder_start(made) == 7
    made.generation_config.decoder_start_token_id = None
    with pytest.raises(ConfigurationError, match="decoder_start_token_id"):
        decoder_start(made)
