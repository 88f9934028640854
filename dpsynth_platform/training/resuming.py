"""The journal that a training loop is handed: executed steps counted, states kept, and both held against each other.

What belongs here: putting `journal`, `checkpoints` and `states` together behind the loop's seam (`interface.Journal`).
What does not: any of the three, and the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.errors import CheckpointFailed
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.states import read_state, state_bytes

if TYPE_CHECKING:
    from dpsynth_platform.training.interface import TrainingState


class ResumableJournal:
    """Counts steps in a journal and keeps states as checkpoints.

    A checkpoint that cannot be written does not stop the training: what is paid is paid, and going on may still finish.
    What is lost is how far an interruption throws it back, and `tell` is told that. It is tried again after the next
    step.

    Args:
        tell: called with safe words for the operator.
    """

    def __init__(
        self, journal: StepJournal, checkpoints: Checkpoints, policy: CheckpointPolicy, tell: Callable[[str], None]
    ) -> None:
        self._journal, self._checkpoints, self._policy, self._tell = journal, checkpoints, policy, tell
        self._written = time.monotonic()
        self._overdue = False
        self._kept: int | None = None

    @property
    def replayed(self) -> int:
        """Executed steps that are not in the model: lost, or executed again since."""
        return self._journal.replayed

    def begin_step(self) -> int:
        return self._journal.begin_step()

    def save(self, state: TrainingState, *, now: bool = False) -> None:
        """Writes a checkpoint where one is due or asked for, where the last one failed, and after the last step."""
        due = self._policy.due(state.step, time.monotonic() - self._written)
        if state.step == self._kept or not (due or now or self._overdue or self._journal.finished):
            return
        try:
            self._checkpoints.save(state.step, self._journal.executed, state_bytes(state))
        except CheckpointFailed as error:
            if not self._overdue:
                self._tell(str(error))
            self._overdue = True
            return
        self._written = time.monotonic()
        self._overdue = False
        self._kept = state.step

    def latest(self) -> TrainingState | None:
        """The newest state that is whole, from which the next step goes on; None before the first checkpoint.

        Raises:
            ResumeRefused: what is there is damaged or of another training, or the journal lost records.
        """
        checkpoint = self._checkpoints.latest()
        if checkpoint is None:
            return None
        self._journal.resume(checkpoint.step, checkpoint.executed)
        return read_state(self._checkpoints.read(checkpoint))
