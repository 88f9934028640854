"""Whether a contract's public table, or one of several, is a guarded one, as far as the deployment's own files know.

What belongs here: the platform's own restricted files, the sources of all deployed contracts, also of those that never
ran, and the contents that runs have pinned. What does not: what lineage and ledger know (`lineage.clearance`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.cross_checks import Parts
from dpsynth_platform.contracts.linked_contract import linked_of
from dpsynth_platform.contracts.loading import draft_contract, fault_of
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.sources.database_files import DatabaseFile
from dpsynth_platform.sources.database_ids import only_table, path_of
from dpsynth_platform.sources.linked_source import LinkedSource
from dpsynth_platform.sources.table_places import tables_at
from dpsynth_platform.sources.tables import is_delta

_DATA = (".parquet", ".parq", ".pq", ".csv", ".tsv", ".jsonl", ".ndjson")
"""Endings of data files in a directory; not `.json`, of which the logs of Delta tables are."""


def check_public_table(settings: Settings, contract: DataContract) -> None:
    """Refuses a contract's public table with faults. Raises `ContractError`."""
    for fault in public_faults(settings, contract.generate.public) if contract.generate.public else ():
        raise ContractError(f"{contract.dataset}: generate.public.uri: {fault}")


def public_faults(settings: Settings, public: PublicRows) -> Iterator[str]:
    """A line if a table is at a place of the platform or of a deployed contract's source, or has a source's content.

    A copy is recognized by the bytes of any of its files, or a Delta table's own id. Links are followed. No value is
    read.
    """
    place, files = _files(public.source)
    for name, kept in settings.sensitive_places.items():
        own = kept.resolve()
        if own.is_relative_to(place) or any(each.is_relative_to(own) for each in (place, *files)):
            yield f"{public.uri!r} and the {name} overlap; accepted: a table that is public"
    deployed = [*_deployed(settings)]
    for dataset, parts in deployed:
        yield from public.faults(_source(parts), f"the source of dataset {dataset}")
    if _is_pinned(settings, public.source):
        yield (
            f"{public.uri!r} has the content of a source that this deployment guards; accepted: a table that is public"
        )
    for dataset, parts in deployed:
        if _has_one_of(files, _guarded(parts)):
            yield (
                f"{public.uri!r} has a file of the source of dataset {dataset}, or a copy of one; accepted: a table "
                "that is public, apart from all sources"
            )


def check_linked_tables(settings: Settings, contract: DataContract, found: LinkedSource) -> None:
    """Refuses public ones of linked tables, which are released as they are, where they are guarded.

    Raises `ContractError` with a line for each: it is a private table of this or another contract, or has a file of a
    source or its content. Of databases, tables are compared by place and name.
    """
    deployed = {contract.dataset: contract.parts, **dict(_deployed(settings))}
    faults = [
        f"tables.{name}.public: {fault}; accepted: a table that is public, or leave the table out"
        for name in found.declared.lookups
        for fault in _linked_faults(settings, found, name, deployed)
    ]
    if faults:
        raise ContractError("\n".join(f"{contract.dataset}: {fault}" for fault in faults))


def _linked_faults(settings: Settings, found: LinkedSource, name: str, deployed: Mapping[str, Parts]) -> Iterator[str]:
    if isinstance(found.places, DatabaseFile):
        for dataset, parts in deployed.items():
            if _is_private(parts, found.places.path, name):
                yield f"dataset {dataset} declares it as private"
        if any(_is_private(parts, found.places.path, name) for parts in _ran(settings)):
            yield "a run has read it as private"
        return
    source = found.sources[name]
    assert source.format != "memory"  # noqa: S101  (a contract's tables are stored)
    table = Source(uri=str(source.path), format=source.format, key=["any"])
    _, files = _files(table)
    for kind, kept in settings.sensitive_places.items():
        if any(each.is_relative_to(kept.resolve()) for each in files):
            yield f"it is in the {kind}"
    for dataset, parts in deployed.items():
        if _has_one_of(files, _guarded(parts)):
            yield f"it has a file of the source of dataset {dataset}, or a copy of one"
        elif source.format == "delta" and _delta_id(source.path) in _delta_ids(parts):
            yield f"it is another version of a table of the source of dataset {dataset}"
    if _is_pinned(settings, table):
        yield "it has the content of a source that this deployment guards"
    elif any(_has_one_of(files, _declared_private(parts)) for parts in _ran(settings)):
        yield "a run has read it as private"


def _declared_private(parts: Parts) -> list[Path]:
    """The data files of the tables that a contract declares private; none where they are in a database.

    All files at a place whose tables are unknown.
    """
    linked = _linked(parts)
    if linked is None:
        return []
    directory = local_path(_source(parts).uri)
    try:
        places = tables_at(directory)
    except (SourceError, OSError):
        return _files_at(directory)
    if isinstance(places, DatabaseFile):
        return []
    found = (places[name] for name in linked.private if name in places)
    return [file for place in found if isinstance(place, Path) for file in _files_at(place)]


def _is_private(parts: Parts, database: Path, name: str) -> bool:
    """Whether a contract declares a table of a database file, or of a copy of it, as private: also as its only one.

    Of a query over several tables, which are private is not known: the ledger alone says whose they are.
    """
    if _source(parts).format == "sql":
        path = path_of(_source(parts))
        return path is not None and only_table(_source(parts)) == caseless(name) and _has_one_of([database], [path])
    linked = _linked(parts)
    return linked is not None and name in linked.private and _has_one_of([database], [local_path(_source(parts).uri)])


def _linked(parts: Parts) -> LinkedTables | None:
    """A contract's tables on this machine; None where they are invalid, or there are none."""
    with suppress(ContractError, OSError):
        if parts.tables and os.path.lexists(local_path(_source(parts).uri)):
            return linked_of(parts.tables, parts.privacy)
    return None


def _guarded(parts: Parts) -> list[Path]:
    """The data files of a contract's source on this machine, but for those of tables that it declares public."""
    source = _source(parts)
    if source.format == "sql":
        return []
    places = _private_places(parts)
    return _files(source)[1] if places is None else [file for place in places for file in _files_at(place)]


def _private_places(parts: Parts) -> list[Path] | None:
    """All in a directory of linked tables but the public ones, by their own names; None for other sources.

    What a public one's name links to is not left out: a private table may be there.
    """
    linked = _linked(parts)
    if linked is None:
        return None
    directory = local_path(_source(parts).uri)
    try:
        places = tables_at(directory)
        if isinstance(places, DatabaseFile):
            return None
        public = [places[name] for name in linked.lookups if name in places]
        return [place for place in directory.iterdir() if place not in public]
    except (SourceError, OSError):
        return None


def _delta_ids(parts: Parts) -> set[str | None]:
    """The ids of a source's private Delta tables."""
    places = _private_places(parts)
    return {_delta_id(place) for place in ([local_path(_source(parts).uri)] if places is None else places)} - {None}


def _delta_id(place: Path) -> str | None:
    """The id of a Delta table; None if there is no readable one."""
    from dpsynth_platform.sources.delta import open_delta

    with suppress(SourceError, OSError):
        return open_delta(str(place)).table_id if is_delta(place) else None
    return None


def _source(parts: Parts) -> Source:
    assert parts.source is not None  # noqa: S101  (`_deployed` asks)
    return parts.source


def _files(table: Source) -> tuple[Path, list[Path]]:
    """Where a table on this machine is, and its data files (`_files_at`); no files of another machine's table."""
    remote = "://" in table.uri.removeprefix("file://")
    place = Path(os.path.realpath(table.uri if remote else local_path(table.uri)))
    return place, [] if remote else _files_at(place)


def _files_at(place: Path) -> list[Path]:
    """The data files at a place, links followed, and those elsewhere that the log of a Delta table names."""
    from dpsynth_platform.sources.delta import open_delta

    place = Path(os.path.realpath(place))
    if place.is_file():
        return [place]
    found = [Path(here, name) for here, _, names in os.walk(place) for name in names]
    found = [file for file in found if file.name.casefold().endswith(_DATA)]
    if is_delta(place):
        with suppress(SourceError, OSError):
            found += open_delta(str(place)).table.local_files()
    return list(dict.fromkeys(Path(os.path.realpath(file)) for file in found))


def _has_one_of(files: Collection[Path], others: Collection[Path]) -> bool:
    """Whether two tables share a file, or have files of equal content. Files that cannot be read are not compared."""
    by_size: dict[int, list[Path]] = {}
    for file in files:
        with suppress(OSError):
            by_size.setdefault(file.stat().st_size, []).append(file)
    by_size.pop(0, None)
    for other in others:
        with suppress(OSError):
            same = by_size.get(other.stat().st_size, ())
            if any(file.samefile(other) for file in same):
                return True
            if same and digest_file(other) in map(digest_file, same):
                return True
    return False


def _deployed(settings: Settings) -> Iterator[tuple[str, Parts]]:
    """All deployed contracts whose part `source` is valid, with the names of their files."""
    for file in sorted(settings.contracts.glob("*.yaml")):
        with suppress(ContractError), fault_of(file):
            parts = draft_contract(read_yaml(file), settings.variables).parts
            if parts.source is not None:
                yield file.stem, parts


def _is_pinned(settings: Settings, table: Source) -> bool:
    """Whether a run has pinned this content as its source, at any place. A table that cannot be read is not known."""
    from dpsynth_platform.sources.delta import open_delta
    from dpsynth_platform.sources.file_versions import is_registered
    from dpsynth_platform.sources.plain_files import open_files

    place, _ = _files(table)
    delta = table.format == "delta" and not place.is_file()
    try:
        if delta:
            content = open_delta(table.uri).table_id
        elif place.is_file():  # whatever its format: a copy of a source may have another name
            content = digest_file(place)
        else:
            content = open_files(table, {}).files.content()
    except (SourceError, OSError):
        return False
    if not delta:
        return is_registered(settings.restricted, content)
    pinned = _pinned(settings)
    return any(content in (raw["source"].rpartition("@")[0], *raw.get("parts", ())) for raw in pinned)


def _ran(settings: Settings) -> Iterator[Parts]:
    """The contracts of tables and databases, as the last runs have sealed them: they may be others by now."""
    sealed = (raw["contract"] for raw in _pinned(settings))
    return (Parts.of(each) for each in sealed if each.get("tables") or each["source"].get("format") == "sql")


def _pinned(settings: Settings) -> Iterator[Mapping[str, Any]]:
    """What the last run of each place has recorded of its source and contract."""
    storage = Storage(settings.restricted)
    records = (storage.read(place, "raw") for place in storage.places())
    return (raw.facts for raw in records if raw is not None)
