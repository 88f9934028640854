"""The target `images`: a directory of pictures whose `metadata.csv` readers of tables accept."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.release import image_target
from dpsynth_platform.release.target_files import SignedRelease

CLASSES = ["cat", "dog"]


def picture(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), level).save(file, "PNG")
    return file.getvalue()


def release(directory: Path, **columns: list[Any]) -> SignedRelease:
    """Two pictures, a dog's and a cat's, with further columns."""
    (directory / layout.DATA).mkdir(parents=True)
    table = pa.table(columns | {"label": ["dog", "cat"], "photo": [picture(1), picture(2)]})
    pq.write_table(table, directory / layout.DATA / "part.parquet")
    conditions = [{"column": "label", "values": CLASSES}]
    form = {"column": "photo", "height": 2, "width": 2, "channels": 1}
    dossier = {"synthetic": {"pictures": form | {"conditions": conditions}}}
    (directory / layout.DOSSIER).write_text(json.dumps(dossier))
    names = [f"{layout.DATA}/part.parquet", layout.DOSSIER]
    digests = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in names}
    return SignedRelease("photos-1", "photos", None, directory, {"": 2}, digests)


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        ({"id": ["a", "b"]}, ["file_name", "id", "label"]),
        ({"file_name": ["a", "b"]}, ["file_name", "released_file_name", "label"]),
        (
            {"file_name": ["a", "b"], "released_file_name": ["c", "d"]},
            ["file_name", "_released_file_name", "released_file_name", "label"],
        ),
    ],
)
def test_metadata_names_each_picture_and_no_column_twice(
    tmp_path: Path, columns: dict[str, list[Any]], header: list[str]
) -> None:
    signed, target = release(tmp_path / "release", **columns), Target(uri=str(tmp_path / "out"), format="images")
    assert image_target.put(target, signed)
    assert not image_target.put(target, signed)
    root = tmp_path / "out" / "photos-1" / "pictures"
    first, *rows = csv.reader((root / "metadata.csv").read_text().splitlines())
    assert first == header
    assert [row[0] for row in rows] == ["001-dog/0000001.png", "000-cat/0000002.png"]
    assert [(root / row[0]).read_bytes() for row in rows] == [picture(1), picture(2)]
    assert [row[1] for row in rows] == ["a", "b"]
