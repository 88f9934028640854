import pytest

from dpsynth_platform.foundation import progress
from dpsynth_platform.foundation.progress import Pace, in_words


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_follows_the_pace_of_the_stage(clock):
    pace = Pace()
    assert pace.left("counting", 0, 100) == ""
    clock[0] += 0.5
    assert pace.left("counting", 5, 100) == ""  # too early to tell
    clock[0] += 9.5
    assert pace.left("counting", 20, 100) == ", about 51 s left"  # lately slower than at first
    clock[0] += 30
    assert pace.left("counting", 100, 100) == ""
    assert pace.left("measuring", 1, 51) == ""
    clock[0] += 10
    assert pace.left("measuring", 5, 51) == ""  # not a tenth
    clock[0] += 5
    assert pace.left("measuring", 6, 51) == ", about 3 min left"


def test_steps_that_grow_slower_are_not_hidden_by_a_quick_start(clock):
    """Step n takes n seconds: after ten, the mean of the stage would promise 9 min; after fifty, 22 min."""
    pace = Pace()
    pace.left("measuring", 0, 100)
    found = {}
    for step in range(1, 51):
        clock[0] += step
        found[step] = pace.left("measuring", step, 100)
    assert not any(found[step] for step in range(1, 10))
    assert found[10] == ", about 12 min left"
    assert found[50] == ", about 28 min left"


def test_a_stage_that_comes_again_begins_anew(clock):
    pace = Pace()
    pace.left("fitting", 0, 10)
    clock[0] += 60
    pace.left("fitting", 10, 10)
    assert pace.left("fitting", 0, 10) == ""
    clock[0] += 2
    assert pace.left("fitting", 1, 10) == ", about 18 s left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (119, "119 s"), (120, "2 min"), (121, "3 min"), (7199, "120 min"), (7201, "3 h")],
)
def test_times_in_words(seconds, words):
    assert in_words(seconds) == words
