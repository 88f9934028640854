"""A part of a diffusers network is trained by gradients that are autograd's, and at first it is what it was."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from public_models import saved_model

from dpsynth_platform.foundation.errors import ConfigurationError, TrainingRefused
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images import diffusion_loss
from dpsynth_platform.synth.images.diffusion_loss import Rows, denoised, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss
from dpsynth_platform.synth.images.finetune_checkpoint import checkpoint, load
from dpsynth_platform.synth.images.finetune_network import adapted
from dpsynth_platform.training import grids
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.plan import Adapter, TrainingPlan
from dpsynth_platform.training.unit_probe import refuse_unsound_grid

CLASSES, ADAPTER = 3, Adapter(2, 2)
EXACT = 1e-4
"""Rounding of single precision; measured below 4e-6."""


@pytest.fixture(autouse=True)
def the_same_each_time(monkeypatch):
    """Weights and rows are the same in each run, so that rounding is, too."""
    torch.manual_seed(7)
    monkeypatch.setattr(diffusion_loss.secrets, "randbits", lambda bits: 7)


def network(place, form, adapter, **changes):
    """With weights that are all away from zero, where every one of them matters."""
    base = checkpoint(str(saved_model(place, size=(form.height, form.width), channels=form.channels, **changes)))
    found = adapted(load(base, form), CLASSES, adapter)
    with torch.no_grad():
        for value in found.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn_like(value))
    return found.eval()


def rows_of(form, number):
    return Rows(DiffusionLoss(), form, CLASSES, torch.device("cpu")).made_up(number)


def plan(bound):
    return TrainingPlan(units=100, batch_size=10, steps=3, noise_multiplier=1.0, clipping_norm=bound, adapter=ADAPTER)


def summed(made, bound, batch, weights):
    with GridSums(made, plan(bound), losses) as sums:
        sums.add(batch, weights)
    return torch.cat([value.flatten() for value in sums.totals.values()])


def by_autograd(made, batch, weights):
    """The gradient of each unit's weighted loss, row by row: [units, coordinates]."""
    wanted = [value for value in made.parameters() if value.requires_grad]
    found = []
    for unit, shares in enumerate(weights):
        total = torch.zeros(sum(value.numel() for value in wanted), dtype=torch.float64)
        for row, share in enumerate(shares.tolist()):
            place = unit * len(shares) + row
            loss = losses(made, {name: value[place : place + 1] for name, value in batch.items()}).sum()
            total += share * torch.cat([part.flatten() for part in torch.autograd.grad(loss, wanted)]).double()
        found.append(total)
    return torch.stack(found)


FORMS = [ImageForm(8, 6, 1), ImageForm(7, 5, 3), ImageForm(9, 12, 1)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("adapter", [ADAPTER, None], ids=["lora", "attention"])
@pytest.mark.parametrize("last", [False, True], ids=["", "channels-last"])
def test_each_units_gradient_is_autograds(tmp_path, form, adapter, last):
    """Alone and not clipped, so that no coordinate can hide; of several, clipped to a norm between theirs."""
    made, batch = network(tmp_path, form, adapter, num_class_embeds=4 if last else None), rows_of(form, 6)
    if last:
        made = made.to(memory_format=torch.channels_last)
        batch = batch | {
            name: batch[name].contiguous(memory_format=torch.channels_last) for name in ("pictures", "noise")
        }
    weights = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    single = by_autograd(made, batch, weights)
    for unit, wanted in enumerate(single):
        alone = {name: value[2 * unit : 2 * unit + 2] for name, value in batch.items()}
        found = summed(made, 1e5, alone, weights[unit : unit + 1])
        assert (found - wanted).abs().max() <= EXACT * wanted.abs().max()
    bound = float(single.norm(dim=1).median())
    wanted = ((bound / single.norm(dim=1)).clamp(max=1)[:, None] * single).sum(0)
    assert (summed(made, bound, batch, weights) - wanted).norm() <= EXACT * 3 * bound


@pytest.mark.parametrize(("adapter", "parts"), [(ADAPTER, ("lora_A", "lora_B")), (None, ("attentions",))])
def test_nothing_else_is_trained(tmp_path, adapter, parts):
    made = network(tmp_path, FORMS[0], adapter)
    trained = {name for name, value in made.named_parameters() if value.requires_grad}
    assert {"unet.class_embedding.weight"} < trained
    assert all(any(part in name for part in (*parts, "class_embedding")) for name in trained)
    assert sum(any(part in name for name in trained) for part in parts) == len(parts)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("known", [None, 4], ids=["without-classes", "with-classes"])
def test_at_first_the_network_is_what_it_was(tmp_path, prediction, known):
    """Its denoised picture is that of diffusers' own scheduler at each time step, for any class of ours."""
    form = ImageForm(8, 6, 3)
    place = saved_model(tmp_path, size=(8, 6), channels=3, prediction=prediction, num_class_embeds=known)
    base = checkpoint(str(place))
    loaded = load(base, form)
    unet = loaded.unet
    with torch.no_grad():
        mean = unet.class_embedding and unet.class_embedding.weight.clone()
    made = adapted(loaded, CLASSES, ADAPTER).eval()
    scheduler = DDPMScheduler(prediction_type=prediction, clip_sample=False)
    if known is not None:
        assert torch.allclose(made.unet.class_embedding.weight, mean.expand(CLASSES + 1, -1))
    with torch.no_grad():
        for time in (0, 30, 400, 999):
            kept = scheduler.alphas_cumprod[time]
            own = torch.randn(4, 3, 8, 6)
            level = ((1 - kept) / kept).sqrt()
            output = made.unet(own, torch.tensor(time), torch.zeros(4, dtype=torch.long)).sample
            wanted = scheduler.step(output, time, own).pred_original_sample
            found = denoised(made, own / kept.sqrt(), level.expand(4), torch.arange(4))
            assert torch.allclose(found, wanted, atol=5e-5 * float(1 + level)), time


def test_the_gate_accepts_it_and_finds_planted_mistakes(tmp_path, monkeypatch):
    """Attention across the pictures of a batch, and a rule for convolutions that is wrong for matrices of low rank."""
    form = FORMS[1]

    def tried(made):
        refuse_unsound_grid(made, plan(1.0), losses, lambda number: rows_of(form, number))

    class Crossing(AttnProcessor2_0):
        def __call__(self, attn, hidden_states, *given, **named):
            found = super().__call__(attn, hidden_states, *given, **named)
            return found + 0.5 * (found.mean(0, keepdim=True) - found)

    made = network(tmp_path / "lora", form, ADAPTER)
    tried(made)
    with monkeypatch.context() as patch:
        weight = grids.conv2d_weight
        patch.setattr(grids, "conv2d_weight", lambda inputs, *given: weight(inputs.flip(2), *given))
        with pytest.raises(TrainingRefused, match="is not that of automatic differentiation"):
            tried(made)
    attention = network(tmp_path / "attention", form, None)
    tried(attention)
    for layer in attention.modules():
        if isinstance(layer, Attention):
            layer.set_processor(Crossing())
    with pytest.raises(TrainingRefused, match="a row depends on others"):
        tried(attention)


def test_attention_must_be_there_to_be_trained(tmp_path):
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "add_attention": False}
    with pytest.raises(ConfigurationError, match="trained: 'attention', and the checkpoint has no attention; accepted"):
        network(tmp_path, FORMS[0], None, **blocks)
