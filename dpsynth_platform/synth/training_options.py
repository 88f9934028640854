"""What contracts choose of a network's training, as parameters of its sealed plan.

What belongs here: these options with their defaults, and the number of units that are sampled. What does not: the plan
(`training.plan`), and the options of any one network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.network_training import NetworkTraining
from dpsynth_platform.privacy.events import Sampled

MOST_BATCH = 1024
AVERAGED = 4
"""Weights are averaged over this part of the steps, about: one in so many."""


@dataclass(frozen=True)
class TrainingOptions:
    """What a contract may choose of a training by DP-SGD. Public.

    Attributes:
        sampled: what a step samples and clips: records, or owners with the mean gradient of their records.
        batch_size: the expected number of those in a step; by default a sixteenth, `most_batch` at most.
        replay_steps: paid beyond `steps` for what an interruption repeats; by default a tenth.
        average: the part of the weights' average that remains in a step.
    """

    sampled: Sampled = "record"
    batch_size: int | None = None
    most_batch: int = MOST_BATCH
    steps: int = 120
    replay_steps: int | None = None
    clipping_norm: float = 1.0
    learning_rate: float = 1e-3
    average: float = 0.97

    @classmethod
    def declared(cls, declared: NetworkTraining, **others: Any) -> Self:
        """The options of a declared training, with `others`."""
        return cls(
            sampled="user" if declared.sampled == "owners" else "record",
            batch_size=declared.batch_size,
            steps=declared.steps,
            replay_steps=declared.replay_steps,
            clipping_norm=declared.clipping_norm,
            learning_rate=declared.learning_rate,
            average=1 - AVERAGED / max(declared.steps, 10 * AVERAGED),
            **others,
        )

    def training(self, units: int) -> dict[str, Any]:
        """The parameters of `TrainingPlan.calibrated` for a public, expected number of units."""
        return {
            "sampled": self.sampled,
            "units": units,
            "batch_size": self.batch_size or min(self.most_batch, max(1, units // 16)),
            "steps": self.steps,
            "replay_allowance": math.ceil(self.steps / 10) if self.replay_steps is None else self.replay_steps,
            "clipping_norm": self.clipping_norm,
            "learning_rate": self.learning_rate,
            "decay": "cosine",
            "warmup_steps": min(self.steps // 10, 100),
        }


def units_of(contract: DataContract, sampled: Sampled) -> int:
    """The public, expected number of units that are sampled."""
    privacy = contract.privacy
    if sampled == "user" or privacy.unit == "example" or privacy.multi_owner:
        return privacy.expected_units
    return privacy.expected_units * privacy.max_contributions
