"""Training a part of a public model: its sealed plan and event, a changed checkpoint, and drawing by class."""

from __future__ import annotations

import dataclasses
import json
import math

import dp_accounting as accounting
import numpy as np
import pytest
import torch
from diffusion_cases import bounded_pictures, job, picture_contract, pictures
from dp_accounting.pld import PLDAccountant
from finetune_cases import finetune_contract, finetune_inputs, finetune_plan
from public_models import ONE_BLOCK, WHY, saved_latent_model, saved_model, tiny_autoencoder
from safetensors.torch import load_file

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, GrantRefused, TrainingRefused
from dpsynth_platform.privacy.events import event_from_json, leaves
from dpsynth_platform.sources.pictures import read_pictures
from dpsynth_platform.synth import network_training
from dpsynth_platform.synth.images import diffusion_sampling, diffusion_training, picture_training
from dpsynth_platform.synth.images.choice import image_method_for
from dpsynth_platform.synth.images.diffusion_loss import losses
from dpsynth_platform.synth.images.diffusion_training import load_network
from dpsynth_platform.synth.images.finetune import ImageFinetune
from dpsynth_platform.synth.images.finetune_plan import FinetuneParameters
from dpsynth_platform.synth.images.layout import Pictures
from dpsynth_platform.synth.images.picture_codecs import TRIED, AsLatents
from dpsynth_platform.synth.images.picture_training import read_records
from dpsynth_platform.synth.interface import DrawRequest, SealedPlan
from dpsynth_platform.training.grids import GridSums

GENERATOR = ImageFinetune()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("public") / "model")


@pytest.fixture
def without_gate(monkeypatch):
    """For tests of what follows it."""
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)


def test_the_event_is_what_the_training_costs(model):
    """Without counted columns and with one record of an owner, by dp_accounting alone, from the plan's numbers."""
    whole = picture_contract(epsilon=2.0, owners=400, b=1).snapshot()
    whole["columns"]["kind"] = {"ignore": True}
    whole["generate"]["rows"] = 50
    plan = finetune_plan(model, contract=DataContract.model_validate(whole), replay_steps=3)
    parameters = FinetuneParameters.checked(plan)
    assert parameters.columns is None
    training = parameters.training
    assert (training.batch_size, training.units, training.steps, training.replay_allowance) == (20, 400, 6, 3)
    step = accounting.PoissonSampledDpEvent(20 / 400, accounting.GaussianDpEvent(training.noise_multiplier))
    delta = plan.guarantee["delta"]
    found = PLDAccountant().compose(step, 9).get_epsilon(delta)
    assert 1.95 < found <= 2.0 + 1e-3
    (sealed, times), *others = leaves(event_from_json(plan.event))
    assert (sealed.noise_multiplier, sealed.sampling_probability, times) == (training.noise_multiplier, 20 / 400, 9)
    assert not others


def test_less_noise_or_more_steps_are_refused(model):
    plan = finetune_plan(model)
    training = plan.parameters["training"]
    for change in ({"noise_multiplier": 0.5 * training["noise_multiplier"]}, {"steps": 60}, {"max_contributions": 1}):
        parameters = plan.parameters | {"training": training | change}
        with pytest.raises(GrantRefused):
            GENERATOR.check(dataclasses.replace(plan, parameters=parameters))


def test_the_plan_seals_what_the_contract_declares(model):
    plan = finetune_plan(model, sampled="owners", learning_rate=0.02, rank=3)
    parameters = FinetuneParameters.of(plan)
    assert json.dumps(parameters.to_json()) == json.dumps(plan.parameters)
    assert (parameters.training.sampled, parameters.training.learning_rate) == ("user", 0.02)
    assert parameters.training.adapter is not None and parameters.training.adapter.rank == 3
    assert (parameters.loss.draws, parameters.checkpoint) == (2, str(model))
    assert parameters.solver.lowest == pytest.approx(0.01, rel=1e-3)  # the checkpoint knows no less noise
    assert FinetuneParameters.of(finetune_plan(model, trained="attention")).training.adapter is None
    described = GENERATOR.describe(plan)
    assert "10 steps of DP-SGD over owners" in described["event"]
    assert described["trained"].startswith(f"matrices of rank 3 and classes of {model.name}")


def test_planning_tries_the_network_and_refuses_what_is_not_there(tmp_path, model, monkeypatch):
    tried = []
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *given: tried.append(given))
    assert GENERATOR.parts(finetune_inputs(model)).parameters["checkpoint"] == str(model)
    assert len(tried) == 1
    with pytest.raises(ConfigurationError, match=r"there is no model_index\.json"):
        GENERATOR.parts(finetune_inputs(tmp_path / "nothing"))


def test_another_checkpoint_is_refused_before_a_record_is_read(tmp_path, without_gate):
    model = saved_model(tmp_path / "public")
    plan = finetune_plan(model)
    parameters = FinetuneParameters.checked(plan)
    saved_model(model)  # other random weights in its place
    with pytest.raises(ConfigurationError, match="is not the one that the plan was made for; accepted: its earlier"):
        GENERATOR.learn(job(plan, tmp_path / "no table", tmp_path / "model"), parameters, tmp_path / "model")


def test_an_autoencoder_that_is_swapped_after_sealing_is_refused(tmp_path, without_gate):
    model = saved_latent_model(tmp_path / "public")
    plan = finetune_plan(model)
    tiny_autoencoder().save_pretrained(model / "vae")
    with pytest.raises(ConfigurationError, match="is not the one that the plan was made for; accepted: its earlier"):
        GENERATOR.learn(
            job(plan, tmp_path / "no table", tmp_path / "model"), FinetuneParameters.checked(plan), tmp_path / "model"
        )


@pytest.mark.parametrize("trained", ["lora", "attention"])
def test_a_latent_model_is_planned_trained_continued_and_draws(tmp_path, monkeypatch, trained):
    """Through the gate and an interruption; latents are made once in a process, and lie in no file."""
    model, directory, encoded = saved_latent_model(tmp_path / "public", **ONE_BLOCK), tmp_path / "model", []
    encode = AsLatents.encoded

    def seen(self, pixels, device):
        encoded.append(len(pixels))
        return encode(self, pixels, device)

    def refused(directory):
        raise AssertionError("a file of records is opened")

    monkeypatch.setattr(AsLatents, "encoded", seen)
    monkeypatch.setattr(picture_training, "_unnamed", refused)
    if trained == "lora":  # the gate takes time, and tests of the network have it for low-rank matrices
        monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)
    inputs = finetune_inputs(model, trained=trained, sampled="owners")
    plan = SealedPlan.of(ImageFinetune.method, inputs, GENERATOR.parts(inputs))
    parameters = FinetuneParameters.checked(plan)
    assert parameters.loss.level_mean == pytest.approx(-1.2 + math.log(2))
    bounded = bounded_pictures(tmp_path / "bounded")
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)
    with monkeypatch.context() as patch:
        patch.setattr(network_training, "save_weights", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        encoded.clear()
        with pytest.raises(KeyboardInterrupt):
            GENERATOR.run(job(plan, bounded, directory))
        assert sum(number for number in encoded if number > TRIED) == 80
    assert GENERATOR.can_resume(directory)
    GENERATOR.run(job(plan, bounded, directory, resume=True))
    kept = load_file(directory / "pictures/weights.safetensors")
    assert kept and all(name.startswith("unet.") for name in kept)
    table = GENERATOR.sample(directory, 30)
    pixels, *_ = read_pictures(table.column("picture"), parameters.layout.form, "refuse", raw=False)
    assert pixels.shape == (30, 8, 6, 1) and pixels.std() > 0


def test_an_owner_moves_latent_gradients_by_the_clipping_norm_at_most(tmp_path, monkeypatch):
    """With and without an owner of two records, whose gradients alone are longer, through the records of training.

    Planted mistakes are found: a sum that takes each unit twice, and a normalization over the batch in the encoder,
    which moves the latents of all other owners, too. The networks are the same each time.
    """
    torch.manual_seed(7)
    plan = finetune_plan(saved_latent_model(tmp_path / "public"), sampled="owners", clipping_norm=1e-3)
    parameters = FinetuneParameters.checked(plan)
    with monkeypatch.context() as patch:
        add = GridSums.add
        patch.setattr(GridSums, "add", lambda self, *given: (add(self, *given), add(self, *given)))
        with pytest.raises(TrainingRefused, match="of one unit is 2 times as long as the clipping norm"):
            diffusion_training.prepared(parameters)
    network = parameters.network().eval()
    pixels, kinds = pictures(12)
    pixels[10:] = 255 - pixels[10:]
    owners = np.arange(12) // 2

    def summed(records):
        part = [Pictures(pixels[:records], kinds[:records], [str(owner) for owner in owners[:records]])]
        found = read_records(part, network.codec, tmp_path / "no file", owners=True, draws=1)
        values = found.batch(range(records))
        batch = {
            "pictures": values["pixels"],
            "classes": values["classes"],
            "level": torch.full((records,), 0.5),
            "noise": torch.ones_like(values["pixels"]),
        }
        with GridSums(network, parameters.training, losses) as sums:
            sums.add(batch, torch.full((records // 2, 2), 0.5))
        return torch.cat([value.flatten() for value in sums.totals.values()]), values["pixels"]

    with_owner, latents = summed(12)
    without, fewer = summed(10)
    bound = parameters.training.clipping_norm
    assert torch.allclose(latents[:10], fewer, atol=1e-5)
    assert 0.99 * bound < float((with_owner - without).norm()) <= bound * (1 + 1e-3)
    network.codec.autoencoder.encoder.conv_act = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.SiLU())
    assert (summed(12)[1][:10] - summed(10)[1]).abs().max() > 1e-3  # a hundred times what is near above
    with pytest.raises(TrainingRefused, match="latents of random pictures are others alone"):
        network.codec.check("cpu")


@pytest.mark.parametrize("trained", ["lora", "attention"])
def test_a_trained_part_draws_by_class(tmp_path, model, without_gate, monkeypatch, trained):
    """Only the trained part is on disk, and the rest is the checkpoint's. Its embedding of the classes decides."""
    plan = finetune_plan(model, trained=trained, steps=3)
    bounded, directory = bounded_pictures(tmp_path / "bounded"), tmp_path / "model"
    GENERATOR.run(job(plan, bounded, directory))
    parameters = FinetuneParameters.of(plan)
    network = load_network(parameters, directory / "pictures", "cpu")
    kept = load_file(directory / "pictures/weights.safetensors")
    saved = load_file(model / "unet/diffusion_pytorch_model.safetensors")
    for name, value in network.named_parameters():
        if name in kept:
            assert torch.equal(value, kept[name])
        else:
            assert torch.equal(value, saved[name.removeprefix("unet.").replace(".base_layer", "")])
    assert 0 < len(kept) < len(dict(network.named_parameters()))
    table = GENERATOR.sample(directory, 30)
    assert table.num_rows == 30 and table.column("picture").null_count == 0
    # Rows of the embedding differ by noise in every coordinate, so outputs differ; drawn pictures may all be clipped.
    rows, sample, asked = torch.zeros(1, 1, 8, 6), diffusion_sampling.sample, []
    with torch.no_grad():
        by_class = [network(rows, torch.zeros(1), torch.tensor([number])) for number in (0, 1)]
    assert not torch.equal(*by_class)

    def seen(network, codec, classes, *more):
        asked.append(classes.tolist())
        return sample(network, codec, classes, *more)

    monkeypatch.setattr(diffusion_sampling, "sample", seen)
    draw = GENERATOR.opened(plan, parameters, directory / "pictures", DrawRequest(directory))
    pictures = [draw(number, 3, np.random.default_rng(5)) for number in (0, 0, 1)]
    assert asked == [[0] * 3, [0] * 3, [1] * 3]
    assert pictures[0].shape == (3, 8, 6, 1) and (pictures[0] == pictures[1]).all()


def test_auto_starts_from_a_declared_checkpoint(model):
    whole = finetune_contract(model).snapshot()
    contract = DataContract.model_validate(whole | {"generate": whole["generate"] | {"method": "auto"}})
    choice = image_method_for(contract)
    assert choice.method == "image_finetune"
    found = contract.with_method(choice.method)
    assert found.generate.checkpoint == str(model)
    assert found.public_model is not None and found.public_model.public == WHY


def test_classes_that_the_checkpoint_knows_begin_as_it_knows_them(tmp_path):
    place = saved_model(tmp_path / "model", num_class_embeds=4)
    own = load_file(place / "unet/diffusion_pytorch_model.safetensors")["class_embedding.weight"]
    names = FinetuneParameters.of(finetune_plan(place)).layout.names
    plan = finetune_plan(place, classes={names[1]: 3})
    parameters = FinetuneParameters.checked(plan)
    assert parameters.known_classes == (None, 3, *[None] * (len(names) - 2))
    begun = parameters.network().unet.class_embedding.weight
    assert torch.equal(begun[1], own[3]) and begun.shape[0] == len(names) + 1
    assert all(torch.allclose(begun[row], own.mean(0)) for row in range(len(begun)) if row != 1)
    usual = finetune_plan(place)
    assert "known_classes" not in usual.parameters and usual.event == plan.event
    snapshots = [finetune_contract(place, **more).mechanism_snapshot() for more in ({}, {"classes": {names[1]: 3}})]
    assert "classes" not in snapshots[0]["image"]["finetune"] and snapshots[0] != snapshots[1]


def test_classes_that_are_none_are_refused(tmp_path):
    place = saved_model(tmp_path / "model", num_class_embeds=4)
    names = FinetuneParameters.of(finetune_plan(place)).layout.names
    with pytest.raises(ContractError, match=r"finetune.classes: 'bird' is no class; accepted: "):
        finetune_plan(place, classes={"bird": 3})
    with pytest.raises(ConfigurationError, match=r"finetune.classes: 4, and the checkpoint has classes 0 to 3"):
        FinetuneParameters.of(finetune_plan(place, classes={names[0]: 4})).network()
    bare = saved_model(tmp_path / "bare")
    with pytest.raises(ConfigurationError, match=r"finetune.classes: 0, and the checkpoint has no classes"):
        FinetuneParameters.of(finetune_plan(bare, classes={names[0]: 0})).network()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": "models/digits"}, "checkpoint"),
        ({"public": "yes"}, "public"),
        ({"trained": "all"}, "trained"),
        ({"rank": 0}, "rank"),
        ({"classes": {"bar": -1}}, "classes.bar"),
    ],
)
def test_what_a_contract_must_say(model, change, words):
    whole = finetune_contract(model).snapshot()
    whole["generate"]["image"]["finetune"] |= change
    with pytest.raises(ValueError, match=rf"generate.image.finetune.{words}"):
        DataContract.model_validate(whole)


def test_no_contract_without_a_checkpoint(model):
    inputs = finetune_inputs(model)
    other = dataclasses.replace(inputs, contract=picture_contract())
    with pytest.raises(ContractError, match=r"generate\.image\.finetune: missing; accepted"):
        FinetuneParameters.calibrated(other)
