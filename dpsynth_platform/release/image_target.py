"""The target `images`: each release as a directory of pictures, in the form that Hugging Face calls ImageFolder.

What belongs here: the pictures and `metadata.csv` of a release's table below `<release>/pictures`, and its documents
below `<release>/release`, apart from the pictures so that readers of folders find these alone. What does not: other
targets.

    <release>/pictures/metadata.csv             file_name, and the other columns; the table's own file_name is there
                                                as released_file_name
    <release>/pictures/<class>/<number>.png
    <release>/release/dossier.json, ...         the attestation comes last

Every file is compared with the signed table and written only where it differs, so that a crash is completed later.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.release.first_pictures import layout_of
from dpsynth_platform.release.target_files import SignedRelease, copy_files, digest_there
from dpsynth_platform.sources.remote_files import opened
from dpsynth_platform.synth.images.layout import NO_CLASS, ImageLayout

if TYPE_CHECKING:
    import pyarrow.fs as fs

PICTURES, DOCUMENTS = "pictures", "release"
"""Directories of a release."""
METADATA, FILE_NAME = "metadata.csv", "file_name"
_PLAIN = re.compile(r"[^A-Za-z0-9.-]+")


def put(target: Target, release: SignedRelease) -> bool:
    """Writes a release unless it is there; see `targets.put`."""
    store, place = opened(target.uri)
    root = f"{place.rstrip('/')}/{release.release_id}"
    dossier = json.loads(release.check(layout.DOSSIER).read_text(encoding="utf-8"))
    if "pictures" not in dossier["synthetic"]:
        raise PublicationFailed("the release has no pictures; accepted with format images: a contract that makes some")
    pictures = layout_of(dossier["synthetic"]["pictures"])
    written, table = False, io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for name, content, row in _rows(release, pictures):
        if content is None:
            rows.writerow(row)
            continue
        written |= _put(store, f"{root}/{PICTURES}/{name}", content)
        rows.writerow([name, *row])
    written |= _put(store, f"{root}/{PICTURES}/{METADATA}", table.getvalue().encode())
    documents = {name: f"{DOCUMENTS}/{name}" for name in release.documents}
    return copy_files(release, documents, store, root) or written


def _rows(release: SignedRelease, pictures: ImageLayout) -> Iterator[tuple[str, bytes | None, list[Any]]]:
    """Name, file and other values of each row, after the names of all columns."""
    import pyarrow.parquet as pq

    folders = [f"{number:03d}-{_PLAIN.sub('_', name)[:40]}" for number, name in enumerate(pictures.names)]
    number, names = 0, None
    for file in sorted(release.table_files):
        for batch in pq.ParquetFile(release.check(file)).iter_batches(batch_size=1000):
            if names is None:
                names = [name for name in batch.schema.names if name != pictures.column]
                yield "", None, [FILE_NAME, *_named_apart(names)]
            values = zip(*(batch.column(name).to_pylist() for name in names), strict=True) if names else iter(())
            others = list(values) or [()] * batch.num_rows
            files = batch.column(pictures.column).to_pylist()
            for place, content, row in zip(pictures.classes_of(batch).tolist(), files, others, strict=True):
                number += 1
                folder = "other" if place == NO_CLASS else folders[place]
                yield f"{folder}/{number:07d}.png", content, ["" if value is None else value for value in row]


def _named_apart(names: list[str]) -> list[str]:
    """Names of the table's columns beside `file_name`: one of that name, as a source of pictures has, gets another."""
    other = f"released_{FILE_NAME}"
    while other in names:
        other = f"_{other}"
    return [other if name == FILE_NAME else name for name in names]


def _put(store: fs.FileSystem, path: str, content: bytes) -> bool:
    """Writes a file unless it is there. Returns whether it was not."""
    if digest_there(store, path) == hashlib.sha256(content).hexdigest():
        return False
    if store.type_name == "local":
        store.create_dir(str(Path(path).parent), recursive=True)
    with store.open_output_stream(path) as file:
        file.write(content)
    if store.type_name == "local":
        for made in (Path(path), Path(path).parent):
            made.chmod(0o755 if made.is_dir() else 0o644)
    return True
