"""The journal of a training loop: counts executed steps, keeps states, and compares both.

What belongs here: `interface.Journal` by `journal`, `checkpoints` and `states`. What does not: any of the three, and
the loop.
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

    A failed checkpoint does not stop the training, which is paid for and may still finish. Only an interruption would
    then cost more steps; `warn` gets a safe message about that for the operator. The next step tries again.
    """

    def __init__(
        self, journal: StepJournal, checkpoints: Checkpoints, policy: CheckpointPolicy, warn: Callable[[str], None]
    ) -> None:
        self._journal, self._checkpoints, self._policy, self._warn = journal, checkpoints, policy, warn
        self._written = time.monotonic()
        self._overdue = False
        self._kept: int | None = None

    @property
    def replayed(self) -> int:
        return self._journal.replayed

    def begin_step(self) -> int:
        return self._journal.begin_step()

    def save(self, state: TrainingState, *, now: bool = False) -> None:
        """Writes a checkpoint if one is due or requested, if the last one failed, and after the last step."""
        due = self._policy.due(state.step, time.monotonic() - self._written)
        if state.step == self._kept or not (due or now or self._overdue or self._journal.finished):
            return
        try:
            self._checkpoints.save(state.step, self._journal.executed, state_bytes(state))
        except CheckpointFailed as error:
            if not self._overdue:
                self._warn(str(error))
            self._overdue = True
            return
        self._written = time.monotonic()
        self._overdue = False
        self._kept = state.step

    def latest(self) -> TrainingState | None:
        """The newest valid state, from which training resumes; None before the first checkpoint.

        Raises:
            ResumeRefused: the files are damaged or of another training, or the journal lost records.
        """
        checkpoint = self._checkpoints.latest()
        if checkpoint is None:
            return None
        self._journal.resume(checkpoint.step, checkpoint.executed)
        return read_state(self._checkpoints.read(checkpoint))
