"""GEM: a generator network whose rows fit noisy marginals (Liu, Vietri & Wu 2021).

What belongs here: the network. What does not: the fit of its output (`mixtures`), and the rounds (`rounds`).

What differs from the paper, and why:

- A round measures whole marginals, chosen from the workload as in `mwem`. Noise is rounded Gaussian.
- Adam's rate falls to zero in every fit, instead of an average of the weights of the last steps.
- One hidden layer of normalized tanh units, with the logits of independent columns added to the output. In one run each
  on adult, a step's fit of pairs was closer than with layers of ReLU, at other rates.
- Components are drawn to independent columns (`mixtures`).
"""

from __future__ import annotations

import math

import numpy as np

from dpsynth_platform.synth.tabular.cost import NETWORK_SECONDS_PER_NUMBER
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.mixtures import Logits, MixtureGenerator

NOISE, WIDTH = 256, 512
"""Numbers of a noise vector, and units of the hidden layer."""
LEAST_DEVIATION = 1e-3
"""Of a unit over all noise vectors, before it is normalized."""
SPREAD = 0.1
"""Deviation of the logits at the start, relative to that of the hidden units."""


class Gem(MixtureGenerator):
    """The generator `gem`."""

    method = "gem"
    in_words = "a network that makes rows of probabilities from noise"
    rate = 0.01
    last_steps = 200
    per_number = NETWORK_SECONDS_PER_NUMBER

    def start(self, alone: Array, components: int, rng: np.random.Generator) -> Logits:
        import torch

        def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.tensor(scale * rng.standard_normal(shape) / math.sqrt(shape[1]), dtype=torch.float32)

        noise, independent = drawn(NOISE, components, scale=math.sqrt(components)), torch.tensor(alone[:, None])
        inner, outer = drawn(WIDTH, NOISE), drawn(alone.size, WIDTH, scale=SPREAD)
        shifts = [torch.zeros(WIDTH, 1), torch.zeros(alone.size, 1)]
        parameters = [values.requires_grad_() for values in (inner, outer, *shifts)]

        def logits() -> torch.Tensor:
            units = inner @ noise
            units = (units - units.mean(1, keepdim=True)) / (units.std(1, keepdim=True) + LEAST_DEVIATION)
            return outer @ torch.tanh(units + shifts[0]) + shifts[1] + independent.float()

        return Logits(parameters, logits)
