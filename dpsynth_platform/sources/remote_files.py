"""Plain files of an object store: a copy in the restricted zone, which is the version that a run reads.

What belongs here: finding the objects below a URI and copying them, by Arrow's file systems (`s3://`, `gs://`,
`abfss://`), which take credentials from the environment as the stores' own tools do. What does not: reading the copy
(`plain_files`), and Delta tables, which are read in the store (`delta`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.settings import s3_endpoint

_LOGS = ("_delta_log", ".hoodie")
_NOT_READ = (".", "_")
_PATIENCE = 30
"""Seconds in which Arrow repeats a request to Google's storage that fails; its own default is a quarter of an hour."""


def download(uri: str, names: tuple[str, ...], directory: Path) -> None:
    """Copies an object, or all objects below a prefix whose names end so and have no part that begins with `.` or `_`.

    Raises:
        SourceError: there are none, they belong to a table with a log, or they were changed meanwhile.
        OSError: the copy cannot be written.
    """
    try:
        store, path = opened(uri)
        objects = _objects(store, path, names)
        for item in objects:
            relative = _relative(item, path)
            target = directory.joinpath(*relative.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.copy_files(item.path, str(target), source_filesystem=store, destination_filesystem=fs.LocalFileSystem())
        if objects and _stamps(_objects(store, path, names)) != _stamps(objects):
            raise SourceError("the objects were changed while they were read; run again when nothing writes them")
        if objects:
            return
        problem = "there is no such object, and none below it"
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"the object store cannot be read ({reason_of(error)})"
    raise SourceError(f"{problem}; accepted: a URI that the credentials of this environment may read")


def opened(uri: str) -> tuple[fs.FileSystem, str]:
    """The object store, or this machine for a path, and the path in it. Raises `OSError` or `pa.ArrowException`."""
    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    endpoint, given = urlsplit(s3_endpoint()), {}
    if uri.startswith("s3://") and endpoint.netloc and "endpoint_override=" not in uri:
        given = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
    elif uri.startswith(("gs://", "gcs://")):
        given = {"retry_limit_seconds": str(_PATIENCE)}
    store, path = fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{urlencode(given)}" if given else uri)
    return store, path


def _objects(store: fs.FileSystem, path: str, names: tuple[str, ...]) -> list[fs.FileInfo]:
    """The objects with rows, in the order of their names."""
    parents = [parent for parent in PurePosixPath(path).parents if len(parent.parts) > 1]
    logs = [str(parent / log) for parent in (PurePosixPath(path), *parents) for log in _LOGS]
    if any(found.type != fs.FileType.NotFound for found in store.get_file_info(logs)):
        raise SourceError(
            "it is, or is part of, a table with a log, some of whose files may hold deleted rows; accepted: format: "
            "delta with that table's own URI, or plain files alone"
        )
    found = store.get_file_info(path)
    if found.type == fs.FileType.File:
        return [found]
    below = store.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted((item for item in below if _holds_rows(item, path, names)), key=lambda item: str(item.path))


def _holds_rows(item: fs.FileInfo, root: str, names: tuple[str, ...]) -> bool:
    parts = _relative(item, root).parts
    if any(part in _LOGS for part in parts):
        raise SourceError("a table with a log lies below it; accepted: plain files alone")
    hidden = any(part.startswith(_NOT_READ) for part in parts)
    return item.type == fs.FileType.File and not hidden and str(item.path).casefold().endswith(names)


def _relative(item: fs.FileInfo, root: str) -> PurePosixPath:
    path = PurePosixPath(item.path)
    relative = PurePosixPath(path.name) if str(path) == root.rstrip("/") else path.relative_to(root)
    if any(part in ("..", "/") for part in relative.parts):
        raise SourceError("an object's name has a part '..'; accepted: names without it")
    return relative


def _stamps(objects: Iterable[fs.FileInfo]) -> list[tuple[str, int, int]]:
    return [(item.path, item.size, item.mtime_ns) for item in objects]
