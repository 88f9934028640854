"""Encryption at rest: what lies below a path, as the kernel tells it, and what is refused where it is required."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.volumes import System, Volume, require_encrypted, swap, volume_of


class Machine:
    """A kernel's account of itself, below a directory, in which `path` lies on the device of the test's choice."""

    def __init__(self, root: Path) -> None:
        self.system = System(root / "sys", root / "proc")
        self.path = root / "zone"
        for directory in (self.path, self.system.sys / "dev" / "block", self.system.sys / "class" / "block"):
            directory.mkdir(parents=True)
        (self.system.proc / "self").mkdir(parents=True)
        number = self.path.stat().st_dev
        self.number = f"{os.major(number)}:{os.minor(number)}"
        self.swaps()
        self.mounted()

    def device(self, name: str, number: str, *, uuid: str = "", below: tuple[str, ...] = ()) -> None:
        directory = self.system.sys / "devices" / name
        (directory / "slaves").mkdir(parents=True)
        (directory / "dev").write_text(f"{number}\n")
        if uuid:
            (directory / "dm").mkdir()
            (directory / "dm" / "uuid").write_text(f"{uuid}\n")
            (directory / "dm" / "name").write_text(f"{name}-mapped\n")
        for other in below:
            (directory / "slaves" / other).symlink_to(self.system.sys / "devices" / other)
        (self.system.sys / "dev" / "block" / number).symlink_to(directory)
        (self.system.sys / "class" / "block" / name).symlink_to(directory)

    def mounted(self, *lines: str) -> None:
        (self.system.proc / "self" / "mountinfo").write_text("\n".join(lines) + "\n")

    def swaps(self, *names: str) -> None:
        lines = ["Filename Type Size Used Priority", *(f"{name} partition 100 0 -2" for name in names)]
        (self.system.proc / "swaps").write_text("\n".join(lines) + "\n")

    def volume(self) -> Volume:
        return volume_of(self.path, self.system)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_plain_disk_is_not_encrypted(machine: Machine) -> None:
    machine.device("sda1", machine.number)
    assert machine.volume() == Volume(False, "sda1 is not of dm-crypt")


def test_a_luks_volume_is(machine: Machine) -> None:
    machine.device("sda1", "8:1")
    machine.device("dm-0", machine.number, uuid="CRYPT-LUKS2-0123", below=("sda1",))
    assert machine.volume() == Volume(True, "dm-0 is of dm-crypt")


@pytest.mark.parametrize(("second", "encrypted"), [("CRYPT-LUKS2-2", True), ("", False)])
def test_a_volume_over_several_is_as_the_worst_of_them(machine: Machine, second: str, encrypted: bool) -> None:
    """LVM over two disks, one of which may be in clear."""
    machine.device("dm-1", "252:1", uuid="CRYPT-LUKS2-1")
    machine.device("dm-2", "252:2", uuid=second)
    machine.device("dm-3", machine.number, uuid="LVM-0123", below=("dm-1", "dm-2"))
    assert machine.volume().encrypted is encrypted


def test_a_partition_of_an_encrypted_device(machine: Machine) -> None:
    machine.device("dm-0", "252:0", uuid="CRYPT-PLAIN-0")
    part = machine.system.sys / "devices" / "dm-0" / "part"
    part.mkdir()
    (part / "partition").write_text("1")
    (machine.system.sys / "dev" / "block" / machine.number).symlink_to(part)
    assert machine.volume().encrypted is True


def test_a_file_as_a_device_is_as_what_it_lies_on(machine: Machine) -> None:
    machine.device("loop0", machine.number)
    (machine.system.sys / "devices" / "loop0" / "loop").mkdir()
    backing = machine.system.sys / "devices" / "loop0" / "loop" / "backing_file"
    backing.write_text("/proc/self/status")  # of a file system without a device, which is in no list here
    assert machine.volume() == Volume(None, "its file system is not in the list of mounts")


@pytest.mark.parametrize(
    ("kind", "source", "encrypted"),
    [
        ("tmpfs", "tmpfs", True),
        ("fuse.gocryptfs", "/data/cipher", True),
        ("btrfs", "/dev/dm-0", True),
        ("btrfs", "/dev/mapper/dm-0-mapped", True),
        ("btrfs", "/dev/sda1", False),
        ("nfs4", "server:/export", None),
        ("overlay", "overlay", None),
        ("zfs", "pool/set", None),
    ],
)
def test_file_systems_without_a_device_of_their_own(
    machine: Machine, kind: str, source: str, encrypted: bool | None
) -> None:
    machine.device("dm-0", "252:0", uuid="CRYPT-LUKS2-0")
    machine.device("sda1", "8:1")
    point = str(machine.path).replace(" ", "\\040")
    machine.mounted("22 1 8:1 / / rw - ext4 /dev/sda1 rw", f"23 22 0:40 / {point} rw shared:1 - {kind} {source} rw")
    assert machine.volume().encrypted is encrypted


def test_what_is_not_there_yet_counts_as_its_parent(machine: Machine) -> None:
    machine.device("dm-0", machine.number, uuid="CRYPT-LUKS2-0")
    assert volume_of(machine.path / "restricted" / "later", machine.system).encrypted is True


@pytest.mark.parametrize(
    ("names", "encrypted"),
    [
        ((), True),
        (("/dev/zram0",), True),
        (("/dev/dm-0",), True),
        (("/dev/sda2",), False),
        (("/dev/dm-0", "/dev/sda2"), False),
    ],
)
def test_swap_counts(machine: Machine, names: tuple[str, ...], encrypted: bool) -> None:
    machine.device("dm-0", "252:0", uuid="CRYPT-PLAIN-0")
    machine.device("sda2", "8:2")
    machine.device("zram0", "253:0")
    machine.swaps(*names)
    assert swap(machine.system).encrypted is encrypted


def test_what_is_required_is_refused_by_name_and_without_paths(machine: Machine) -> None:
    machine.device("sda1", machine.number)
    machine.swaps("/dev/sda1")
    places = {"restricted zone": machine.path}
    require_encrypted(places, "no", machine.system)
    for requirement in ("yes", "declared"):
        with pytest.raises(ConfigurationError) as refused:
            require_encrypted(places, requirement, machine.system)
        assert "restricted zone: sda1 is not of dm-crypt; swap: sda1 is not of dm-crypt" in str(refused.value)
        assert str(machine.path) not in str(refused.value)


def test_what_does_not_show_can_be_declared(machine: Machine) -> None:
    """A provider's encryption of a network disk, say; a disk that shows as clear cannot."""
    machine.mounted(f"23 22 0:40 / {machine.path} rw - nfs4 server:/export rw")
    require_encrypted({"vault": machine.path}, "declared", machine.system)
    with pytest.raises(
        ConfigurationError, match="vault: a file system of type nfs4; the storage below it is not visible"
    ):
        require_encrypted({"vault": machine.path}, "yes", machine.system)


def test_this_machine_can_be_asked(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/shm"), Path("/proc/self")):
        assert volume_of(path).encrypted in (True, False, None)
    assert volume_of(Path("/dev/shm")).encrypted is True
