"""The same weights and tokens in every run: they are torch's draws, and tests allow for rounding by fixed bounds.

Noise and samples of training come from the operating system's randomness all the same.
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def same_weights() -> None:
    torch.manual_seed(0)
