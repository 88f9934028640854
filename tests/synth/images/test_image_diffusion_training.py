"""A diffusion model's training goes through all seams: gate, journal, checkpoints, kills, and the sealed event."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from diffusion_cases import SIZE, SOURCE, bounded_pictures, diffusion_plan, job, picture_contract, pictures

from dpsynth_platform.foundation.errors import (
    GrantRefused,
    MechanismFailed,
    ReplayExhausted,
    ResumeRefused,
    TrainingRefused,
)
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.storage import held
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import network_training
from dpsynth_platform.synth.images import diffusion, diffusion_training, unet
from dpsynth_platform.synth.images.diffusion import ImageDiffusion
from dpsynth_platform.synth.images.diffusion_loss import Rows, as_records, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, WarmUpNumbers
from dpsynth_platform.synth.images.diffusion_plan import DiffusionOptions, DiffusionParameters
from dpsynth_platform.synth.images.diffusion_training import WarmUp, load_network, warm
from dpsynth_platform.synth.images.picture_codecs import AsPixels
from dpsynth_platform.synth.images.picture_training import PictureRecords, read_records
from dpsynth_platform.synth.images.unet import UNet
from dpsynth_platform.synth.interface import PlanInputs
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.noise import GaussianNoise

GENERATOR = ImageDiffusion()


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    return bounded_pictures(tmp_path_factory.mktemp("pictures") / "bounded")


@pytest.fixture
def without_gate(monkeypatch):
    """For tests of what follows it."""
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)


def learn(plan, bounded, directory, **how):
    run = job(plan, bounded, directory, **how)
    GENERATOR.learn(run, DiffusionParameters.checked(plan), directory)


def test_beyond_the_allowance_it_stops(tmp_path, bounded, without_gate, monkeypatch):
    """Without any allowance, a step that was begun and lost cannot be executed again."""
    plan = diffusion_plan(replay_steps=0)

    def interrupted(self, units):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PictureRecords, "batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learn(plan, bounded, tmp_path)
    assert not GENERATOR.can_continue(tmp_path)
    with pytest.raises(ReplayExhausted, match="interruptions cost 1 steps, and the plan pays for 0"):
        learn(plan, bounded, tmp_path, resume=True)


def test_a_missing_journal_is_refused(tmp_path, bounded, without_gate):
    assert not GENERATOR.can_continue(tmp_path)
    with pytest.raises(ResumeRefused, match="journal of executed steps is missing"):
        learn(diffusion_plan(), bounded, tmp_path, resume=True)


def test_what_stopped_before_training_read_a_record_begins(tmp_path, bounded, without_gate, monkeypatch):
    """As during the warm-up, which measures its sketch once."""
    plan, measured = diffusion_plan(sketch_share=0.4), []
    directory = tmp_path / "model"
    measure = diffusion.moments_measuring.measure
    monkeypatch.setattr(diffusion.moments_measuring, "measure", lambda *given: (measured.append(1), measure(*given))[1])
    with monkeypatch.context() as patch:
        patch.setattr(diffusion_training, "warm", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            GENERATOR.run(job(plan, bounded, directory))
    sketch = {path.name: path.read_bytes() for path in (directory / "pictures/sketch").iterdir()}
    assert GENERATOR.can_resume(directory)
    GENERATOR.run(job(plan, bounded, directory, resume=True))
    assert len(measured) == 2
    assert sketch == {path.name: path.read_bytes() for path in (directory / "pictures/sketch").iterdir()}
    assert GENERATOR.sample(directory, 10).num_rows == 10
    sums = GENERATOR.measured_sums(directory, pictures(3)[0])
    assert sums.sums.shape[0] == 2


def test_a_checkpoint_of_another_key_is_refused(tmp_path, bounded, without_gate, monkeypatch):
    """It is encrypted: no weight is readable in the directory of an interrupted training."""
    plan = diffusion_plan()
    monkeypatch.setattr(network_training, "save_weights", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        learn(plan, bounded, tmp_path)
    kept = list((tmp_path / "training/checkpoints").iterdir())
    assert len(kept) == 2
    assert b"average.enter.weight" not in kept[0].read_bytes()
    with pytest.raises(ResumeRefused, match="another key"):
        learn(plan, bounded, tmp_path, resume=True, key=bytes(32))
    monkeypatch.undo()
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)
    learn(plan, bounded, tmp_path, resume=True)  # no step is left: the weights are those of the checkpoint
    assert json.loads((tmp_path / "trained.json").read_text())["executed_steps"] == 6


def test_the_event_is_that_of_the_parameters():
    contract = picture_contract(epsilon=3.0)
    plan = diffusion_plan(contract)
    parameters = DiffusionParameters.checked(plan)
    guarantee = Guarantee.target(contract)
    found = epsilon(event_from_json(plan.event), guarantee.delta).epsilon
    assert 2.9 < found <= 3.0
    assert parameters.training.units == 200  # two records of each of a hundred owners
    assert parameters.training.max_contributions == 2
    changes = {
        "training": {"noise_multiplier": 0.5 * parameters.training.noise_multiplier},
        "steps": {"steps": 60},
    }
    for change in changes.values():
        less = dataclasses.replace(
            plan, parameters=plan.parameters | {"training": plan.parameters["training"] | change}
        )
        with pytest.raises(GrantRefused, match="event is not that of its parts"):
            GENERATOR.check(less)
    whole = diffusion_plan(contract, sketch_share=0.4)
    assert 2.9 < epsilon(event_from_json(whole.event), guarantee.delta).epsilon <= 3.0
    sketched = DiffusionParameters.checked(whole)
    assert sketched.training.noise_multiplier > parameters.training.noise_multiplier
    noise = {name: value / 2 for name, value in sketched.sketch.noise.items()}
    for sketch in (whole.parameters["sketch"] | {"noise": noise}, None):
        other = dataclasses.replace(whole, parameters=whole.parameters | {"sketch": sketch})
        with pytest.raises(GrantRefused):
            GENERATOR.check(other)
    other = dataclasses.replace(plan, parameters=plan.parameters | {"loss": {"draws": 64}})
    GENERATOR.check(other)  # draws of noise cost nothing
    assert plan.digest != other.digest


def test_parameters_are_read_as_they_were_written():
    plan = diffusion_plan(loss=DiffusionLoss(draws=3, shift=1), size="medium", average=0.5)
    parameters = DiffusionParameters.of(plan)
    assert (parameters.size, parameters.average, parameters.loss.shift) == ("medium", 0.5, 1)
    assert json.dumps(parameters.to_json()) == json.dumps(plan.parameters)


@pytest.mark.parametrize(("steps", "average"), [(4, 0.9), (100, 0.96), (1000, 0.996)])
def test_the_average_is_over_a_quarter_of_the_steps(steps, average):
    """Of ten steps at least."""
    declared = {"method": "image_diffusion", "image": {"diffusion": {"steps": steps}}}
    assert DiffusionOptions.of(picture_contract(generate=declared)).average == pytest.approx(average)


def test_words_about_a_plan_are_its_numbers():
    described = GENERATOR.describe(diffusion_plan())
    assert "10 steps of DP-SGD over records (sampled with probability 0.1" in described["event"]
    assert "of which 4 are for what an interruption repeats" in described["event"]
    assert described["epsilon_of_training_alone"] < 8
    assert described["trained"] == "a small network, the mean of 2 draws of noise a picture"


@pytest.mark.parametrize("sampled", ["record", "user"])
def test_units_and_noise_of_a_step_are_the_plans(tmp_path, bounded, without_gate, monkeypatch, sampled):
    """Records, or owners with both of their records; two draws of each; and noise for the clipping norm, not for K."""
    shapes, deviations = [], []
    add, noised = GridSums.add, GaussianNoise.add_

    def seen(self, batch, weights):
        shapes.append(tuple(weights.shape))
        units = weights[weights.any(1)]  # others fill the part up
        assert torch.allclose(units.sum(1), torch.ones(len(units)))
        add(self, batch, weights)

    monkeypatch.setattr(GridSums, "add", seen)
    monkeypatch.setattr(
        GaussianNoise,
        "add_",
        lambda self, sums, deviation: (deviations.append(deviation), noised(self, sums, deviation)),
    )
    plan = diffusion_plan(sampled=sampled, steps=2)
    learn(plan, bounded, tmp_path)
    training = DiffusionParameters.of(plan).training
    rows = 2 if sampled == "record" else 4
    assert {shape[1] for shape in shapes[1:]} == {rows}  # the first pass is over random pictures
    assert set(deviations) == {training.noise_multiplier * training.clipping_norm}
    assert training.units == (200 if sampled == "record" else 100)


def test_records_are_read_once_and_leave_no_file(tmp_path, bounded):
    layout = DiffusionParameters.of(diffusion_plan()).layout
    codec = AsPixels(layout.form)
    found = read_records(layout.read(bounded, owners=True), codec, tmp_path / "pixels", owners=True, draws=2)
    pixels, kinds = pictures()
    assert not (tmp_path / "pixels").exists()
    batch = found.batch(range(80))
    assert (batch["pixels"].permute(0, 2, 3, 1).numpy() == pixels).all()
    assert batch["classes"].tolist() == kinds.tolist()
    assert found.units("user") == [[2 * owner, 2 * owner + 1] for owner in range(40)]
    assert found.units("record") is None
    empty = read_records([], codec, tmp_path / "pixels", owners=True, draws=2)
    assert (len(empty), empty.units("user")) == (0, [])


def test_a_training_on_no_record_is_an_ordinary_one(tmp_path, without_gate):
    learn(diffusion_plan(steps=2), bounded_pictures(tmp_path / "bounded", 0), tmp_path / "model")
    assert (tmp_path / "model/weights.safetensors").is_file()


def test_the_gate_finds_planted_mistakes_before_any_record_is_read(tmp_path, bounded, monkeypatch):
    """Rows clipped before their mean; too little noise; and batch normalization in the network."""
    plan = diffusion_plan()

    def before_the_mean(self, batch, weights, add=GridSums.add):
        add(self, batch, weights.reshape(-1, 1).ne(0).float())

    def refused(words):
        with pytest.raises(TrainingRefused, match=words):
            learn(plan, tmp_path / "no table", tmp_path / "model")
        assert not (tmp_path / "model/training").exists()

    with monkeypatch.context() as patch:
        patch.setattr(GridSums, "add", before_the_mean)
        refused("rows are clipped before their mean")
    with monkeypatch.context() as patch:
        add = GaussianNoise.add_
        patch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: add(self, sums, deviation / 2))
        refused("the noise's deviation is")
    with monkeypatch.context() as patch:
        patch.setattr(unet, "_normalized", torch.nn.BatchNorm2d)
        refused("BatchNorm2d normalizes each example by the others")


def test_a_second_process_neither_measures_nor_trains(tmp_path, bounded, without_gate):
    plan = diffusion_plan(sketch_share=0.4)
    with held(tmp_path), pytest.raises(ResumeRefused, match="another process is training here"):
        learn(plan, bounded, tmp_path)
    assert not list(tmp_path.iterdir())


def test_planning_tries_the_network(monkeypatch):
    contract = picture_contract()
    inputs = PlanInputs(contract, SOURCE, Guarantee.target(contract))
    tried = []
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *given: tried.append(given))
    assert GENERATOR.parts(inputs).parameters["size"] == "small"
    assert len(tried) == 1


def test_a_job_without_a_key_is_refused(tmp_path, bounded):
    plan = diffusion_plan()
    run = dataclasses.replace(job(plan, bounded, tmp_path), checkpoints=None)
    with pytest.raises(GrantRefused, match="no key for checkpoints"):
        GENERATOR.learn(run, DiffusionParameters.of(plan), tmp_path)


def test_a_warm_up_teaches_what_pictures_look_like():
    """The mean loss of the same rows is lower afterwards.

    In ten runs it fell to 0.37 to 0.60 of what it was: the logarithm was -0.76, deviation 0.14, so that 0.95 is five
    deviations above. Without learning it is 1.
    """
    form = ImageForm(*SIZE, 1)
    rows = Rows(DiffusionLoss(), form, 2, torch.device("cpu"))
    network, (pixels, kinds) = UNet(form, 2, "small"), pictures()
    test = rows.drawn({"pixels": as_records(pixels), "classes": torch.from_numpy(kinds)}, 4)
    before = float(losses(network, test).mean().detach())
    warm(network, rows, WarmUp(pixels, kinds, WarmUpNumbers(steps=80, batch=32)))
    assert float(losses(network, test).mean().detach()) < 0.95 * before


def test_a_warm_up_comes_before_the_first_step_only(tmp_path, bounded, without_gate, monkeypatch):
    plan, made = diffusion_plan(), []

    class Warmed(ImageDiffusion):
        def warm_up(self, run, parameters, directory):
            made.append(1)
            pixels, kinds = pictures(8)
            return WarmUp(pixels, kinds, WarmUpNumbers(steps=2))

    monkeypatch.setattr(network_training, "save_weights", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Warmed().learn(job(plan, bounded, tmp_path), DiffusionParameters.of(plan), tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)
    Warmed().learn(job(plan, bounded, tmp_path, resume=True), DiffusionParameters.of(plan), tmp_path)
    assert made == [1]


def test_weights_on_disk_are_the_average(tmp_path, bounded, without_gate, monkeypatch):
    """And they are loaded as they were written; damaged ones are refused."""
    kept = {}
    save = network_training.save_weights
    monkeypatch.setattr(
        network_training, "save_weights", lambda values, *given: (kept.update(values), save(values, *given))
    )
    plan = diffusion_plan(average=0.9)
    learn(plan, bounded, tmp_path)
    network = load_network(DiffusionParameters.of(plan), tmp_path, "cpu")
    assert all(torch.equal(value, kept[name]) for name, value in network.named_parameters())
    with pytest.raises(MechanismFailed, match="of another plan"):
        load_network(DiffusionParameters.of(diffusion_plan(size="medium")), tmp_path, "cpu")
    file = tmp_path / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(MechanismFailed, match="incomplete or damaged"):
        load_network(DiffusionParameters.of(plan), tmp_path, "cpu")
