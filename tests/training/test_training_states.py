"""Training states as bytes: exact, and in the safetensors format."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dpsynth_platform.foundation.errors import ResumeRefused
from dpsynth_platform.training.interface import TrainingState
from dpsynth_platform.training.states import read_state, state_bytes

TENSORS = {
    "parameter.weight": torch.randn(300, 17, requires_grad=True),
    "parameter.transposed": torch.arange(12.0).reshape(3, 4).T,
    "parameter.half": torch.randn(5).to(torch.bfloat16),
    "parameter.double": torch.tensor([1e300, float("nan"), float("-inf")], dtype=torch.float64),
    "optimizer.count": torch.tensor(2**40),
    "optimizer.none": torch.empty(0, 3),
    "optimizer.mask": torch.tensor([True, False]),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True)


def test_a_state_comes_back_exactly() -> None:
    content = b"".join(state_bytes(TrainingState(12, TENSORS)))
    for size in (1, 7, 4096, len(content)):
        pieces = (content[start : start + size] for start in range(0, len(content), size))
        state = read_state(pieces)
        assert state.step == 12
        assert list(state.tensors) == list(TENSORS)
        assert all(same(state.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    content = b"".join(state_bytes(TrainingState(12, TENSORS)))
    read = safetensors.torch.load(content)
    assert all(same(read[name], tensor) for name, tensor in TENSORS.items())
    (tmp_path / "state").write_bytes(content)
    with safetensors.safe_open(tmp_path / "state", "pt") as file:
        assert file.metadata() == {"step": "12"}


def test_what_the_format_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"odd: torch.complex64; accepted: float64"):
        list(state_bytes(TrainingState(1, {"odd": torch.zeros(1, dtype=torch.complex64)})))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 8,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"{",
        struct.pack("<Q", 4) + b"null",
        b"".join(state_bytes(TrainingState(1, TENSORS)))[:-1],
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ResumeRefused, match="no training state"):
        read_state([content])
