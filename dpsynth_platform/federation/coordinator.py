"""The rounds of a federated run, whatever opens its sums: from a sealed plan to a fitted model.

What belongs here: the order of rounds and the record of what they opened. What does not: participants' rows and their
noise (`participants`), messages. Everything here is post-processing of opened sums.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.federation import AUDITOR
from dpsynth_platform.federation.plans import FederatedPlan, Round
from dpsynth_platform.federation.sums import Whole
from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import TOOK_PART, digest_directory, write_durably
from dpsynth_platform.synth.interface import generator


@dataclass(frozen=True)
class TookPart:
    """Who took part in a run, as the coordinator saw it.

    Attributes:
        started: who started, and so has spent.
        finished: of each round, whose numbers are in its sum.
        dropped: of each round, who left and why.
    """

    started: tuple[str, ...]
    finished: tuple[tuple[str, ...], ...]
    dropped: tuple[Mapping[str, str], ...]

    def lines(self) -> list[str]:
        found = [f"Started, and has spent: {', '.join(self.started)}."]
        for number, names in enumerate(self.finished, start=1):
            found.append(f"Round {number} is the sum of {len(names)}: {', '.join(sorted(names))}.")
        for number, left in enumerate(self.dropped, start=1):
            found += [f"Round {number}: {name} dropped out ({why})." for name, why in sorted(left.items())]
        return found

    def write(self, directory: Path) -> None:
        """Keeps it beside the sums of the run, in the model's directory, whose content hash covers it."""
        write_durably(directory / TOOK_PART, json.dumps(asdict(self)))

    def with_round(self, index: int, finished: Sequence[str], dropped: Mapping[str, str]) -> TookPart:
        """With another round, or with one that is made again."""
        after = slice(index + 1, None)
        return TookPart(
            self.started,
            (*self.finished[:index], tuple(finished), *self.finished[after]),
            (*self.dropped[:index], dropped, *self.dropped[after]),
        )

    @classmethod
    def kept(cls, directory: Path) -> TookPart | None:
        """That of a run that is not complete; None where no round was."""
        return cls.read(directory) if (directory / TOOK_PART).exists() else None

    @classmethod
    def read(cls, directory: Path) -> TookPart:
        """Raises OSError or ValueError where there is none."""
        return cls.from_json(json.loads((directory / TOOK_PART).read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> TookPart:
        finished = tuple(tuple(names) for names in said["finished"])
        return cls(tuple(said["started"]), finished, tuple(said["dropped"]))


OpenSum = Callable[[Round], tuple[Whole, Collection[str]]]
"""Opens the sum `Round.sum` of all who finish, and returns it with their names."""


def run_rounds(plan: FederatedPlan, directory: Path, open_sum: OpenSum, progress: Progress = silent) -> str:
    """Opens each round's sum and fits the model, in a new directory, from which rows are drawn as from a central one.

    Returns:
        The content hash of the directory, by which participants complete their entries.

    Raises:
        MechanismFailed: too few have finished a round, or others than the plan names; or the directory is not new.
    """
    with plan.measuring(directory, progress) as measuring:
        while (asked := measuring.next_round()) is not None:
            opened, finished = open_sum(asked)
            names = set(finished)
            if len(names) < plan.terms.minimum or not names <= set(plan.terms.participants):
                raise MechanismFailed(
                    f"round {asked.index} of the federated run ended with {len(names)} participants; accepted: at "
                    f"least {plan.terms.minimum}, of those that the plan names"
                )
            measuring.add(opened, len(names - {AUDITOR}))  # which adds no noise
            progress("opening sums", asked.index + 1, len(plan.rounds))
    generator(plan.sealed.method).estimate(plan.sealed, directory)
    return digest_directory(directory)
