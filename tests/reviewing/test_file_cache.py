"""What is kept of files is made anew when they change, however they change."""

import os
import threading
import time
from types import SimpleNamespace

from dpsynth_platform.reviewing import file_cache
from dpsynth_platform.reviewing.file_cache import FileCache, state_of, tree_state


def test_a_value_is_made_once_in_each_state(tmp_path):
    file, made = tmp_path / "file", []
    kept = FileCache(10)

    def read():
        made.append(file.read_text())
        return made[-1]

    def get():
        return kept.get(file, state_of([file]), read)

    file.write_text("one")
    assert (get(), get(), len(made)) == ("one", "one", 1)
    file.write_text("two, longer")
    assert (get(), len(made)) == ("two, longer", 2)
    kept.forget(file)
    assert (get(), len(made)) == ("two, longer", 3)


def test_content_under_its_old_size_and_date_is_noticed(tmp_path):
    file = tmp_path / "file"
    file.write_text("one")
    before, known = state_of([file]), file.stat()
    file.write_text("two")
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert file.stat().st_mtime_ns == known.st_mtime_ns
    assert state_of([file]) != before
    other = tmp_path / "other"
    other.write_text("two")
    state = state_of([file])
    other.replace(file)
    assert state_of([file]) != state
    file.unlink()
    assert state_of([file]) == ((str(file), None),)


def test_of_two_writes_in_one_tick_of_the_clock_the_second_is_noticed(tmp_path, monkeypatch):
    """The clock is made to stand still, as within a tick, until somebody waits for it."""
    file = tmp_path / "file"
    file.write_text("one")
    changed = file.stat().st_ctime_ns
    waited = []
    monkeypatch.setattr(file_cache.time, "time_ns", lambda: changed + 100_000_000 * len(waited))
    monkeypatch.setattr(file_cache, "time", SimpleNamespace(**vars(time) | {"sleep": waited.append}))
    state_of([file])
    assert len(waited) == 1
    tree_state(tmp_path)
    assert len(waited) == 1


def test_a_directory_changes_with_whatever_is_below_it(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("one")
    states = [tree_state(tmp_path)]
    (tmp_path / "a" / "b" / "more").write_text("")
    states.append(tree_state(tmp_path))
    (tmp_path / "a" / "b" / "more").unlink()
    (tmp_path / "a" / "b" / "file").chmod(0o600)
    states.append(tree_state(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    states.append(tree_state(tmp_path))
    assert len(set(states)) == 4
    assert len(states[-1]) == 5  # the link is not followed
    assert tree_state(tmp_path) == states[-1]


def test_no_more_is_kept_than_asked_for_and_failures_are_not():
    kept, made = FileCache(2), []

    def make(value):
        made.append(value)
        if value < 0:
            raise ValueError
        return value

    for value in (1, 2, 1, 3, 1, 2):
        assert kept.get(value, "state", lambda value=value: make(value)) == value
    assert made == [1, 2, 3, 2]  # 2 went for 3, since 1 was asked for later
    for _ in range(2):
        try:
            kept.get(-1, "state", lambda: make(-1))
        except ValueError:
            continue
    assert made[-2:] == [-1, -1]


def test_threads_may_ask_at_once():
    kept = FileCache(5)
    found = []

    def ask():
        found.extend(kept.get(number % 7, "state", lambda number=number: number % 7) for number in range(2000))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([number % 7 for number in range(2000)] * 4)
