"""The networks over a table's columns: event, gradients, units, interruptions, and what they draw."""

import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from network_cases import SHORT, job, moved_by_an_owner, network_plan, short_plan
from short_fits import STEPS
from synth_cases import contract_with, people, write_bounded

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.contracts.network_training import NETWORK_DEFAULTS, TableNetwork
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, ResumeRefused, TrainingRefused
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.privacy.events import event_from_json, leaves
from dpsynth_platform.privacy.statement import WORDS
from dpsynth_platform.synth import network_training
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural import (
    adversarial_network,
    columnwise,
    diffusion_network,
    mixture_generator,
    states_network,
)
from dpsynth_platform.synth.neural.adversarial_network import GENERATED, RowDiscriminator
from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
from dpsynth_platform.synth.neural.network_generator import NETWORK, StateRecords
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.tabular import paid
from dpsynth_platform.synth.tabular.cost import START_SECONDS
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood
from dpsynth_platform.training import hooked
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.trial import NoJournal
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.vectors import VectorSums

CPU = torch.device("cpu")
PROGRAM = Path(__file__).with_name("killed_network.py")
SHARES = [np.full(3, 1 / 3), np.array([0.7, 0.3]), np.full(4, 0.25)]
PLAN = TrainingPlan(40, 8, 1, 1.0)
COLUMNWISE, MIXTURES = ("arn", "tbart"), ("dp_vae", "table_diffusion", "dp_gan")


def fix(patch):
    """All random numbers of network, rows, samples and draws, so that a test of learning fails never or always."""
    sources = itertools.count()
    fresh = np.random.default_rng
    patch.setattr("secrets.randbits", lambda bits: 7)
    patch.setattr("secrets.token_bytes", lambda number=32: bytes([next(sources) % 256]) * number)
    patch.setattr("os.urandom", lambda number: bytes([next(sources) % 256]) * number)
    patch.setattr(np.random, "default_rng", lambda seed=None: fresh(next(sources) if seed is None else seed))


@pytest.fixture
def the_same_each_time(monkeypatch):
    fix(monkeypatch)


# What a contract leaves out.


def test_contracts_and_plans_of_arn_are_what_they_have_been():
    """Digests of contracts since before `tbart` existed; of plans, since the mechanism's digest has these keys."""
    left_out, empty = (contract_with(generate__method="arn", generate__network=part) for part in (None, {}))
    assert left_out.digest() == empty.digest() == "07717252a0961f5e0f6d35b571ac7bd5380e94baa03211a207b27cddbdb43279"
    assert short_plan("arn").digest == "398be3a3b754f03efef8975c94cd0d8c27a531a6c49683a8d655b2c779ffe1bf"


@pytest.mark.parametrize(("method", "steps", "learning_rate"), [("tbart", 200, 0.015), ("dp_gan", 800, 0.0005)])
def test_each_method_has_its_defaults_and_seals_them(method, steps, learning_rate):
    found = contract_with(generate__method=method, generate__network={"width": 8}).snapshot()["generate"]["network"]
    expected = TableNetwork(**(NETWORK_DEFAULTS[method] | {"width": 8}))
    assert found == expected.model_dump() == found | {"width": 8, "steps": steps, "learning_rate": learning_rate}
    with pytest.raises(ContractError, match=r"generate.network"):
        contract_with(generate__method="tbart", generate__network="wide")


# What it costs.


@pytest.mark.parametrize(("method", "sampled"), [("arn", "records"), ("tbart", "owners")])
def test_the_event_is_what_counts_and_training_cost(method, sampled):
    """By dp_accounting alone, from the plan's numbers: a Gaussian table of counts, and then the steps of DP-SGD."""
    network = {**SHORT, "sampled": sampled}
    guarantee = {"epsilon": 1.0, "delta": 1e-5}
    plan = network_plan(method, network=network, privacy__max_contributions=1, privacy__guarantee=guarantee)
    parameters = NetworkParameters.of(plan.parameters)
    training = parameters.training
    assert (training.units, training.batch_size, training.steps, training.replay_allowance) == (2000, 40, 6, 4)
    step = dp_event.PoissonSampledDpEvent(40 / 2000, dp_event.GaussianDpEvent(training.noise_multiplier))
    counts = dp_event.GaussianDpEvent(parameters.sigma_total)
    found = PLDAccountant().compose(counts).compose(step, 10).get_epsilon(1e-5)
    assert 0.97 < found <= 1.0 + 1e-3
    assert [part["kind"] for part in plan.event["events"]] == ["composed", "repeated"]
    generator(method).check(plan)


def test_an_owner_with_two_records_costs_more():
    noises = []
    for b in (1, 2):
        plan = network_plan(network=SHORT, privacy__max_contributions=b)
        training = NetworkParameters.of(plan.parameters).training
        assert (training.max_contributions, training.units) == (b, 2000 * b)
        sampled = next(leaf for leaf, _ in leaves(event_from_json(plan.event)) if hasattr(leaf, "sampling_probability"))
        assert sampled.max_contributions == b
        noises.append(training.noise_multiplier)
    assert noises[1] > noises[0]


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_less_noise_or_more_steps_are_refused(method):
    plan = short_plan(method)
    training = plan.parameters["training"]
    for change in ({"noise_multiplier": 0.5 * training["noise_multiplier"]}, {"steps": 60}, {"max_contributions": 1}):
        parameters = plan.parameters | {"training": training | change}
        with pytest.raises(GrantRefused):
            generator(method).check(dataclasses.replace(plan, parameters=parameters))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__weighting": "owners"}, "whose training takes records in full"),
        (
            {"columns__city": {"type": "categorical", "values": [f"v{n}" for n in range(2500)]}},
            r"2\d{3} values or bins in all, 250\d of them of city",
        ),
    ],
)
@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_what_it_cannot_train_is_refused(method, changes, words):
    with pytest.raises(ContractError, match=words):
        network_plan(method, **changes)


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_without_owners_none_are_sampled(method):
    with pytest.raises(ContractError, match=r"network.sampled: 'owners' with several owners a record"):
        network_plan(method, network={"sampled": "owners"}, privacy__unit="example", privacy__max_contributions=1)


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_a_time_limit_would_shorten_nothing(method):
    with pytest.raises(ContractError, match=rf"generate.time_limit: '{method}' plans by its own parameters"):
        network_plan(method, generate__time_limit="2m")


def test_other_methods_have_no_network():
    with pytest.raises(ContractError, match="network: is for method arn, tbart, dp_vae, table_diffusion, dp_gan"):
        contract_with(generate__method="aim", generate__network={})
    assert "network" not in contract_with(generate__method="aim").snapshot()["generate"]


# Gradients and units.


def rows_and_network(method, width=5, shares=SHARES):
    made = generator(method)
    rows = made.rows()([len(share) for share in shares], SimpleNamespace(fixed_order=0.5, evidence=()), CPU)
    network = made.network(shares, width).eval()
    if method == "dp_gan":
        rows.generator, network = network, RowDiscriminator(sum(network.sizes), width).eval()
    return rows, network


@pytest.mark.parametrize(
    ("method", "width", "layer", "part"),
    [
        ("arn", 200, "hidden", "seen"),
        ("tbart", 8, "layers.1.asked", "weights"),
        ("dp_vae", 64, "place", "points"),
        ("table_diffusion", 64, "middle", "noise"),
        ("dp_gan", 64, "read", "points"),
    ],
)
def test_the_gate_accepts_the_network_and_finds_planted_mistakes(monkeypatch, method, width, layer, part):
    """Gradients are those of an explicit loop. A wrong rule, a row that sees others, and half the noise are found."""
    rows, network = rows_and_network(method, width)

    def tried(losses=rows.losses):
        refuse_unsound_grid(network, PLAN, losses, rows.made_up, VectorSums)

    tried()
    with monkeypatch.context() as patch:
        by_unit = VectorSums._by_unit

        def of_first(self, name, inputs, gradients):
            inputs, gradients = by_unit(self, name, inputs, gradients)
            return (2 * inputs, gradients) if name == layer else (inputs, gradients)

        patch.setattr(VectorSums, "_by_unit", of_first)
        with pytest.raises(TrainingRefused, match=rf"{layer}.weight: its clipped gradient"):
            tried()

    def mixed(batch):
        return batch["states"].float().mean(0) if method == "tbart" else batch[part].mean(0)

    with pytest.raises(TrainingRefused, match="a row depends on others"):
        tried(lambda model, batch: rows.losses(model, batch | {part: batch[part] * mixed(batch)}))
    with monkeypatch.context() as patch:
        add = GaussianNoise.add_
        patch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: add(self, sums, deviation / 2))
        with pytest.raises(TrainingRefused, match="the noise's deviation is"):
            tried()


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_a_plan_says_how_long_its_training_takes(method):
    """By what is in the plan alone: in proportion to steps and rows, and more with more weights."""

    def seconds(**network):
        plan = network_plan(method, network=SHORT | network)
        return plan.describe()["predicted_training_seconds"] - START_SECONDS

    short = seconds()
    assert seconds(steps=12) == pytest.approx(2 * short)
    assert seconds(width=128) > seconds(width=16)
    longer, rows = seconds(batch_size=80), 6 * 40 * (2 if method == "dp_gan" else 1)
    generated = 6 * 2 * GENERATED if method == "dp_gan" else 0
    assert longer / short == pytest.approx((2 * rows + generated) / (rows + generated))
    assert seconds(sampled="owners") > short, "a step has each owner's records"


@pytest.mark.parametrize("sampled", ["record", "user"])
@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_an_owner_with_four_records_moves_the_sum_by_the_clipping_norm(method, sampled, monkeypatch):
    """Or by four times as much where records are sampled. Gradients are far larger, so that an owner's has the norm."""
    norm = 1e-4
    plan = TrainingPlan(40, 8, 1, 1.0, max_contributions=4, sampled=sampled, clipping_norm=norm)
    rows, network = rows_and_network(method)
    moved, units = moved_by_an_owner(VectorSums, network, plan, rows, draws=2)
    assert units == (4 if sampled == "record" else 1)
    bound = norm * units
    assert (0.999 * bound if sampled == "user" else 0) < moved() <= bound * (1 + 1e-5)
    monkeypatch.setattr(hooked, "clipping_coefficients", lambda norms, plan: torch.ones_like(norms).float())
    assert moved() > bound  # what clips nothing is found


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_no_other_record_changes_how_one_is_rounded_in_a_part(method):
    """Parts of a training have one shape: at each place of one, and beside all others, a gradient is the same."""
    draws = 2 if method == "dp_gan" else 1
    rows, network = rows_and_network(method, 32, [np.full(10, 0.1)] * 8)

    def made(records, seed):
        torch.manual_seed(seed)
        return rows.drawn({"states": torch.randint(0, 10, (records, 8))}, draws)

    own, found = made(1, 5), []
    with VectorSums(network, PLAN, rows.losses) as sums:
        for seed, place in itertools.product((1, 2), (0, 3, 15)):
            others, before = made(15, seed), place * draws
            batch = {key: torch.cat([others[key][:before], own[key], others[key][before:]]) for key in own}
            sums.reset()
            sums.add(batch, (torch.arange(16) == place)[:, None].expand(16, draws) / draws)
            found.append(torch.cat([total.flatten().clone() for total in sums.totals.values()]))
    assert found[0].norm() > 0 and all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_others_records_change_a_sum_by_no_more_than_the_statement_says(method):
    """Kernels depend on the number of rows, so that one more record rounds all others anew; equal ones err alike.

    Measured on two kinds of processors, over 25 draws for each method: at most 3e-4 on one, and 1.3e-3 on the other.
    """
    assert "by less than 1/200 of the clipping norm as measured" in str(WORDS[method].clipping)
    torch.manual_seed(0)  # rows are corrupted, and draws made, alike each time
    draws = 2 if method == "dp_gan" else 1
    rows, network = rows_and_network(method, 32, [np.full(10, 0.1)] * 8)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(1))
    one = rows.drawn({"states": torch.arange(8)[None]}, draws)

    def clipped_sum(sums, records):
        sums.reset()
        batch = {name: values.repeat(records, *[1] * (values.dim() - 1)) for name, values in one.items()}
        sums.add(batch, torch.full((records, draws), 1 / draws))
        return torch.cat([total.flatten() for total in sums.totals.values()])

    with VectorSums(network, PLAN, rows.losses) as sums:
        alone = clipped_sum(sums, 1)
        for records in (64, 128, 192, 256, 384, 511):
            moved = clipped_sum(sums, records + 1) - clipped_sum(sums, records)
            assert float((moved - alone).norm()) < PLAN.clipping_norm / 200
            assert float(moved.norm()) < PLAN.clipping_norm * (1 + 1 / 200)


def test_owners_are_sampled_with_all_their_records(tmp_path):
    plan, bounded = short_plan("tbart", "owners"), write_bounded(people(300), tmp_path / "table")
    assert plan.parameters["training"]["units"] == 2000
    (tmp_path / "model").mkdir()
    made = generator("tbart")
    made.fit(plan, bounded, job(plan, bounded, tmp_path / "model").grant, tmp_path / "model")
    records = made.learned(plan, tmp_path / "model").records(NetworkParameters.of(plan.parameters), bounded)
    units = records.units("user")
    assert [len(unit) for unit in units] == [2] * 150
    assert sorted(record for unit in units for record in unit) == list(range(300))


def moved(network):
    """The network with other weights than its first ones, of which those of heads may be zero."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_()
    return network


@pytest.mark.parametrize("method", COLUMNWISE)
def test_a_prediction_sees_the_columns_before_it_alone(method):
    """For all orders of three columns: rows in training and rows that are drawn have the same predictions."""
    rows, network = rows_and_network(method)
    moved(network)
    states = torch.cartesian_prod(*(torch.arange(len(share)) for share in SHARES))
    seen = {}
    for order in itertools.permutations(range(3)):
        places = torch.tensor([order.index(column) for column in range(3)]).expand(len(states), -1)
        batch = rows.arranged(states, places)
        reading = network.reading(len(states))
        with torch.no_grad():
            trained = network(*(batch[name] for name in ("states", "seen" if method == "arn" else "order")))
        for place, column in enumerate(order):
            assert torch.allclose(reading.predict(column), trained[column], atol=1e-5)
            reading.read(states[:, column])
            for row, values in zip(states.tolist(), trained[column], strict=True):
                before = tuple(row[other] for other in order[:place])
                assert torch.allclose(values, seen.setdefault((column, order[:place], before), values), atol=1e-5)
    first = [values for (column, before, _), values in seen.items() if (column, before) == (1, (0,))]
    assert len(first) == 3 and not torch.allclose(first[0], first[1], atol=1e-3)


@pytest.mark.parametrize("method", COLUMNWISE)
def test_without_training_columns_have_the_shares_of_their_counts(method):
    _, network = rows_and_network(method)
    with torch.no_grad():
        for head in network.heads.parameters():
            head.zero_()
    joint = ColumnwiseJoint(network, SHARES)
    states = np.array([[0, 0, 0], [2, 1, 3]], dtype=np.int32)
    expected = [math.log(0.7 / 12), math.log(0.3 / 12)]
    np.testing.assert_allclose(joint.log_likelihood(states), expected, atol=1e-5)


@pytest.mark.parametrize("method", COLUMNWISE)
def test_few_rows_at_once_change_nothing(method, monkeypatch):
    """A network that keeps much of each row reads few of them together."""
    joint = ColumnwiseJoint(moved(rows_and_network(method)[1]), SHARES)
    states = np.array([[0, 0, 0], [2, 1, 3], [1, 0, 2]], dtype=np.int32)
    whole = joint.log_likelihood(states)
    monkeypatch.setattr(columnwise, "MOST_KEPT", 2 * joint.network.kept)
    monkeypatch.setattr(columnwise, "MOST_PASSES", 8)
    np.testing.assert_allclose(joint.log_likelihood(states), whole, atol=1e-5)
    drawn = joint.draw({}, [np.arange(len(share)) for share in SHARES], [1], 5, np.random.default_rng(0))
    assert drawn.shape == (5, 3) and (drawn < [3, 2, 4]).all()


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_the_plan_says_about_how_many_weights_there_are(method):
    made, shares = generator(method), [np.full(20, 0.05)] * 6
    weights = sum(weight.numel() for weight in made.network(shares, 32).parameters())
    assert made.weights(SimpleNamespace(width=32), [20] * 6) == pytest.approx(weights, rel=0.05)


# Mixtures.


@pytest.mark.parametrize("method", MIXTURES)
def test_orders_of_columns_are_no_part_of_a_mixture(method):
    with pytest.raises(ContractError, match=f"network.fixed_order: '{method}' draws all columns of a row at once"):
        network_plan(method, network={"fixed_order": 0.5})


def test_the_loss_of_an_autoencoder_is_that_of_its_definition():
    """By torch's own distributions: what columns lose at the point, and the divergence from the standard normal one."""
    rows, network = rows_and_network("dp_vae", 16)
    moved(network)
    batch = rows.made_up(20)
    with torch.no_grad():
        middle, spread = network.place(
            torch.nn.functional.silu(network.read(network.indicators(batch["states"])))
        ).chunk(2, 1)
        reached = torch.distributions.Normal(middle, spread.clamp(-8, 8).exp().sqrt())
        lost = torch.distributions.kl_divergence(reached, torch.distributions.Normal(0.0, 1.0)).sum(1)
        for column, scores in enumerate(network.decoded(reached.mean + reached.stddev * batch["points"])):
            lost -= torch.distributions.Categorical(logits=scores).log_prob(batch["states"][:, column])
        assert torch.allclose(rows.losses(network, batch), lost, rtol=1e-4)


def test_the_generator_learns_from_the_discriminator_alone(monkeypatch):
    """Two tables without a common row teach it the same, where they do not move the discriminator; else they do."""
    parameters = SimpleNamespace(training=dataclasses.replace(PLAN, steps=4), width=8, average=0.5)
    tables = [np.zeros((40, 3), np.int32), np.tile(np.array([[2, 1, 3]], np.int32), (40, 1))]

    def learned(states, still):
        with monkeypatch.context() as patch:
            fix(patch)
            patch.setattr(adversarial_network, "refuse_unsound_grid", lambda *given: None)
            clipped = hooked.clipping_coefficients
            patch.setattr(hooked, "clipping_coefficients", lambda *given: clipped(*given) * (0.0 if still else 1.0))
            torch.manual_seed(1)
            ready = adversarial_network.prepared(parameters, SHARES, "cpu")
            weights = network_training.train_once(
                ready, parameters.training, StateRecords(states, None, 2), NoJournal(), progress=silent
            )
            return torch.cat([value.flatten() for value in weights.values()])

    for still, same in ((True, True), (False, False)):
        first, second = (learned(states, still) for states in tables)
        assert torch.equal(first, second) == same


def test_a_generated_row_has_its_condition(the_same_each_time):
    """In the mixture, too: of each random point, one column is its condition's value."""
    made, network = generator("dp_gan"), generator("dp_gan").network(SHARES, 8)
    points, condition = network.at_random(500, torch.Generator().manual_seed(3))
    assert (condition.sum(1) == 1).all()
    values = network.values(network(points, condition), condition, torch.rand(500, 9), 0.3)
    assert torch.equal((values * condition).sum(1), torch.ones(500))
    parts = torch.cat([part.exp() for part in made.products(network, 500, torch.Generator().manual_seed(3))], 1)
    assert torch.allclose((parts * condition).sum(1), torch.ones(500))
    assert torch.allclose(parts.sum(1), torch.full((500,), 3.0), atol=1e-4)


def test_noise_hides_more_of_a_row_the_higher_its_level():
    """Of a network that knows the rows well, by its first scores: the distance to each state's indicators."""
    rows, network = rows_and_network("table_diffusion", 16)
    batch = rows.made_up(4000)
    low, high = math.log(diffusion_network.LEVELS[0]), math.log(diffusion_network.LEVELS[1])
    # None of 4,000 uniform levels is in that hundredth at one end: 3e-18.
    found, part = batch["levels"].log(), (high - low) / 100
    assert low - 1e-6 <= found.min() < low + part and high - part < found.max() <= high + 1e-6
    assert abs(float(batch["noise"].std()) - 1) < 0.05  # of 36,000 normal numbers: 13 deviations
    with torch.no_grad():
        at_shares = rows.losses(network, batch)
    expected = -sum(np.log(share[batch["states"][:, column]]) for column, share in enumerate(SHARES))
    np.testing.assert_allclose(at_shares, expected, rtol=1e-4)  # first scores are zero


@pytest.mark.parametrize("method", MIXTURES)
def test_a_mixture_has_the_shares_of_the_noisy_counts(tmp_path, method, monkeypatch, the_same_each_time):
    """Whatever its network makes of random points; each component is a distribution."""
    made, plan, bounded = generator(method), short_plan(method), write_bounded(people(300), tmp_path / "table")
    run = job(plan, bounded, tmp_path / "model")
    monkeypatch.setattr(mixture_generator, "COMPONENTS", 300)
    made.run(run)
    learned = made.learned(plan, run.directory)
    network = made.network(learned.shares, 8)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.5)
    monkeypatch.setattr(type(made), "trained", lambda *given: (learned, network))
    made.estimate(plan, run.directory)
    model, hidden = load_model(run.directory), len(plan.columns)
    assert model.components == 300 and model.joint is None
    for index, share in enumerate(learned.shares):
        found = np.exp(model.potentials[(index, hidden)])
        np.testing.assert_allclose(found.sum(axis=0), 1, atol=1e-6)
        np.testing.assert_allclose(found.mean(axis=1), share, atol=2e-3)
        assert len(share) == 1 or found.std(axis=1).max() > 0.02


# Interruptions.


def killed(tmp_path, method, at):
    plan, bounded = short_plan(method), write_bounded(people(2000), tmp_path / "table")
    (tmp_path / "plan.json").write_text(plan.to_json())
    directory = tmp_path / "model"
    directory.mkdir()
    command = [sys.executable, str(PROGRAM), str(tmp_path / "plan.json"), str(bounded), str(directory), str(at)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert generator(method).can_resume(directory) and not generator(method).is_complete(directory)
    return plan, bounded, directory


@pytest.mark.parametrize(
    ("method", "at", "executed"),
    [
        ("arn", "counts", [STEPS]),
        ("tbart", 3, [STEPS + 1, STEPS + 2, STEPS + 3]),
        ("dp_vae", 3, [STEPS + 1, STEPS + 2, STEPS + 3]),
        ("dp_gan", 3, [STEPS + 1, STEPS + 2, STEPS + 3]),
    ],
)
def test_killed_it_counts_no_second_time_and_continues_within_what_is_paid_for(tmp_path, method, at, executed):
    """Between counts and training, and within the third step: every executed step is in the journal."""
    plan, bounded, directory = killed(tmp_path, method, at)
    counts = (directory / "measurements.jsonl").read_bytes()
    generator(method).run(job(plan, bounded, directory, resume=True))
    assert (directory / "measurements.jsonl").read_bytes() == counts
    trained = json.loads((directory / NETWORK / "trained.json").read_text())
    assert trained["executed_steps"] in executed
    assert sorted(path.name for path in (directory / NETWORK).iterdir()) == ["trained.json", "weights.safetensors"]
    assert generator(method).sample(directory, 30).num_rows == 30


@pytest.mark.parametrize(("method", "sampled"), [("arn", "records"), ("tbart", "owners"), ("dp_vae", "owners")])
def test_it_trains_on_no_record(tmp_path, method, sampled, monkeypatch):
    """Whether there is a record may not show in whether it trains."""
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)
    bounded = write_bounded(people(1).slice(0, 0), tmp_path / "table")
    plan = short_plan(method, sampled)
    generator(method).run(job(plan, bounded, tmp_path / "model"))
    assert generator(method).is_complete(tmp_path / "model")


@pytest.mark.whole_fits
@pytest.mark.parametrize(
    ("method", "records", "epsilon", "resumable"),
    [
        ("arn", 1, 1.0, True),
        ("arn", 1, 1.0, False),
        ("arn", 60, 0.3, True),
        ("arn", 2000, 0.01, False),
        ("tbart", 60, 0.3, False),
        ("tbart", 2000, 0.01, True),
        ("dp_vae", 60, 0.3, True),
        ("table_diffusion", 2000, 0.01, False),
        ("dp_gan", 60, 0.3, False),
    ],
)
def test_columns_of_one_state_stop_nothing(tmp_path, method, records, epsilon, resumable, the_same_each_time):
    """Noise may merge all values of columns: they are drawn by their counts, and nobody pays for a refusal."""
    guarantee = {"epsilon": epsilon, "delta": 1e-5}
    plan, made = (
        network_plan(method, network={**SHORT, "replay_steps": 0}, privacy__guarantee=guarantee),
        generator(method),
    )
    run = job(plan, write_bounded(people(records), tmp_path / "table"), tmp_path / "model")
    made.run(run if resumable else dataclasses.replace(run, checkpoints=None))
    assert 1 in map(len, made.learned(plan, run.directory).shares)
    assert made.is_complete(run.directory) and made.sample(run.directory, 30).num_rows == 30
    assert np.isfinite(log_likelihood(load_model(run.directory), people(30))).all()


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_some_columns_of_one_state_are_left_out_of_training(method):
    plan = dataclasses.replace(PLAN, steps=6)
    rows, network = rows_and_network(method, shares=[SHARES[0], np.ones(1), SHARES[2]])
    refuse_unsound_grid(network, plan, rows.losses, rows.made_up, VectorSums)
    assert set(getattr(rows, "generator", network).heads) == {"0", "2"}


def test_what_is_trained_is_neither_trained_nor_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)
    quality = {"target": "member", "paid": {"measures": ["accuracy"]}}
    plan, bounded = network_plan(network=SHORT, quality=quality), write_bounded(people(200), tmp_path / "table")
    made = generator(plan.method)
    run = job(plan, bounded, tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(paid, "write_durably", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.run(run)
    assert made.is_complete(run.directory) and not made.can_resume(run.directory)
    with monkeypatch.context() as patch:
        patch.setattr(paid, "noisy_accuracy", lambda *given: pytest.fail("drawn a second time"))
        made.run(job(plan, bounded, run.directory, resume=True))
    assert not (run.directory / paid.FILE).exists()


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_nothing_begins_again_where_records_were_read_without_a_journal(tmp_path, method):
    made, plan, bounded = generator(method), short_plan(method), write_bounded(people(200), tmp_path / "table")
    run = job(plan, bounded, tmp_path / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateRecords, "batch", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.run(dataclasses.replace(run, checkpoints=None))
    assert not made.can_resume(run.directory)
    with pytest.raises(ResumeRefused):
        made.run(job(plan, bounded, run.directory, resume=True))


# What it draws.


@pytest.fixture(scope="module", params=NETWORK_METHODS)
def fitted(tmp_path_factory, request):
    place, made = tmp_path_factory.mktemp(request.param), generator(request.param)
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        patch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)
        plan = network_plan(made.method, privacy__guarantee={"epsilon": 9.0, "delta": 1e-5}, network={"steps": 60})
        run = job(plan, write_bounded(people(4000), place / "table"), place / "model")
        made.run(run)
    return run.directory


def drawn_by(directory, rows, **options):
    return generator(load_model(directory).plan.method).draw(directory, rows, **options).table()


def test_given_values_are_in_every_row_and_others_follow(fitted, the_same_each_time):
    """Bern is of ages 4 to 7, nearly all of its members are, and without the condition half as many rows are of it."""
    drawn = drawn_by(fitted, 400, given={"city": "Bern"})
    assert set(drawn["city"].to_pylist()) == {"Bern"}
    members = Counter(drawn["member"].to_pylist())
    if "dp_gan" not in str(fitted):  # so few steps teach it nothing
        assert members[True] > 260
    few = drawn_by(fitted, 300, given={"age": [0, 1], "member": False})
    assert set(few["age"].to_pylist()) <= {0, 1} and set(few["member"].to_pylist()) == {False}


def test_constraints_hold_and_missing_values_come_back(fitted, the_same_each_time):
    rule = Constraint.model_validate({"forbid": {"city": "Bern", "member": False}})
    drawn = drawn_by(fitted, 3000, constraints=[rule])
    assert drawn.num_rows == 3000
    assert ("Bern", False) not in set(zip(drawn["city"].to_pylist(), drawn["member"].to_pylist(), strict=True))
    assert 60 < drawn["city"].null_count < 300  # 5% of 3000, from noisy counts
    assert drawn["score"].null_count == 0


def test_declared_dependencies_and_orders_hold_in_every_row(fitted, the_same_each_time):
    """By masks while rows are drawn (the idea of Kamino, Ge et al. 2021); a network that never met them keeps them."""
    mapping = {"Aix": False, "Bern": True, "Cork": False}
    rules = [
        {"column": "city", "determines": "member", "mapping": mapping},
        {"ascending": ["score", "age"], "strict": True},
    ]
    drawn = drawn_by(fitted, 2000, constraints=[Constraint.model_validate(rule) for rule in rules])
    assert drawn.num_rows == 2000
    rows = drawn.select(["age", "score", "city", "member"]).to_pylist()
    known = [row for row in rows if row["city"] is not None and row["member"] is not None]
    assert len(known) > 1000 and all(mapping[row["city"]] == row["member"] for row in known)
    pairs = [(row["score"], row["age"]) for row in rows if row["age"] is not None and row["score"] is not None]
    assert len(pairs) > 1000 and all(score < age for score, age in pairs)


def test_its_own_likelihood_is_the_models(fitted, the_same_each_time):
    model = load_model(fitted)
    near, far = people(200, seed=5), people(200, seed=5)
    place = far.schema.get_field_index("member")
    far = far.set_column(place, "member", pa.compute.invert(far["member"]))
    found = [log_likelihood(model, table) for table in (near, far)]
    assert np.isfinite(found).all()
    if "dp_gan" not in str(fitted):  # so few steps teach it nothing
        assert found[0].mean() > found[1].mean() + 1


@pytest.mark.whole_fits
@pytest.mark.parametrize(("method", "steps", "learning_rate"), [("arn", 150, 0.05), ("tbart", 60, 0.03)])
def test_a_parity_of_three_columns_is_learned(tmp_path, method, steps, learning_rate, the_same_each_time, monkeypatch):
    """At epsilon 3: no pair of these columns tells anything, so that a method of pairs draws it right half the time."""
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)  # other tests have it
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, (20_000, 3))
    columns = {"a": bits[:, 0], "b": bits[:, 1], "c": bits[:, 2], "odd": bits.sum(axis=1) % 2}
    table = pa.table({name: pa.array(values.astype(str)) for name, values in columns.items()})
    owners = pa.array([f"{number:032x}" for number in range(20_000)])
    bounded = write_bounded(table.append_column("_owner", owners), tmp_path / "table")
    declared = {name: {"type": "categorical", "values": ["0", "1"]} for name in columns}
    plan = network_plan(
        method,
        pa.schema({"person_id": pa.string(), **dict.fromkeys(columns, pa.string())}),
        network=PARITY | {"steps": steps, "learning_rate": learning_rate},
        columns={"person_id": {"type": "identifier"}, **declared},
        privacy__guarantee={"epsilon": 3.0, "delta": 1e-5},
        privacy__max_contributions=1,
        privacy__expected_units=20_000,
    )
    (tmp_path / "model").mkdir()
    made = generator(plan.method)
    made.measure(plan, bounded, tmp_path / "model")
    made.estimate(plan, tmp_path / "model")
    drawn = made.sample(tmp_path / "model", 4000)
    values = np.array([drawn[name].to_numpy(zero_copy_only=False).astype(int) for name in columns])
    assert (values[:3].sum(axis=0) % 2 == values[3]).mean() > 0.9


PARITY = {"batch_size": 400, "width": 16, "columns_share": 0.05, "fixed_order": 1}
