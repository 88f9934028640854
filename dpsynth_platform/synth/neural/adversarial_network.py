"""A discriminator of rows that is trained with privacy, and the generator that learns from it alone (CTGAN, DP-GAN).

What belongs here: these networks, the rows of a record, and the generator's gradients. What does not: what networks
over states share (`states_network`), the generator's steps (`training.following`), and the mixture that is drawn from
(`mixture_generator`).

The mechanism is the discriminator's training: each record has a row of its own and a generated one, and their gradient
is clipped as one (Xie et al. 2018). Both rows are seen under one condition, a value of a random column of the record,
which the generated row has, too (CTGAN, Xu et al. 2019). Records are a Poisson sample: unlike there, none is chosen by
its value. The generator reads the discriminator's noised weights, shares of noisy counts and random numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.synth.network_training import Prepared
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.following import Following
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.vectors import VectorSums

POINTS = 16
"""Numbers of a random point."""
SOFTNESS = 0.3
"""Of generated values while the generator learns (Gumbel-softmax)."""
GENERATED = 256
"""Rows of a generator's step."""
FIRST = 0.1
"""Deviation of the generator's first scores, about."""


class RowGenerator(StatesNetwork):
    """From random points and conditions to the logarithms of probabilities.

    First weights are of the operating system's randomness.

    Args:
        shares: of each column's states, shape (states,), without zeros.
        width: of the hidden layer.
    """

    def __init__(self, shares: Sequence[Array], width: int) -> None:
        super().__init__(shares)
        self.spread, self.heads = nn.Linear(POINTS + sum(self.sizes), width), self.heads_of(width)
        _begin(self, {"heads": FIRST})

    def forward(self, points: Tensor, condition: Tensor) -> list[Tensor]:
        """Logarithms of probabilities by column, [rows, its states].

        Args:
            points: of the standard normal distribution, [rows, POINTS].
            condition: the indicator of one state, [rows, all states].
        """
        features = functional.silu(self.spread(torch.cat([points, condition], 1)))
        return [self.predicted(column, features) for column in range(len(self.sizes))]

    def conditions(self, columns: Tensor, states: Tensor) -> Tensor:
        """Indicators of a column's state in each row, [rows, all states], from `columns` and `states` [rows]."""
        return functional.one_hot(self.first[columns] + states, len(self.shares)).float()

    def at_random(self, rows: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points, and conditions of random columns by the shares of their states."""
        device = self.shares.device
        points = torch.randn(rows, POINTS, generator=source, device=device)
        columns = torch.randint(len(self.sizes), (rows,), generator=source, device=device)
        shares = [self.shares[self.own(column)] for column in range(len(self.sizes))]
        states = torch.stack([torch.multinomial(share, rows, True, generator=source) for share in shares])
        return points, self.conditions(columns, states[columns, torch.arange(rows, device=device)])

    def values(self, predicted: Sequence[Tensor], condition: Tensor, noise: Tensor, softness: float) -> Tensor:
        """Rows of these probabilities as indicators, [rows, all states], which have the condition's value.

        Args:
            noise: uniform numbers, [rows, all states].
            softness: of the values; the less, the nearer each is to one state.
        """
        scores = torch.cat(list(predicted), 1) - (-noise.clamp(1e-6, 1 - 1e-6).log()).log()
        parts = []
        for column in range(len(self.sizes)):
            own = self.own(column)
            given = condition[:, own].sum(1, keepdim=True)
            parts.append(given * condition[:, own] + (1 - given) * (scores[:, own] / softness).softmax(1))
        return torch.cat(parts, 1)


class RowDiscriminator(nn.Module):
    """From rows and conditions to a score, which is high for private rows; each row is scored alone."""

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        self.read, self.score = nn.Linear(2 * states, width), nn.Linear(width, 1)
        _begin(self, {})

    def forward(self, rows: Tensor, condition: Tensor) -> Tensor:
        """Scores [rows] of rows and conditions [rows, all states]."""
        found: Tensor = self.score(functional.leaky_relu(self.read(torch.cat([rows, condition], 1)), 0.2)).squeeze(1)
        return found


class PairedRows(StateRows):
    """Private and generated rows, and their loss.

    A row has its own random numbers, from which the loss generates, so that the gate tries the generator, too.
    """

    most_rows = 512
    generator: RowGenerator

    def drawn(self, records: Batch, draws: int) -> Batch:
        """So many rows of each record, by turns private (target 1) and generated (-1); which is first is a coin."""
        number = len(records["states"])
        first = torch.randint(2, (number, 1), generator=self.source, device=self.device)
        turns = (first + torch.arange(draws, device=self.device)) % 2
        return self._with_numbers(records["states"].repeat_interleave(draws, 0), 1.0 - 2 * turns.flatten())

    def made_up(self, rows: int) -> Batch:
        return self._with_numbers(self.random_states(rows), 1.0 - 2 * (torch.arange(rows, device=self.device) % 2))

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        """Of each row, [rows]: how badly the score tells a private row from a generated one (cross entropy)."""
        states, target, made = rows["states"], rows["target"], self.generator
        chosen = rows["column"]
        with torch.no_grad():
            condition = made.conditions(chosen, states.gather(1, chosen[:, None])[:, 0])
            values = made.values(made(rows["points"], condition), condition, rows["noise"], SOFTNESS)
            private = made.indicators(states)
            seen = torch.where((target > 0)[:, None], private, values - made.shares)
        found: Tensor = functional.softplus(-target * network(seen, condition))
        return found

    def _with_numbers(self, states: Tensor, target: Tensor) -> Batch:
        rows, columns = states.shape
        return {
            "states": states,
            "target": target,
            "column": torch.randint(columns, (rows,), generator=self.source, device=self.device),
            "points": torch.randn(rows, POINTS, generator=self.source, device=self.device),
            "noise": torch.rand(rows, sum(self.sizes), generator=self.source, device=self.device),
        }


class RowFollower(Following):
    """The generator's steps, one after each step of the discriminator: post-processing.

    Args:
        discriminator: the live one, whose weights need no gradients.
        average: the part of the weights' average that remains in a step.
    """

    def __init__(self, discriminator: nn.Module, generator: RowGenerator, plan: TrainingPlan, average: float) -> None:
        super().__init__(dict(generator.named_parameters()), plan, plan.steps, average)
        self._discriminator, self._generator = discriminator, generator
        self._source = torch.Generator(generator.shares.device).manual_seed(secrets.randbits(63))

    def _gradients(self) -> dict[str, Tensor]:
        """Of how badly generated rows pass for private ones (Goodfellow et al. 2014, section 3)."""
        made = self._generator
        points, condition = made.at_random(GENERATED, self._source)
        noise = torch.rand(GENERATED, len(made.shares), generator=self._source, device=made.shares.device)
        with torch.enable_grad():
            values = made.values(made(points, condition), condition, noise, SOFTNESS)
            lost = functional.softplus(-self._discriminator(values - made.shares, condition)).mean()
            found = torch.autograd.grad(lost, list(self._parameters.values()))
        return dict(zip(self._parameters, found, strict=True))


def prepared(parameters: NetworkParameters, shares: Sequence[Array], device: str) -> Prepared:
    """Both networks with their first weights, tried on random rows before any record is read for training.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place, training = torch.device(device), parameters.training
    generator = RowGenerator(shares, parameters.width).to(place)
    discriminator = RowDiscriminator(sum(generator.sizes), parameters.width).to(place).eval()
    rows = PairedRows(generator.sizes, parameters, place)
    rows.generator = generator
    refuse_unsound_grid(discriminator, training, rows.losses, rows.made_up, VectorSums)
    return replace(
        rows.prepared(discriminator, VectorSums),
        draws=2,
        kept=lambda _: RowFollower(discriminator, generator, training, parameters.average),
    )


def _begin(network: nn.Module, scales: dict[str, float]) -> None:
    source = torch.Generator().manual_seed(secrets.randbits(63))
    with torch.no_grad():
        for name, values in network.named_parameters():
            if name.endswith("bias"):
                values.zero_()
            else:
                scale = scales.get(name.partition(".")[0], 1.0)
                values.normal_(0, scale * values.shape[1] ** -0.5, generator=source)
