"""A table in PostgreSQL that gets the rows of each release, and beside it a table of the releases with their dossiers.

What belongs here: both tables' form, and the transaction of one release. What does not: other targets (`targets`).

The table has the columns of the release, `period` (null without a cadence) and `release` (its id). `TABLE_releases` has
one row a release: its dataset, period and number of rows, the digests of all its signed files, and dossier and
attestation as they were signed. Both are written by one transaction, which ends after the rows were read back.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.release import PERIOD, RELEASE, Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.foundation.storage import table_schema
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.target_rows import digest_of_rows, signed_rows

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql

_RELEASES = (
    (RELEASE, "text"),
    ("dataset", "text"),
    (PERIOD, "text"),
    ("rows", "bigint"),
    ("digests", "json"),
    ("dossier", "json"),
    ("attestation", "json"),
    ("published_at", "timestamp with time zone"),
)
_AT_ONCE = 10_000

Columns = tuple[tuple[str, str], ...]


def put(target: Target, release: SignedRelease) -> bool:
    """Adds a release to the table of a target; makes the tables if there are none. See `targets.put`."""
    import sqlalchemy as sa

    from dpsynth_platform.sources.passwords import check_environment

    url = sa.make_url(target.uri).set(drivername="postgresql+psycopg")
    check_environment(url)
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    try:
        with engine.begin() as connection:
            driver: Any = connection.connection.driver_connection
            return _put(driver, target.table or "", release)
    finally:
        engine.dispose()


def _put(connection: psycopg.Connection[Any], name: str, release: SignedRelease) -> bool:
    from psycopg import sql

    for file in (*release.table_files, layout.DOSSIER, layout.ATTESTATION):
        release.check(file)
    columns = _columns(table_schema(release.directory / layout.DATA))
    table, releases = _identifier(name), _identifier(f"{name}_releases")
    connection.execute("SET LOCAL timezone TO 'UTC'")
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"dpsynth {name}",))
    _make(connection, {name: columns, f"{name}_releases": _RELEASES})
    names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in columns)
    new = not _known(connection, releases, release)
    if new:
        _insert(connection, table, releases, names, release)
    _check(connection, table, releases, names, release)
    return new


def _columns(schema: pa.Schema) -> Columns:
    """Names and types, as PostgreSQL spells them. Raises `PublicationFailed` for a type that has none there."""
    return (*((field.name, _type(field)) for field in schema), (PERIOD, "text"), (RELEASE, "text"))


def _type(field: pa.Field) -> str:
    import pyarrow.types as kinds

    arrow = field.type
    if kinds.is_timestamp(arrow):
        return f"timestamp {'without' if arrow.tz is None else 'with'} time zone"
    if kinds.is_decimal(arrow):
        return f"numeric({arrow.precision},{arrow.scale})"
    known = (
        (kinds.is_boolean, "boolean"),
        (kinds.is_integer, "bigint"),
        (kinds.is_floating, "double precision"),
        (kinds.is_date, "date"),
        (lambda found: kinds.is_string(found) or kinds.is_large_string(found), "text"),
    )
    for fits, name in known:
        if fits(arrow):
            return name
    raise PublicationFailed(
        f"column {field.name!r} has the type {arrow}, which this target does not take; accepted: numbers, truth "
        "values, dates, moments and texts, or another target"
    )


def _identifier(name: str) -> sql.Identifier:
    from psycopg import sql

    return sql.Identifier(*name.split("."))


def _make(connection: psycopg.Connection[Any], tables: dict[str, Columns]) -> None:
    """Makes both tables where neither is. Raises `PublicationFailed` for tables of another form."""
    from psycopg import sql

    found = {name: _found(connection, name) for name in tables}
    if not any(found.values()):
        for name, columns in tables.items():
            listed = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind))  # type: ignore[arg-type]  # ours
                for column, kind in columns
            )
            key = sql.SQL(", PRIMARY KEY (release)" if columns is _RELEASES else "")
            connection.execute(sql.SQL("CREATE TABLE {} ({}{})").format(_identifier(name), listed, key))
            if columns is not _RELEASES:
                connection.execute(sql.SQL("CREATE INDEX ON {} (release)").format(_identifier(name)))
        return
    for name, columns in tables.items():
        if found[name] != columns:
            raise PublicationFailed(
                f"the table {name} has other columns or types than this target; accepted: a new name, or the tables "
                "that earlier releases of this contract made"
            )


def _found(connection: psycopg.Connection[Any], name: str) -> Columns:
    """Columns of a table; empty if there is none."""
    quoted = _identifier(name).as_string(connection)
    query = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    return tuple(connection.execute(query, (quoted,)).fetchall())


def _known(connection: psycopg.Connection[Any], releases: sql.Identifier, release: SignedRelease) -> bool:
    """Whether the release is there. Raises `PublicationFailed` if the tables are another dataset's."""
    from psycopg import sql

    query = sql.SQL("SELECT release, dataset FROM {} WHERE release = %s OR dataset <> %s").format(releases)
    found = connection.execute(query, (release.release_id, release.dataset)).fetchall()
    if any(dataset != release.dataset for _, dataset in found):
        raise PublicationFailed(
            f"the table there holds releases of another dataset than {release.dataset}; accepted: a table of its own"
        )
    return bool(found)


def _insert(
    connection: psycopg.Connection[Any],
    table: sql.Identifier,
    releases: sql.Identifier,
    names: sql.Composed,
    release: SignedRelease,
) -> None:
    from psycopg import sql

    with (
        connection.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, names)) as copy,
    ):
        for row in signed_rows(release):
            copy.write_row(row)
    values = (
        release.release_id,
        release.dataset,
        release.period,
        release.rows,
        json.dumps(dict(release.digests)),
        *((release.directory / name).read_text(encoding="utf-8") for name in (layout.DOSSIER, layout.ATTESTATION)),
    )
    query = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, %s, now())").format(releases)
    connection.execute(query, values)


def _check(
    connection: psycopg.Connection[Any],
    table: sql.Identifier,
    releases: sql.Identifier,
    names: sql.Composed,
    release: SignedRelease,
) -> None:
    """Raises `PublicationFailed` unless the tables hold the rows of the release, and what was signed of it."""
    from psycopg import sql

    with connection.cursor("rows", binary=True) as cursor:
        cursor.itersize = _AT_ONCE
        # Without parameters: among these, a % in a column's name would be read as one.
        query = sql.SQL("SELECT {} FROM {} WHERE release = {}").format(names, table, sql.Literal(release.release_id))
        cursor.execute(query)
        there = digest_of_rows(cursor)
    if there != digest_of_rows(signed_rows(release)):
        raise PublicationFailed(
            "the table there does not hold exactly the rows of this release; accepted: its rows restored, or all of "
            "them deleted with the release's row of the table of releases, so that they are written again"
        )
    query = sql.SQL("SELECT dossier::text, attestation::text FROM {} WHERE release = %s").format(releases)
    texts = connection.execute(query, (release.release_id,)).fetchone() or ()
    for name, text in zip((layout.DOSSIER, layout.ATTESTATION), texts, strict=True):
        if hashlib.sha256(text.encode()).hexdigest() != release.digests[name]:
            raise PublicationFailed(f"{name} is not there as it was signed; accepted: the row of this release restored")
