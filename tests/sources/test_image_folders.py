"""Directories of pictures as tables: class folders, metadata.csv, and what leads elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources.source import batches, pin, schema_of


def contract(directory: Path, **columns: Any) -> DataContract:
    image = {"type": "image", "size": [2, 2], "channels": 1, "accept_unscrubbed": "made up for tests"}
    return validated(
        DataContract,
        {
            "dataset": "photos",
            "description": "Photographs for tests.",
            "owners": ["tests@example.org"],
            "source": {"uri": str(directory), "format": "images", "key": ["file_name"]},
            "family": "tests",
            "privacy": {
                "unit": "example",
                "owner_columns": ["file_name"],
                "namespace": "photo",
                "max_contributions": 1,
                "guarantee": {"epsilon": 1.0, "delta": 1e-6},
                "expected_units": 1000,
            },
            "columns": {"file_name": {"type": "identifier"}, "photo": image} | columns,
            "generate": {"method": "image_moments", "rows": 10, "image": {"given": []}},
            "release": {"uri": "/elsewhere", "approvals": 1},
        },
        "photos",
    )


def read(directory: Path, zone: Path, **columns: Any) -> list[dict[str, Any]]:
    known = contract(directory, **columns)
    pinned = pin(known, zone, register=True)
    return [row for batch in batches(pinned, known, None) for row in batch.to_pylist()]


CLASSES = {"type": "categorical", "values": ["cat", "dog"]}


def test_class_folders_give_the_labels(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("cat/1.png", "cat/more/2.JPG", "dog/3.webp", "4.jpeg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    found = read(root, tmp_path / "zone", label=CLASSES)
    assert {(row["file_name"], row["label"]) for row in found} == {
        ("cat/1.png", "cat"),
        ("cat/more/2.JPG", "cat"),
        ("dog/3.webp", "dog"),
        ("4.jpeg", None),
    }
    assert all(row["photo"] == row["file_name"].encode() for row in found)


def test_metadata_has_the_other_columns(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    (root / "a").mkdir(parents=True)
    (root / "a" / "1.png").write_bytes(b"one")
    (root / "metadata.csv").write_text("file_name,label,age\na/1.png,cat,30\nnot/there.png,dog,\n")
    found = read(root, tmp_path / "zone", label=CLASSES, age={"type": "integer", "min": 0, "max": 99})
    assert found == [
        {"file_name": "a/1.png", "label": "cat", "age": 30, "photo": b"one"},
        {"file_name": "not/there.png", "label": "dog", "age": None, "photo": None},
    ]


def test_metadata_may_have_another_dialect(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    (root / "1.png").write_bytes(b"one")
    (root / "metadata.csv").write_bytes("file_name;label\n1.png;cat\n".encode("utf-16"))
    known = contract(root, label=CLASSES).snapshot()
    known["source"]["csv"] = {"separator": ";", "encoding": "utf-16"}
    again = validated(DataContract, known, "photos")
    pinned = pin(again, tmp_path / "zone", register=True)
    (batch,) = batches(pinned, again, None)
    assert batch.to_pylist() == [{"file_name": "1.png", "label": "cat", "photo": b"one"}]


@pytest.mark.parametrize("name", [".cat/1.png", "_cat/1.png", "cat/_1.png", "cat/.1.JPG"])
def test_no_picture_is_passed_over_for_its_name(tmp_path: Path, name: str) -> None:
    root = tmp_path / "photos"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b"one")
    (root / "2.png").write_bytes(b"two")
    with pytest.raises(SourceError, match=r"begins with \. or _"):
        schema_of(contract(root, label=CLASSES))


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../secret.png", "a//1.png"])
def test_no_name_in_metadata_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    root = tmp_path / "photos"
    (root / "a").mkdir(parents=True)
    (root / "a" / "1.png").write_bytes(b"one")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (root / "metadata.csv").write_text(f"file_name\n{name}\n")
    assert [row["photo"] for row in read(root, tmp_path / "zone")] == [None]


def test_a_changed_picture_is_another_version(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    (root / "1.png").write_bytes(b"one")
    label = {"label": {"ignore": True}}
    known = contract(root, **label)
    before = pin(known, tmp_path / "zone", register=True)
    assert pin(known, tmp_path / "zone", register=True).name == before.name
    (root / "1.png").write_bytes(b"two")
    assert pin(known, tmp_path / "zone", register=True).name != before.name
    with pytest.raises(SourceError, match="the files were changed since the version was pinned"):
        list(batches(before, known, None))


def test_what_is_no_directory_of_pictures_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    known = contract(root)
    with pytest.raises(SourceError, match="there is no directory of pictures at this place"):
        schema_of(known)
    (root / "metadata.csv").write_text("name,label\n1.png,cat\n")
    with pytest.raises(SourceError):
        schema_of(known)
    (root / "metadata.csv").write_text("file_name,photo\n1.png,cat\n")
    with pytest.raises(SourceError, match="which is the name of the column of pictures"):
        schema_of(known)


def test_another_file_in_the_directory_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    (root / "1.png").write_bytes(b"one")
    (root / "2.gif").write_bytes(b"two")
    with pytest.raises(SourceError, match="holds a file that is no picture by its name"):
        schema_of(contract(root, label={"ignore": True}))


def _other_file(root: Path) -> None:
    (root / "ward" / "zaphodina.gif").write_bytes(b"two")


def _packed(root: Path) -> None:
    (root / "ward" / "zaphodina.zip").write_bytes(b"two")


def _link(root: Path) -> None:
    (root / "ward" / "zaphodina.png").symlink_to(root / "1.png")


def _pipe(root: Path) -> None:
    os.mkfifo(root / "ward" / "zaphodina.png")


def _passed_over(root: Path) -> None:
    (root / "ward" / "_zaphodina.png").write_bytes(b"two")


@pytest.mark.parametrize("add", [_other_file, _packed, _link, _pipe, _passed_over])
def test_a_refusal_names_no_picture_and_says_how_to_find_it(tmp_path: Path, add: Callable[[Path], None]) -> None:
    root = tmp_path / "photos of o'brien"
    (root / "ward").mkdir(parents=True)
    (root / "1.png").write_bytes(b"one")
    (root / "metadata.csv").write_text("file_name\n1.png\n")
    add(root)
    with pytest.raises(SourceError, match="holds") as refused:
        schema_of(contract(root))
    said = str(refused.value)
    assert "zaphodina" not in said and "ward" not in said
    command = said[said.index("is not shown: ") + len("is not shown: ") :]
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert "zaphodina" in found.stdout and "1.png" not in found.stdout and "metadata.csv" not in found.stdout
