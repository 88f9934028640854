"""Names of datasets, jobs and runs, by OpenLineage's naming rules.

What belongs here: turning places and Dagster's ids into names. What does not: anything that reads the named object.
Names are deterministic, so that events of several processes about one object use one name.

Each output of a step gets a new directory. Its dataset is named after the directory above, which stays the same, and
its version is the last, random part. A version must not be a content hash: events are exported, and a plain hash of
restricted content is a function of the data.
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

JOB_NAMESPACE = "dpsynth"
PARENT_NAMESPACE: Final = "dagster"
COMMAND_NAMESPACE: Final = "dpsynth"
_RUN_IDS = uuid.UUID("6f0c3f0e-7d1c-5b0a-9a53-0d6c2b9d8f11")
_SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


@dataclass(frozen=True, order=True)
class DatasetName:
    """A physical dataset: `file` and an absolute path, or `s3://bucket` and a key."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


def dataset_name(place: str | Path) -> DatasetName:
    """The OpenLineage name of a path or URI.

    A local path (or `file://` URI) becomes namespace `file` and the absolute path, without following links. An object
    store's URI becomes scheme and bucket, and the key without slashes around it. Credentials, query and fragment of a
    URI are left out.
    """
    parts = urlsplit(place) if isinstance(place, str) else None
    if parts is None or not parts.scheme:
        return canonical(DatasetName("file", os.path.abspath(place)))  # noqa: PTH100 - Path.resolve would follow links
    if parts.scheme == "file":
        return canonical(DatasetName("file", os.path.abspath(unquote(parts.path))))  # noqa: PTH100
    return canonical(DatasetName(f"{parts.scheme}://{parts.netloc}", unquote(parts.path)))


def is_place(text: str) -> bool:
    """Whether a text is a path or URI, and no name."""
    return "://" in text or PurePath(text).is_absolute()


def canonical(name: DatasetName) -> DatasetName:
    """The canonical spelling of a name, so that a place is one node however producers spell it.

    For files and URIs: the scheme is in lower case and without aliases, credentials are removed, a path in the
    namespace moves to the name, and slashes are single and not at the ends. `..` is resolved in file names only: an
    object store takes it literally. Names of any other namespace stay unchanged.
    """
    scheme, divided, rest = name.namespace.partition("://")
    scheme = scheme.lower() if divided else scheme.lower().removesuffix(":")
    if not divided and scheme != "file":
        return name
    authority, _, above = rest.partition("/")
    path = "/".join(part for part in f"{above}/{name.name}".split("/") if part)
    if scheme == "file":
        host = "" if authority.lower() in ("", "localhost") else f"://{authority}"
        return DatasetName(f"file{host}", posixpath.normpath(f"/{path}"))
    scheme = _SCHEME_ALIASES.get(scheme, scheme)
    # abfss://container@account names a container before the '@'; elsewhere it would be a user and a password.
    authority = authority if scheme in ("abfs", "abfss") else authority.rpartition("@")[2]
    return DatasetName(f"{scheme}://{authority}", path or "/")


def output_name(directory: Path) -> tuple[DatasetName, str]:
    """Dataset name and version of a step's output directory (`storage.Storage.new_output`)."""
    return dataset_name(directory.parent), directory.name


def logical_name(dataset: str, step: str, period: str | None = None) -> DatasetName:
    """The name for people, in the symlinks facet: `dpsynth` and `census/model` or `visits/2026-01/model`."""
    return DatasetName(JOB_NAMESPACE, "/".join(part for part in (dataset, period, step) if part))


def job_name(dataset: str, step: str) -> str:
    """Name of a step's job in the namespace `dpsynth`, such as `census.model`."""
    return f"{dataset}.{step}"


def run_id(dagster_run_id: str, asset_key: str, attempt: int = 0, period: str | None = None) -> str:
    """The OpenLineage run id of one attempt at one asset (and period) in one Dagster run.

    A UUID of version 5 (RFC 9562): any process can compute it, so another process can close a run that was killed.
    """
    return str(uuid.uuid5(_RUN_IDS, "\n".join((dagster_run_id, asset_key, period or "", str(attempt)))))


def parent_run_id(dagster_run_id: str) -> str:
    """The Dagster run's id if it is a UUID, else a UUID that is derived from it."""
    try:
        return str(uuid.UUID(dagster_run_id))
    except ValueError:
        return str(uuid.uuid5(_RUN_IDS, dagster_run_id))


_SECRETS = re.compile(r'([a-z][a-z0-9+.-]{0,30}://)([^/\s"]*@)?([^\s?#;"]*)(?:[?#;][^\s"]*)?', re.IGNORECASE)
_CONTAINER = re.compile(r"abfss?://", re.IGNORECASE)


def without_secrets(value: Any) -> Any:
    """Another producer's report, without what may be a password in its addresses: user, query and fragment."""
    if isinstance(value, str):
        return _SECRETS.sub(_without_secret, value)
    if isinstance(value, Mapping):
        return {name: without_secrets(part) for name, part in value.items()}
    return [without_secrets(part) for part in value] if isinstance(value, list | tuple) else value


def _without_secret(found: re.Match[str]) -> str:
    # abfss://container@account names a container before the '@'; elsewhere it is a user.
    container = found[2] if found[2] and _CONTAINER.fullmatch(found[1]) and ":" not in found[2] else ""
    return f"{found[1]}{container}{found[3]}"
