"""RAP: rows with a probability for every value, fitted to noisy marginals (Aydore et al. 2021; Vietri et al. 2022).

What belongs here: the relaxed rows. What does not: their fit (`mixtures`), and the rounds (`rounds`).

What differs from the papers, and why:

- A round measures whole marginals, chosen from the workload as in `mwem`, not single queries: disjoint cells cost no
  more than one of them. Thresholds of numeric columns (RAP++) are sums of such cells, which are measured already.
- Values are probabilities by a softmax from the start, which RAP++ anneals to. Rows are drawn from them independently.
- Components are drawn to independent columns (`mixtures`); noise is rounded Gaussian (`privacy.selection`).
"""

from __future__ import annotations

import numpy as np

from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.mixtures import Logits, MixtureGenerator

SPREAD = 0.3
"""Deviation of the logits at the start: equal rows would stay equal."""


class Rap(MixtureGenerator):
    """The generator `rap`."""

    method = "rap"
    in_words = "a table of relaxed rows"

    def start(self, alone: Array, components: int, rng: np.random.Generator) -> Logits:
        import torch

        rows = alone[:, None] + SPREAD * rng.standard_normal((alone.size, components))
        logits = torch.tensor(rows, dtype=torch.float32, requires_grad=True)
        return Logits([logits], lambda: logits)
