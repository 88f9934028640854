"""Latents are a function of one picture and of public weights, of any size; planted mistakes are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import VQModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from public_models import saved_latent_model, tiny_autoencoder
from torch.nn import functional

from dpsynth_platform.foundation.errors import TrainingRefused
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images import picture_codecs
from dpsynth_platform.synth.images.diffusion_loss import as_pixels, as_records, as_values
from dpsynth_platform.synth.images.finetune_checkpoint import checkpoint, load
from dpsynth_platform.synth.images.picture_codecs import AsLatents, AsPixels

FORMS = [ImageForm(8, 8, 1), ImageForm(8, 6, 1), ImageForm(9, 7, 3), ImageForm(1, 13, 1)]


@pytest.fixture(autouse=True)
def the_same_each_time():
    torch.manual_seed(7)


def pictures(form, number=5):
    return np.random.default_rng(7).integers(0, 256, (number, *form.shape), np.uint8)


def of_latents(autoencoder, form, scale=0.6, shift=0.0):
    return AsLatents(autoencoder.eval(), form, 3, shift, scale)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", ["vae", "vqvae"])
def test_latents_are_those_of_diffusers(tmp_path, form, kind):
    """The mean, shifted and scaled; sides that the factor does not divide are continued, and cut again."""
    changes = {"kind": VQModel, "num_vq_embeddings": 16} if kind == "vqvae" else {"shift_factor": 0.3}
    height, width = -(-form.height // 4), -(-form.width // 4)
    model = saved_latent_model(tmp_path, (height, width), tiny_autoencoder(form.channels, **changes), kind)
    codec = load(checkpoint(str(model)), form).codec
    assert codec.form == ImageForm(height, width, 3)
    codec.check("cpu")
    pixels = pictures(form)
    values = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    padded = functional.pad(values, (0, 4 * width - form.width, 0, 4 * height - form.height), mode="replicate")
    with torch.no_grad():
        made = codec.autoencoder.encode(padded)
        shift = 0.3 if kind == "vae" else 0.0
        wanted = 0.6 * ((made.latent_dist.mean if kind == "vae" else made.latents) - shift)
        drawn = codec.autoencoder.decode(wanted / 0.6 + shift).sample[:, :, : form.height, : form.width]
    found = codec.encoded(pixels, "cpu")
    assert found.dtype == np.float32
    assert np.allclose(found, wanted.permute(0, 2, 3, 1), atol=1e-5)
    again = codec.decoded(wanted)
    assert again.shape == (5, form.channels, form.height, form.width)
    assert torch.allclose(again, drawn, atol=1e-5)


def test_passes_have_bounded_memory(monkeypatch):
    form = FORMS[1]
    codec, pixels = of_latents(tiny_autoencoder(), form), pictures(form, 11)
    whole = codec.encoded(pixels, "cpu")
    decoded = codec.decoded(torch.from_numpy(whole).permute(0, 3, 1, 2))
    sizes = []
    codec.autoencoder.encoder.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    codec.autoencoder.decoder.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(picture_codecs, "MOST_NUMBERS", 4 * 8 * form.values)
    assert np.allclose(codec.encoded(pixels, "cpu"), whole, atol=1e-5)
    assert torch.allclose(codec.decoded(torch.from_numpy(whole).permute(0, 3, 1, 2)), decoded, atol=1e-5)
    assert sizes == [4, 4, 3] * 2
    monkeypatch.setattr(picture_codecs, "MOST_NUMBERS", 1)
    codec.encoded(pixels[:2], "cpu")
    assert sizes[-2:] == [1, 1]
    assert codec.encoded(pixels[:0], "cpu").shape == (0, 2, 2, 3)


def test_pixels_stay_as_they_are():
    codec, pixels = AsPixels(FORMS[2]), pictures(FORMS[2])
    codec.check("cpu")
    assert codec.encoded(pixels, "cpu") is pixels and codec.form == codec.pictures == FORMS[2]
    assert not codec.latent


def test_an_autoencoder_in_train_mode_is_found():
    """Dropout draws by chance, and normalization over a batch mixes pictures; in evaluation mode both are harmless."""
    for layer in (torch.nn.Dropout(0.2), torch.nn.BatchNorm2d(8)):
        autoencoder = tiny_autoencoder().eval()
        autoencoder.encoder.conv_act = torch.nn.Sequential(layer, torch.nn.SiLU()).eval()
        codec = of_latents(autoencoder, FORMS[1])
        codec.check("cpu")
        autoencoder.train()
        with pytest.raises(
            TrainingRefused, match="depend on other pictures or on chance; freeze it, in evaluation mode"
        ):
            codec.check("cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"up_block_types": ("UpDecoderBlock2D",)}, r"come back with sides \[4, 4\]"),
        ({"down_block_types": ("DownEncoderBlock2D",)}, "the autoencoder fails on random pictures with ValueError"),
    ],
)
def test_what_gives_no_pictures_back_is_found(changes, words):
    with pytest.raises(TrainingRefused, match=words):
        of_latents(tiny_autoencoder(**changes), FORMS[1]).check("cpu")


def test_latents_that_are_drawn_are_found(monkeypatch):
    codec = of_latents(tiny_autoencoder(), FORMS[1])
    monkeypatch.setattr(DiagonalGaussianDistribution, "mode", DiagonalGaussianDistribution.sample)
    with pytest.raises(TrainingRefused, match="latents of random pictures are others again"):
        codec.check("cpu")


def test_a_trained_autoencoder_gives_pictures_back():
    """Bright left or right halves, at a size that its factor does not divide; without decoding they are far."""
    form = ImageForm(8, 6, 1)
    pixels = np.full((2, *form.shape), 30, np.uint8)
    pixels[0, :, :3], pixels[1, :, 3:] = 220, 220
    values = functional.pad(as_values(as_records(pixels)), (0, 2, 0, 0), mode="replicate")
    autoencoder = tiny_autoencoder()
    optimizer = torch.optim.Adam(autoencoder.parameters(), 1e-2)
    for _ in range(60):
        loss = (autoencoder.decode(autoencoder.encode(values).latent_dist.mean).sample - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    codec = of_latents(autoencoder, form)
    latents = torch.from_numpy(codec.encoded(pixels, "cpu")).permute(0, 3, 1, 2)
    found = as_pixels(codec.decoded(latents)).astype(int)
    assert np.abs(found - pixels).mean() < 0.3 * np.abs(found - pixels[::-1]).mean()
