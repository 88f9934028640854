"""A contact sheet is verified as readers see it: colours, frames and notes included; a hostile file is a finding."""

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, PngImagePlugin

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.release.first_pictures import FirstPictures, shows
from dpsynth_platform.sources.pictures import encoded
from dpsynth_platform.synth.images.layout import ImageLayout

LAYOUT = ImageLayout("picture", ImageForm(20, 20, 1))


def table() -> pa.RecordBatch:
    pictures = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 1), dtype=np.uint8)
    return pa.record_batch({"picture": pa.array([encoded(picture, "png") for picture in pictures])})


def sheet(kind: str) -> bytes:
    """A sheet whose first values are those of the table's, and that shows something else."""
    found = FirstPictures(LAYOUT)
    found.add(table())
    image, written = Image.open(io.BytesIO(found.sheet())), io.BytesIO()
    image.load()
    if kind == "another palette":
        other = Image.frombytes("P", image.size, image.tobytes())
        other.putpalette([value for index in range(256) for value in (255 - index, 7, index * 37 % 256)])
        other.save(written, "PNG")
    elif kind == "a second frame":
        image.save(written, "PNG", save_all=True, append_images=[Image.new("L", image.size, 99)])
    elif kind == "a note":
        info = PngImagePlugin.PngInfo()
        info.add_text("note", "what no row of the table has")
        image.save(written, "PNG", pnginfo=info)
    return written.getvalue()


@pytest.mark.parametrize("kind", ["another palette", "a second frame", "a note"])
def test_a_sheet_that_shows_or_holds_more_than_the_table_is_not_its_own(kind: str) -> None:
    assert not shows(sheet(kind), LAYOUT, [table()])


def test_a_bomb_is_no_sheet() -> None:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    with suppress(OSError, ValueError):  # the verification reports these
        assert not shows(bomb, LAYOUT, [table()])
