"""What is told of a training: the epsilon so far, from public numbers, and never too low."""

from __future__ import annotations

import dataclasses

import pytest
from training_cases import plan

from dpsynth_platform.foundation import progress
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.training.spending_progress import TOLD, SpendingProgress

DELTA = 1e-5


class Telling:
    """A training of 40 steps, six of them for replays, and what is told of it."""

    def __init__(self) -> None:
        self.plan = plan(units=2000, batch_size=100, noise_multiplier=1.0, steps=34, replay_allowance=6)
        self.told: list[tuple[object, ...]] = []
        self.asked: list[int] = []
        self.executed = 0
        self.progress = SpendingProgress(
            lambda *words: self.told.append(words), self.event_of, DELTA, self.plan, lambda: self.executed
        )

    def event_of(self, steps: int):
        self.asked.append(steps)
        return self.plan.event_of(steps)


def test_the_epsilon_so_far_is_never_less_than_what_was_spent_and_ends_at_the_plans() -> None:
    telling = Telling()
    for executed in range(1, 41):
        spent = epsilon(telling.plan.event_of(executed), DELTA).epsilon
        assert spent <= telling.progress.bound(executed) <= telling.progress.bound(40)
    assert telling.progress.bound(40) == epsilon(telling.plan.event, DELTA).epsilon
    assert telling.progress.bound(1) < 0.6 * telling.progress.bound(40)
    assert len(telling.asked) == len(set(telling.asked)) <= TOLD


def test_replayed_steps_are_told_as_spent() -> None:
    telling = Telling()
    telling.executed = 10
    telling.progress("training", 10, 34)
    telling.executed = 16  # six of them lost in a crash, and the tenth step taken again
    telling.progress("training", 10, 34)
    (first, again) = telling.told
    assert first[:3] == again[:3] == ("training", 10, 34)
    assert float(str(first[3]).rpartition(" ")[2]) < float(str(again[3]).rpartition(" ")[2])
    assert str(first[3]).startswith("epsilon so far: at most ")


@pytest.mark.parametrize(("sampled", "unit"), [("record", "records"), ("user", "owners")])
def test_how_fast_it_goes_is_told_in_planned_numbers(monkeypatch: pytest.MonkeyPatch, sampled: str, unit: str) -> None:
    """Ten seconds a step of a hundred, however many were drawn; nothing is said before there is a second step."""
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    telling = Telling()
    telling.progress._plan = dataclasses.replace(telling.plan, sampled=sampled)
    for step in (1, 2, 3):
        telling.executed = step
        telling.progress("training", step, 34)
    first, *later = [str(words[3]).partition("; ")[2] for words in telling.told]
    assert first == ""
    assert later == [f"6 steps a minute, 10 planned {unit} a second"] * 2
