"""Versions of plain files: a content that was seen at a place has a number, as a version of a Delta table has.

What belongs here: recognizing a content again, and naming it. What does not: reading rows.

A version's public name, `<table id>@<number>`, reveals nothing of the content: the id is random, and the number is the
time (in seconds) when the content was first seen, so that a registry that was put back gives no number twice. The
digests stay in a file of the restricted zone: whoever knows one could confirm a guess of the whole table. The same
content at another place keeps its name, so that a moved table is not paid for again.

Content is hashed only if the files' names, sizes and times are not those of the last hash. Times that are so recent
that a change might not show in them are not relied on.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import write_durably

UNREGISTERED = "unregistered"
"""The table id of files that no run has pinned yet."""
_REGISTRY = "source-versions.json"
_RECENT_NS = 2_000_000_000
"""File systems may note times by the second."""


@dataclass(frozen=True)
class FileVersion:
    """A known content; `content` is its digest."""

    table_id: str
    version: int
    content: str = field(repr=False)


@dataclass(frozen=True)
class Files:
    """The files of a table: their paths, and the directory (or the file's own) that their names are relative to."""

    root: Path
    paths: tuple[Path, ...]

    def stamp(self) -> str:
        """A digest of their names, sizes and times; other content has another stamp, unless it was just written."""
        found = [(path, path.stat()) for path in self.paths]
        return canonical_digest(
            [[self._name(path), at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino] for path, at in found]
        )

    def newest_ns(self) -> int:
        """When a file was changed last."""
        return max(max(at.st_mtime_ns, at.st_ctime_ns) for at in (path.stat() for path in self.paths))

    def content(self) -> str:
        """A digest of their names and bytes; of a single file, of its bytes alone, so that it may be renamed."""
        if self.paths == (self.root,):
            return digest_file(self.root)
        return canonical_digest([[self._name(path), digest_file(path)] for path in self.paths])

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def version_of(zone: Path, files: Files, *, register: bool) -> FileVersion:
    """The version of a table's present content.

    Args:
        zone: the restricted zone, which keeps what was seen.
        register: whether a new content is kept as a version; else it has the number that it would get.

    Raises:
        OSError: a file cannot be read, or the registry cannot be written.
    """
    place, stamp, now = str(files.root.resolve()), files.stamp(), time.time_ns()
    seen = _read(zone)["seen"].get(place)
    if seen is not None and seen["stamp"] == stamp:
        return version_of_content(zone, place, seen["content"], register=register)
    found = version_of_content(zone, place, content := files.content(), register=register)
    if register and now - files.newest_ns() > _RECENT_NS and files.stamp() == stamp:
        with _locked(zone):
            known = _read(zone)
            known["seen"][place] = {"stamp": stamp, "content": content}
            write_durably(zone / _REGISTRY, json.dumps(known, indent=1))
    return found


def version_of_content(zone: Path, place: str, content: str, *, register: bool) -> FileVersion:
    """As `version_of`, for a content that is known by its digest. Raises `OSError`."""
    known = _read(zone)
    found = _find(known, place, content)
    if not register or (found is not None and place in known["tables"][found.table_id]["places"]):
        return found or _next(known, place, content)
    with _locked(zone):
        known = _read(zone)
        found = _find(known, place, content) or _next(known, place, content)
        table_id = secrets.token_hex(16) if found.table_id == UNREGISTERED else found.table_id
        table = known["tables"].setdefault(table_id, {"places": [], "contents": {}})
        table["contents"].setdefault(content, found.version)
        if place not in table["places"]:
            table["places"].append(place)
        write_durably(zone / _REGISTRY, json.dumps(known, indent=1))
    return FileVersion(table_id, found.version, content)


def is_registered(zone: Path, content: str) -> bool:
    """Whether a content was pinned at any place. Raises `SourceError` for a damaged registry."""
    return any(content in table["contents"] for table in _read(zone)["tables"].values())


def places_below(zone: Path, start: str) -> list[str]:
    """The ends of all known places that begin so. Raises `SourceError` for a damaged registry."""
    places = (place for table in _read(zone)["tables"].values() for place in table["places"])
    return sorted({place.removeprefix(start) for place in places if place.startswith(start)})


def registered(zone: Path, place: str, version: int) -> FileVersion | None:
    """The content that had a number at a place, or None."""
    for table_id, table in _read(zone)["tables"].items():
        contents = {number: content for content, number in table["contents"].items()}
        if place in table["places"] and version in contents:
            return FileVersion(table_id, version, contents[version])
    return None


def _find(known: Any, place: str, content: str) -> FileVersion | None:
    """The version with a content, preferably of the table at this place."""
    tables = sorted(known["tables"].items(), key=lambda item: place not in item[1]["places"])
    for table_id, table in tables:
        if content in table["contents"]:
            return FileVersion(table_id, table["contents"][content], content)
        if place in table["places"]:
            return None  # a new content of this table, even if another table had it
    return None


def _next(known: Any, place: str, content: str) -> FileVersion:
    for table_id, table in known["tables"].items():
        if place in table["places"]:
            return FileVersion(table_id, max(*table["contents"].values(), int(time.time())) + 1, content)
    return FileVersion(UNREGISTERED, int(time.time()), content)


def _read(zone: Path) -> Any:
    try:
        found = json.loads((zone / _REGISTRY).read_text(encoding="utf-8"))
        tables = found["tables"].values()
        if isinstance(found["seen"], dict) and all(table["places"] and table["contents"].values() for table in tables):
            return found
    except FileNotFoundError:
        return {"tables": {}, "seen": {}}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise SourceError(
        f"{_REGISTRY} of the restricted zone, which knows the versions of plain files, is damaged; put it back from a "
        "copy (without it, every table counts as a new one, which is a new spend)"
    )


@contextmanager
def _locked(zone: Path) -> Iterator[None]:
    """Waits for other processes that register a version."""
    descriptor = os.open(private_directory(zone) / f".{_REGISTRY}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
