"""The form of an image column's pictures, which is public: height, width and channels.

What belongs here: the form, and pictures as rows of bytes. What does not: encoded files (`sources.pictures`). Contracts
have forms, so numerical libraries load late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


@dataclass(frozen=True)
class ImageForm:
    """Height and width in pixels, and channels: 1 (grey) or 3 (red, green, blue). Raises `ValueError` for others."""

    height: int
    width: int
    channels: int

    def __post_init__(self) -> None:
        if not all(type(number) is int for number in self.shape):  # 4.0 equals 4, and is no number of pixels
            raise ValueError("a size of pictures that is no whole number")

    @property
    def values(self) -> int:
        """Bytes of a picture."""
        return self.height * self.width * self.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    def read(self, column: pa.Array) -> npt.NDArray[np.uint8]:
        """The pictures of a binary column without nulls, each of `values` bytes; shape (rows, height, width, channels).

        Raises:
            ValueError: a picture has another number of bytes.
        """
        import numpy as np

        pictures = column.to_pylist()
        if any(len(picture) != self.values for picture in pictures):
            raise ValueError(f"a picture has not {self.values} bytes")
        return np.frombuffer(b"".join(pictures), dtype=np.uint8).reshape(-1, *self.shape)

    def stored(self, pixels: npt.NDArray[np.uint8]) -> pa.Array:
        """The inverse of `read`."""
        import pyarrow as pa

        return pa.array([picture.tobytes() for picture in pixels], pa.binary())
