"""Two networks against each other: the sealed event, sensitivity, planted mistakes, and drawing by class."""

from __future__ import annotations

import dataclasses
import json

import dp_accounting as accounting
import numpy as np
import pytest
import torch
from diffusion_cases import bounded_pictures, job, picture_contract, pictures
from dp_accounting.pld import PLDAccountant
from gan_cases import gan_contract, gan_inputs, gan_plan

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed, TrainingRefused
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.privacy.events import event_from_json, leaves
from dpsynth_platform.synth.images import gan_network
from dpsynth_platform.synth.images.choice import image_method_for
from dpsynth_platform.synth.images.embedding_network import LATENT, WIDTH, drawn, fresh
from dpsynth_platform.synth.images.gan_network import Discriminator, Follower, Rows, load_generator
from dpsynth_platform.synth.images.gan_plan import ROWS, GanParameters
from dpsynth_platform.synth.images.image_gan import ImageGan
from dpsynth_platform.synth.images.picture_training import PictureRecords
from dpsynth_platform.synth.interface import DrawRequest
from dpsynth_platform.training import hooked, loop
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.rows import RowDivision

GENERATOR = ImageGan()
CPU = torch.device("cpu")
FORM = ImageForm(9, 6, 1)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    return bounded_pictures(tmp_path_factory.mktemp("pictures") / "bounded")


@pytest.fixture
def without_gate(monkeypatch):
    """For tests of what follows it."""
    monkeypatch.setattr(gan_network, "refuse_unsound_grid", lambda *arguments: None)


def test_the_event_is_what_the_training_costs():
    """Without counted columns and with one record of an owner, by dp_accounting alone, from the plan's numbers."""
    whole = picture_contract(epsilon=2.0, owners=400, b=1).snapshot()
    whole["columns"]["kind"] = {"ignore": True}
    whole["generate"]["rows"] = 50
    plan = gan_plan(DataContract.model_validate(whole), replay_steps=3, generator_steps=1000)
    parameters = GanParameters.checked(plan)
    assert parameters.columns is None
    training = parameters.training
    assert (training.batch_size, training.units, training.steps, training.replay_allowance) == (20, 400, 6, 3)
    step = accounting.PoissonSampledDpEvent(20 / 400, accounting.GaussianDpEvent(training.noise_multiplier))
    found = PLDAccountant().compose(step, 9).get_epsilon(plan.guarantee["delta"])
    assert 1.95 < found <= 2.0 + 1e-3
    (sealed, times), *others = leaves(event_from_json(plan.event))
    assert (sealed.noise_multiplier, sealed.sampling_probability, times) == (training.noise_multiplier, 20 / 400, 9)
    assert not others


def test_less_noise_or_more_steps_are_refused_and_the_generators_steps_are_free():
    plan = gan_plan()
    training = plan.parameters["training"]
    for change in ({"noise_multiplier": 0.5 * training["noise_multiplier"]}, {"steps": 60}, {"max_contributions": 1}):
        parameters = plan.parameters | {"training": training | change}
        with pytest.raises(GrantRefused):
            GENERATOR.check(dataclasses.replace(plan, parameters=parameters))
    more = dataclasses.replace(plan, parameters=plan.parameters | {"generator_steps": 60})
    GENERATOR.check(more)
    assert more.digest != plan.digest


def test_the_plan_seals_what_the_contract_declares():
    plan = gan_plan(sampled="owners", learning_rate=0.02, clipping_norm=0.5, generator_steps=30)
    parameters = GanParameters.of(plan)
    assert json.dumps(parameters.to_json()) == json.dumps(plan.parameters)
    training = parameters.training
    assert (training.sampled, training.learning_rate, training.clipping_norm) == ("user", 0.02, 0.5)
    assert GanParameters.of(gan_plan()).generator_steps == 6
    described = GENERATOR.describe(plan)
    assert "10 steps of DP-SGD over owners" in described["event"]
    assert "the generator takes 30 steps by that network alone" in described["trained"]


@pytest.mark.parametrize("form", [ImageForm(1, 1, 1), FORM, ImageForm(28, 28, 1), ImageForm(5, 40, 3)])
def test_pictures_of_any_form_are_scored(form):
    """Each row by its own class: the rows of one picture with two classes have two scores."""
    network = Discriminator(form, 2)
    pictures = torch.rand(1, form.channels, form.height, form.width).repeat(3, 1, 1, 1)
    one, same, other = network(pictures, torch.tensor([0, 0, 1])).tolist()
    assert one == pytest.approx(same, abs=1e-6) and one != other


class Numbered(PictureRecords):
    """Records that are known by their number, to have the same generated pictures in both of two neighbouring tables.

    The first 36 are of class 0, the others of class 1. Owner number i has records i, 10 + i, 20 + i and 30 + i.
    """

    def __init__(self):
        generator = np.random.default_rng()
        pixels = generator.integers(0, 256, (40, *FORM.shape), dtype=np.uint8)
        super().__init__(pixels, np.repeat([0, 1], [36, 4]), np.tile(np.arange(10), 4), ROWS)
        self._latent = torch.randn(40, ROWS, LATENT)
        self._rows = Rows(fresh(FORM, 2), FORM, 2, CPU)
        self.losses = self._rows.losses

    def batch(self, indices):
        return {**super().batch(indices), "number": torch.tensor(indices)}

    def drawn(self, records, draws):
        target = torch.tensor([1.0, -1.0]).repeat(len(records["number"]))
        return self._rows.drawn(records, draws) | {
            "target": target,
            "latent": self._latent[records["number"]].flatten(0, 1),
        }

    def clipped_sum(self, network, plan, units):
        with GridSums(network, plan, self.losses) as sums:
            division = RowDivision(16, ROWS, self.drawn, 40, CPU)
            rows = self.batch([record for unit in units for record in unit])
            for (part,) in division.parts(rows, list(map(len, units)), 16):
                sums.add(part.batch, part.weights)
        return torch.cat([total.flatten() for total in sums.totals.values()])


@pytest.mark.parametrize("sampled", ["record", "user"])
def test_an_owner_with_four_pictures_moves_the_sum_by_the_clipping_norm(sampled, monkeypatch):
    """Or by four times as much where records are sampled. Gradients are far larger, so that an owner's has the norm."""
    records, network, norm = Numbered(), Discriminator(FORM, 2), 1e-4
    plan = TrainingPlan(40, 8, 1, 1.0, max_contributions=4, sampled=sampled, clipping_norm=norm)
    units = records.units(sampled) or [[record] for record in range(40)]
    fewer = [unit for unit in units if 3 not in {record % 10 for record in unit}]
    assert len(units) - len(fewer) == (4 if sampled == "record" else 1)

    def moved():
        return float((records.clipped_sum(network, plan, units) - records.clipped_sum(network, plan, fewer)).norm())

    bound = norm * (len(units) - len(fewer))
    assert (0.999 * bound if sampled == "user" else 0) < moved() <= bound * (1 + 1e-5)
    monkeypatch.setattr(hooked, "clipping_coefficients", lambda norms, plan: torch.ones_like(norms).float())
    assert moved() > bound  # what clips nothing is found


def test_the_gate_accepts_these_networks_and_finds_planted_mistakes(tmp_path, monkeypatch):
    """Before a record is read: too little noise, and generated pictures that depend on others of the batch."""
    plan = gan_plan()
    gan_network.prepared(GanParameters.of(plan))

    def refused(words):
        with pytest.raises(TrainingRefused, match=words):
            GENERATOR.learn(job(plan, tmp_path / "no table", tmp_path / "model"), GanParameters.of(plan), tmp_path)
        assert not (tmp_path / "training").exists()

    with monkeypatch.context() as patch:
        add = GaussianNoise.add_
        patch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: add(self, sums, deviation / 2))
        refused("the noise's deviation is")

    def mixed():
        """A generator with normalization over the batch."""
        network = fresh(ImageForm(8, 6, 1), 2)
        network.first_norm = torch.nn.BatchNorm2d(WIDTH)
        return network

    with monkeypatch.context() as patch:
        patch.setattr(gan_network, "fresh", lambda form, classes: mixed())
        refused("a row depends on others")
    generated = gan_network.generated

    def reading(self, network, rows, losses=Rows.losses):
        """The mean of the private pictures of the batch is in each generated one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gan_network, "generated", lambda *given: generated(*given) + rows["pictures"].mean(0))
            return losses(self, network, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "losses", reading)
        refused("a row depends on others")


def test_the_generator_depends_on_records_by_the_noised_gradients_alone(tmp_path, without_gate, monkeypatch):
    """With the same noised gradients and random numbers, tables of 80 pictures and of none leave the same weights.

    A planted mistake, a generator that sees a private picture, leaves others.
    """
    plan = gan_plan(steps=3, generator_steps=5)
    training = GanParameters.of(plan).training
    deviation = training.noise_deviation / training.batch_size

    def noised(self):
        source = torch.Generator().manual_seed(4)
        return {
            name: deviation * torch.randn(value.shape, generator=source) for name, value in self._sums.totals.items()
        }

    monkeypatch.setattr(loop._Training, "_noised_means", noised)
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    full, empty = (bounded_pictures(tmp_path / str(number), number) for number in (80, 0))

    def weights(bounded, name):
        directory = tmp_path / name
        GENERATOR.learn(job(plan, bounded, directory), GanParameters.checked(plan), directory)
        return (directory / "weights.safetensors").read_bytes()

    assert weights(full, "full") == weights(empty, "empty")
    rows_of = Rows.drawn

    def seen(self, records, draws):
        self._generator.second.bias.data += records["pixels"].float().mean() / 255
        return rows_of(self, records, draws)

    monkeypatch.setattr(Rows, "drawn", seen)
    assert weights(full, "seen") != weights(empty, "empty again")


@pytest.mark.parametrize(("generator_steps", "each"), [(6, [1] * 6), (4, [0, 1, 1, 0, 1, 1]), (15, [2, 3] * 3)])
def test_generator_steps_are_spread_over_those_of_the_discriminator(generator_steps, each, monkeypatch):
    taken = []
    gradients = Follower._gradients
    monkeypatch.setattr(Follower, "_gradients", lambda self: (taken.append(1), gradients(self))[1])
    follower = Follower(Discriminator(FORM, 2), fresh(FORM, 2), 2, TrainingPlan(40, 8, 6, 1.0), generator_steps, 0.5)
    found = []
    for step in range(1, 7):
        taken.clear()
        follower.step(step)
        found.append(len(taken))
    assert found == each


def test_the_kept_state_is_all_that_the_generator_continues_from():
    """Another one with this state takes the same step. One without Adam's averages does not."""
    discriminator, plan = Discriminator(FORM, 2), TrainingPlan(40, 8, 6, 1.0)

    def follower():
        return Follower(discriminator, fresh(FORM, 2), 2, plan, 6, 0.5)

    def next_step(one):
        one._source.manual_seed(11)
        one.step(4)
        return {name: value.clone() for name, value in one.state.items()}

    first, second, third = follower(), follower(), follower()
    for step in (1, 2, 3):
        first.step(step)
    for name, value in first.state.items():
        assert name.startswith("average.")
        second.state[name].copy_(value)
        if "optimizer" not in name:
            third.state[name].copy_(value)
    wanted = next_step(first)
    assert all(torch.equal(value, wanted[name]) for name, value in next_step(second).items())
    assert not all(torch.equal(value, wanted[name]) for name, value in next_step(third).items())


@pytest.fixture
def the_same_each_time(monkeypatch):
    """All random numbers of networks and rows, so that a test of learning fails never or always."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    torch.manual_seed(7)


def test_the_generator_learns_what_the_discriminator_scores(the_same_each_time):
    """Bright pictures of class 0 and dark ones of class 1.

    With other random numbers, in ten runs, the means were 134 to 168 grey levels apart.
    """

    class Brightness(torch.nn.Module):
        def forward(self, pictures, classes):
            return 10 * (1 - 2 * classes) * pictures.flatten(1).mean(1)

    generator = fresh(FORM, 2)
    follower = Follower(Brightness(), generator, 2, TrainingPlan(40, 8, 30, 1.0, learning_rate=0.01), 60, 0.5)
    for step in range(1, 31):
        follower.step(step)
    bright, dark = (drawn(generator, number, 100, np.random.default_rng(7)).mean() for number in (0, 1))
    assert bright - dark > 75


def test_the_discriminator_learns_to_tell_private_pictures_from_generated_ones(the_same_each_time):
    """By the loss whose gradients training clips. With other random numbers, all 160 rows were right in ten runs."""
    form, (pixels, kinds) = ImageForm(8, 6, 1), pictures()
    network, rows = Discriminator(form, 2), Rows(fresh(form, 2), form, 2, CPU)
    records = PictureRecords(pixels, kinds).batch(range(len(kinds)))
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        rows.losses(network, rows.drawn(records, ROWS)).mean().backward()
        optimizer.step()
    losses = rows.losses(network, rows.drawn(records, ROWS))
    assert int((losses < np.log(2)).sum()) > 144  # it has the loss log 2 where it scores 0


@pytest.mark.parametrize("sampled", ["records", "owners"])
def test_units_rows_and_noise_of_a_step_are_the_plans(tmp_path, bounded, without_gate, monkeypatch, sampled):
    """A private and a generated row of each record, of the same class; noise for the clipping norm."""
    seen, deviations = [], []
    add, noised = GridSums.add, GaussianNoise.add_

    def noted(self, batch, weights):
        seen.append(tuple(weights.shape))
        if weights.shape[1] > 1:  # the first pass is over random rows
            assert (batch["target"].view(-1, 2).sum(1) == 0).all()
            classes = batch["classes"].view(-1, 2)
            assert (classes[:, 0] == classes[:, 1]).all()
            units = weights[weights.any(1)]  # others fill the part up
            assert torch.allclose(units, torch.full_like(units, 1 / weights.shape[1]))
        add(self, batch, weights)

    monkeypatch.setattr(GridSums, "add", noted)
    monkeypatch.setattr(
        GaussianNoise,
        "add_",
        lambda self, sums, deviation: (deviations.append(deviation), noised(self, sums, deviation)),
    )
    plan = gan_plan(sampled=sampled, steps=2)
    GENERATOR.learn(job(plan, bounded, tmp_path), GanParameters.checked(plan), tmp_path)
    training = GanParameters.of(plan).training
    assert {shape[1] for shape in seen[1:]} == {2 if sampled == "records" else 4}
    assert set(deviations) == {training.noise_multiplier * training.clipping_norm}


def test_a_trained_generator_draws_by_class(tmp_path, bounded, without_gate):
    plan = gan_plan(steps=3)
    directory = tmp_path / "model"
    GENERATOR.run(job(plan, bounded, directory))
    parameters = GanParameters.of(plan)
    table = GENERATOR.sample(directory, 30)
    assert table.num_rows == 30 and table.column("picture").null_count == 0
    draw = GENERATOR.opened(plan, parameters, directory / "pictures", DrawRequest(directory))
    found = [draw(number, 3, np.random.default_rng(5)) for number in (0, 0, 1)]
    assert found[0].shape == (3, 8, 6, 1)
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    whole = picture_contract().snapshot()
    whole["columns"]["picture"]["channels"] = 3
    with pytest.raises(MechanismFailed, match="of another plan"):
        load_generator(GanParameters.of(gan_plan(DataContract.model_validate(whole))), directory / "pictures")


def test_planning_tries_the_networks(monkeypatch):
    tried = []
    monkeypatch.setattr(gan_network, "refuse_unsound_grid", lambda *given: tried.append(given))
    assert GENERATOR.parts(gan_inputs()).parameters["generator_steps"] == 6
    assert len(tried) == 1


def test_auto_takes_it_where_it_is_declared():
    whole = gan_contract().snapshot()
    contract = DataContract.model_validate(whole | {"generate": whole["generate"] | {"method": "auto"}})
    assert image_method_for(contract).method == "image_gan"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "gan.steps"),
        ({"generator_steps": 0}, "gan.generator_steps"),
        ({"learning_rate": 0}, "gan.learning_rate"),
        ({"sampled": "all"}, "gan.sampled"),
        ({"draws": 2}, "gan.draws"),
    ],
)
def test_impossible_values_are_refused(change, words):
    with pytest.raises(ValueError, match=rf"generate\.image\.{words}"):
        gan_contract(**change)


def test_it_goes_with_its_method_and_with_owners_only_where_each_record_has_one():
    whole = gan_contract().snapshot()
    with pytest.raises(ValueError, match=r"image\.gan: is for method image_gan, and the method is 'image_moments'"):
        DataContract.model_validate(whole | {"generate": whole["generate"] | {"method": "image_moments"}})
    whole = gan_contract(sampled="owners").snapshot()
    whole["privacy"] = whole["privacy"] | {"unit": "example", "max_contributions": 1}
    with pytest.raises(ValueError, match=r"generate\.image\.gan\.sampled: 'owners'"):
        DataContract.model_validate(whole)
