"""What tables of releases made of files share: where the files lie, what a commit says of a release, refusals.

What belongs here: rules that hold for `delta_target` and `iceberg_target`. What does not: their logs and commits.

Such a table has the columns of the release, and the partition columns `period` (null without a cadence) and `release`
(its id). Its Parquet files are those of the release, byte by byte, so that their signed digests hold here, too. All
other files of the release lie in `_dossier/RELEASE/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsynth_platform.contracts.release import PERIOD, RELEASE
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.release.target_files import SignedRelease, copy_files

if TYPE_CHECKING:
    import pyarrow.fs as fs

PARTITIONS = (PERIOD, RELEASE)
DOSSIERS = "_dossier"


def table_file(release: SignedRelease, name: str) -> str:
    """Where a Parquet file of a release lies, below the directory of a table's data; of linked tables, in `TABLE/`."""
    *table, part = name.removeprefix(f"{layout.DATA}/").split("/")
    return "/".join([*table, release.release_id, part])


def copy_release(release: SignedRelease, store: fs.FileSystem, root: str, data: str = "") -> None:
    """Copies a release's files into a table's directory.

    Args:
        data: the directory of the table's data below it, with a slash behind it.
    """
    documents = {name: f"{DOSSIERS}/{release.release_id}/{name}" for name in release.documents}
    files = {name: f"{data}{table_file(release, name)}" for name in release.table_files}
    copy_files(release, documents | files, store, root)


def commit_facts(release: SignedRelease, table: str = layout.SINGLE) -> dict[str, str]:
    """What a commit to a table says of its release."""
    digests = {name: release.digests[name] for name in (layout.DOSSIER, layout.ATTESTATION)}
    return {
        "dpsynth.release": release.release_id,
        "dpsynth.period": release.period or "",
        "dpsynth.dossier": f"{'../' if table else ''}{DOSSIERS}/{release.release_id}/{layout.DOSSIER}",
        **{f"dpsynth.sha256.{name}": digest for name, digest in digests.items()},
    }


def holds_what(release: SignedRelease, table: str = layout.SINGLE) -> str:
    """What a table of this release's dataset says that it holds."""
    return f"releases of {release.dataset}{f', table {table}' if table else ''}"


def not_ours(release: SignedRelease, table: str = layout.SINGLE) -> PublicationFailed:
    """A table that was made by something else, or for another dataset."""
    return PublicationFailed(
        f"the table there does not hold {holds_what(release, table)} (by its name and partition columns); accepted: an "
        "empty place, or the table that earlier releases of this dataset made"
    )


def other_columns() -> PublicationFailed:
    """A table whose columns are not those of the release."""
    return PublicationFailed(
        "the table there has other columns or types than this release; accepted: another place for releases of this "
        "contract"
    )
