"""The interfaces of DP training: examples, journal and health checks, as the loop uses them.

What belongs here: protocols and the state that passes through them. What does not: any implementation (`loop`,
`journal`, `checkpoints`, `health`, `synth.text`). Examples are sensitive; states and noised gradients are
differentially private; step numbers are public.
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
    """The training records. Sensitive, including their number."""

    @property
    def max_length(self) -> int:
        """The most tokens of a record. Public: it follows from declarations, not from the records."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """The records at these positions, in this order, padded on the right to the longest of them.

        Except for its padding, a record's row must not depend on the other records.
        """


@dataclass(frozen=True)
class TrainingState:
    """The state from which training resumes: differentially private, by noised gradients and public numbers.

    It contains neither batch nor noise: a resumed training draws both afresh. Tensors are trainable parameters
    (`parameter.<name>`) and the optimizer's averages (`optimizer.<slot>.<name>`). The loop passes its live ones, on its
    device: a journal must write or copy them at once.
    """

    step: int
    tensors: Mapping[str, torch.Tensor]


class Journal(Protocol):
    """The durable count of executed steps, and the last state.

    Every executed step costs, even if a crash loses its result.
    """

    def begin_step(self) -> int:
        """Counts one more executed step, durably, before its batch is drawn; returns the count over all attempts."""

    def save(self, state: TrainingState, *, now: bool = False) -> None:
        """Receives the state after every complete step; the journal decides how often it writes.

        `now` means that the process must stop, so that this is the last state.
        """

    def latest(self) -> TrainingState | None:
        """The last kept state, or None before the first."""


class Health(Protocol):
    """Checks a training by differentially private values only."""

    def step(self, step: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Called once a step with the noised mean gradient of each trainable parameter, by name.

        Raises:
            MechanismFailed: training must stop. Its cost stays spent.
        """
