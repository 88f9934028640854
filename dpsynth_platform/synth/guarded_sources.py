"""Whether a contract's public table is a guarded one, as far as the deployment's own files know.

What belongs here: the platform's own restricted files, the sources of all deployed contracts, also of those that never
ran, and the contents that runs have pinned. What does not: what lineage and ledger know (`lineage.clearance`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import draft_contract, fault_of
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.foundation.yaml_files import read_yaml

_DATA = (".parquet", ".parq", ".pq", ".csv", ".tsv")


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
    for dataset, source in deployed:
        yield from public.faults(source, f"the source of dataset {dataset}")
    if _is_pinned(settings, public.source):
        yield (
            f"{public.uri!r} has the content of a source that this deployment guards; accepted: a table that is public"
        )
    for dataset, source in deployed:
        if source.format != "sql" and _has_one_of(files, _files(source)[1]):
            yield (
                f"{public.uri!r} has a file of the source of dataset {dataset}, or a copy of one; accepted: a table "
                "that is public, apart from all sources"
            )


def _files(table: Source) -> tuple[Path, list[Path]]:
    """Where a table on this machine is, and its data files, links followed; no files of another machine's table."""
    remote = "://" in table.uri.removeprefix("file://")
    place = Path(os.path.realpath(table.uri if remote else local_path(table.uri)))
    if remote or place.is_file():
        return place, [] if remote else [place]
    inside = (Path(here, name) for here, _, names in os.walk(place) for name in names)
    return place, [Path(os.path.realpath(file)) for file in inside if file.name.casefold().endswith(_DATA)]


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


def _deployed(settings: Settings) -> Iterator[tuple[str, Source]]:
    """The sources of all deployed contracts whose part `source` is valid, with the names of their files."""
    for file in sorted(settings.contracts.glob("*.yaml")):
        with suppress(ContractError), fault_of(file):
            source = draft_contract(read_yaml(file), settings.variables).parts.source
            if source is not None:
                yield file.stem, source


def _is_pinned(settings: Settings, table: Source) -> bool:
    """Whether a run has pinned this content as its source, at any place. A table that cannot be read is not known."""
    from dpsynth_platform.sources.delta import open_delta
    from dpsynth_platform.sources.file_versions import is_registered
    from dpsynth_platform.sources.plain_files import open_files

    try:
        delta = table.format == "delta"
        content = open_delta(table.uri).table_id if delta else open_files(table, {}).files.content()
    except (SourceError, OSError):
        return False
    if not delta:
        return is_registered(settings.restricted, content)
    storage = Storage(settings.restricted)
    records = (storage.read(place, "raw") for place in storage.places())
    return any(raw is not None and raw.facts["source"].rpartition("@")[0] == content for raw in records)
