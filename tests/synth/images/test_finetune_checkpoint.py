"""Which directories of diffusers a training may start from: what is wrong with others is said in three parts."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from public_models import saved_latent_model, saved_model, tiny_autoencoder, tiny_unet
from safetensors.torch import load_file, save_file

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images.finetune_checkpoint import CONFIG, INDEX, SCHEDULER, WEIGHTS, checkpoint, load

FORM = ImageForm(8, 6, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("public") / "model", num_class_embeds=3)


@pytest.fixture
def model(tmp_path, whole):
    return shutil.copytree(whole, tmp_path / "model")


def changed(model, name, **values):
    document = json.loads((model / name).read_text()) | values
    (model / name).write_text(json.dumps(document))


def pickled(model, file=WEIGHTS):
    torch.save(load_file(model / file), model / file.replace(".safetensors", ".bin"))
    (model / file).unlink()


def without(model, name, *, file=WEIGHTS, **others):
    weights = load_file(model / file)
    save_file({key: value for key, value in (weights | others).items() if key != name}, model / file)


def cut_off(model, file=WEIGHTS):
    (model / file).write_bytes((model / file).read_bytes()[:5000])


def piped(model, file=CONFIG):
    (model / file).unlink()
    os.mkfifo(model / file)


FAULTS = {
    "no directory": (shutil.rmtree, "there is no model_index.json; accepted: a directory that a pipeline"),
    "no config": (lambda model: (model / CONFIG).unlink(), "there is no unet/config.json; accepted"),
    "no scheduler": (lambda model: (model / SCHEDULER).unlink(), "there is no scheduler/scheduler_config.json; acc"),
    "no weights": (lambda model: (model / WEIGHTS).unlink(), "it has no weights; accepted: unet/diffusion_pytorch_"),
    "pickle": (pickled, "its weights are pickles, which are programs; accepted: unet/diffusion_pytorch_model.safetens"),
    "no JSON": (lambda model: (model / INDEX).write_text("["), "model_index.json cannot be read as a JSON object; acc"),
    "more parts": (
        lambda model: changed(model, INDEX, text_encoder=["transformers", "CLIPTextModel"]),
        r"its pipeline has .*text_encoder \(CLIPTextModel\); accepted: a unet \(UNet2DModel\), a scheduler, and",
    ),
    "no autoencoder": (
        lambda model: changed(model, INDEX, vqvae=["diffusers", "VQModel"]),
        "there is no vqvae/config.json; accepted",
    ),
    "two autoencoders": (
        lambda model: changed(model, INDEX, vqvae=["diffusers", "VQModel"], vae=["diffusers", "AutoencoderKL"]),
        r"its pipeline has .*vqvae \(VQModel\).*; accepted",
    ),
    "own code": (
        lambda model: changed(model, INDEX, unet=["my_module", "UNet2DModel"]),
        r"its pipeline has .*unet \(UNet2DModel\); accepted",
    ),
    "network": (lambda model: changed(model, CONFIG, _class_name="UNet1DModel"), "_class_name is 'UNet1DModel'; acc"),
    "time": (lambda model: changed(model, CONFIG, time_embedding_type="fourier"), "'fourier'; accepted: positional"),
    "prediction": (
        lambda model: changed(model, SCHEDULER, prediction_type="sample"),
        "prediction_type is 'sample'; accepted: epsilon or v_prediction",
    ),
    "size": (
        lambda model: changed(model, CONFIG, sample_size=32),
        "it is for pictures of 32 x 32 pixels, and the column has 8 x 6; accepted: a checkpoint for 8 x 6",
    ),
    "channels": (
        lambda model: changed(model, CONFIG, in_channels=3),
        "it reads 3 and writes 1 channels of pixels, and the column has 1; accepted: a checkpoint that reads and w",
    ),
    "missing": (
        lambda model: without(model, "conv_in.weight"),
        "'conv_in.weight' is missing or unknown; accepted: the weights of unet/config.json",
    ),
    "unknown": (lambda model: without(model, "", other=torch.ones(1)), "'other' is missing or unknown; accepted"),
    "cut off": (cut_off, "it cannot be read .*damaged or too new; accepted: a whole checkpoint"),
    "not finite": (
        lambda model: without(model, "", **{"conv_in.bias": torch.full((8,), torch.nan)}),
        "it has weights that are not finite; accepted: finite weights",
    ),
    "widths": (lambda model: changed(model, CONFIG, block_out_channels=[8, 24]), "it cannot be read .*; accepted"),
    "deep": (
        lambda model: (model / CONFIG).write_text("[" * 200_000),
        "unet/config.json cannot be read as a JSON object",
    ),
    "pipe": (piped, "unet/config.json cannot be read as a JSON object; accepted: the file as diffusers saved it"),
    "steps": (
        lambda model: changed(model, SCHEDULER, num_train_timesteps=2 * 10**8),
        "num_train_timesteps is 200000000; accepted: from 1 to 10000",
    ),
    "layers": (
        lambda model: changed(model, CONFIG, layers_per_block=10**5),
        "layers_per_block is 100000; accepted: from 1 to 16",
    ),
    "classes": (
        lambda model: without(model, "", **{"class_embedding.weight": torch.zeros(3, 7)}),
        "it cannot be read .*; accepted: a whole checkpoint",
    ),
    "noise": (lambda model: changed(model, SCHEDULER, trained_betas=[0.0, 0.0]), "it cannot be read .*; accepted"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_checkpoint_is_refused(model, fault):
    spoil, words = FAULTS[fault]
    spoil(model)
    with pytest.raises(ConfigurationError, match=words) as refused:
        load(checkpoint(str(model)), FORM)
    assert f"generate.image.finetune.checkpoint: '{model}'" in str(refused.value)


VAE, LATENT_WEIGHTS = "vae/config.json", "vae/diffusion_pytorch_model.safetensors"
LATENT_FAULTS = {
    "pickle": (lambda model: pickled(model, LATENT_WEIGHTS), "its weights are pickles, .*; accepted: vae/diffusion_py"),
    "pipe": (lambda model: piped(model, VAE), "vae/config.json cannot be read as a JSON object; accepted: the file"),
    "piped weights": (lambda model: piped(model, LATENT_WEIGHTS), "it has no weights; accepted: vae/diffusion_pytorch"),
    "deep": (lambda model: (model / VAE).write_text("[" * 200_000), "vae/config.json cannot be read as a JSON object"),
    "class": (lambda model: changed(model, VAE, _class_name="AutoencoderTiny"), "'AutoencoderTiny'; accepted: Autoenc"),
    "layers": (lambda model: changed(model, VAE, layers_per_block=10**5), "layers_per_block is 100000; accepted: from"),
    "wide": (lambda model: changed(model, VAE, block_out_channels=[8, 8, 2**40]), "it cannot be read .*; accepted"),
    "many": (lambda model: changed(model, VAE, latent_channels=2**40), "it cannot be read .*; accepted"),
    "no scale": (lambda model: changed(model, VAE, scaling_factor=0), "scaling_factor is 0; accepted: a number below"),
    "scale": (lambda model: changed(model, VAE, scaling_factor="1"), "scaling_factor is '1'; accepted: a number below"),
    "shift": (
        lambda model: changed(model, VAE, shift_factor=float("nan")),
        "shift_factor is nan; accepted: a number b",
    ),
    "mean": (lambda model: changed(model, VAE, latents_mean=[0.0] * 3), "latents_mean is given; accepted: null"),
    "colours": (
        lambda model: changed(model, VAE, in_channels=3),
        "it reads 3 and writes 1 channels of pixels, and the column has 1; accepted",
    ),
    "size": (
        lambda model: changed(model, CONFIG, sample_size=[4, 4]),
        "it is for pictures of 4 x 4 latents, and the column has 2 x 2; accepted",
    ),
    "channels": (
        lambda model: changed(model, CONFIG, in_channels=4),
        "it reads 4 and writes 3 channels of latents, and the column has 3; accepted",
    ),
    "cut off": (lambda model: cut_off(model, LATENT_WEIGHTS), "it cannot be read .*; accepted: a whole checkpoint"),
    "missing": (
        lambda model: without(model, "quant_conv.weight", file=LATENT_WEIGHTS),
        "'quant_conv.weight' is missing or unknown; accepted: the weights of vae/config.json",
    ),
    "not finite": (
        lambda model: without(model, "", file=LATENT_WEIGHTS, **{"quant_conv.bias": torch.full((6,), torch.inf)}),
        "vae/diffusion_pytorch_model.safetensors: it has weights that are not finite; accepted",
    ),
}


@pytest.fixture(scope="module")
def whole_latent(tmp_path_factory):
    return saved_latent_model(tmp_path_factory.mktemp("public") / "model")


@pytest.mark.parametrize("fault", LATENT_FAULTS)
def test_a_faulty_autoencoder_is_refused(tmp_path, whole_latent, fault):
    model = shutil.copytree(whole_latent, tmp_path / "model")
    load(checkpoint(str(model)), FORM)
    spoil, words = LATENT_FAULTS[fault]
    spoil(model)
    with pytest.raises(ConfigurationError, match=words) as refused:
        load(checkpoint(str(model)), FORM)
    assert f"generate.image.finetune.checkpoint: '{model}'" in str(refused.value)


@pytest.mark.parametrize("name", [VAE, LATENT_WEIGHTS])
def test_the_digest_covers_the_autoencoder(tmp_path, whole_latent, name):
    model = shutil.copytree(whole_latent, tmp_path / "model")
    base = checkpoint(str(model))
    if name == VAE:
        changed(model, name, scaling_factor=0.5)
    else:
        tiny_autoencoder().save_pretrained(model / "vae")
    assert checkpoint(str(model)).digest != base.digest
    with pytest.raises(ConfigurationError, match="its files change while they are read"):
        load(base, FORM)


def test_weights_that_change_after_their_digest_are_refused(model):
    base = checkpoint(str(model))
    tiny_unet(num_class_embeds=3).save_pretrained(model / "unet")
    with pytest.raises(ConfigurationError, match="its files change while they are read; accepted: files that stay"):
        load(base, FORM)


def test_its_weights_and_levels_are_read(model):
    loaded = load(checkpoint(str(model)), FORM)
    unet, levels = loaded.unet, loaded.levels
    saved = load_file(model / WEIGHTS)
    classes = saved.pop("class_embedding.weight")
    own = unet.state_dict()
    assert torch.allclose(own.pop("class_embedding.weight"), classes.mean(0, keepdim=True))
    assert own.keys() == saved.keys() and all(torch.equal(own[name], saved[name]) for name in saved)
    assert (len(levels), loaded.prediction) == (1000, "epsilon")
    assert levels[0] == pytest.approx((1e-4 / (1 - 1e-4)) ** 0.5, rel=1e-3)  # of the first beta, in single precision
    assert not unet.training


def test_a_schedule_that_ends_in_noise_alone_loses_that_step(model):
    changed(model, SCHEDULER, rescale_betas_zero_snr=True, prediction_type="v_prediction")
    assert len(load(checkpoint(str(model)), FORM).levels) == 999


@pytest.mark.parametrize("name", [INDEX, CONFIG, SCHEDULER, WEIGHTS])
def test_the_digest_covers_every_file_that_is_read(model, name):
    before = checkpoint(str(model)).digest
    (model / "README.md").write_text("Says nothing to the program.")
    assert checkpoint(str(model)).digest == before
    file = model / name
    if name == WEIGHTS:
        tiny_unet(num_class_embeds=3).save_pretrained(model / "unet")
    else:
        changed(model, name, _note="changed")
    assert file.is_file() and checkpoint(str(model)).digest != before
