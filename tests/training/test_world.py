"""Two processes that train together do what one does with all records, and add noise once."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import multiprocessing as processes
from training_cases import Records, batch, flat, model, plan

from dpsynth_platform.training import loop, world
from dpsynth_platform.training.interface import TrainingState
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.sampler import PoissonSampler

LENGTHS = [9, 12, 3, 7, 5, 12]


class Notes:
    """Journal and watch of one process."""

    def __init__(self, state=None):
        self.executed, self.gradients, self.state = 0, [], state

    def begin_step(self):
        self.executed += 1
        return self.executed

    def save(self, state):
        self.state = TrainingState(state.step, {name: value.clone() for name, value in state.tensors.items()})

    def latest(self):
        return self.state

    def step(self, step, gradients):
        self.gradients.append(flat(gradients.values()))


def trained(made, rows, notes):
    """All records drawn, and noise that tells how often it was added."""
    PoissonSampler.draw = lambda self: torch.arange(self._number).numpy()
    GaussianNoise.add_ = lambda self, sums, deviation: sums.add_(deviation)
    train(made, plan(steps=2), Records(rows), journal=notes, health=notes)
    return notes


def noised(made, rows, draw, add):
    """Empty batches, so that sums are noise alone."""
    PoissonSampler.draw = lambda self: draw(self)[:0]
    GaussianNoise.add_ = add
    notes = Notes()
    train(made, plan(steps=2), Records(rows), journal=notes, health=notes)
    return torch.stack(notes.gradients)


def one_of_two(rank, made, rows, state, place, results):
    world.join_group(place, rank, 2, torch.device("cpu"))
    draw, add = PoissonSampler.draw, GaussianNoise.add_
    share = {name: values[rank::2] for name, values in rows.items()}
    # Only the first process has the state; the other one's weights are others.
    other = model("llama", True) if rank else made
    notes = trained(other, share, Notes(None if rank else state))
    parameters = flat(value.detach() for value in other.parameters())
    alone = noised(other, share, draw, add)
    results.put((rank, notes.executed, torch.stack(notes.gradients).numpy(), parameters.numpy(), alone.numpy()))
    world.leave_group()


@pytest.mark.slow
def test_two_processes_do_what_one_does(monkeypatch, tmp_path):
    monkeypatch.setattr(PoissonSampler, "draw", PoissonSampler.draw)  # put back afterwards
    monkeypatch.setattr(GaussianNoise, "add_", GaussianNoise.add_)
    made, rows = model("llama", True), batch(LENGTHS)
    start = {f"parameter.{name}": value.detach().clone() for name, value in made.named_parameters()}
    start |= loop.Optimizer(plan(), dict(made.named_parameters())).state
    context = processes.get_context("spawn")
    results = context.Queue()
    arguments = (copy.deepcopy(made), rows, TrainingState(0, start), tmp_path / "meeting", results)
    workers = [context.Process(target=one_of_two, args=(rank, *arguments)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    found = sorted((results.get(timeout=300) for _ in workers), key=lambda result: result[0])
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0
    whole = trained(made, rows, Notes())
    expected = torch.stack(whole.gradients)
    for _, _, gradients, parameters, _ in found:
        assert (torch.from_numpy(gradients) - expected).norm() <= 1e-5 * expected.norm()
        assert (parameters == found[0][3]).all()
    assert [executed for _, executed, *_ in found] == [2, 0]
    # The noise is one draw of the plan's deviation for both of them: twice as much would be twice its variance.
    (*_, noise), (*_, same) = found
    assert (noise == same).all()
    assert (noise[0] == noise[1]).mean() < 0.01  # in whole steps of the noise: now and then one is equal by chance
    squares = (noise.astype(np.float64) * plan().batch_size / plan().noise_deviation) ** 2
    # Of chi squared, either end: 2e-7.
    assert stats.chi2(squares.size).cdf(squares.sum()) == pytest.approx(0.5, abs=0.5 - 1e-7)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_shares_are_disjoint_parts_of_one_poisson_sample(monkeypatch, size, grouped):
    """Each unit is drawn by the plan's q, in the share of one process, whatever others are drawn."""
    sampled, draws = plan(units=8, batch_size=2), 10_000
    rows = {"input_ids": torch.arange(8)[:, None]}
    units = [[number, 7] for number in range(7)] if grouped else None
    counts = np.zeros(8, int)
    for rank in range(size):
        alone = world.World()
        alone.rank, alone.size = rank, size
        share, mine = alone.share(Records(rows), units)
        sampler = PoissonSampler(sampled, len(share) if mine is None else len(mine))
        for _ in range(draws):
            drawn = sampler.draw()
            places = (
                [mine[unit][0] for unit in drawn] if grouped else share.batch(drawn)["input_ids"].flatten().tolist()
            )
            counts[places] += 1
    likely = stats.binom(draws, 0.25)  # of at most 8 units, either end: 1.6e-7
    for count in counts[: 7 if grouped else 8]:
        assert 1e-8 < likely.cdf(count) < 1 - 1e-8
