"""Contact sheets: a few pictures of each class, as one PNG and as markup for a page without scripts.

What belongs here: which pictures are shown, and drawing them in bounded size. What does not: where a sheet may be
shown; it holds whole pictures, so it is as public or as restricted as they are.

The same pictures and names give the same sheet. It has no metadata.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import ImageForm, Pixels

if TYPE_CHECKING:
    from PIL import Image

MOST_CLASSES = 50
MOST_EACH = 10
"""Pictures of a class."""
MOST_SIDE = 64
"""Pixels of a picture's longer side; longer ones are scaled down."""
MOST_BYTES = 300_000
"""Of the PNG or of the markup. Pictures are scaled down until they fit, and then fewer of each class are shown."""
_LEAST_SIDE = 8
_SHOWN_SIDE = 48
"""Smaller pictures are shown with larger pixels, a whole number of times."""
_GAP, _NAME_WIDTH, _LONGEST_NAME, _FONT = 2, 136, 20, 13
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that no page may hold, or that turn the direction of the text behind them."""
_T = TypeVar("_T", str, bytes)


@dataclass(frozen=True)
class ContactSheet:
    """Rows of pictures, each with its name.

    Attributes:
        rows: name and pictures, of one form.
        left_out: classes that are not shown.
    """

    rows: tuple[tuple[str, Pixels], ...]
    left_out: int = 0

    def png(self, *, named: bool = True) -> bytes:
        """The sheet as one picture, at most `MOST_BYTES`.

        Args:
            named: whether names stand on its left, in the library's own font, which draws other letters than those of
                ASCII as boxes.
        """
        return _bounded(lambda side, each: self._png(side, each, named=named))

    def html(self, pictures: str = "synthetic pictures") -> str:
        """The sheet as a table with one inline picture a row, at most `MOST_BYTES`; `pictures` says what they are.

        Names are escaped. The table needs no style, script or file beside it.
        """
        return _bounded(lambda side, each: self._html(side, each, pictures))

    def _html(self, side: int, each: int, pictures: str) -> str:
        lines = []
        for name, found in self.rows:
            words = escape(_shown(name))
            drawn = "none"
            if len(found):
                strip = _strip(found[:each], side)
                factor = _factor(_tile(_form(found), side))
                data = base64.b64encode(_written(strip)).decode()
                alt = f"{min(len(found), each)} {escape(pictures)}: {words}"
                drawn = (
                    f'<img src="data:image/png;base64,{data}" width="{strip.width * factor}" '
                    f'height="{strip.height * factor}" alt="{alt}" style="image-rendering: pixelated; max-width: 100%">'
                )
            lines.append(f'<tr><th scope="row">{words}</th><td>{drawn}</td></tr>')
        more = f"<p>{self.left_out} more classes are not shown.</p>" if self.left_out else ""
        return f'<table class="contact-sheet"><tbody>{"".join(lines)}</tbody></table>{more}'

    def _png(self, side: int, each: int, *, named: bool) -> bytes:
        from PIL import Image, ImageDraw, ImageFont

        font = ImageFont.load_default(_FONT)
        strips = []
        for _, found in self.rows:
            strip = _strip(found[:each], side) if len(found) else Image.new("L", (1, _FONT), 255)
            factor = _factor(_tile(_form(found), side))
            strips.append(strip.resize((strip.width * factor, strip.height * factor), Image.Resampling.NEAREST))
        heights = [max(strip.height, _FONT + 4) + _GAP for strip in strips]
        margin = _NAME_WIDTH if named else 0
        width = margin + max((strip.width for strip in strips), default=1)
        coloured = any(strip.mode == "RGB" for strip in strips)
        sheet = Image.new("RGB" if coloured else "L", (width, max(1, sum(heights))), "white")
        draw = ImageDraw.Draw(sheet)
        top = 0
        for (name, _), strip, height in zip(self.rows, strips, heights, strict=True):
            if named:
                draw.text((4, top + (height - _FONT) // 2 - 2), _short(name), fill="black", font=font)
            sheet.paste(strip, (margin, top))
            top += height
        return _written(sheet)


def as_svg(png: bytes, title: str) -> str:
    """A PNG as an SVG with the picture inline, of its own size at most.

    Args:
        png: of at least its header.
        title: says what it shows.
    """
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    data = base64.b64encode(png).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="max-width:{width}px">'
        f'<title>{escape(_shown(title))}</title><image width="{width}" height="{height}" '
        f'href="data:image/png;base64,{data}"/></svg>'
    )


def contact_sheet(
    pixels: Pixels, labels: npt.NDArray[np.integer] | None, names: Sequence[str], each: int = MOST_EACH
) -> ContactSheet:
    """The first pictures of each class.

    Args:
        pixels: shape (pictures, height, width, channels).
        labels: indices into `names`, shape (pictures,); None: all are of the only class.
        names: of the classes, in the order of the rows.
        each: pictures of a class, at most `MOST_EACH`.
    """
    each = min(each, MOST_EACH)
    rows = []
    for index, name in enumerate(names[:MOST_CLASSES]):
        places = np.flatnonzero(labels == index)[:each] if labels is not None else np.arange(min(each, len(pixels)))
        rows.append((name, pixels[places]))
    return ContactSheet(tuple(rows), max(0, len(names) - MOST_CLASSES))


def _bounded(draw: Callable[[int, int], _T]) -> _T:
    """The drawing with the largest side, and then with most of each class, that is at most `MOST_BYTES`."""
    side, each = MOST_SIDE, MOST_EACH
    drawn = draw(side, each)
    while len(drawn) > MOST_BYTES and (side, each) != (_LEAST_SIDE, 1):
        if side > _LEAST_SIDE:
            side = max(_LEAST_SIDE, min(side - 1, int(side * (MOST_BYTES / len(drawn)) ** 0.5)))
        else:
            each -= 1
        drawn = draw(side, each)
    return drawn


def _form(pixels: Pixels) -> ImageForm:
    return ImageForm(*pixels.shape[1:])


def _tile(form: ImageForm, side: int) -> tuple[int, int]:
    """Height and width of a picture on the sheet, before its pixels are made larger."""
    scale = min(1.0, side / max(form.height, form.width))
    return max(1, round(form.height * scale)), max(1, round(form.width * scale))


def _factor(tile: tuple[int, int]) -> int:
    return max(1, _SHOWN_SIDE // max(tile))


def _strip(pixels: Pixels, side: int) -> Image.Image:
    """Pictures from left to right, with gaps."""
    from PIL import Image

    height, width = _tile(_form(pixels), side)
    grey = pixels.shape[3] == 1
    strip = Image.new("L" if grey else "RGB", (len(pixels) * (width + _GAP) - _GAP, height), "white")
    for place, picture in enumerate(pixels):
        image = Image.fromarray(np.ascontiguousarray(picture[:, :, 0] if grey else picture))
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BOX)
        strip.paste(image, (place * (width + _GAP), 0))
    return strip


def _written(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _shown(name: str) -> str:
    return _CONTROL.sub("\ufffd", name)


def _short(name: str) -> str:
    shown = _shown(name)
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 1] + "\u2026"
