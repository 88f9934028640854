"""The loop follows the plan: it draws, clips, adds noise once, steps and counts, also with short memory and crashes."""

from __future__ import annotations

import copy
import dataclasses
import io
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import Mock, call

import pytest
import torch
from scipy import stats
from training_cases import Records, assert_clipped, batch, flat, gradients_one_by_one, model, plan

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training import loop, physical
from dpsynth_platform.training.adapter import with_adapter
from dpsynth_platform.training.interface import TrainingState
from dpsynth_platform.training.loop import Trained, train
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.plan import Adapter
from dpsynth_platform.training.precision import EXACT
from dpsynth_platform.training.sampler import PoissonSampler

LENGTHS = [9, 12, 3, 7, 1, 12, 5, 5]


class Notes:
    """A journal and a watch that keep their inputs, in order."""

    def __init__(self, executed=0, state=None):
        self.executed, self.state, self.order, self.gradients = executed, state, [], []

    def begin_step(self):
        self.executed += 1
        self.order.append("begin")
        return self.executed

    def save(self, state):
        self.order.append("save")
        self.state = TrainingState(state.step, {name: value.clone() for name, value in state.tensors.items()})

    def latest(self):
        return self.state

    def step(self, step, gradients):
        self.order.append("health")
        self.gradients.append({name: value.clone() for name, value in gradients.items()})


def run(made, chosen, rows, notes=None, precision=EXACT, **more):
    notes = notes or Notes()
    trained = train(made, chosen, Records(rows), journal=notes, health=notes, precision=precision, **more)
    return notes, trained


@pytest.fixture
def fixed(monkeypatch):
    """Batches as given, and the noise replaced by a note of its deviation."""

    def fix(batches):
        queue, deviations = list(batches), []
        monkeypatch.setattr(PoissonSampler, "draw", lambda self: torch.tensor(queue.pop(0)).numpy())
        monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: deviations.append(deviation))
        return deviations

    return fix


def gradients_of(made, rows, users=None):
    single = gradients_one_by_one(made, rows)
    return single if users is None else torch.stack([single[list(user)].mean(0) for user in users])


def clipped_sum(made, rows, chosen, users=None):
    units = gradients_of(made, rows, users)
    return ((chosen.clipping_norm / units.norm(dim=1)).clamp(max=1)[:, None] * units).sum(0)


@pytest.mark.parametrize("tokens", [1, 20, 40, 10_000])
@pytest.mark.parametrize("tied", [False, True])
def test_a_step_is_the_clipped_sum_over_the_planned_batch_size(fixed, monkeypatch, tied, tokens):
    """Whatever the size of a physical batch is, and however many were drawn."""
    monkeypatch.setattr(physical, "first_size", lambda *arguments: tokens)
    made, rows = model("llama", tied), batch(LENGTHS)
    chosen = plan(steps=1, optimizer="sgd", learning_rate=1.0, clipping_norm=0.4)
    deviations = fixed([[0, 1, 2, 4, 5, 7]])
    before = flat(value.detach() for value in made.parameters())
    drawn = {name: values[[0, 1, 2, 4, 5, 7]] for name, values in rows.items()}
    units = gradients_of(made, drawn)
    notes, _ = run(made, chosen, rows)
    found = flat(notes.gradients[0].values())
    # Norms are rounded up, by as much as each token takes, twice: to be looked up, and to be predicted.
    assert_clipped(chosen.batch_size * found, units, chosen.clipping_norm, 2 * max(LENGTHS) / 2**19)
    moved = before - flat(value.detach() for value in made.parameters())
    assert (moved - found).norm() <= 1e-4 * moved.norm()  # the weights are of single precision
    assert deviations == [chosen.noise_deviation] * len(notes.gradients[0])  # each parameter, once


@pytest.mark.parametrize(("tokens", "sampled"), [(6, "user"), (13, "user"), (30, "record"), (10_000, "user")])
def test_units_of_several_examples_are_drawn_and_clipped_as_one(fixed, monkeypatch, tokens, sampled):
    """Users with their records, or records with their chunks. The second has some that do not fit together."""
    monkeypatch.setattr(physical, "first_size", lambda *arguments: tokens)
    made, rows = model("gpt2", True), batch(LENGTHS)
    chosen = plan(steps=1, sampled=sampled, max_contributions=4, clipping_norm=0.3)
    users = [[3], [0, 1, 5, 6], [2, 7], [4]]
    fixed([[0, 1, 2]])
    units = gradients_of(made, rows, users[:3])
    notes, _ = run(made, chosen, rows, units=users)
    found = chosen.batch_size * flat(notes.gradients[0].values())
    assert_clipped(found, units, chosen.clipping_norm, 4 * 2 * max(LENGTHS) / 2**19)  # of up to four records each


def test_where_layers_compute_coarsely_weights_sums_and_states_have_single_precision(fixed):
    made, rows = model("gpt2", True), batch(LENGTHS)
    chosen = plan(steps=1, clipping_norm=0.3)
    fixed([[0, 2, 5]])
    expected = clipped_sum(made, rows, chosen, [[0], [2], [5]]) / chosen.batch_size
    notes, _ = run(made, chosen, rows, precision=torch.bfloat16)
    assert (flat(notes.gradients[0].values()) - expected).norm() <= 0.05 * expected.norm()
    assert {value.dtype for value in (*notes.gradients[0].values(), *notes.state.tensors.values())} == {torch.float32}


def test_the_precision_is_the_devices(monkeypatch):
    monkeypatch.setattr(loop, "precision_of_training", lambda device, model: torch.bfloat16)
    chosen = plan(adapter=Adapter(rank=2))
    made = with_adapter(model(), chosen)
    train(made, chosen, Records(batch(LENGTHS)), journal=Notes(), health=Notes())
    assert {(value.requires_grad, value.dtype) for value in made.parameters()} == {
        (True, torch.float32),
        (False, torch.bfloat16),
    }


def test_noise_has_the_planned_deviation_and_an_empty_batch_gets_it_too(monkeypatch):
    """Of two hundred thousand coordinates over steps with empty batches, over the planned batch size."""
    monkeypatch.setattr(PoissonSampler, "draw", lambda self: torch.zeros(0, dtype=torch.long).numpy())
    made, rows = model(width=64), batch(LENGTHS)
    chosen = plan(steps=2, noise_multiplier=3.0, clipping_norm=0.5, batch_size=5)
    notes, trained = run(made, chosen, rows)
    for gradients in notes.gradients:
        noise = flat(gradients.values()) / (chosen.noise_multiplier * chosen.clipping_norm / chosen.batch_size)
        assert noise.numel() > 50_000
        assert abs(float(noise.var()) - 1) < 7 * (2 / noise.numel()) ** 0.5
        assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-8
    first, second = (flat(gradients.values()) for gradients in notes.gradients)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 7 / len(first) ** 0.5
    assert trained == Trained(2, 2)
    assert notes.order == ["begin", "health", "save"] * 2


def test_a_step_is_counted_before_its_batch_is_drawn(monkeypatch):
    notes, draw = Notes(), PoissonSampler.draw

    def noted(self):
        notes.order.append("draw")
        return draw(self)

    monkeypatch.setattr(PoissonSampler, "draw", noted)
    run(model(), plan(), batch(LENGTHS), notes)
    assert notes.order == ["begin", "draw", "health", "save"] * 3


class SmallMemory:
    """A forward pass that fails above so many tokens, as if memory were short, and counts failures."""

    def __init__(self, made, tokens, error):
        self.forward, self.tokens, self.error, self.failures = made.forward, tokens, error, 0
        made.forward = self

    def __call__(self, input_ids, **more):
        if input_ids.numel() > self.tokens:
            self.failures += 1
            raise self.error
        return self.forward(input_ids=input_ids, **more)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] not enough memory"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("sampled", ["record", "user"])
def test_where_memory_runs_out_the_same_batch_passes_in_smaller_parts(monkeypatch, error, sampled):
    """The same draw, noise once, the same gradient, the same event."""
    draws, noises = [], []

    def draw(self):
        draws.append(1)
        return torch.arange(4).numpy()

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: noises.append(deviation))
    made, rows = model(), batch(LENGTHS)
    # Adam would divide almost zero by itself, and so enlarge the second step's rounding.
    chosen = plan(steps=2, sampled=sampled, max_contributions=2, optimizer="sgd")
    users = [[0, 1], [2, 3], [4, 5], [6, 7]] if sampled == "user" else None
    plenty, _ = run(copy.deepcopy(made), chosen, rows, units=users)
    short = SmallMemory(made, 13, error)
    event = chosen.event
    notes, trained = run(made, chosen, rows, units=users)
    assert 1 < short.failures < 20
    assert trained == Trained(2, 2)
    assert notes.order == plenty.order
    assert len(draws) == 4
    assert len(noises) == 2 * 2 * len(notes.gradients[0])
    assert chosen.event == event
    for found, expected in zip(notes.gradients, plenty.gradients, strict=True):
        difference = flat(found.values()) - flat(expected.values())
        assert difference.norm() <= 1e-5 * flat(expected.values()).norm()


def test_what_did_not_fit_in_one_step_changes_no_other(monkeypatch, fixed):
    """Whether it fits may depend on one user's records; how the others are divided later must not."""
    sizes, parts = [], physical.fixed_shape_parts

    def noted(rows, units, tokens, *others):
        sizes.append(tokens)
        return parts(rows, units, tokens, *others)

    monkeypatch.setattr(physical, "fixed_shape_parts", noted)
    made, users = model(), [[0, 1, 2, 3], [4], [5]]
    fixed([[0, 1], [1, 2]])
    SmallMemory(made, 2 * max(LENGTHS), MemoryError())
    run(made, plan(steps=2, sampled="user", max_contributions=4), batch(LENGTHS), units=users)
    assert sizes[0] == sizes[-1] == physical.MOST_TOKENS["cpu"]
    assert min(sizes) < sizes[0]


def test_memory_for_not_even_one_record_is_told_without_its_content():
    made = model()
    SmallMemory(made, 8, RuntimeError("not enough memory for 17 tokens"))
    with pytest.raises(MechanismFailed, match="one record of up to 12 tokens does not fit") as caught:
        run(made, plan(units=10, batch_size=10), batch([12, 12]))
    assert caught.value.__context__ is None


def test_other_errors_are_not_taken_for_want_of_memory():
    made = model()
    SmallMemory(made, 8, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes"):
        run(made, plan(units=10, batch_size=10), batch([12, 12]))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_goes_on_from_the_last_state(fixed, optimizer):
    """Three steps at once, and one, a crash, then two more."""
    rows, start = batch(LENGTHS), model("gpt2", True)
    chosen = plan(optimizer=optimizer, weight_decay=0.1, warmup_steps=2, decay="cosine")
    fixed([[0, 1], [2, 3], [5], [0, 1], [2, 3], [2, 3], [5]])
    whole, _ = run(copy.deepcopy(start), chosen, rows)

    class Crash(Notes):
        def step(self, step, gradients):
            super().step(step, gradients)
            if step == 2:
                raise KeyboardInterrupt

    crashed = Crash()
    with pytest.raises(KeyboardInterrupt):
        run(copy.deepcopy(start), chosen, rows, crashed)
    assert crashed.state.step == 1
    notes, trained = run(copy.deepcopy(start), chosen, rows, Notes(executed=crashed.executed, state=crashed.state))
    assert trained == Trained(3, 4)
    assert notes.state.tensors.keys() == whole.state.tensors.keys()
    for name, value in whole.state.tensors.items():
        torch.testing.assert_close(notes.state.tensors[name], value)


def test_a_complete_training_executes_nothing_more():
    made, rows = model(), batch(LENGTHS)
    notes, _ = run(made, plan(), rows)
    again, trained = run(model(), plan(), rows, Notes(executed=3, state=notes.state))
    assert again.order == []
    assert trained.steps == 3


def test_no_step_is_executed_that_was_not_paid_for():
    notes = Notes(executed=3)
    with pytest.raises(MechanismFailed, match="step 5, but the plan pays for 4"):
        run(model(), plan(steps=3, replay_allowance=1), batch(LENGTHS), notes)
    assert len(notes.gradients) == 1


def test_a_state_of_another_model_is_refused():
    notes, _ = run(model(width=16), plan(), batch(LENGTHS))
    with pytest.raises(MechanismFailed, match="another model"):
        run(model(width=32), plan(), batch(LENGTHS), Notes(state=notes.state))


def test_health_stops_training():
    class Alarm(Notes):
        def step(self, step, gradients):
            raise MechanismFailed("noised gradients are not finite")

    notes = Alarm()
    with pytest.raises(MechanismFailed, match="not finite"):
        run(model(), plan(), batch(LENGTHS), notes)
    assert notes.order == ["begin"]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_adapter_is_trained_and_nothing_else(name):
    chosen = plan(adapter=Adapter(rank=3, alpha=6))
    made = with_adapter(model(name, True), chosen)
    before = {key: value.detach().clone() for key, value in made.named_parameters()}
    notes, _ = run(made, chosen, batch(LENGTHS))
    changed = {key for key, value in made.named_parameters() if not torch.equal(value, before[key])}
    assert changed == {key for key in before if "lora_" in key} == notes.gradients[0].keys()
    assert len(changed) == 2 * 2 * {"llama": 7, "gpt2": 4}[name]


def test_a_model_that_is_not_the_plans_is_refused():
    rows, adapted = batch(LENGTHS), plan(adapter=Adapter(rank=3))
    for made, chosen in [
        (model(), adapted),
        (with_adapter(model(), plan(adapter=Adapter(rank=2))), adapted),
        (with_adapter(model(), adapted), plan()),
    ]:
        with pytest.raises(MechanismFailed, match="with_adapter"):
            run(made, chosen, rows)
    with pytest.raises(MechanismFailed, match="samples users"):
        run(model(), plan(sampled="user"), rows)


def test_nothing_is_said_that_is_not_public(fixed):
    """Results, progress and output are equal for very different records."""
    outputs = []
    for lengths, drawn in (([12] * 8, [list(range(8))] * 3), ([2], [[]] * 3)):
        fixed(drawn)
        progress, out = Mock(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            _, result = run(model(), plan(), batch(lengths), progress=progress)
        outputs.append((progress.mock_calls, result, out.getvalue()))
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == [call("training", step, 3) for step in (1, 2, 3)]
    assert {field.name for field in dataclasses.fields(Trained)} == {"steps", "executed"}


def test_there_is_no_switch_for_seeds_or_noise():
    import inspect

    names = " ".join(inspect.signature(loop.train).parameters)
    assert not any(word in names for word in ("seed", "noise", "generator", "batch", "clip"))
