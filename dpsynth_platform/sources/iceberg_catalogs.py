"""Catalogs of Iceberg tables, whose answers and tables are data, and neither programs nor settings of this machine.

What belongs here: making pyiceberg's client of a catalog. What does not: which catalog gets credentials (`iceberg`).

pyiceberg takes what a catalog answers, and the properties of its tables, for settings. Some of them name a function
that it calls, or the host that gets credentials of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable
from requests import Session

from dpsynth_platform.foundation.errors import SourceError

_CONFIGURED_ONLY = re.compile(
    r"auth|ssl|(.*\.)?py-.*|adls\.(account-host|connection-string|.*-authority|.*-scheme)|"
    r"gcs\.(endpoint|service\.host|session-kwargs)|hf\.endpoint|hdfs\..*"
)
_AZURE_ACCOUNT = "adls.account-name"
"""Becomes a part of a host's name, as it is."""


def load(name: str, uri: str, configured: Mapping[str, Any]) -> Catalog:
    """A catalog's client.

    Args:
        configured: what the environment says of it.

    Raises `SourceError` if the catalog's answer has a setting that only the environment may have, and later so does
    what opens a table; else as pyiceberg does.
    """
    given = {"uri": uri, "init_catalog_tables": "false"}
    kind = str(configured.get("type", "rest" if uri.startswith("http") else "")).lower()
    catalog: Any = _RestCatalog(name, **{**configured, **given}) if kind == "rest" else load_catalog(name, **given)
    catalog._load_file_io = _checking(catalog._load_file_io, configured)
    found: Catalog = catalog
    return found


def load_file(uri: str) -> StaticTable:
    """The table of a metadata file, which is read once. Raises as `load` does, for the table's properties."""
    if not uri.endswith(".metadata.json"):
        uri = StaticTable._metadata_location_from_version_hint(uri)
    metadata = FromInputFile.table_metadata(load_file_io({}, uri).new_input(uri))
    _check(metadata.properties, {})
    files = load_file_io(dict(metadata.properties), uri)
    return StaticTable(("static-table", uri), metadata, uri, files, NoopCatalog("static-table"))


class _RestCatalog(RestCatalog):
    def __init__(self, name: str, **configured: Any) -> None:
        self._configured = configured
        super().__init__(name, **configured)

    def _create_session(self) -> Session:
        _check(self.properties, self._configured)
        return super()._create_session()


def _checking(load_file_io: Callable[..., FileIO], configured: Mapping[str, Any]) -> Callable[..., FileIO]:
    def checked(properties: Mapping[str, Any] | None = None, location: str | None = None) -> FileIO:
        _check(properties or {}, configured)
        return load_file_io(properties or {}, location)

    return checked


def _check(found: Mapping[str, Any], configured: Mapping[str, Any]) -> None:
    for name, value in found.items():
        if configured.get(name) != value and (_CONFIGURED_ONLY.fullmatch(name) or _is_odd_account(name, value)):
            raise SourceError(
                "the catalog's answer, or the table's properties, have a setting that names a program or a host for "
                "credentials (it is not shown); accepted: such settings in PYICEBERG_CATALOG__NAME__... or pyiceberg's "
                "file alone, for this URI"
            )


def _is_odd_account(name: str, value: Any) -> bool:
    return name == _AZURE_ACCOUNT and not re.fullmatch("[a-z0-9]*", str(value))
