"""The files of a published release, and copying them into a directory or an object store.

What belongs here: signed files, and comparing copies with their digests. What does not: where they go (`targets`).

Only files that the attestation lists are copied, and the attestation itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.release.attestation import Envelope
from dpsynth_platform.release.publish import Published

if TYPE_CHECKING:
    import pyarrow.fs as fs

_PART = 1 << 20


@dataclass(frozen=True)
class SignedRelease:
    """A verified release in the public zone, as a target gets it.

    Attributes:
        dataset: its dataset's name.
        tables: the number of rows of each table; a single one is `layout.SINGLE`.
        digests: SHA-256 (hex) by relative name of every signed file, and of the attestation.
    """

    release_id: str
    dataset: str
    period: str | None
    directory: Path
    tables: Mapping[str, int]
    digests: Mapping[str, str]

    @classmethod
    def of(cls, made: Published, dataset: str, period: str | None) -> SignedRelease:
        """Of a release that was just verified."""
        content = (made.path / layout.ATTESTATION).read_bytes()
        subjects = Envelope.read(content).statement()["subject"]
        digests = {item["name"]: item["digest"]["sha256"] for item in subjects}
        digests[layout.ATTESTATION] = hashlib.sha256(content).hexdigest()
        return cls(made.release_id, dataset, period, made.path, made.tables, digests)

    @property
    def rows(self) -> int:
        """Of the single table."""
        return self.tables[layout.SINGLE]

    def data(self, table: str = layout.SINGLE) -> Path:
        """The directory of a table."""
        return self.directory / layout.DATA / table

    def check(self, name: str) -> Path:
        """A signed file. Raises `PublicationFailed` if it is not what was signed."""
        path = self.directory / name
        if digest_file(path) != self.digests[name]:
            raise PublicationFailed(f"{path} is not what was signed; accepted: the release as it was published")
        return path

    @property
    def table_files(self) -> list[str]:
        """Relative names of the Parquet files with its rows."""
        return [name for name in self.digests if name.startswith(f"{layout.DATA}/") and name.endswith(".parquet")]

    @property
    def documents(self) -> list[str]:
        """Relative names of all other files; the attestation is the last."""
        return [name for name in self.digests if name not in self.table_files]


def copy_files(release: SignedRelease, names: Mapping[str, str], store: fs.FileSystem, root: str) -> bool:
    """Copies signed files that are missing or different; then each has its signed digest. Returns whether any was.

    Args:
        names: their relative names in the release, and those below `root`, a path in the store.
    """
    copied = False
    for name, there in names.items():
        target = f"{root.rstrip('/')}/{there}"
        if digest_there(store, target) == release.digests[name]:
            continue
        copied = True
        if store.type_name == "local":
            store.create_dir(str(Path(target).parent), recursive=True)
        with release.check(name).open("rb") as read, store.open_output_stream(target) as write:
            while part := read.read(_PART):
                write.write(part)
        if digest_there(store, target) != release.digests[name]:
            raise PublicationFailed(
                f"{there} is not there as it was written; accepted: a store that keeps what it gets"
            )
    if store.type_name == "local":
        _make_readable(Path(root), names.values())
    return copied


def digest_there(store: fs.FileSystem, path: str) -> str | None:
    """SHA-256 (hex) of a file in a store; None if there is none."""
    import pyarrow.fs as fs

    if store.get_file_info(path).type != fs.FileType.File:
        return None
    digest = hashlib.sha256()
    with store.open_input_stream(path) as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def _make_readable(root: Path, names: Collection[str]) -> None:
    """Makes copied files and their directories readable by all under any umask, as in the public zone.

    The place that a contract names is left as it is, unless a file lies in it: its owner may have closed it.
    """
    made = {path for name in names for path in ((root / name), *(root / name).parents) if path.is_relative_to(root)}
    made -= {root} - {(root / name).parent for name in names}
    for path in made:
        with suppress(PermissionError):  # a directory of somebody else, who decides about it
            path.chmod(0o755 if path.is_dir() else 0o644)
