"""What a process loads is not looked through again and again, and everything else is collected as ever."""

import gc
import importlib
import json
import os
import subprocess
import sys
import weakref

import pytest

from dpsynth_platform.cli import main as cli
from dpsynth_platform.foundation.garbage_collection import loading
from dpsynth_platform.operations import forking

STEP = """
import gc, json, multiprocessing, sys
from dpsynth_platform.operations import forking

def step(told):
    gc.collect()  # of nothing that was loaded
    loaded = [name for name in ("torch", "dpsynth_platform.definitions") if name in sys.modules]
    told.put((loaded, gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects())))

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([forking._FIRST, forking.PRELOADING])
    told = context.SimpleQueue()
    process = context.Process(target=step, args=(told,))
    process.start()
    print(json.dumps(told.get()))
    process.join()
"""

PYTHONS_OWN = (700, 10, 10)


class Circle:
    """An object that leads to itself: only the collector lets it go."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_nothing_is_collected_while_modules_load_and_what_comes_after_is():
    with loading():
        assert not gc.isenabled()
        before = weakref.ref(Circle())
    assert gc.isenabled()
    after = weakref.ref(Circle())
    gc.collect()
    assert before() is not None, "what is there when all is loaded stays"
    assert after() is None


def test_a_module_that_cannot_be_loaded_leaves_the_collector_as_it_was():
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_command_collects_seldom_and_still_does(monkeypatch):
    found, before = [], gc.get_threshold()
    monkeypatch.setattr(cli, "app", lambda: found.append((gc.isenabled(), gc.get_threshold())))
    gc.set_threshold(*PYTHONS_OWN)  # what ran before in this process, as a type checker, may have set others
    try:
        cli.main()
    finally:
        gc.set_threshold(*before)
    ((collected, seldom),) = found
    assert collected and seldom[0] > PYTHONS_OWN[0]


def test_steps_share_what_was_loaded_for_them(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    (tmp_path / "step.py").write_text(STEP)
    done = subprocess.run([sys.executable, str(tmp_path / "step.py")], capture_output=True, text=True, check=True)

    loaded, collected, frozen, looked_at = json.loads(done.stdout)
    assert loaded == ["torch", "dpsynth_platform.definitions"]
    assert collected
    assert frozen > 100_000 > 10 * looked_at
    assert done.stderr == "", "the process that they were forked from ends without a word"


def test_what_cannot_be_loaded_for_steps_stops_none_of_them(tmp_path, monkeypatch):
    (tmp_path / "without_its_library.py").write_text("raise ValueError('no such library')")
    (tmp_path / "loaded_after_it.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(forking, "PRELOADED", ("without_its_library", "loaded_after_it"))
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)  # this process is no fork server
    monkeypatch.delitem(sys.modules, forking.PRELOADING, raising=False)
    importlib.import_module(forking.PRELOADING)
    assert "loaded_after_it" in sys.modules
