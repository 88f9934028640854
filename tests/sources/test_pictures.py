"""Decoding: each odd file is a problem of one kind or a defined picture, in bounded time and memory."""

from __future__ import annotations

import io
import logging
import random
import struct
import subprocess
import sys
import time
import warnings
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.sources import picture_files
from dpsynth_platform.sources.picture_files import KINDS, PictureProblem
from dpsynth_platform.sources.pictures import decoded, encoded, read_pictures

GREY, COLOURS = ImageForm(20, 24, 1), ImageForm(20, 24, 3)
NAME = b"Erika Mustermann, 53.5511 N"


def smooth(form: ImageForm = COLOURS) -> np.ndarray:
    """A picture that lossy formats keep nearly."""
    y, x, c = np.mgrid[: form.height, : form.width, : form.channels]
    return (20 + 5 * x + 4 * y + 15 * c).astype(np.uint8)


def saved(image: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def image(form: ImageForm = COLOURS) -> Any:
    return Image.fromarray(smooth(form).squeeze())


PNG, JPEG, WEBP = saved(image(), "PNG"), saved(image(), "JPEG", quality=95), saved(image(), "WEBP", lossless=True)
PROGRESSIVE = saved(image(), "JPEG", progressive=True)
LOSSY = saved(image(), "WEBP", quality=95)
FILES = {"png": PNG, "jpeg": JPEG, "progressive": PROGRESSIVE, "webp": WEBP, "lossy": LOSSY}


def chunk(name: bytes, body: bytes = b"", crc: int | None = None) -> bytes:
    checksum = zlib.crc32(name + body) if crc is None else crc
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)


def header(width: int, height: int, depth: int = 8, colours: int = 2, interlacing: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, interlacing))


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND")


def data(rows: np.ndarray) -> bytes:
    """An IDAT of rows, shape (height, bytes)."""
    return chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)))


def with_chunks(*chunks: bytes) -> bytes:
    """The PNG with chunks behind its header."""
    return PNG[:33] + b"".join(chunks) + PNG[33:]


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def with_segments(*segments: bytes, of: bytes = JPEG) -> bytes:
    return of[:2] + b"".join(segments) + of[2:]


def tiff(orientation: int, order: str = "<") -> bytes:
    begin = b"II*\0" if order == "<" else b"MM\0*"
    return begin + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WEBP" + b"".join(struct.pack("<4sI", *(n, len(b))) + b + bytes(len(b) % 2) for n, b in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def vp8l(file: bytes = WEBP) -> bytes:
    return file[20 : 20 + int.from_bytes(file[16:20], "little")]


def vp8x(flags: int, width: int = 24, height: int = 20) -> tuple[bytes, bytes]:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"VP8X", bytes((flags, 0, 0, 0)) + sides


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.html", "<script>alert(1)</script>")
    return file.getvalue()


def frames(kind: str) -> bytes:
    first, second = image(), Image.new("RGB", (24, 20), (9, 9, 9))
    return saved(first, kind, save_all=True, append_images=[second], duration=10)


def scans(count: int) -> bytes:
    """A progressive file that repeats its last scan."""
    start = PROGRESSIVE.rindex(b"\xff\xda")
    return PROGRESSIVE[:start] + PROGRESSIVE[start:-2] * count + PROGRESSIVE[-2:]


def patched(file: bytes, at: int, value: bytes) -> bytes:
    return file[:at] + value + file[at + len(value) :]


def sized_jpeg(width: int, height: int) -> bytes:
    return patched(JPEG, JPEG.index(b"\xff\xc0") + 5, struct.pack(">HH", height, width))


TINY = chunk(b"IDAT", zlib.compress(bytes(100)))
BAD: dict[str, tuple[str, bytes]] = {
    "nothing": ("empty", b""),
    "one byte": ("format-not-accepted", b"\x89"),
    "text": ("format-not-accepted", b"no picture at all"),
    "zeros": ("format-not-accepted", bytes(1000)),
    "svg": ("format-not-accepted", b'<svg xmlns="http://www.w3.org/2000/svg"/>'),
    "html": ("format-not-accepted", b"<!DOCTYPE html><img src=x>"),
    "pdf": ("format-not-accepted", b"%PDF-1.7\n%%EOF"),
    "postscript": ("format-not-accepted", b"%!PS-Adobe-3.0 EPSF-3.0\n"),
    "psd": ("format-not-accepted", b"8BPS\0\1" + bytes(40)),
    "heic": ("format-not-accepted", b"\0\0\0\x18ftypheic" + bytes(40)),
    "gif": ("format-not-accepted", saved(image().convert("P"), "GIF")),
    "bmp": ("format-not-accepted", saved(image(), "BMP")),
    "tiff": ("format-not-accepted", saved(image(), "TIFF")),
    "ico": ("format-not-accepted", saved(image(), "ICO")),
    "jpeg 2000": ("format-not-accepted", saved(image(), "JPEG2000")),
    "zip": ("format-not-accepted", zipped()),
    "wave": ("format-not-accepted", b"RIFF\x24\0\0\0WAVEfmt " + bytes(40)),
    "html before a png": ("format-not-accepted", b"<html>" + PNG),
    "png of 0 x 0": ("no-pixels", png(header(0, 0), TINY)),
    "png of 24 x 0": ("no-pixels", png(header(24, 0), TINY)),
    "jpeg of 24 x 0": ("no-pixels", sized_jpeg(24, 0)),
    "png bomb": ("too-many-pixels", png(header(100_000, 100_000), TINY)),
    "jpeg bomb": ("too-many-pixels", sized_jpeg(65_000, 65_000)),
    "webp bomb": ("too-many-pixels", riff(vp8x(0, 1 << 24, 1 << 24), (b"VP8L", vp8l()))),
    "webp bomb inside": ("too-many-pixels", riff((b"VP8L", b"\x2f\xff\xff\xff\x0f" + vp8l()[5:]))),
    "webp of two sizes": ("damaged", riff(vp8x(0, 25, 20), (b"VP8L", vp8l()))),
    "webp of nothing": ("damaged", riff()),
    "webp of a canvas": ("damaged", riff(vp8x(0))),
    "webp twice": ("damaged", riff((b"VP8L", vp8l()), (b"VP8L", vp8l()))),
    "wrong checksum": ("damaged", png(header(24, 20), chunk(b"IDAT", b"x", crc=1))),
    "wrong checksum of a text": ("damaged", with_chunks(chunk(b"tEXt", b"a\0b", crc=1))),
    "png without data": ("damaged", png(header(24, 20))),
    "png with short data": ("damaged", png(header(24, 20), TINY)),
    "png with garbage for data": ("damaged", png(header(24, 20), chunk(b"IDAT", b"garbage"))),
    "png of 3 bits": ("damaged", png(header(24, 20, depth=3), TINY)),
    "png of colour type 5": ("damaged", png(header(24, 20, colours=5), TINY)),
    "palette that is missing": ("damaged", png(header(24, 20, colours=3), TINY)),
    "two headers": ("damaged", with_chunks(header(24, 20))),
    "data in two places": ("damaged", PNG[:-12] + chunk(b"tEXt", b"a\0b") + TINY + PNG[-12:]),
    "other first chunk": ("variant-not-accepted", png(chunk(b"CgBI", bytes(4)), header(24, 20), TINY)),
    "unknown critical chunk": ("variant-not-accepted", with_chunks(chunk(b"ABCD", b"x"))),
    "zip behind a png": ("trailing-bytes", PNG + zipped()),
    "html behind a jpeg": ("trailing-bytes", JPEG + b"<script>alert(1)</script>"),
    "line end behind a png": ("trailing-bytes", PNG + b"\n"),
    "zip behind a webp": ("trailing-bytes", WEBP + zipped()),
    "two jpegs": ("trailing-bytes", JPEG + JPEG),
    "animated png": ("animated", frames("PNG")),
    "animated webp": ("animated", frames("WEBP")),
    "animated webp by flag": ("animated", riff(vp8x(2), (b"VP8L", vp8l()))),
    "jpeg of a marker": ("truncated", b"\xff\xd8\xff"),
    "jpeg without a frame": ("damaged", b"\xff\xd8\xff\xd9"),
    "jpeg without a scan": ("damaged", JPEG[: JPEG.index(b"\xff\xda")] + b"\xff\xd9"),
    "jpeg without tables": ("damaged", JPEG[:2] + JPEG[JPEG.index(b"\xff\xc0") :]),
    "jpeg of fill bytes": ("truncated", b"\xff\xd8" + b"\xff" * 2_000_000),
    "jpeg of fill bytes in a scan": ("truncated", JPEG[:-2] + b"\xff" * 2_000_000 + b"\0"),
    "arithmetic coding": ("variant-not-accepted", JPEG.replace(b"\xff\xc0", b"\xff\xc9", 1)),
    "lossless jpeg": ("variant-not-accepted", JPEG.replace(b"\xff\xc0", b"\xff\xc3", 1)),
    "jpeg of 12 bits": ("variant-not-accepted", patched(JPEG, JPEG.index(b"\xff\xc0") + 4, b"\x0c")),
    "2,000 scans": ("too-complex", scans(2_000)),
    "many chunks": ("too-complex", with_chunks(*[chunk(b"tEXt", b"a\0b")] * 20_001)),
    "many segments": ("too-complex", with_segments(*[segment(0xFE, b"")] * 20_001)),
    "other width": ("wrong-size", saved(image(ImageForm(20, 25, 3)), "PNG")),
    "one pixel": ("wrong-size", saved(Image.new("RGB", (1, 1)), "PNG")),
    "turned": ("wrong-size", with_segments(segment(0xE1, b"Exif\0\0" + tiff(6)))),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_problems_of_one_kind(name: str) -> None:
    kind, content = BAD[name]
    began = time.process_time()
    with pytest.raises(PictureProblem) as found:
        decoded(content, COLOURS, "refuse")
    assert time.process_time() - began < 1
    assert found.value.kind == kind
    assert found.value.kind in KINDS and KINDS[kind] in str(found.value)
    assert found.value.__context__ is None and found.value.__cause__ is None


def test_a_file_over_the_limit_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_files, "MOST_BYTES", len(PNG) - 1)
    with pytest.raises(PictureProblem) as found:
        decoded(PNG, COLOURS, "refuse")
    assert found.value.kind == "file-too-large"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("tenth", range(1, 10))
def test_truncated_files_are_refused(name: str, tenth: int) -> None:
    content = FILES[name][: len(FILES[name]) * tenth // 10]
    signature = {"png": 8, "webp": 12, "lossy": 12}.get(name, 3)
    with pytest.raises(PictureProblem) as found:
        decoded(content, COLOURS, "refuse")
    assert found.value.kind == ("truncated" if len(content) >= signature else "format-not-accepted")


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_raise_nothing_else(name: str) -> None:
    """Each of 300 files has bytes changed; none prints, warns, or raises another exception."""
    changes = random.Random(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            content = bytearray(FILES[name])
            for _ in range(changes.randint(1, 4)):
                content[changes.randrange(len(content))] = changes.randrange(256)
            try:
                found = decoded(bytes(content), COLOURS, "crop")
            except PictureProblem as problem:
                assert problem.kind in KINDS
            else:
                assert found.shape == COLOURS.shape


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_format_are_read(name: str) -> None:
    far = 0 if name in ("png", "webp") else 6
    assert np.abs(decoded(FILES[name], COLOURS, "refuse").astype(int) - smooth()).max() <= far


def test_lossy_webp_and_webp_with_transparency_are_read() -> None:
    lossy = decoded(saved(image(), "WEBP", quality=95), COLOURS, "refuse")
    assert np.abs(lossy.astype(int) - smooth()).mean() < 4
    clear = Image.merge("RGBA", (*image().split(), Image.new("L", (24, 20), 0)))
    for options in ({"lossless": True}, {"quality": 90}):
        assert (decoded(saved(clear, "WEBP", **options), COLOURS, "refuse") == 255).all()


def test_grey_becomes_three_channels_and_colours_become_luma() -> None:
    grey = saved(image(GREY), "PNG")
    assert (decoded(grey, COLOURS, "refuse") == smooth(GREY)).all()
    luma = smooth() @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decoded(PNG, GREY, "refuse")[:, :, 0] - luma).max() <= 1


def test_one_bit_two_bits_and_four_bits_span_the_whole_range() -> None:
    for depth in (1, 2, 4):
        levels = 2**depth
        rows = np.tile(np.arange(8) % levels, (2, 1))
        packed = np.packbits(
            np.stack([rows >> bit & 1 for bit in reversed(range(depth))], axis=-1).reshape(2, -1), axis=1
        )
        found = decoded(png(header(8, 2, depth, 0), data(packed)), ImageForm(2, 8, 1), "refuse")
        assert (found[:, :, 0] == rows * 255 // (levels - 1)).all()


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    values = np.array([[0, 255, 256, 32_768, 65_535]], dtype=">u2")
    form = ImageForm(1, 5, 1)
    grey = png(header(5, 1, 16, 0), chunk(b"tRNS", b"\xff\xff"), data(values))
    assert decoded(grey, form, "refuse").ravel().tolist() == [0, 0, 1, 128, 255]
    assert decoded(grey, ImageForm(1, 5, 3), "refuse")[0, :, 2].tolist() == [0, 0, 1, 128, 255]
    coloured = png(header(5, 1, 16, 2), chunk(b"tRNS", bytes(6)), data(np.repeat(values, 3, axis=1)))
    assert decoded(coloured, form, "refuse").ravel().tolist() == [0, 0, 1, 128, 255]
    alpha = np.stack([values, np.full_like(values, 65_535)], axis=-1).reshape(1, -1).astype(">u2")
    assert decoded(png(header(5, 1, 16, 4), data(alpha)), form, "refuse").ravel().tolist() == [0, 0, 1, 128, 255]


def test_transparent_parts_show_white() -> None:
    form = ImageForm(1, 3, 3)
    pixels = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [0, 0, 0, 128]]], dtype=np.uint8)
    shown = [[200, 100, 0], [255, 255, 255], [127, 127, 127]]
    assert decoded(saved(Image.fromarray(pixels), "PNG"), form, "refuse")[0].tolist() == shown
    grey = saved(Image.fromarray(np.ascontiguousarray(pixels[:, :, ::3])), "PNG")
    assert decoded(grey, ImageForm(1, 3, 1), "refuse").ravel().tolist() == [200, 255, 127]
    palette = png(
        header(3, 1, 8, 3),
        chunk(b"PLTE", bytes((200, 100, 0, 1, 2, 3, 0, 0, 0))),
        chunk(b"tRNS", bytes((255, 0, 128))),
        data(np.array([[0, 1, 2]], dtype=np.uint8)),
    )
    assert decoded(palette, form, "refuse")[0].tolist() == shown
    key = png(header(2, 1, 8, 0), chunk(b"tRNS", b"\0\7"), data(np.array([[7, 8]], dtype=np.uint8)))
    assert decoded(key, ImageForm(1, 2, 1), "refuse").ravel().tolist() == [255, 8]
    large = Image.new("RGBA", (3, 1_000), (9, 9, 9, 0))
    assert (decoded(saved(large, "PNG"), ImageForm(1_000, 3, 3), "refuse") == 255).all()


def test_palettes_interlacing_and_cmyk_are_read() -> None:
    found = decoded(saved(image().quantize(256), "PNG"), COLOURS, "refuse")
    assert np.abs(found.astype(int) - smooth()).mean() < 8
    raster = np.arange(16, dtype=np.uint8).reshape(4, 4)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [raster[top::down, left::right] for top, left, down, right in passes]
    lines = b"".join(b"\0" + line.tobytes() for part in parts if part.size for line in part)
    woven = png(header(4, 4, 8, 0, interlacing=1), chunk(b"IDAT", zlib.compress(lines)))
    assert (decoded(woven, ImageForm(4, 4, 1), "refuse")[:, :, 0] == raster).all()
    cmyk = saved(Image.new("CMYK", (24, 20), (255, 0, 0, 0)), "JPEG", quality=95)
    assert np.abs(decoded(cmyk, COLOURS, "refuse").astype(int) - [0, 255, 255]).max() <= 4
    assert decoded(cmyk, GREY, "refuse").shape == GREY.shape


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, order: str) -> None:
    """The files hold what makes the same picture upright, by the table of the EXIF standard."""
    upright = smooth(COLOURS)
    across = upright.transpose(1, 0, 2)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: across,
        6: across[::-1],
        7: across[::-1, ::-1],
        8: across[:, ::-1],
    }[orientation]
    tags = tiff(orientation, order)
    kept = Image.fromarray(np.ascontiguousarray(stored))
    plain = saved(kept, "PNG")
    assert (decoded(plain[:33] + chunk(b"eXIf", tags) + plain[33:], COLOURS, "refuse") == upright).all()
    webp = riff(vp8x(8, *kept.size), (b"VP8L", vp8l(saved(kept, "WEBP", lossless=True))), (b"EXIF", tags))
    assert (decoded(webp, COLOURS, "refuse") == upright).all()
    jpeg = with_segments(segment(0xE1, b"Exif\0\0" + tags), of=saved(kept, "JPEG", quality=95))
    assert np.abs(decoded(jpeg, COLOURS, "refuse").astype(int) - upright).max() <= 6


@pytest.mark.parametrize("tags", [tiff(0), tiff(9), tiff(6)[:17], b"II*\0\xff\xff\xff\xff", b"garbage", b""])
def test_unreadable_exif_is_ignored(tags: bytes) -> None:
    assert (decoded(with_chunks(chunk(b"eXIf", tags)), COLOURS, "refuse") == smooth()).all()


def test_metadata_and_profiles_are_neither_used_nor_logged(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    logging.getLogger("PIL").setLevel(logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    giant = zlib.compress(bytes(200_000_000), 9)
    bombs = [
        chunk(b"iCCP", b"profile\0\0" + giant),
        chunk(b"zTXt", b"Author\0\0" + giant),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + giant),
        chunk(b"tEXt", b"Author\0" + NAME),
        chunk(b"gAMA", struct.pack(">I", 1)),
    ]
    began = time.process_time()
    assert (decoded(with_chunks(*bombs), COLOURS, "refuse") == smooth()).all()
    assert time.process_time() - began < 1
    jpeg = with_segments(
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + NAME),
        segment(0xE1, b"Exif\0\0" + tiff(1) + NAME),
        segment(0xE2, b"ICC_PROFILE\0\1\1" + NAME),
        segment(0xFE, NAME),
    )
    assert (decoded(jpeg, COLOURS, "refuse") == decoded(JPEG, COLOURS, "refuse")).all()
    webp = riff(vp8x(0x2C), (b"ICCP", NAME), (b"VP8L", vp8l()), (b"EXIF", NAME), (b"XMP ", NAME), (b"junk", NAME))
    assert (decoded(webp, COLOURS, "refuse") == smooth()).all()
    for file in (jpeg, webp, with_chunks(*bombs)):
        assert NAME not in picture_files.checked(file).content
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_fit_keeps_all_and_crop_fills_all() -> None:
    wide = Image.new("RGB", (80, 20), (200, 0, 0))
    wide.paste((0, 200, 0), (30, 0, 50, 20))
    file = saved(wide, "PNG")
    fitted = decoded(file, ImageForm(20, 20, 3), "fit")
    assert fitted.shape == (20, 20, 3)
    assert not fitted[:7].any() and not fitted[13:].any()  # 80 x 20 become 20 x 5
    assert (fitted[8:12, 0] == [200, 0, 0]).all() and (fitted[8:12, 10] == [0, 200, 0]).all()
    assert (decoded(file, ImageForm(20, 20, 3), "crop") == [0, 200, 0]).all()
    halves = saved(Image.fromarray(np.array([[0, 100], [100, 200]], dtype=np.uint8)), "PNG")
    assert decoded(halves, ImageForm(1, 1, 1), "fit").ravel().tolist() == [100]
    larger = decoded(saved(Image.new("L", (2, 2), 77), "PNG"), ImageForm(9, 5, 1), "crop")
    assert (larger == 77).all()
    line = decoded(saved(Image.new("L", (4_000, 1), 255), "PNG"), ImageForm(8, 8, 1), "fit")
    assert line.any(axis=1).sum() == 1


@pytest.mark.parametrize("form", [GREY, COLOURS, ImageForm(1, 1, 1), ImageForm(3, 200, 3)])
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_encoding_is_lossless_and_repeatable(form: ImageForm, kind: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, form.shape, dtype=np.uint8)
    file = encoded(pixels, kind)
    assert (decoded(file, form, "refuse") == pixels).all()
    assert encoded(pixels.copy(), kind) == file
    names = [b"IHDR", b"IDAT", b"IEND"] if kind == "png" else [b"VP8L"]
    others = [b"tEXt", b"iTXt", b"tIME", b"eXIf", b"EXIF", b"XMP ", b"ICCP", b"iCCP", b"VP8X"]
    assert all(name in file for name in names) and not any(name in file for name in others)


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2), (0, 2, 3), (1, 2, 2, 3)])
def test_other_shapes_are_not_encoded(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="accepted"):
        encoded(np.zeros(shape, dtype=np.uint8), "png")


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_columns_of_files_are_read(type_: pa.DataType) -> None:
    column = pa.array([PNG, None, b"", b"text", JPEG, PNG[:50], WEBP], type_)
    pixels, good, kinds = read_pictures(column, COLOURS, "refuse", raw=False)
    assert good.tolist() == [True, False, False, False, True, False, True]
    assert (pixels[[0, 2]] == smooth()).all() and pixels.shape == (3, 20, 24, 3)
    assert kinds == Counter({"missing": 1, "empty": 1, "format-not-accepted": 1, "truncated": 1})


def test_columns_of_hugging_face_are_read_and_paths_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "real.png").write_bytes(PNG)
    rows = [{"bytes": PNG, "path": "a.png"}, {"bytes": None, "path": str(tmp_path / "real.png")}, None, {"bytes": None}]
    column = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    for each in (column, pa.chunked_array([column])):
        pixels, good, kinds = read_pictures(each, COLOURS, "refuse", raw=False)
        assert len(pixels) == 1 and good.tolist() == [True, False, False, False]
        assert kinds == Counter({"missing": 2, "path-only": 1})


RAW = [smooth(GREY).tobytes(), smooth(GREY).tobytes()[::-1]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(RAW, pa.binary(480)),
        pa.array([*RAW, b"short", None]),
        pa.array([list(each) for each in [*RAW, b"short"]] + [[None] * 480], pa.list_(pa.uint8())),
        pa.array([list(each) for each in RAW], pa.list_(pa.uint8(), 480)),
        pa.array([*map(list, RAW), None], pa.large_list(pa.uint8())),
    ],
)
def test_columns_of_raw_values_are_read(column: pa.Array) -> None:
    pixels, good, kinds = read_pictures(column, GREY, "refuse", raw=True)
    assert [picture.tobytes() for picture in pixels] == RAW
    assert good[:2].all() and not good[2:].any() and set(kinds) <= {"missing", "wrong-length"}
    assert kinds.total() == len(column) - 2


def test_columns_without_good_pictures_give_no_pixels() -> None:
    pixels, good, kinds = read_pictures(pa.array([None, b"x"], pa.binary()), GREY, "refuse", raw=False)
    assert pixels.shape == (0, 20, 24, 1) and not good.any() and kinds.total() == 2
    assert read_pictures(pa.array([], pa.binary()), GREY, "refuse", raw=False)[0].shape == (0, 20, 24, 1)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "type_", [pa.string(), pa.int64(), pa.list_(pa.float64()), pa.struct([("path", pa.string())]), pa.null()]
)
def test_columns_of_other_types_are_refused(type_: pa.DataType, raw: bool) -> None:
    with pytest.raises(SourceError, match="accepted"):
        read_pictures(pa.nulls(1, type_), GREY, "refuse", raw=raw)


MEMORY = """
import re, sys
from pathlib import Path
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.sources.pictures import decoded
def peak():
    return int(re.search("VmHWM: *\\t* *([0-9]+)", Path("/proc/self/status").read_text())[1])
peaks = []
for name in sys.argv[1:]:
    assert decoded(Path(name).read_bytes(), ImageForm(8, 8, 3), "fit").shape == (8, 8, 3)
    peaks.append(peak())
print(peaks[1] - peaks[0])
"""


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("JPEG", {"progressive": True, "subsampling": 0}), ("WEBP", {"lossless": True, "method": 0})],
)
def test_large_pictures_take_bounded_memory(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    mode = "RGB" if kind == "JPEG" else "RGBA"
    large = Image.new(mode, (2_500, 2_500), (10, 20, 30, 40)[: len(mode)])
    (tmp_path / "file").write_bytes(saved(large, kind, **options))
    (tmp_path / "small").write_bytes(PNG)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "file")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(found.stdout) * 1024 < 20 * 2_500**2 + 10_000_000


@pytest.mark.parametrize("type_", [pa.list_(pa.uint8()), pa.list_(pa.int64()), pa.list_(pa.list_(pa.int16(), 3), 2)])
def test_raw_values_are_read_from_lists_of_any_whole_numbers(type_: pa.DataType) -> None:
    """A Delta table has no unsigned bytes, and pandas writes 64-bit numbers."""
    nested = pa.types.is_fixed_size_list(type_)
    row: list[Any] = [[1, 2, 255], [0, 7, 9]] if nested else [1, 2, 255, 0, 7, 9]
    pixels, good, kinds = read_pictures(pa.array([row, None], type_), ImageForm(2, 3, 1), "refuse", True)
    assert pixels.ravel().tolist() == [1, 2, 255, 0, 7, 9]
    assert good.tolist() == [True, False] and kinds == {"missing": 1}


def test_raw_values_beyond_a_byte_are_a_problem() -> None:
    column = pa.array([[1, 256], [-1, 0], [0, 255]], pa.list_(pa.int64()))
    _, good, kinds = read_pictures(column, ImageForm(1, 2, 1), "refuse", True)
    assert good.tolist() == [False, False, True] and kinds == {"wrong-value": 2}
