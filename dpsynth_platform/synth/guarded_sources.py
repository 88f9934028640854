"""Whether a contract's public table is a guarded one, as far as the deployment's own files know.

What belongs here: the sources of all deployed contracts, also of those that never ran, and the contents that runs have
pinned. What does not: what lineage and ledger know (`lineage.clearance`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import draft_contract, fault_of
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.foundation.yaml_files import read_yaml


def check_public_table(settings: Settings, contract: DataContract) -> None:
    """Refuses a contract's public table with faults. Raises `ContractError`."""
    for fault in public_faults(settings, contract.generate.public) if contract.generate.public else ():
        raise ContractError(f"{contract.dataset}: generate.public.uri: {fault}")


def public_faults(settings: Settings, public: PublicRows) -> Iterator[str]:
    """A line if a table is at the place of a deployed contract's source, or has the content of a pinned source.

    A copy is recognized by its bytes, or a Delta table's own id. Reads no value.
    """
    for dataset, source in _deployed(settings):
        yield from public.faults(source, f"the source of dataset {dataset}")
    if _is_pinned(settings, public.source):
        yield (
            f"{public.uri!r} has the content of a source that this deployment guards; accepted: a table that is public"
        )


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
