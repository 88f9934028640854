"""The pictures of a table, decoded: only pixels remain.

What belongs here: replacing a column of files by pixels of the declared form, leaving out rows without a readable
picture, and the refusal of a column that hardly holds any. What does not: decoding (`sources.pictures`).

Whether a row is left out depends on that row only. As with other values (`owners`), a run stops only if values of
`LEAST_OWNERS` owners or more are the reason; the privacy statement lists that as an access that is not covered.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.owners import ColumnOwners, OwnerCount
from dpsynth_platform.sources.pictures import read_pictures


class PictureReader:
    """Decodes the contract's image column, batch by batch; does nothing where there is none.

    Attributes:
        column: its name, or None.
        left_out: rows that were left out, by kind of the picture's fault.
    """

    def __init__(self, contract: DataContract) -> None:
        self.column = contract.image_column
        self._dataset = contract.dataset
        self._declared = None if self.column is None else contract.image
        self._in_folder = contract.source.format == "images"
        self.left_out: Counter[str] = Counter()
        self._read, self._unread = OwnerCount(), OwnerCount()

    @property
    def bytes_per_row(self) -> int:
        """Of the pixels; 0 without pictures."""
        return 0 if self._declared is None else self._declared.form.values

    def read(self, batch: pa.RecordBatch, owners: ColumnOwners) -> tuple[pa.RecordBatch, ColumnOwners]:
        """The rows with a readable picture, as pixels, and their owners.

        Raises:
            SourceError: the contract refuses damaged pictures, and enough owners have one.
        """
        declared = self._declared
        if declared is None:
            return batch, owners
        place = batch.schema.get_field_index(str(self.column))
        pixels, readable, faults = read_pictures(
            batch.column(place), declared.form, declared.resize, raw=declared.stored == "raw"
        )
        self.left_out.update(faults)
        for row, good in enumerate(readable.tolist()):
            count = self._read if good else self._unread
            if not count.enough:
                count.add(owners[row])
        if declared.damaged == "refuse" and self._unread.enough:
            raise SourceError(self._fault("rows without a readable picture of the declared form"))
        mask = pa.array(readable)
        kept = batch.filter(mask).set_column(
            place, pa.field(str(self.column), pa.binary()), declared.form.stored(pixels)
        )
        return kept, ColumnOwners(owners.column.filter(mask))

    def check(self) -> None:
        """Raises `SourceError` if hardly any picture could be read. Shows no count and no value."""
        if self._unread.enough and not self._read.enough:
            raise SourceError(self._fault("none, or hardly any, of its values is a picture of the declared form"))

    def _fault(self, what: str) -> str:
        declared = self._declared
        assert declared is not None  # noqa: S101  (only pictures have faults)
        form = declared.form
        resize = "" if declared.resize != "refuse" else ", or resize: fit or crop for pictures of other sizes"
        raw, named = f" (stored: files) or {form.values} bytes each (stored: raw)", ""
        if self._in_folder:
            raw, named = "", "; a file_name of metadata.csv is a path below the directory"
        out = "; or damaged: leave-out" if declared.damaged == "refuse" else ""
        return (
            f"{self._dataset}: columns.{self.column}: {what}; accepted: PNG, JPEG or WebP files{raw} "
            f"of {form.height} x {form.width} pixels{resize}{named}{out}"
        )
