"""The first published pictures of each class, as one picture in a file of its own.

What belongs here: collecting them from the table's rows, their description in the dossier, and comparing a sheet with a
table. What does not: choosing pictures by what they show; they are the first that were drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.foundation.contact_sheet import MOST_CLASSES, MOST_EACH, ContactSheet
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.release_layout import SHEET
from dpsynth_platform.sources.picture_files import PictureProblem, checked
from dpsynth_platform.sources.pictures import decoded
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.images.layout import NO_CLASS, ImageLayout


class FirstPictures:
    """Collects up to `MOST_EACH` pictures of each of the first `MOST_CLASSES` classes, batch by batch."""

    def __init__(self, layout: ImageLayout) -> None:
        self._layout = layout
        self._found: dict[int, list[Any]] = {number: [] for number in range(min(MOST_CLASSES, self._layout.number))}

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes what is still wanted. Raises `PictureProblem` for a file that is no picture of the form."""
        wanted = {number for number, found in self._found.items() if len(found) < MOST_EACH}
        if not wanted:
            return
        pictures = batch.column(self._layout.column)
        for row, number in enumerate(self._layout.classes_of(batch).tolist()):
            if number != NO_CLASS and number in wanted and pictures[row].is_valid:
                self._found[number].append(decoded(pictures[row].as_py(), self._layout.form, "refuse"))
                if len(self._found[number]) == MOST_EACH:
                    wanted.remove(number)
                    if not wanted:
                        return

    def sheet(self) -> bytes:
        """A PNG: one class a row, without names."""
        names, shape = self._layout.names, (0, *self._layout.form.shape)
        rows = (
            (names[number], np.stack(found) if found else np.zeros(shape, np.uint8))
            for number, found in self._found.items()
        )
        return ContactSheet(tuple(rows)).png(named=False)

    def to_json(self, unscrubbed: str | None) -> dict[str, Any]:
        """The dossier's `synthetic.pictures`.

        Args:
            unscrubbed: why it was accepted that what pictures show is not scrubbed.
        """
        form, number = self._layout.form, self._layout.number
        return {
            "column": self._layout.column,
            "height": form.height,
            "width": form.width,
            "channels": form.channels,
            "media_type": "image/png",
            "sheet": SHEET,
            "conditions": [
                {"column": condition.column, "values": list(condition.values)} for condition in self._layout.conditions
            ],
            "classes": list(self._layout.names[: len(self._found)]),
            "classes_not_shown": number - len(self._found),
            "unscrubbed": unscrubbed,
        }


def layout_of(pictures: Mapping[str, Any]) -> ImageLayout:
    """The layout of a dossier's `synthetic.pictures`."""
    form = ImageForm(pictures["height"], pictures["width"], pictures["channels"])
    conditions = (Condition(part["column"], tuple(part["values"])) for part in pictures["conditions"])
    return ImageLayout(pictures["column"], form, tuple(conditions))


def shows(sheet: bytes, layout: ImageLayout, batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether a sheet is that of a table's rows: the same pixels, whatever wrote the file, and nothing besides.

    Raises:
        PictureProblem: a file in the table is no picture of the form.
    """
    found = FirstPictures(layout)
    for batch in batches:
        found.add(batch)
    try:
        given = checked(sheet)
    except PictureProblem:
        return False
    made = found.sheet()
    if given.size != checked(made).size or given.content != sheet:
        return False
    own, other = _shown(made), _shown(sheet)
    return own[0] == other[0] and bool(np.array_equal(own[1], other[1]))


def _shown(sheet: bytes) -> tuple[str, Any]:
    """The mode and the pixels of a checked file."""
    from PIL import Image

    with Image.open(io.BytesIO(sheet), formats=["PNG"]) as image:
        return image.mode, np.asarray(image)
