"""Training under attack: made-up records with separate gradients, each included by a fair coin, observed from inside.

What belongs here: a model in which every canary's gradient is one coordinate (the Dirac canaries of Steinke, Nasr and
Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023), a run of `training.loop.train` on them, and the
scores of an attacker who sees every step's noised gradients. What does not: real records, the arithmetic of bounds
(`bounds`, `fdp`), and fixing thresholds (`laboratory`).

Training itself is unchanged: canaries are ordinary records, `train` samples, clips, sums, adds noise and steps by its
plan, and the attacker is its `Health`, which sees private values only. One coordinate of the noised sum depends on one
canary, so under a correct training canaries are independent trials. A fault may make them dependent; then a bound that
assumes independence is no bound on epsilon, but still refutes the plan, which implies it. The bounds for one run
(`bounds.epsilon_lower_bound`) hold either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsynth_platform.audit.bounds import Coins, count_right, epsilon_lower_bound
from dpsynth_platform.audit.laboratory import Floats, Guess, Proof, Trials, best_guess
from dpsynth_platform.training.families import IGNORED
from dpsynth_platform.training.interface import Batch, Health
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.trial import NoJournal

Owners = npt.NDArray[np.int64]

PARTS = 2
"""Trainable parameters that hold the canaries in turns, so that faults in some parameters only are visible."""
LOUD = 10.0
"""Norm of a canary's gradient before clipping, in clipping norms."""
LEAST_SCALE = 1e-3
"""In clipping norms: smaller noise counts as none."""


@dataclass(frozen=True)
class Watched:
    """What an attacker saw of one training: the noised sums along each canary's gradient, in clipping norms.

    The coins `included` have shape (canaries,), `sums` have (steps, canaries).
    """

    included: Coins
    sums: Floats


@dataclass(frozen=True)
class Attacker:
    """Prior knowledge of the mechanism.

    Attributes:
        scales: shape (PARTS,), deviation of the noise on each parameter, in clipping norms.
        sampled: q, the probability that a canary is in a batch.
    """

    scales: Floats
    sampled: float

    @classmethod
    def believing(cls, plan: TrainingPlan) -> Attacker:
        """Assumes that the plan is kept."""
        return cls(np.full(PARTS, plan.noise_multiplier), plan.sampling_probability)

    @classmethod
    def of(cls, watched: Watched, plan: TrainingPlan) -> Attacker:
        """Learns the noise from the held-out canaries of a training of the same plan."""
        squares = [np.square(watched.sums[:, part::PARTS][:, ~watched.included[part::PARTS]]) for part in range(PARTS)]
        scales = [np.sqrt(part.mean()) if part.size else plan.noise_multiplier for part in squares]
        return cls(np.maximum(scales, LEAST_SCALE), plan.sampling_probability)

    def trials(self, watched: Watched) -> Trials:
        """Scores of three attacks on each canary.

        * *correlation*: the sum along its gradient over all steps.
        * *likelihood ratio*: of in, where each step has it with probability q, against out.
        * *range*: its highest step less its lowest, which constant noise does not affect.
        """
        scale = self.scales[np.arange(watched.included.size) % PARTS]
        with np.errstate(divide="ignore"):  # log(0) at q = 1
            absent, present = np.log1p(-self.sampled), np.log(self.sampled)
        ratios = np.logaddexp(absent, present + (2 * watched.sums - 1) / (2 * scale**2))
        return Trials(
            {
                "correlation": watched.sums.sum(axis=0),
                "likelihood ratio": ratios.sum(axis=0),
                "range": np.ptp(watched.sums, axis=0),
            },
            watched.included,
        )


@dataclass(frozen=True)
class TrainingAudit:
    """An attack on trainings of one plan with SGD: of `canaries` with `records` each, about half are in.

    The sampling probability q follows from the plan's `units`.
    """

    plan: TrainingPlan
    canaries: int
    records: int = 1

    def watch(self) -> Watched:
        """One training with fresh coins.

        Raises:
            MechanismFailed: see `training.loop.train`.
        """
        included = np.random.default_rng().integers(0, 2, self.canaries).astype(bool)
        watcher = _Watcher()
        model = self.train(np.repeat(np.flatnonzero(included), self.records), watcher)
        # The loss decreases against its gradient, so a canary's contribution is negative.
        unit = -self.plan.batch_size / self.plan.clipping_norm
        return Watched(included, unit * np.stack([by_canary(model, self.canaries, step) for step in watcher.steps]))

    def train(self, owners: Owners, health: Health) -> nn.Module:
        """Trains on records of these canaries, shape (records,); the network has the canaries' gradients in `parts`."""
        model = CanaryModel(self.canaries, LOUD * self.plan.clipping_norm)
        train(model, self.plan, CanaryRecords(owners), journal=NoJournal(), health=health)
        return model

    def guess(self, *, delta: float, confidence: float) -> tuple[Attacker, Guess]:
        """Attack and threshold, fixed by one training."""
        watched = self.watch()
        attacker = Attacker.of(watched, self.plan)
        return attacker, best_guess(attacker.trials(watched), delta=delta, confidence=confidence)

    def one_run(self, *, share: float, delta: float, confidence: float) -> float:
        """A lower bound on epsilon from one training, for dependent canaries, too.

        `share` of the canaries are guessed in, and as many out, by the likelihood ratio.
        """
        watched, each = self.watch(), int(share * self.canaries)
        scores = Attacker.believing(self.plan).trials(watched).scores["likelihood ratio"]
        right = count_right(scores, watched.included, guess_in=each, guess_out=each)
        return epsilon_lower_bound(
            canaries=self.canaries, guesses=2 * each, right=right, delta=delta, confidence=confidence
        )

    def prove(self, *, delta: float, confidence: float) -> Proof:
        """What one training proves with an attack that a previous one fixed."""
        attacker, guess = self.guess(delta=delta, confidence=confidence)
        return guess.prove(attacker.trials(self.watch()), delta=delta, confidence=confidence)


class CanaryModel(nn.Module):
    """A language model of two words, in which token i alone moves coordinate i of the embeddings.

    `length` is the norm of each of the `canaries` tokens' gradients at the start; with a small learning rate it hardly
    changes.
    """

    def __init__(self, canaries: int, length: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Embedding(-(-canaries // PARTS), 1) for _ in range(PARTS))
        self.head = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[length], [-length]]))
            for parameter in self.parts.parameters():
                parameter.zero_()
        self.head.requires_grad_(False)

    def get_input_embeddings(self) -> SimpleNamespace:
        """Like models of transformers: the size of the vocabulary."""
        return SimpleNamespace(num_embeddings=self.head.out_features)

    def get_output_embeddings(self) -> nn.Module:
        """Like models of transformers: from the last layer to words."""
        return self.head

    def forward(self, input_ids: Tensor, **others: Any) -> SimpleNamespace:
        """Logits of the two words, [examples, tokens, 2], each from its own token alone."""
        own = [part(input_ids // PARTS) * (input_ids % PARTS == n).unsqueeze(-1) for n, part in enumerate(self.parts)]
        return SimpleNamespace(logits=self.head(torch.stack(own).sum(0)))


class CanaryRecords:
    """Records of two tokens, both the owner's, of which the second is predicted: `interface.Examples`.

    `owners` has shape (records,): the canary of each record.
    """

    max_length = 2

    def __init__(self, owners: Sequence[int] | Owners) -> None:
        self._owners = torch.as_tensor(np.asarray(owners, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._owners)

    def batch(self, indices: Sequence[int]) -> Batch:
        tokens = self._owners[list(indices)].unsqueeze(1).repeat(1, 2)
        labels = torch.zeros_like(tokens)
        labels[:, 0] = IGNORED
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": labels,
            "position_ids": torch.arange(2).repeat(len(tokens), 1),
        }


def by_canary(model: nn.Module, canaries: int, gradients: Mapping[str, Tensor]) -> Floats:
    """Each canary's coordinate, shape (canaries,): canary i's is one of the weight of part i modulo `PARTS`."""
    names = [name for name, _ in model.named_parameters() if name.startswith("parts.")]
    parts = [gradients[name].flatten() for name in names]
    return torch.stack(parts, dim=1).flatten()[:canaries].double().numpy()


class _Watcher:
    """Keeps each step's gradients: `interface.Health`."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, Tensor]] = []

    def step(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        self.steps.append({name: gradient.clone() for name, gradient in gradients.items()})
