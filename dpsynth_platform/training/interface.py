"""The interfaces of DP training: examples, their division, journal, health checks and averages, as the loop uses them.

What belongs here: protocols and the state that passes through them. What does not: any implementation (`loop`,
`journal`, `checkpoints`, `health`, `synth.text`). Examples are sensitive; states and noised gradients are
differentially private; step numbers are public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Batch = Mapping[str, "Tensor"]
"""Of a language model: `input_ids`, `attention_mask`, `labels` (-100: no loss), `position_ids`: [examples, tokens],
whole numbers; and, of causal ones, perhaps `token_weights` of the labels. Of other networks: whatever their loss takes,
with rows in the first dimension."""


class Examples(Protocol):
    """The training records. Sensitive, including their number."""

    @property
    def max_length(self) -> int:
        """The most tokens of a record, or rows of a pass that it becomes. Public: it follows from declarations."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """The records at these positions, in this order, padded on the right to the longest of them.

        Except for its padding, a record's row must not depend on the other records.
        """


@dataclass(frozen=True)
class Part:
    """Some units of a logical batch, or some records of one unit, with weights [units, rows of each]; 0 is padding."""

    batch: Batch
    weights: Tensor


class Division(Protocol):
    """How a logical batch passes through memory, in parts of a size that fits."""

    @property
    def size(self) -> int:
        """The initial size of a part. Public."""

    @property
    def least(self) -> int:
        """The size of one record: no part can be smaller."""

    def parts(self, rows: Batch, sizes: Sequence[int], size: int) -> Iterator[list[Part]]:
        """The parts of a batch of `Examples.batch`, whose units have `sizes` records each, one after the other.

        Yields:
            One part with some units, or several parts of one unit.
        """

    def smaller(self, size: int) -> int:
        """The next smaller size. Raises `MechanismFailed` if there is none."""


class Averages(Protocol):
    """Averages of the trainable parameters over the steps: post-processing, kept with the training's state."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The live averages, by names that begin with `average.`."""

    def step(self, number: int) -> None:
        """Follows the parameters, after step `number` from 1."""


@dataclass(frozen=True)
class TrainingState:
    """The state from which training resumes: differentially private, by noised gradients and public numbers.

    It contains neither batch nor noise: a resumed training draws both afresh. Tensors are trainable parameters
    (`parameter.<name>`), the optimizer's averages (`optimizer.<slot>.<name>`), and averages of parameters
    (`average.<name>`), if any. The loop passes its live ones, on its device: a journal must write or copy them at once.
    """

    step: int
    tensors: Mapping[str, Tensor]


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

    def step(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Called once a step with the noised mean gradient of each trainable parameter, by name.

        Raises:
            MechanismFailed: training must stop. Its cost stays spent.
        """
