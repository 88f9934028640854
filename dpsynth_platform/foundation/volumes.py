"""Encryption at rest: whether the storage below a directory is encrypted.

What belongs here: following a path to its block devices, and recognizing encrypted ones. What does not: encrypting.
Several libraries and engines read rows by path, so the volume must encrypt: dm-crypt (LUKS), also below LVM and RAID;
an encrypting file system; or memory. Encryption by a cloud provider below a disk is not visible from the machine.

Swap counts too, since it receives pages with rows. Sources: kernel documentation, ABI/testing/sysfs-block (`slaves`),
sysfs-block-dm (`dm/uuid`), proc(5) (`mountinfo`, `swaps`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.foundation.errors import ConfigurationError

_CRYPT = "CRYPT-"
_IN_MEMORY = ("tmpfs", "ramfs")
_ENCRYPTING = ("ecryptfs", "fuse.gocryptfs", "fuse.cryfs", "fuse.encfs")


@dataclass(frozen=True)
class System:
    """The kernel's file systems; tests have their own."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")


@dataclass(frozen=True)
class Volume:
    """The storage below a directory.

    Attributes:
        encrypted: whether nothing reaches a disk unencrypted; None if unknown.
        why: the devices or file systems that decide it, without the directory's path.
    """

    encrypted: bool | None
    why: str


@dataclass(frozen=True)
class _Mount:
    device: str
    point: Path
    kind: str
    source: str


def require_encrypted(places: Mapping[str, Path], requirement: str, system: System | None = None) -> None:
    """Refuses storage on which rows would reach a disk unencrypted.

    Args:
        places: directories by name; missing ones count as their nearest parent.
        requirement: one of `settings.REQUIREMENTS`; `declared` accepts unknown storage, never unencrypted storage.

    Raises:
        ConfigurationError: names each directory, or swap, with its storage.
    """
    if requirement == "no":
        return
    found = {name: volume_of(path, system) for name, path in places.items()} | {"swap": swap(system)}
    accepted = (True,) if requirement == "yes" else (True, None)
    faults = [f"{name}: {volume.why}" for name, volume in found.items() if volume.encrypted not in accepted]
    if faults:
        raise ConfigurationError(
            f"DPSYNTH_REQUIRE_ENCRYPTED={requirement}, but not all storage is encrypted: {'; '.join(faults)}. "
            "Accepted: dm-crypt (LUKS) volumes, or memory; `declared`, if storage that is not visible here is "
            "encrypted by other means"
        )


def volume_of(path: Path, system: System | None = None) -> Volume:
    """The storage below a path."""
    system = system or System()
    there = next(item for item in (path.absolute(), *path.absolute().parents) if item.exists())
    number = there.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    if (system.sys / "dev" / "block" / device).exists():
        return _device(system, device)
    mount = _mount_of(system, there.resolve())
    if mount is None:
        return Volume(None, "its file system is not in the list of mounts")
    if mount.kind in _IN_MEMORY:
        return Volume(True, f"{mount.kind}, in memory")
    if mount.kind in _ENCRYPTING:
        return Volume(True, f"{mount.kind} encrypts")
    named = _named(system, mount.source)  # btrfs and others over several devices have a separate number
    if named is not None and mount.kind != "overlay":
        return _device(system, named)
    return Volume(None, f"a file system of type {mount.kind}; the storage below it is not visible here")


def swap(system: System | None = None) -> Volume:
    """The storage below the machine's swap."""
    system = system or System()
    try:
        lines = (system.proc / "swaps").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return Volume(None, "the list of swap devices cannot be read")
    found = [_swap(system, Path(_unescaped(line.split()[0]))) for line in lines if line.strip()]
    return _all(found) if found else Volume(True, "there is none")


def _swap(system: System, place: Path) -> Volume:
    named = _named(system, str(place))
    if named is None:
        return volume_of(place, system)
    return Volume(True, "zram, in memory") if place.name.startswith("zram") else _device(system, named)


def _device(system: System, device: str) -> Volume:
    """A block device is encrypted by itself, or by all devices below it."""
    directory = (system.sys / "dev" / "block" / device).resolve()
    if _text(directory / "dm" / "uuid").startswith(_CRYPT):
        return Volume(True, f"{directory.name} is of dm-crypt")
    backing = _text(directory / "loop" / "backing_file")
    if backing:
        return volume_of(Path(backing), system)
    below = [_text(path / "dev") for path in sorted((directory / "slaves").glob("*"))]
    if (directory / "partition").exists():
        below.append(_text(directory.parent / "dev"))
    found = [_device(system, item) for item in below if item and item != device]
    return _all(found) if found else Volume(False, f"{directory.name} is not of dm-crypt")


def _all(found: list[Volume]) -> Volume:
    return min(found, key=lambda volume: (False, None, True).index(volume.encrypted))


def _named(system: System, source: str) -> str | None:
    """Number of a block device such as /dev/mapper/secret or /dev/sda1."""
    if not source.startswith("/dev/"):
        return None
    mapped = {_text(path / "dm" / "name"): path for path in (system.sys / "class" / "block").glob("dm-*")}
    name = source.rpartition("/")[2]
    return _text(mapped.get(name, system.sys / "class" / "block" / name) / "dev") or None


def _mount_of(system: System, path: Path) -> _Mount | None:
    """The mount of a path: the last of those with the longest mount point."""
    fitting = [mount for mount in _mounts(system) if path.is_relative_to(mount.point)]
    longest = max((len(mount.point.parts) for mount in fitting), default=0)
    return next((mount for mount in reversed(fitting) if len(mount.point.parts) == longest), None)


def _mounts(system: System) -> Iterator[_Mount]:
    for line in _text(system.proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, source = after.split()[:2]
        fields = before.split()
        yield _Mount(fields[2], Path(_unescaped(fields[4])), kind, _unescaped(source))


def _unescaped(text: str) -> str:
    """These lists escape blanks as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
