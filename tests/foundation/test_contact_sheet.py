"""Contact sheets show what they are given, within their bounds, and nothing else."""

from __future__ import annotations

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from dpsynth_platform.foundation.contact_sheet import MOST_BYTES, MOST_CLASSES, ContactSheet, contact_sheet


def pictures(count: int, height: int = 8, width: int = 8, channels: int = 1) -> np.ndarray:
    """Picture i has all values i."""
    values = np.arange(count, dtype=np.uint8)[:, None, None, None]
    return np.broadcast_to(values, (count, height, width, channels)).copy()


def strips(markup: str) -> list[np.ndarray]:
    found = re.findall('src="data:image/png;base64,([^"]+)"', markup)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def test_the_first_pictures_of_each_class_are_shown_in_order() -> None:
    labels = np.arange(40) % 3
    markup = contact_sheet(pictures(40), labels, ["zero", "one", "two", "none"], 4).html()
    shown = [strip[0, ::10].tolist() for strip in strips(markup)]  # eight pixels and a gap of two
    assert shown == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    rows = ElementTree.fromstring(markup.replace('100%">', '100%"/>'))
    assert [row.text for row in rows.iter("th")] == ["zero", "one", "two", "none"]
    assert [cell.text for cell in rows.iter("td")] == [None, None, None, "none"]
    assert {image.get("alt") for image in rows.iter("img")} == {
        f"4 synthetic pictures: {n}" for n in ("zero", "one", "two")
    }


def test_pictures_without_labels_are_of_one_class() -> None:
    sheet = contact_sheet(pictures(40), None, ["all"])
    assert [len(found) for _, found in sheet.rows] == [10]


def test_names_are_escaped() -> None:
    hostile = "<script>alert(1)</script>\" onerror='x' \u202e\x00"
    markup = contact_sheet(pictures(1), np.zeros(1, int), [hostile]).html("<b>")
    assert "<script" not in markup and "<b>" not in markup and "\u202e" not in markup and "\x00" not in markup
    assert re.findall(" on[a-z]+=", markup) == [] or "&quot; onerror=&#x27;" in markup
    contact_sheet(pictures(1), np.zeros(1, int), [hostile, "\u65e5\u672c", "", "x" * 500]).png()


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (32, 3), (100, 3)])
def test_sheets_of_noise_stay_within_their_bounds(side: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    classes = MOST_CLASSES + 7
    pixels = rng.integers(0, 256, (classes * 10, side, side, channels), dtype=np.uint8)
    sheet = contact_sheet(pixels, np.repeat(np.arange(classes), 10), [f"class {at}" for at in range(classes)], 99)
    markup, png = sheet.html(), sheet.png()
    assert len(markup) <= MOST_BYTES and len(png) <= MOST_BYTES
    assert len(markup) > MOST_BYTES / 3  # nothing was scaled down more than needed
    assert len(strips(markup)) == MOST_CLASSES and "7 more classes" in markup


def test_the_png_shows_the_same_pictures_beside_their_names() -> None:
    pixels = np.zeros((2, 48, 48, 3), dtype=np.uint8)
    pixels[0, ..., 0], pixels[1, ..., 2] = 255, 255
    sheet = ContactSheet((("red", pixels[:1]), ("blue", pixels[1:])))
    with Image.open(io.BytesIO(sheet.png())) as image:
        assert image.format == "PNG" and not image.info
        shown = np.asarray(image)
    assert (shown[:48, -48:] == [255, 0, 0]).all() and (shown[50:98, -48:] == [0, 0, 255]).all()
    assert (shown[:48, :60] != 255).any()  # a name
    assert sheet.png() == ContactSheet(sheet.rows).png()


def test_small_pictures_get_larger_pixels_and_large_ones_fewer() -> None:
    with Image.open(io.BytesIO(ContactSheet((("a", pictures(3)[1:2]),)).png())) as image:
        assert (np.asarray(image)[:48, -48:] == 1).all()
    (strip,) = strips(ContactSheet((("a", pictures(1, 100, 400, 3)),)).html())
    assert strip.shape == (16, 64, 3)


def test_a_sheet_of_nothing_is_drawn() -> None:
    assert ContactSheet(()).html() and ContactSheet(()).png()
    assert ContactSheet((("a", pictures(0)),)).png()
