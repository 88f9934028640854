"""However records and their rows are divided, a step is the clipped sum of units' means, noised once."""

from __future__ import annotations

import pytest
import torch
from grid_cases import losses, network, rows_of, unit_gradients
from training_cases import flat, plan

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.interface import TrainingState
from dpsynth_platform.training.loop import train_by
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.rows import RowDivision, first_rows
from dpsynth_platform.training.sampler import PoissonSampler

CPU = torch.device("cpu")
DRAWS = 3
USERS = [[3], [0, 1, 5, 6], [2, 7], [4]]


class Records:
    """Records in memory; draw number i of a record adds i to its pictures."""

    max_length = 1

    def __init__(self, number=8):
        self.rows = rows_of(number)

    def __len__(self):
        return len(self.rows["labels"])

    def batch(self, indices):
        return {name: values[list(indices)] for name, values in self.rows.items()}


def drawn(records, draws):
    """A part of a record's draws, too, are those with the first numbers, so that a mean is over the right ones."""
    rows = {name: value.repeat_interleave(draws, 0) for name, value in records.items()}
    number = torch.arange(draws, dtype=torch.float32).repeat(len(records["labels"]))
    rows["pictures"] = rows["pictures"] + number[:, None, None, None]
    return rows


class Notes:
    """A journal and a watch that keep their inputs."""

    def __init__(self, state=None):
        self.executed, self.state, self.gradients = 0, state, []

    def begin_step(self):
        self.executed += 1
        return self.executed

    def save(self, state, now=False):
        self.state = TrainingState(state.step, {name: value.clone() for name, value in state.tensors.items()})

    def latest(self):
        return self.state

    def step(self, step, gradients):
        self.gradients.append({name: value.clone() for name, value in gradients.items()})


def trained(made, chosen, size, notes=None, units=None, average=None):
    notes = notes or Notes()
    with GridSums(made, chosen, losses) as sums:
        train_by(
            sums,
            chosen,
            RECORDS,
            RowDivision(size, DRAWS, drawn, chosen.batch_size, CPU),
            journal=notes,
            health=notes,
            units=units,
            averages=average and average(sums.parameters),
        )
    return notes


RECORDS = Records()


@pytest.fixture
def fixed(monkeypatch):
    """Batches as given, and the noise replaced by a note of its deviation."""

    def fix(batches):
        queue, deviations = list(batches), []
        monkeypatch.setattr(PoissonSampler, "draw", lambda self: torch.tensor(queue.pop(0)).numpy())
        monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: deviations.append(deviation))
        return deviations

    return fix


def expected_step(made, chosen, units):
    total = 0
    for unit in units:
        batch = drawn(RECORDS.batch(unit), DRAWS)
        weights = torch.full((1, len(unit) * DRAWS), 1 / (len(unit) * DRAWS))
        gradient = unit_gradients(made, batch, weights)[0]
        total = total + (chosen.clipping_norm / gradient.norm()).clamp(max=1) * gradient
    return total


@pytest.mark.parametrize("size", [3, 7, 12, 1000])
@pytest.mark.parametrize("sampled", ["record", "user"])
def test_a_step_is_the_clipped_sum_over_the_planned_batch_size(fixed, size, sampled):
    made = network()
    chosen = plan(steps=1, clipping_norm=0.4, sampled=sampled, max_contributions=4)
    users = USERS if sampled == "user" else None
    deviations = fixed([[0, 1, 2]])
    wanted = expected_step(made, chosen, USERS[:3] if users else [[0], [1], [2]])
    notes = trained(made, chosen, size, units=users)
    found = chosen.batch_size * flat(notes.gradients[0].values())
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert deviations == [chosen.noise_deviation] * len(notes.gradients[0])  # each parameter, once: not for each draw


@pytest.mark.parametrize("planned", [1, 8, 400])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 23, 24, 100])
def test_in_every_division_each_row_counts_as_planned(size, planned):
    """All draws of all records of a unit, with weights of sum 1, in parts that are no larger than they may be."""

    def numbered(records, draws):
        return {"record": records["record"].repeat_interleave(draws)}

    division = RowDivision(size, DRAWS, numbered, planned, CPU)
    rows, sizes = {"record": torch.arange(17)}, [1, 4, 2, 4, 1, 1, 4]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    shares, counts = torch.zeros(17), torch.zeros(17)
    for parts in division.parts(rows, sizes, size):
        for part in parts:
            record = part.batch["record"]
            assert part.weights.numel() == len(record) <= size
            assert len(parts) == 1 or len(part.weights) == 1
            by_unit = owner[record].view(part.weights.shape)
            assert (by_unit == by_unit[:, :1]).all()
            shares.index_add_(0, record, part.weights.flatten())
            counts.index_add_(0, record, (part.weights.flatten() > 0).float())
        if len(parts) > 1:
            assert len({int(owner[record]) for part in parts for record in part.batch["record"]}) == 1
    assert (counts == DRAWS).all()
    expected = torch.repeat_interleave(1 / torch.tensor(sizes, dtype=torch.float32), torch.tensor(sizes))
    assert torch.allclose(shares, expected)


@pytest.mark.parametrize("size", [1, 4, 9, 24, 100])
@pytest.mark.parametrize(("unit", "records"), [(0, 1), (1, 4), (2, 2)])
def test_the_shape_of_a_units_part_follows_from_the_unit_alone(size, unit, records):
    """Or how its gradient is rounded would depend on the others."""

    def numbered(rows, draws):
        return {"record": rows["record"].repeat_interleave(draws)}

    def shapes(sizes, first):
        division = RowDivision(size, DRAWS, numbered, 20, CPU)
        found = division.parts({"record": torch.arange(sum(sizes))}, sizes, size)
        own = [part for parts in found for part in parts if (part.batch["record"] == first).any()]
        return [(part.weights.shape, part.batch["record"].shape) for part in own]

    sizes = [1, 4, 2, 4, 1, 1, 4]
    alone, first = shapes([records], 0), sum(sizes[:unit])
    assert alone == shapes(sizes, first) == shapes([*sizes, 1, 1, 2, 4, 4, 4], first)


def test_an_average_is_kept_with_the_state_and_resumes(fixed, monkeypatch):
    def average(parameters):
        return ExponentialAverage(parameters, 0.9)

    first = network()
    chosen = plan(steps=2, replay_allowance=0)
    fixed([[0], [1], [1]])
    notes = trained(first, chosen, 100, average=average)
    state = notes.state
    names = [name for name, _ in first.named_parameters()]
    assert {f"average.{name}" for name in names} <= state.tensors.keys()
    after_one = network()
    before = {name: value.detach().clone() for name, value in after_one.named_parameters()}
    notes = trained(after_one, plan(steps=1), 100, average=average)
    value = dict(after_one.named_parameters())["enter.weight"]
    expected = before["enter.weight"].lerp(value, 1 - 2 / 11)
    assert torch.allclose(notes.state.tensors["average.enter.weight"], expected.detach())
    resumed = Notes(state)
    trained(network(), chosen, 100, notes=resumed, average=average)
    assert resumed.executed == 0
    other = plan(steps=3)
    fixed([[2]])
    trained(network(), other, 100, notes=resumed, average=average)
    assert resumed.executed == 1
    assert resumed.state.step == 3


def test_a_row_that_does_not_fit_is_an_error():
    division = RowDivision(4, DRAWS, drawn, 8, CPU)
    assert [division.smaller(size) for size in (64, 3, 2)] == [32, 1, 1]
    with pytest.raises(MechanismFailed, match="one row of one record does not fit"):
        division.smaller(1)


def test_rows_that_fit_follow_from_free_memory(monkeypatch):
    from dpsynth_platform.training import rows

    made = network()
    with GridSums(made, plan(), losses) as sums:
        assert first_rows(sums, made, rows_of, CPU) == 64
        monkeypatch.setattr(rows, "free_memory", lambda: 2 * 4 * 100_000)
        found = first_rows(sums, made, rows_of, CPU)
        monkeypatch.setattr(rows, "free_memory", lambda: 0)
        assert first_rows(sums, made, rows_of, CPU) == 1
        assert not any(total.any() for total in sums.totals.values())
    outputs = 8 * 35 * 7 + 35 * 8 * 4 + 8 * 3
    assert 100_000 / (6 * 4 * outputs) < found < 64
    made.beside = torch.nn.Linear(2, 2)
    with GridSums(made, plan(), losses) as sums, pytest.raises(MechanismFailed, match="trainable layers beside;"):
        first_rows(sums, made, rows_of, CPU)
