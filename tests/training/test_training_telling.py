"""The reported epsilon of a training so far follows from public numbers, and is never too low."""

from __future__ import annotations

import dataclasses

import pytest
from training_cases import plan

from dpsynth_platform.foundation import progress
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.training.spending_progress import MOST_COSTS, SpendingProgress

DELTA = 1e-5


class Reporting:
    """A training of 40 steps, six of them for replays, and its reports."""

    def __init__(self) -> None:
        self.plan = plan(units=2000, batch_size=100, noise_multiplier=1.0, steps=34, replay_allowance=6)
        self.reports: list[tuple[object, ...]] = []
        self.computed: list[int] = []
        self.executed = 0
        self.progress = SpendingProgress(
            lambda *words: self.reports.append(words), self.event_of, DELTA, self.plan, lambda: self.executed
        )

    def event_of(self, steps: int):
        self.computed.append(steps)
        return self.plan.event_of(steps)


def test_the_epsilon_so_far_is_never_less_than_what_was_spent_and_ends_at_the_plans() -> None:
    reporting = Reporting()
    for executed in range(1, 41):
        spent = epsilon(reporting.plan.event_of(executed), DELTA).epsilon
        assert spent <= reporting.progress.bound(executed) <= reporting.progress.bound(40)
    assert reporting.progress.bound(40) == epsilon(reporting.plan.event, DELTA).epsilon
    assert reporting.progress.bound(1) < 0.6 * reporting.progress.bound(40)
    assert len(reporting.computed) == len(set(reporting.computed)) <= MOST_COSTS


def test_replayed_steps_are_told_as_spent() -> None:
    reporting = Reporting()
    reporting.executed = 10
    reporting.progress("training", 10, 34)
    reporting.executed = 16  # six of them lost in a crash, and the tenth step taken again
    reporting.progress("training", 10, 34)
    (first, again) = reporting.reports
    assert first[:3] == again[:3] == ("training", 10, 34)
    assert float(str(first[3]).rpartition(" ")[2]) < float(str(again[3]).rpartition(" ")[2])
    assert str(first[3]).startswith("epsilon so far: at most ")


@pytest.mark.parametrize(("sampled", "unit"), [("record", "records"), ("user", "owners")])
def test_how_fast_it_goes_is_told_in_planned_numbers(monkeypatch: pytest.MonkeyPatch, sampled: str, unit: str) -> None:
    """Ten seconds a step of a hundred planned units; the first step has no rate."""
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    reporting = Reporting()
    reporting.progress._plan = dataclasses.replace(reporting.plan, sampled=sampled)
    for step in (1, 2, 3):
        reporting.executed = step
        reporting.progress("training", step, 34)
    first, *later = [str(words[3]).partition("; ")[2] for words in reporting.reports]
    assert first == ""
    assert later == [f"6 steps a minute, 10 planned {unit} a second"] * 2
