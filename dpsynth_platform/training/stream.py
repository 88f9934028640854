"""A keyed cryptographic stream of random bits, fresh from the operating system.

What belongs here: the one source of the randomness that privacy rests on in training. What does not: what is made of
its bits (`sampler`, `noise`). The key never leaves the object, nothing is stored, and no argument fixes it: tests patch
`random_key`.

AES-256 in counter mode, keyed once for a stream: as unpredictable as AES is a pseudo-random permutation, without a
counter that could wrap, and as fast as the memory where the processor knows AES. Torch's own generators are not
cryptographic: with some of their output, the rest can be told.
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
    """Unpredictable words. Each stream has a key of its own, so streams are independent."""

    def __init__(self) -> None:
        self._encryptor = Cipher(algorithms.AES(random_key()), modes.CTR(bytes(16))).encryptor()

    def words(self, number: int) -> npt.NDArray[np.uint64]:
        """So many independent, uniform 64-bit words; the array may be written to."""
        words = np.zeros(number, dtype="<u8")
        place = words.view(np.uint8).data
        self._encryptor.update_into(place, place)
        return words
