"""Copying a published release into the targets of its contract (`release.publish`), with its dossier.

What belongs here: one target after the other, under the lock of publications, with safe errors. What does not: tables
that hold several releases (`delta_target`, `iceberg_target`, `postgresql_target`), database files of one release
(`database_target`), and publication itself, which comes
first (`publish`).

Copying is idempotent: what a target holds already is compared and not written again, so that a run after a
crash completes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsynth_platform.contracts.release import DATABASE_FILES, Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import DpsynthError, PublicationFailed
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.release import database_target, delta_target, iceberg_target, image_target, postgresql_target
from dpsynth_platform.release.publish import only_one
from dpsynth_platform.release.table_targets import DOSSIERS
from dpsynth_platform.release.target_files import SignedRelease, copy_files
from dpsynth_platform.sources.remote_files import opened


def removal(target: Target, release_id: str, *, linked: bool = False) -> str:
    """How a release's rows are deleted from a target, for the person who withdraws it.

    Args:
        linked: whether it has several tables.
    """
    if target.format in DATABASE_FILES:
        return f"{target.place_of(release_id)}: may still hold rows; delete this file"
    if target.format in ("files", "images"):
        return f"{target.place}: may still hold rows; there, delete the directory {release_id}"
    there = "in each of its tables" if linked else "there"
    rows = f"{target.place}: may still hold rows; {there}, delete those whose column release is {release_id}"
    tidied = {"delta": "VACUUM the table: earlier versions", "iceberg": "expire the table's snapshots: earlier ones"}
    if target.format not in tidied:
        return rows
    first = f"{DOSSIERS}/{release_id}/{layout.SAMPLE}"
    return f"{rows}, and the file {first} (with {layout.SHEET}, if any), and {tidied[target.format]} hold them, too"


def _put_files(target: Target, release: SignedRelease) -> bool:
    """Copies a release's directory; its attestation is the last file, so that readers know a whole copy."""
    store, root = opened(target.uri)
    return copy_files(
        release, {name: name for name in release.digests}, store, f"{root.rstrip('/')}/{release.release_id}"
    )


def put(target: Target, release: SignedRelease, *, note: Callable[[str], object]) -> bool:
    """Copies a release into a target unless it is there, and checks what is there.

    Args:
        note: called with `removal`'s words before anything is written.

    Returns:
        Whether the target lacked the release.

    Raises:
        PublicationFailed: the target cannot be written, is another's, or does not hold what was signed.
    """
    with only_one(release.directory.parent), _safe(target, release):
        note(removal(target, release.release_id, linked=layout.SINGLE not in release.tables))
        return _KINDS[target.format](target, release)


_KINDS: dict[str, Callable[[Target, SignedRelease], bool]] = {
    "delta": delta_target.put,
    "duckdb": database_target.put,
    "files": _put_files,
    "iceberg": iceberg_target.put,
    "images": image_target.put,
    "postgresql": postgresql_target.put,
    "sqlite": database_target.put,
}


@contextmanager
def _safe(target: Target, release: SignedRelease) -> Iterator[None]:
    """Names the place, and shows no text of a library: it may quote an address with credentials."""
    try:
        yield
    except DpsynthError as error:
        problem = str(error)
    except Exception as error:
        problem = (
            f"it cannot be written or read ({reason_of(error)}); accepted: a place that this environment may write"
        )
    else:
        return
    raise PublicationFailed(
        f"release {release.release_id} is published, but is not in its target {target.place}: {problem}; then run it "
        "again: what is there already is not written twice, and nothing is spent"
    )
