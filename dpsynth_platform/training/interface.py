"""The seams of DP training: what the loop asks of the examples, the journal and the watch over its health.

What belongs here: protocols and the state that passes through them. What does not: any implementation (`loop`,
`journal`, `checkpoints`, `health`, `synth.text`). What each seam may be shown is part of it: examples are sensitive; a
state and noised gradients are differentially private; step numbers are public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

Batch = Mapping[str, "torch.Tensor"]
"""`input_ids`, `attention_mask`, `labels` (-100: no loss), `position_ids`: [examples, tokens], whole numbers."""


class Examples(Protocol):
    """The records that are trained on. Sensitive, its length included."""

    @property
    def max_length(self) -> int:
        """No record has more tokens. Public: it follows from what is declared, and not from the records."""

    def __len__(self) -> int:
        """How many records there are."""

    def batch(self, indices: Sequence[int]) -> Batch:
        """The records at these positions, in this order, padded on the right to the longest of them.

        A record's row must not depend on the other records, but for its padding.
        """


@dataclass(frozen=True)
class TrainingState:
    """What training goes on from: differentially private, since it is made of noised gradients and public numbers.

    Neither batch nor noise is in it: a resumed training draws both afresh.

    Attributes:
        step: how many steps the model has taken.
        tensors: trainable parameters (`parameter.<name>`) and the optimizer's averages (`optimizer.<slot>.<name>`). The
            loop hands over the live ones, on its device: whoever keeps them writes or copies them at once.
    """

    step: int
    tensors: Mapping[str, torch.Tensor]


class Journal(Protocol):
    """The durable count of executed steps, and the last state.

    Every executed step costs, also one whose result was lost in a crash.
    """

    def begin_step(self) -> int:
        """Counts one more executed step, durably, before its batch is drawn.

        Returns:
            How many steps were executed so far, this one included, in all attempts.
        """

    def save(self, state: TrainingState, *, now: bool = False) -> None:
        """Keeps a state. Called after every step; how often it really writes is the journal's to decide.

        Args:
            state: after a step that is complete.
            now: the process is told to stop, so this is the last state that can be kept.
        """

    def latest(self) -> TrainingState | None:
        """The last state that was kept, or None before the first."""


class Health(Protocol):
    """Watches over training by what is private already."""

    def step(self, step: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Called once a step with the noised mean gradient of each trainable parameter, by name.

        Raises:
            MechanismFailed: training must stop. What it cost stays spent.
        """
