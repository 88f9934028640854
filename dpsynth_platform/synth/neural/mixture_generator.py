"""The common part of networks that turn random points into distributions of rows: a mixture of products of columns.

What belongs here: the mixture that a trained network stands for, as a model of all methods that have mixtures. What
does not: counts and training (`network_generator`), and what is done with a model (`synth.tabular`).

Such a network makes, of each random point, a distribution of every column, and columns are independent given the point.
Many points make a mixture, which a model on disk can hold: rows are drawn, given values and constraints kept, and
records scored as those of `gem`. The weights of each column's states are then fitted so that the mixture has the shares
of the noisy counts. All of it is post-processing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.neural.columnwise import fitted
from dpsynth_platform.synth.neural.states_generator import StatesGenerator
from dpsynth_platform.synth.tabular import mixtures
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.synth.tabular.cost import MIXTURE_PACE
from dpsynth_platform.synth.tabular.estimation import estimate_total
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import prepared
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.mixtures import EMPTY, MIXTURE_CELLS
from dpsynth_platform.synth.tabular.model import Model, save_model

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dpsynth_platform.synth.neural.states_network import StatesNetwork

COMPONENTS = 4096
"""Of a mixture, or as many as its states permit."""


class MixtureNetworkGenerator(StatesGenerator, ABC):
    """A generator whose network makes distributions of rows from random points."""

    pace = MIXTURE_PACE

    @abstractmethod
    def products(self, network: StatesNetwork, components: int, source: Generator) -> Sequence[Tensor]:
        """Of each column, logarithms of its states' probabilities at so many random points, [components, states]."""

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        """Keeps the mixture. Raises `MechanismFailed` if the training is incomplete."""
        import torch

        self.check_trained(directory)
        learned, network = self.trained(plan, directory)
        stored = read_measurements(directory, plan.digest)
        states, groups, one_way = prepared(learned.domain, stored.one_way)
        components = min(COMPONENTS, MIXTURE_CELLS // sum(network.sizes))
        source = torch.Generator().manual_seed(int(mixtures.fresh().integers(2**63)))
        made = self.products(network, components, source)
        found = [_shares(part, share) for part, share in zip(made, learned.shares, strict=True)]
        hidden = len(states)
        potentials: dict[Clique, Array] = {(hidden,): np.full(components, -math.log(components))}
        potentials |= {(index, hidden): np.log(part).T for index, part in enumerate(found)}
        model = Model(plan, states, groups, potentials, estimate_total(one_way), stored, components=components)
        save_model(directory, model)


def _shares(logarithms: Tensor, share: Array) -> Array:
    """Shares of a column's states in each component, [components, states], of these mean shares."""
    found = logarithms.double().exp().numpy()
    found = found * fitted(found, share)
    found = found / found.sum(axis=1, keepdims=True)
    return np.asarray(found * (1 - EMPTY * len(share)) + EMPTY)
