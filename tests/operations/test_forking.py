"""The process that steps are forked from: what it has, what it prints to, and that it does not outlive the command."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

STEP = """
import multiprocessing, os, sys
from dpsynth_platform.operations import forking
from dpsynth_platform.foundation.settings import Settings

def step(told):
    told.put((os.environ["DPSYNTH_HOME"], "preloaded" in sys.modules, os.readlink("/proc/self/fd/1")))

if __name__ == "__main__":
    forking._FIRST, forking.PRELOADING = "preloaded", "nowhere.to.be.found"
    with forking.fork_server(Settings.from_environment()):
        context = multiprocessing.get_context("forkserver")
        told = context.SimpleQueue()
        process = context.Process(target=step, args=(told,))
        process.start()
        seen = told.get()
        process.join()
    print(seen)
"""
LATER = """
import multiprocessing, sys, time
from dpsynth_platform.operations import forking
from dpsynth_platform.foundation.settings import Settings

def step(told):
    told.put("later" in sys.modules)

def has_it(context):
    told = context.SimpleQueue()
    process = context.Process(target=step, args=(told,))
    process.start()
    return told.get(), process.join()

if __name__ == "__main__":
    forking._FIRST, forking.PRELOADING = "preloaded", "nowhere.to.be.found"
    with forking.fork_server(Settings.from_environment()):
        context = multiprocessing.get_context("forkserver")
        first, _ = has_it(context)
        deadline = time.monotonic() + 300
        while not has_it(context)[0]:
            assert time.monotonic() < deadline
    print(first)
"""
PRELOADING = """
from dpsynth_platform.operations import forking
forking.PRELOADED, forking.PRELOADED_LATER = (), ("later",)
import dpsynth_platform.operations.preloading
"""
ENDING = """
import os, pathlib, time
from dpsynth_platform.operations import forking
from dpsynth_platform.foundation.settings import Settings

def servers():
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"forkserver" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found

forking._FIRST, forking.PRELOADING = "preloaded", "nowhere.to.be.found"
with forking.fork_server(Settings.from_environment()):
    (server,) = servers()
    while not pathlib.Path(os.environ["DPSYNTH_HOME"], "importing").exists():
        time.sleep(0.01)
print(server)
"""
IMPORTING = """
import os, pathlib, time
pathlib.Path(os.environ["DPSYNTH_HOME"], "importing").touch()
time.sleep(600)
"""


def printed(program, directory, preloaded):
    """What a program prints, as a value; its process may import a module `preloaded`."""
    (directory / "program.py").write_text(program)
    (directory / "preloaded.py").write_text(preloaded)
    done = subprocess.run(
        [sys.executable, str(directory / "program.py")],
        env=os.environ
        | {
            "DPSYNTH_HOME": str(directory / "home"),
            "PYTHONPATH": os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", ""))),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return ast.literal_eval(done.stdout)


def test_steps_have_the_settings_and_what_was_imported_and_print_to_a_restricted_file(tmp_path):
    home, imported, output = printed(STEP, tmp_path, "")
    assert (home, imported) == (str(tmp_path / "home"), True)
    assert output.startswith(str(tmp_path / "home" / "restricted" / "logs" / "run-"))
    assert list((tmp_path / "home" / "restricted" / "logs").iterdir()) == []  # nothing was printed


def test_what_later_steps_need_is_imported_after_the_first_one_has_started(tmp_path):
    (tmp_path / "later.py").touch()
    assert printed(LATER, tmp_path, PRELOADING) is False


def test_what_it_prints_stays_in_the_restricted_file(tmp_path):
    printed(STEP, tmp_path, "print('a word of a library', flush=True)")
    (log,) = (tmp_path / "home" / "restricted" / "logs").iterdir()
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("a word of a library\n", 0o600)


def test_the_end_of_the_command_ends_it_while_it_imports(tmp_path):
    server = printed(ENDING, tmp_path, IMPORTING)
    deadline = time.monotonic() + 300  # the kernel kills it at once
    while is_there(server):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_there(process: int) -> bool:
    try:
        return b"forkserver" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def test_what_is_refused_starts_nothing(tmp_path):
    home = tmp_path / "home"
    for arguments in (["nothing"], ["census", "--period", "2020-01"], ["census", "--up-to", "released"]):
        done = subprocess.run(
            [sys.executable, "-m", "dpsynth_platform", "run", *arguments],
            env=os.environ | {"DPSYNTH_HOME": str(home)},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert not home.exists()
