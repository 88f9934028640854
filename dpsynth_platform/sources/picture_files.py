"""The bytes of one PNG, JPEG or WebP file: what is accepted of them, and what the decoder gets to read.

What belongs here: telling the format by its content, walking its parts, the limits, and the parts that are kept. What
does not: decoding (`pictures`).

The decoder gets a file that is put together anew of the parts that make the picture. Comments, profiles, XMP and EXIF
never reach it, so that none of them costs time or memory, or appears in a log of the decoder. Of EXIF the orientation
is read here.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dpsynth_platform.foundation.errors import SourceError

MOST_BYTES = 64_000_000
"""Of a file."""
MOST_PIXELS = 25_000_000
"""Height times width: decoding takes up to eighteen bytes a pixel, and up to 0.2 microseconds."""
MOST_PARTS = 20_000
"""Chunks or segments of a file."""
MOST_SCANS = 64
"""Of a JPEG: each goes over the whole picture, and encoders write about ten."""
MOST_SCANNED_PIXELS = 250_000_000
"""Scans of a JPEG, times its pixels."""

Format = Literal["PNG", "JPEG", "WEBP"]
KINDS: Mapping[str, str] = {
    "missing": "has no value",
    "path-only": "has a path instead of a file's bytes",
    "empty": "has no bytes",
    "file-too-large": f"is a file of more than {MOST_BYTES:,} bytes",
    "format-not-accepted": "is no PNG, JPEG or WebP file by its first bytes",
    "variant-not-accepted": "is of a rare variant of its format (such as arithmetic coding or 12 bits in a JPEG)",
    "truncated": "ends before its picture does",
    "damaged": "contradicts its format, or a checksum",
    "trailing-bytes": "has bytes behind the end of its picture",
    "animated": "has several frames",
    "no-pixels": "has a height or width of zero",
    "too-many-pixels": f"has more than {MOST_PIXELS:,} pixels",
    "too-complex": f"has more than {MOST_PARTS:,} parts, or too many scans for its size",
    "wrong-size": "has another height or width than declared",
    "wrong-length": "has another number of raw values than height times width times channels",
    "wrong-value": "has a raw value outside of 0 to 255",
}
"""Every kind of problem, in words. The list is public; which picture has which problem is not."""


class PictureProblem(SourceError):
    """One picture cannot be used; `kind` is one of `KINDS`, and the message has nothing of the picture."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"a picture {KINDS[kind]}; accepted: one whole PNG, JPEG or WebP picture of the declared form; write the "
            "picture anew, leave its row out, or declare another size or another `resize`"
        )
        self.kind = kind


@dataclass(frozen=True)
class PictureFile:
    """A file for the decoder.

    Attributes:
        format: as the decoder names it.
        content: the same picture without all that does not make it.
        size: width and height in pixels, before it is turned upright.
        orientation: EXIF's, 1 to 8; 1 where there is none.
    """

    format: Format
    content: bytes
    size: tuple[int, int]
    orientation: int


def checked(content: bytes) -> PictureFile:
    """The file for the decoder. Takes time linear in the number of bytes, and decodes nothing.

    Raises:
        PictureProblem: the file is not accepted.
    """
    if not content:
        raise PictureProblem("empty")
    if len(content) > MOST_BYTES:
        raise PictureProblem("file-too-large")
    for begin, read in ((_PNG, _png), (_JPEG, _jpeg)):
        if content.startswith(begin):
            return read(content)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp(content)
    raise PictureProblem("format-not-accepted")


# PNG ----------------------------------------------------------------------------------------------------------------

_PNG = b"\x89PNG\r\n\x1a\n"
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a channel, by colour type."""
_PALETTE = 3


def _png(content: bytes) -> PictureFile:
    """Chunks of length, name, content and checksum, up to IEND (PNG specification, section 5.3)."""
    kept = [_PNG]
    names: list[bytes] = []
    header, tiff, at = b"", b"", len(_PNG)
    while not names or names[-1] != b"IEND":
        if len(names) == MOST_PARTS:
            raise PictureProblem("too-complex")
        if len(content) < at + 12:
            raise PictureProblem("truncated")
        length, name = struct.unpack_from(">I4s", content, at)
        end = at + 12 + length
        if len(content) < end:
            raise PictureProblem("truncated")
        if zlib.crc32(memoryview(content)[at + 4 : end - 4]) != int.from_bytes(content[end - 4 : end], "big"):
            raise PictureProblem("damaged")
        if not names:
            header = _png_header(name, content[at + 8 : end - 4])
        if name in (b"IHDR", b"PLTE", b"IDAT", b"IEND") or (name == b"tRNS" and _is_useful(header, length)):
            if name != b"IDAT" and name in names:
                raise PictureProblem("damaged")
            if name == b"IDAT" and name in names and names[-1] != name:
                raise PictureProblem("damaged")
            kept.append(content[at:end])
        elif name in (b"acTL", b"fcTL", b"fdAT"):
            raise PictureProblem("animated")
        elif name == b"eXIf":
            tiff = content[at + 8 : end - 4]
        elif name[:1].isupper():
            raise PictureProblem("variant-not-accepted")
        names.append(name)
        at = end
    if at != len(content):
        raise PictureProblem("trailing-bytes")
    if b"IDAT" not in names or (header[9] == _PALETTE and b"PLTE" not in names):
        raise PictureProblem("damaged")
    size = struct.unpack(">II", header[:8])
    return PictureFile("PNG", b"".join(kept), (size[0], size[1]), _orientation(tiff))


def _png_header(name: bytes, header: bytes) -> bytes:
    if name != b"IHDR":
        raise PictureProblem("variant-not-accepted")
    if len(header) != 13:
        raise PictureProblem("damaged")
    width, height, depth, colours, compression, filters, interlacing = struct.unpack(">IIBBBBB", header)
    if depth not in _DEPTHS.get(colours, ()) or compression or filters or interlacing > 1:
        raise PictureProblem("damaged")
    _check_pixels(width, height)
    return header


def _is_useful(header: bytes, length: int) -> bool:
    """Whether transparency fits its picture. A transparent colour of 16 bits a channel is left out."""
    depth, colours = header[8], header[9]
    return depth < 16 and {0: length == 2, 2: length == 6, 3: 0 < length <= 256}.get(colours, False)


# JPEG ---------------------------------------------------------------------------------------------------------------

_JPEG = b"\xff\xd8\xff"
_MARKER = re.compile(rb"\xff(?=[^\x00\xd0-\xd7\xff])")
"""A marker in coded data: neither a stuffed byte nor a restart, and not a fill byte before it."""
_FILL = re.compile(rb"\xff*")
_START_OF_IMAGE, _END_OF_IMAGE, _SCAN, _EXIF, _ADOBE, _JFIF = 0xD8, 0xD9, 0xDA, 0xE1, 0xEE, 0xE0
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ACCEPTED_FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended sequential and progressive, coded by Huffman's method."""
_TABLES = (0xC4, 0xDB, 0xDD)


def _jpeg(content: bytes) -> PictureFile:
    """Segments of a marker and their content; coded data follows scans (ITU-T T.81, annex B)."""
    kept = [content[:2]]
    size: tuple[int, int] | None = None
    tiff, at, scans = b"", 2, 0
    for _ in range(MOST_PARTS):
        marker, body = _next_marker(content, at)
        if marker == _END_OF_IMAGE:
            if body != len(content):
                raise PictureProblem("trailing-bytes")
            if size is None or not scans:
                raise PictureProblem("damaged")
            return PictureFile("JPEG", b"".join([*kept, b"\xff\xd9"]), size, _orientation(tiff))
        if len(content) < body + 2:
            raise PictureProblem("truncated")
        end = body + int.from_bytes(content[body : body + 2], "big")
        if end < body + 2 or marker == _START_OF_IMAGE:
            raise PictureProblem("damaged")
        if len(content) < end:
            raise PictureProblem("truncated")
        at = end
        if marker in _FRAMES:
            if size is not None:
                raise PictureProblem("damaged")
            size = _frame_size(marker, content[body + 2 : end])
        elif marker == _SCAN:
            if size is None:
                raise PictureProblem("damaged")
            scans += 1
            if scans > MOST_SCANS or scans * size[0] * size[1] > MOST_SCANNED_PIXELS:
                raise PictureProblem("too-complex")
            found = _MARKER.search(content, end)
            if found is None:
                raise PictureProblem("truncated")
            at = found.start()
        elif marker == _EXIF and not tiff and content.startswith(b"Exif\0\0", body + 2):
            tiff = content[body + 8 : end]
        if marker in _FRAMES or marker in _TABLES or marker in (_SCAN, _ADOBE, _JFIF):
            kept += [bytes((0xFF, marker)), content[body:at]]
    raise PictureProblem("too-complex")


def _next_marker(content: bytes, at: int) -> tuple[int, int]:
    """The marker at `at`, and where its content begins."""
    fill = _FILL.match(content, at)
    end = fill.end() if fill else at
    if end >= len(content):
        raise PictureProblem("truncated")
    if end == at or content[end] in (0x00, 0x01, *range(0xD0, 0xD8)):
        raise PictureProblem("damaged")
    return content[end], end + 1


def _frame_size(marker: int, frame: bytes) -> tuple[int, int]:
    if marker not in _ACCEPTED_FRAMES:
        raise PictureProblem("variant-not-accepted")
    if len(frame) < 6:
        raise PictureProblem("damaged")
    bits, height, width, channels = struct.unpack_from(">BHHB", frame)
    if bits != 8 or channels not in (1, 3, 4):
        raise PictureProblem("variant-not-accepted")
    _check_pixels(width, height)
    return width, height


# WebP ---------------------------------------------------------------------------------------------------------------

_ICC_FLAG, _EXIF_FLAG, _XMP_FLAG, _ANIMATION_FLAG = 0x20, 0x08, 0x04, 0x02


def _webp(content: bytes) -> PictureFile:
    """Chunks of name, length and content, padded to even lengths (RFC 9649, section 2)."""
    whole = 8 + int.from_bytes(content[4:8], "little")
    if len(content) < whole:
        raise PictureProblem("truncated")
    if len(content) > whole:
        raise PictureProblem("trailing-bytes")
    kept: list[bytes] = []
    names: list[bytes] = []
    size: tuple[int, int] | None = None
    tiff, at = b"", 12
    while at < whole:
        if len(names) == MOST_PARTS:
            raise PictureProblem("too-complex")
        if whole < at + 8:
            raise PictureProblem("damaged")
        name, length = struct.unpack_from("<4sI", content, at)
        end = at + 8 + length + length % 2
        if whole < end:
            raise PictureProblem("damaged")
        body = content[at + 8 : at + 8 + length]
        if name in (b"ANIM", b"ANMF"):
            raise PictureProblem("animated")
        if name in (b"VP8X", b"VP8 ", b"VP8L", b"ALPH"):
            if name in names:
                raise PictureProblem("damaged")
            if name == b"VP8X":
                size, body = _webp_canvas(body)
            elif name != b"ALPH":
                coded = _webp_size(name, body)
                if size not in (None, coded):
                    raise PictureProblem("damaged")
                size = coded
            kept.append(struct.pack("<4sI", name, length) + body + bytes(length % 2))
        elif name == b"EXIF":
            tiff = body.removeprefix(b"Exif\0\0")
        names.append(name)
        at = end
    if size is None or (b"VP8 " in names) == (b"VP8L" in names):
        raise PictureProblem("damaged")
    written = b"WEBP" + b"".join(kept)
    return PictureFile("WEBP", struct.pack("<4sI", b"RIFF", len(written)) + written, size, _orientation(tiff))


def _webp_canvas(body: bytes) -> tuple[tuple[int, int], bytes]:
    """Size of an extended file, and its header without the flags of what is left out."""
    if len(body) != 10:
        raise PictureProblem("damaged")
    if body[0] & _ANIMATION_FLAG:
        raise PictureProblem("animated")
    width, height = (1 + int.from_bytes(body[at : at + 3], "little") for at in (4, 7))
    _check_pixels(width, height)
    return (width, height), bytes((body[0] & ~(_ICC_FLAG | _EXIF_FLAG | _XMP_FLAG),)) + body[1:]


def _webp_size(name: bytes, body: bytes) -> tuple[int, int]:
    if name == b"VP8L":
        if len(body) < 5 or body[0] != 0x2F:
            raise PictureProblem("damaged")
        bits = int.from_bytes(body[1:5], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        if len(body) < 10 or body[3:6] != b"\x9d\x01\x2a":
            raise PictureProblem("damaged")
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", body, 6))
    _check_pixels(width, height)
    return width, height


# All formats --------------------------------------------------------------------------------------------------------

_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION, _SHORT = 0x0112, 3
_MOST_TAGS = 200


def _check_pixels(width: int, height: int) -> None:
    if not width or not height:
        raise PictureProblem("no-pixels")
    if width * height > MOST_PIXELS:
        raise PictureProblem("too-many-pixels")


def _orientation(tiff: bytes) -> int:
    """EXIF's orientation; 1 (upright) where it is missing or unreadable (CIPA DC-008, section 4.6)."""
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return 1
    try:
        (first,) = struct.unpack_from(f"{order}I", tiff, 4)
        (tags,) = struct.unpack_from(f"{order}H", tiff, first)
        for index in range(min(tags, _MOST_TAGS)):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, first + 2 + 12 * index)
            if tag == _ORIENTATION and kind == _SHORT:
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1
