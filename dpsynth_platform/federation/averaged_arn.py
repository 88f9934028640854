"""The network `arn` by federated averaging: what a client computes of its rows, and rows drawn from the result.

What belongs here: a client's part in the noisy counts of columns, its training from the model's weights, and drawing.
What does not: rounds, clipping and noise (`averaging`), and the network (`synth.neural.arn`). First each client adds a
vector of its columns' shares to one noisy sum; it decides which values are states that the network tells apart, and how
often each is drawn. Then come the rounds of training. Everything after noise is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa
import torch

from dpsynth_platform.federation.averaging import LocalTraining, Vector
from dpsynth_platform.federation.averaging_plan import AveragingPlan
from dpsynth_platform.foundation.errors import ConfigurationError, MechanismFailed
from dpsynth_platform.synth.neural.arn_network import ArnNetwork, Rows
from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
from dpsynth_platform.synth.neural.network_generator import LearnedColumns
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.sampling import draw_cells

UNITS = 2**16
"""Noisy sums of shares are rounded to whole numbers of these parts of a client."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class RowOrders:
    """What `arn_network.Rows` takes of parameters: the chance of the order in which rows are drawn, and no evidence."""

    fixed_order: float
    evidence: Sequence[int] = ()


def column_shares(domain: Domain, plan: AveragingPlan, rows: pa.Table) -> Vector:
    """A client's shares of all columns' cells, each divided by the root of the number of columns: of norm 1 at most.

    Clients count alike, however many rows they have. Zeros without rows. Sensitive. Raises `ConfigurationError` for
    more rows than the plan's b.
    """
    codes = _codes(domain, plan, rows)
    if not len(codes):
        return np.zeros(sum(domain.sizes))
    counted = [np.bincount(codes[:, at], minlength=size) for at, size in enumerate(domain.sizes)]
    return np.concatenate(counted) / (len(codes) * math.sqrt(len(domain)))


def counted_columns(domain: Domain, plan: AveragingPlan, noisy: Vector) -> LearnedColumns:
    """What the noisy sum of all clients' `column_shares` tells of the columns.

    Raises:
        MechanismFailed: the plan has no such sum, or it is of another domain.
    """
    if plan.columns_noise is None or noisy.shape != (sum(domain.sizes),):
        raise MechanismFailed("the noisy sum of columns is not of this plan and domain; accepted: `noisy_sum` of it")
    unit = UNITS * math.sqrt(len(domain))
    parts = np.split(np.rint(noisy * unit).astype(np.int64), np.cumsum(domain.sizes)[:-1])
    sigma = plan.columns_noise * unit
    return LearnedColumns.counted(domain, [NoisyCounts((at,), part, sigma) for at, part in enumerate(parts)])


class AveragedArn:
    """The network that clients and server share: its weights are a vector.

    Args:
        learned: of the noisy columns.
        width: of the hidden layer.
        fixed_order: see `NetworkParameters`.
    """

    def __init__(self, learned: LearnedColumns, plan: AveragingPlan, width: int = 16, fixed_order: float = 0.7) -> None:
        self.learned, self._plan = learned, plan
        self.network = ArnNetwork(learned.shares, width)
        orders = RowOrders(fixed_order)
        self._rows = Rows(self.network.sizes, orders, CPU)  # type: ignore[arg-type]  # all that rows of arn read
        self._parameters = list(self.network.parameters())
        self._alone = Lock()  # of what trains with the one network

    @property
    def weights(self) -> Vector:
        """Shape (weights,). Of a new network random, and of no record."""
        parts = [value.detach().double().reshape(-1) for value in self._parameters]
        found: Vector = torch.cat(parts).numpy()
        return found

    @torch.no_grad()
    def load(self, weights: Vector) -> None:
        """Raises `ConfigurationError` for weights of another network."""
        sizes = [value.numel() for value in self._parameters]
        if weights.shape != (sum(sizes),):
            raise ConfigurationError(f"weights of shape {weights.shape}; accepted: {sum(sizes)} numbers")
        for value, part in zip(self._parameters, torch.split(torch.from_numpy(weights), sizes), strict=True):
            value.copy_(part.view_as(value))

    def training(self, rows: pa.Table) -> LocalTraining:
        """A client's training: so many steps of gradient descent on all of its rows as the plan says.

        Raises `ConfigurationError` for more rows than the plan's b.
        """
        codes = _codes(self.learned.domain, self._plan, rows)
        states = torch.from_numpy(self.learned.states_of(codes).astype(np.int64))

        def train(weights: Vector) -> Vector:
            if not len(states):
                return np.zeros_like(weights)
            with self._alone:
                public = self.weights
                try:
                    return self._moved(weights, states)
                finally:
                    self.load(public)  # no weights that follow from one client's rows stay here

        return train

    def _moved(self, weights: Vector, states: torch.Tensor) -> Vector:
        """By what a client's training moves these weights. Sensitive."""
        self.load(weights)
        before = self.weights
        for _ in range(self._plan.local_steps):
            drawn = self._rows.drawn({"states": states}, 1)
            loss = self._rows.losses(self.network, drawn).mean()
            gradients = torch.autograd.grad(loss, self._parameters)
            with torch.no_grad():
                for value, gradient in zip(self._parameters, gradients, strict=True):
                    value.sub_(gradient, alpha=self._plan.local_rate)
        return self.weights - before

    def drawn_codes(self, weights: Vector, rows: int) -> Codes:
        """Cell codes of synthetic rows, shape (rows, columns); columns have their noisy shares."""
        self.load(weights)
        rng = np.random.default_rng()
        states = self.learned.states
        whole = [np.arange(item.size) for item in states]
        parts = ColumnwiseJoint(self.network, self.learned.shares).draw({}, whole, (), rows, rng)
        return np.stack([draw_cells(item, parts[:, at], rng) for at, item in enumerate(states)], axis=1)


def _codes(domain: Domain, plan: AveragingPlan, rows: pa.Table) -> Codes:
    if rows.num_rows > plan.max_contributions:
        raise ConfigurationError(
            f"more rows of a client than the plan's {plan.max_contributions}; accepted: rows that are bounded before"
        )
    return domain.encode(rows)
