"""Two processes that train together do what one does with all records, and add noise once."""

import copy

import pytest
import torch
from torch import distributed
from torch import multiprocessing as processes
from training_cases import Records, batch, flat, model, plan

from dpsynth_platform.training import loop
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


def one_of_two(rank, made, rows, state, address, results):
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    share = {name: values[rank::2] for name, values in rows.items()}
    # Only the first process has the state; the other one's weights are others.
    other = model("llama", True) if rank else made
    notes = trained(other, share, Notes(None if rank else state))
    parameters = flat(value.detach() for value in other.parameters())
    results.put((rank, notes.executed, torch.stack(notes.gradients).numpy(), parameters.numpy()))
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_do_what_one_does(monkeypatch, tmp_path):
    monkeypatch.setattr(PoissonSampler, "draw", PoissonSampler.draw)  # put back afterwards
    monkeypatch.setattr(GaussianNoise, "add_", GaussianNoise.add_)
    made, rows = model("llama", True), batch(LENGTHS)
    start = {f"parameter.{name}": value.detach().clone() for name, value in made.named_parameters()}
    start |= loop.Optimizer(plan(), dict(made.named_parameters())).state
    context = processes.get_context("spawn")
    results = context.Queue()
    arguments = (copy.deepcopy(made), rows, TrainingState(0, start), f"file://{tmp_path}/meeting", results)
    workers = [context.Process(target=one_of_two, args=(rank, *arguments)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    found = sorted((results.get(timeout=120) for _ in workers), key=lambda result: result[0])
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    whole = trained(made, rows, Notes())
    expected = torch.stack(whole.gradients)
    for _, _, gradients, parameters in found:
        assert (torch.from_numpy(gradients) - expected).norm() <= 1e-5 * expected.norm()
        assert (parameters == found[0][3]).all()
    assert [executed for _, executed, _, _ in found] == [2, 0]
