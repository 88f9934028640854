"""A cryptographic stream of random bits, with a fresh key from the operating system.

What belongs here: the only source of randomness for privacy in training. What does not: the use of its bits (`sampler`,
`noise`). The key never leaves the object, nothing is stored, and no argument fixes it: tests patch `random_key`.

AES-256 in counter mode, keyed once for a stream: as unpredictable as AES is a pseudo-random permutation, without a
counter that could wrap, and as fast as memory on processors with AES instructions. Torch's generators are not
cryptographic: some of their output predicts the rest.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

WORD = 8


def random_key() -> bytes:
    """32 unpredictable bytes."""
    return os.urandom(32)


class SecureStream:
    """Unpredictable words. Each stream has its own key, so streams are independent."""

    def __init__(self) -> None:
        self._encryptor = Cipher(algorithms.AES(random_key()), modes.CTR(bytes(16))).encryptor()

    def words(self, number: int) -> npt.NDArray[np.uint64]:
        """Independent, uniform 64-bit words in a writable array."""
        words = np.zeros(number, dtype="<u8")
        place = words.view(np.uint8).data
        self._encryptor.update_into(place, place)
        return words
