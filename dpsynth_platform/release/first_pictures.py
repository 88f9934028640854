"""The first published pictures of each class, as one picture in a file of its own.

What belongs here: collecting them from the table's rows, their description in the dossier, and comparing a sheet with a
table. What does not: choosing pictures by what they show; they are the first that were drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.contact_sheet import MOST_CLASSES, MOST_EACH, ContactSheet
from dpsynth_platform.foundation.release_layout import SHEET
from dpsynth_platform.sources.pictures import decoded
from dpsynth_platform.synth.images.layout import NO_CLASS, ImageLayout


class FirstPictures:
    """Collects up to `MOST_EACH` pictures of each of the first `MOST_CLASSES` classes, batch by batch."""

    def __init__(self, contract: DataContract) -> None:
        self._layout = ImageLayout.of(contract)
        self._unscrubbed = contract.image.accept_unscrubbed
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

    def to_json(self) -> dict[str, Any]:
        """The dossier's `synthetic.pictures`."""
        form, number = self._layout.form, self._layout.number
        return {
            "column": self._layout.column,
            "height": form.height,
            "width": form.width,
            "channels": form.channels,
            "media_type": "image/png",
            "sheet": SHEET,
            "classes": list(self._layout.names[: len(self._found)]),
            "classes_not_shown": number - len(self._found),
            "unscrubbed": self._unscrubbed,
        }


def shows(sheet: bytes, contract: DataContract, batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether a sheet is that of a table's rows: the same pixels, whatever wrote the file.

    Raises:
        PictureProblem: a file in the table is no picture of the form.
    """
    found = FirstPictures(contract)
    for batch in batches:
        found.add(batch)
    return bool(np.array_equal(_pixels(sheet), _pixels(found.sheet())))


def _pixels(sheet: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(sheet), formats=["PNG"]) as image:
        return np.asarray(image)
