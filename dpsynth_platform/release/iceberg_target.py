"""An Iceberg table of a catalog that grows by one snapshot a release.

What belongs here: the table's form and its snapshots. What does not: which files a release has (`targets`), and opening
catalogs (`sources.iceberg`).

Its columns and files are those of `table_targets`, below the table's location: Parquet files in `data/RELEASE/`, all
others in `_dossier/RELEASE/`. These files have no field ids, so the table maps columns by name, and the values of its
partition columns come from the partition (https://iceberg.apache.org/spec/#column-projection).

The commit of a snapshot also sets a property of the table, which tells whether the release was added: after a crash
between commit and record, too, and when the snapshot has expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.release import RELEASE, Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.foundation.storage import table_schema
from dpsynth_platform.release.table_targets import (
    PARTITIONS,
    commit_facts,
    copy_release,
    holds_what,
    not_ours,
    other_columns,
    table_file,
)
from dpsynth_platform.release.target_files import SignedRelease, digest_there
from dpsynth_platform.release.target_rows import digest_of_rows, signed_rows

if TYPE_CHECKING:
    import pyarrow.fs as fs
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_HOLDS = "dpsynth.holds"
_ADDED = "dpsynth.added."
_NAMES = "schema.name-mapping.default"
_RETRIES = "commit.retry.num-retries"
_DATA = "data/"
_ATTEMPTS = 5


def put(target: Target, release: SignedRelease) -> bool:
    """Adds a release to the table of a target; makes the table if there is none. See `targets.put`."""
    from dpsynth_platform.sources.iceberg import NOT_INSTALLED, open_catalog

    try:
        opened = open_catalog(target.uri, target.catalog)
    except ImportError:
        raise PublicationFailed(NOT_INSTALLED) from None
    with opened as catalog:
        table = _table(catalog, target, release)
        new = _add(table, release)
        _check(table, release)
        return new


def _table(catalog: Catalog, target: Target, release: SignedRelease) -> Table:
    """The table, made empty if there is none. Raises `PublicationFailed` for a table of another form or dataset."""
    from pyiceberg.exceptions import NoSuchTableError

    schema, name = _schema(release), target.table or ""
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        table = _made(catalog, name, schema, release)
    parts = [(table.schema().find_column_name(field.source_id), str(field.transform)) for field in table.spec().fields]
    if table.properties.get(_HOLDS) != holds_what(release) or parts != [(part, "identity") for part in PARTITIONS]:
        raise not_ours(release)
    if not _is_added(table, release) and _columns(table.schema()) != _columns(schema):
        raise other_columns()
    return table


def _made(catalog: Catalog, name: str, schema: Schema, release: SignedRelease) -> Table:
    from pyiceberg.exceptions import NoSuchNamespaceError
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    parts = [
        PartitionField(schema.find_field(part).field_id, number, IdentityTransform(), part)
        for number, part in enumerate(PARTITIONS, PARTITION_FIELD_ID_START)
    ]
    properties = {"format-version": "2", _HOLDS: holds_what(release)}
    try:
        return catalog.create_table_if_not_exists(
            name, schema, partition_spec=PartitionSpec(*parts), properties=properties
        )
    except NoSuchNamespaceError:
        problem = "the catalog has no such namespace; accepted: one that exists"
    except ValueError as error:
        if type(error) is not ValueError:  # an answer that cannot be read
            raise
        variable = f"PYICEBERG_CATALOG__{catalog.name.upper()}__WAREHOUSE"
        problem = (
            "the catalog does not say where a table's files lie; accepted: a catalog or namespace that does, or "
            f"{variable}, a directory or URI of an object store"
        )
    raise PublicationFailed(problem)


def _schema(release: SignedRelease) -> Schema:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    # The partition columns are optional, both: pyiceberg takes a required one for missing where files lack it.
    fields = [*table_schema(release.directory / layout.DATA), *(pa.field(part, pa.string()) for part in PARTITIONS)]
    numbered = [field.with_metadata({"PARQUET:field_id": str(number)}) for number, field in enumerate(fields, 1)]
    return pyarrow_to_schema(pa.schema(numbered))


def _columns(schema: Schema) -> list[tuple[str, str, bool]]:
    """Columns, whatever numbers the catalog gave them."""
    return [(field.name, str(field.field_type), field.required) for field in schema.fields]


def _is_added(table: Table, release: SignedRelease) -> bool:
    return f"{_ADDED}{release.release_id}" in table.properties


def _add(table: Table, release: SignedRelease) -> bool:
    """Adds a release unless it was added already. Returns whether this call did."""
    from pyiceberg.exceptions import CommitFailedException

    if _is_added(table, release):
        return False
    copy_release(release, *_stored(table, table.location()), _DATA)
    for left in reversed(range(_ATTEMPTS)):
        try:
            _commit(table, release)
        except CommitFailedException:  # another process committed first, and perhaps this release
            if _is_added(table.refresh(), release):
                return False
            if not left:
                raise
        else:
            break
    return True


def _commit(table: Table, release: SignedRelease) -> None:
    """Adds a snapshot upon the one that was read. Raises `CommitFailedException` if there is a newer one."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    # pyiceberg would repeat a failed commit upon whatever was added meanwhile, as often as the table's properties say.
    table.metadata = table.metadata.model_copy(update={"properties": table.properties | {_RETRIES: "0"}})
    with table.transaction() as change:
        names = table.schema().name_mapping.model_dump_json()
        change.set_properties({f"{_ADDED}{release.release_id}": release.period or "", _NAMES: names})
        with change.update_snapshot(snapshot_properties=commit_facts(release)).fast_append() as snapshot:
            for path in _files(table, release):
                file = parquet_file_to_data_file(table.io, table.metadata, path)
                for number, value in enumerate((release.period, release.release_id)):
                    file.partition[number] = value
                snapshot.append_data_file(file)


def _files(table: Table, release: SignedRelease) -> dict[str, str]:
    """Names of a release's Parquet files by their place in the table."""
    root = table.location().rstrip("/")
    return {f"{root}/{_DATA}{table_file(release, name)}": name for name in release.table_files}


def _stored(table: Table, place: str) -> tuple[fs.FileSystem, str]:
    """The store of a table's files, with the credentials that its catalog has or gives, and a path in it."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO(table.io.properties)
    scheme, host, path = io.parse_location(place, io.properties)
    return io.fs_by_scheme(scheme, host), path


def _check(table: Table, release: SignedRelease) -> None:
    """Raises `PublicationFailed` unless the table's newest snapshot holds the rows of the release, and no other."""
    from pyiceberg.expressions import EqualTo, Reference

    column: Any = Reference(RELEASE)
    wanted: Any = release.release_id
    scan = table.scan(row_filter=EqualTo(term=column, value=wanted))
    files = _files(table, release)
    tasks = list(scan.plan_files())
    if {task.file.file_path for task in tasks} == set(files) and not any(task.delete_files for task in tasks):
        same = all(digest_there(*_stored(table, place)) == release.digests[name] for place, name in files.items())
    else:  # the table's owner put files together, or deleted rows
        batches = scan.to_arrow_batch_reader()
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True))
        same = digest_of_rows(rows) == digest_of_rows(signed_rows(release))
    if not same:
        raise PublicationFailed(
            "the table there does not hold exactly the rows of this release; accepted: the table rolled back to a "
            "snapshot that has them, or another place"
        )
