"""Sizes of memory, as people write them and as settings are handed to other processes."""

import os
from unittest.mock import patch

import pytest

from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.sizes import bytes_of, size_of


@pytest.mark.parametrize("size", ["1MB", "512MB", "2GB", "10000GB", "9999999GB", "9999999TB", "1500GB"])
def test_a_size_comes_back_as_the_same_bytes(size: str) -> None:
    assert bytes_of(size_of(bytes_of(size))) == bytes_of(size)
    with patch.dict(os.environ, DPSYNTH_MEMORY=size):
        Settings.from_environment().export()
        assert Settings.from_environment().memory == bytes_of(size)


@pytest.mark.parametrize("size", ["0GB", "2", "2 GB", "2gb", "-1MB", "12345678MB", "1.5GB", ""])
def test_what_is_no_size(size: str) -> None:
    with pytest.raises(ValueError, match="accepted: such as 512MB or 2GB"):
        bytes_of(size)
