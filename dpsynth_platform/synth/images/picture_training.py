"""Trains a network on pictures: its records, and how they are read.

What belongs here: the records of such a training. What does not: the order of a training's parts
(`synth.network_training`), and what is trained: a network with its loss, rows and gate (`diffusion_training`,
`gan_network`).
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.storage import EXAMPLES
from dpsynth_platform.privacy.events import Sampled
from dpsynth_platform.synth.images.diffusion_loss import as_records
from dpsynth_platform.synth.images.layout import Classes, ImageLayout, Pictures
from dpsynth_platform.synth.images.picture_codecs import Codec
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.synth.network_training import Prepared, TrainedNetwork, train_network, units_by_owner
from dpsynth_platform.training.interface import Batch

_PIXELS = "pixels.u1"


class TrainedPictures(TrainedNetwork, Protocol):
    """What a training needs of sealed parameters. Public."""

    @property
    def layout(self) -> ImageLayout: ...


@dataclass(frozen=True, kw_only=True)
class PreparedPictures(Prepared):
    """A network that learns from pictures; `codec` is from pictures to what it learns."""

    codec: Codec


class PictureRecords:
    """The records of a training, `training.interface.Examples`. Sensitive, including their number.

    Args:
        pixels: or latents; shape (records, height, width, channels).
        classes: shape (records,).
        owners: a number for each record's owner; None where they are not needed.
        draws: rows of a record.
    """

    def __init__(
        self, pixels: npt.NDArray[Any], classes: Classes, owners: npt.NDArray[np.int64] | None = None, draws: int = 1
    ) -> None:
        self._pixels, self._classes, self._owners, self.max_length = pixels, classes, owners, draws

    def __len__(self) -> int:
        return len(self._classes)

    def batch(self, indices: Sequence[int]) -> Batch:
        """`pixels` and `classes`, as `diffusion_loss.Rows` takes them."""
        chosen = np.asarray(indices, dtype=np.int64)
        return {"pixels": as_records(self._pixels[chosen]), "classes": torch.from_numpy(self._classes[chosen])}

    def units(self, sampled: Sampled) -> list[list[int]] | None:
        """The positions of each owner's records, where owners are sampled; None: each record is a unit."""
        return None if sampled == "record" or self._owners is None else units_by_owner(self._owners)


def read_records(
    batches: Iterable[Pictures],
    codec: Codec,
    directory: Path,
    *,
    owners: bool,
    draws: int,
    device: str = "cpu",
) -> PictureRecords:
    """The records of the bounded table (`ImageLayout.read`): pixels in a file that has no name, latents in memory.

    The file loses its name before the first byte is written, so that pixels are deleted when the process ends, however
    it ends. `directory` is a new one.
    """
    shutil.rmtree(directory, ignore_errors=True)
    classes: list[Classes] = []
    named: list[str] = []
    with _unnamed(directory) if not codec.latent else nullcontext(io.BytesIO()) as stream:
        for part in batches:
            stream.write(np.ascontiguousarray(codec.encoded(part.pixels, device)).tobytes())
            classes.append(part.classes)
            if owners:
                named.extend(part.owners or ())
        numbers = np.concatenate([np.empty(0, np.int64), *classes])
        shape = (len(numbers), *codec.form.shape)
        pixels: npt.NDArray[Any]
        if isinstance(stream, io.BytesIO):
            pixels = np.frombuffer(stream.getbuffer(), np.float32).reshape(shape)
        else:
            stream.flush()
            pixels = np.memmap(stream, np.uint8, "r", shape=shape) if len(numbers) else np.empty(shape, np.uint8)
    mine = np.unique(np.array(named, dtype=np.str_), return_inverse=True)[1].astype(np.int64) if owners else None
    return PictureRecords(pixels, numbers, mine, draws)


@contextmanager
def _unnamed(directory: Path) -> Iterator[BinaryIO]:
    with private_files(), (private_directory(directory) / _PIXELS).open("x+b") as stream:
        shutil.rmtree(directory)
        yield stream


def train_prepared(
    run: MechanismRun, parameters: TrainedPictures, directory: Path, prepare: Callable[[], PreparedPictures]
) -> None:
    """`train_network` on the pictures of the bounded table."""
    by_owner = parameters.training.sampled == "user"

    def read(ready: PreparedPictures) -> PictureRecords:
        pictures = parameters.layout.read(run.bounded, owners=by_owner)
        return read_records(
            pictures, ready.codec, directory / EXAMPLES, owners=by_owner, draws=ready.draws, device=run.device
        )

    train_network(run, parameters, directory, prepare, read)
