"""A training state as a stream of bytes in the safetensors format, and back.

What belongs here: the format, written and read piece by piece so that memory holds a state once. What does not: files
and encryption (`checkpoints`). The safetensors library needs all bytes of a state at once, a second copy. The format:
eight bytes with the header's length, the header as JSON (name -> type, shape, position of the data), the tensors'
bytes. Unlike a pickle, it cannot execute code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.errors import ResumeRefused
from dpsynth_platform.training.interface import TrainingState

if TYPE_CHECKING:
    import torch

_METADATA = "__metadata__"
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_LONGEST_HEADER = 100_000_000


def state_bytes(state: TrainingState) -> Iterator[bytes | memoryview]:
    """A state in pieces, one a tensor. Tensors are copied to the CPU one by one.

    Raises:
        TypeError: the format does not have a tensor's type.
    """
    import torch

    names = {getattr(torch, name): code for code, name in _TYPES.items()}
    header: dict[str, Any] = {_METADATA: {"step": str(state.step)}}
    place = 0
    for name, tensor in state.tensors.items():
        if tensor.dtype not in names:
            raise TypeError(f"{name}: {tensor.dtype}; accepted: {', '.join(_TYPES.values())}")
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    line = json.dumps(header, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    yield struct.pack("<Q", len(line)) + line
    for tensor in state.tensors.values():
        yield _bytes_of(tensor.detach().cpu().contiguous())


def read_state(content: Iterable[bytes]) -> TrainingState:
    """The state from these bytes, on the CPU; raises `ResumeRefused` for other bytes."""
    import torch

    source = _Pieces(content)
    try:
        (length,) = struct.unpack("<Q", source.take(8))
        if length > _LONGEST_HEADER:
            raise ValueError("no header")
        header: Mapping[str, Any] = json.loads(source.take(length))
        step = int(header[_METADATA]["step"])
        tensors: dict[str, torch.Tensor] = {}
        place = 0
        for name, entry in header.items():
            if name == _METADATA:
                continue
            tensor = torch.empty(entry["shape"], dtype=getattr(torch, _TYPES[entry["dtype"]]))
            end = place + tensor.numel() * tensor.element_size()
            if entry["data_offsets"] != [place, end]:
                raise ValueError("data elsewhere")
            source.fill(_bytes_of(tensor))
            tensors[name], place = tensor, end
    except (ValueError, KeyError, TypeError, struct.error):
        raise ResumeRefused("a checkpoint holds no training state; it was written by another version") from None
    return TrainingState(step, tensors)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


class _Pieces:
    """Reads a stream that comes in pieces."""

    def __init__(self, content: Iterable[bytes]) -> None:
        self._pieces = iter(content)
        self._piece = memoryview(b"")

    def take(self, length: int) -> bytes:
        taken = bytearray(length)
        self.fill(memoryview(taken))
        return bytes(taken)

    def fill(self, target: memoryview) -> None:
        """Fills the target; raises ValueError if the stream is too short."""
        while len(target):
            if not len(self._piece):
                piece = next(self._pieces, None)
                if piece is None:
                    raise ValueError("the stream is too short")
                self._piece = memoryview(piece)
            part = min(len(target), len(self._piece))
            target[:part] = self._piece[:part]
            target, self._piece = target[part:], self._piece[part:]
