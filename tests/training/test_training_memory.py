"""Free memory is what machine and container leave, and an attempt that was killed is followed by a smaller one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training_cases import Records, batch, model, plan

from dpsynth_platform.training import physical
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.memory import free_memory, remembered_size
from dpsynth_platform.training.precision import EXACT
from dpsynth_platform.training.world import Follower

MIB = 2**20


def machine(root: Path, groups: str, available: int = 8000) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available * 1024} kB\n")
    (root / "proc/self/cgroup").write_text(groups)


def group(place: Path, limit: str, used: int, files: int, *, version: int = 2) -> None:
    place.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (place / names[0]).write_text(f"{limit}\n")
    (place / names[1]).write_text(f"{used * MIB}\n")
    (place / "memory.stat").write_text(f"anon 1\n{names[2]} {files * MIB}\n")


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    machine(tmp_path, "0::/user.slice\n")
    assert free_memory(tmp_path) == 8000 * MIB
    group(tmp_path / "sys/fs/cgroup/user.slice", "max", 100, 0)
    assert free_memory(tmp_path) == 8000 * MIB
    (tmp_path / "proc/self/cgroup").unlink()
    assert free_memory(tmp_path) == 8000 * MIB


def test_a_limit_of_the_group_or_of_one_above_it(tmp_path: Path) -> None:
    machine(tmp_path, "0::/pods/one/worker\n")
    groups = tmp_path / "sys/fs/cgroup"
    group(groups / "pods/one/worker", str(4000 * MIB), 1000, 300)
    assert free_memory(tmp_path) == 3300 * MIB
    group(groups / "pods", str(2500 * MIB), 1000, 0)
    assert free_memory(tmp_path) == 1500 * MIB
    group(groups / "pods/one", str(500 * MIB), 600, 0)  # as while it is over its limit for a moment
    assert free_memory(tmp_path) == 0


def test_in_a_container_the_groups_root_is_its_own(tmp_path: Path) -> None:
    machine(tmp_path, "0::/\n")
    group(tmp_path / "sys/fs/cgroup", str(2000 * MIB), 500, 0)
    assert free_memory(tmp_path) == 1500 * MIB


def test_version_1(tmp_path: Path) -> None:
    """Whose paths are the machine's also in a container, where the own group is the root of what is seen."""
    machine(tmp_path, "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n")
    group(tmp_path / "sys/fs/cgroup/memory", str(3000 * MIB), 1000, 200, version=1)
    assert free_memory(tmp_path) == 2200 * MIB
    group(tmp_path / "sys/fs/cgroup/memory/docker/abc", str(9223372036854771712), 1000, 0, version=1)
    assert free_memory(tmp_path) == 2200 * MIB


def test_the_estimate_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, sizes = model(), []
    for free in (10 * MIB, 5 * MIB):
        monkeypatch.setattr(physical, "free_memory", lambda free=free: free)
        sizes.append(physical._estimated_tokens(made))
    assert sizes[0] // 2 == sizes[1] > 0


KILLED = """
import os, signal, sys
from pathlib import Path
from dpsynth_platform.training.memory import remembered_size
with remembered_size(Path(sys.argv[1])) as size:
    print(size.begin(1024, 64), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_it_is_half(tmp_path: Path) -> None:
    """And no less than a record; after an orderly end it is what it was."""
    path = tmp_path / "training" / "size"
    for expected in (b"1024\n", b"512\n"):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, check=False)
        assert (killed.stdout, killed.returncode) == (expected, -signal.SIGKILL)
    with pytest.raises(KeyboardInterrupt), remembered_size(path) as size:
        assert size.begin(1024, 200) == 256
        raise KeyboardInterrupt
    with remembered_size(path) as size:
        assert size.begin(1024, 200) == 256
        assert size.begin(1024, 200) == 200
        path.unlink()
    assert not path.exists()
    assert not list(path.parent.iterdir())


def test_the_loop_begins_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(physical, "fixed_shape_parts", lambda rows, sizes, tokens, *_: taken.append(tokens) or ())
    (tmp_path / "size").write_text("48 running")

    class Counted(Follower):
        def begin_step(self) -> int:
            return 1

    chosen = plan(steps=1, units=3, batch_size=3)
    with remembered_size(tmp_path / "size") as size:
        rows, watch = Records(batch([9, 5, 7])), Counted()
        train(model(), chosen, rows, journal=watch, health=watch, precision=EXACT, size=size)
    assert taken == [24]
    assert (tmp_path / "size").read_text() == "24 ended"
