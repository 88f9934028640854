"""Shares of Skellam noise, by a table of its distribution in whole numbers.

What belongs here: the draws, exactly of the distribution that accounting assumes. What does not: variances, which come
from the sealed plan (`sums`). Randomness is a cryptographic stream with a key from the operating system, and no
argument turns the noise off.

**Exactness.** |X| is the number of k >= 1 with U < P[|X| >= k], for U uniform on (0, 1); the sign is a fair coin. The
tails P[|X| >= k] are tabulated as whole multiples of 2^-256. Of U, 63 bits are drawn first, and 193 further ones where
those do not decide. Nothing is drawn beyond the reach of 2^-200, and the tails are rounded in the last places, so that
a draw has the exact distribution up to 2^-198 in total variation. So 2^40 entries of at most 2^14 draws each have it up
to 2^-144. That adds at most (1 + e^epsilon) 2^-144 to delta, which no number here can show.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpsynth_platform.federation.sums import VARIANCE_STEP, Whole
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.skellam import skellam_reach
from dpsynth_platform.training.stream import SecureStream

TABLE_BITS = 256
REACH_BITS = 200
FIRST_BITS = 63
# A table of more variance would be long; wider noise is the sum of several draws, which is Skellam again.
MOST_OF_A_DRAW = 2.0**26
MOST_DRAWS = 2**14
CHUNK = 2**18


def sample_skellam(variance: float, number: int) -> Whole:
    """Independent Skellam noise of this variance; shape (number,).

    Args:
        variance: a multiple of `VARIANCE_STEP`, in squared units.

    Raises:
        AccountingError: another variance.
    """
    steps = variance / VARIANCE_STEP
    if not 1 <= steps <= MOST_DRAWS * MOST_OF_A_DRAW / VARIANCE_STEP or steps != int(steps):
        raise AccountingError(f"variance {variance!r}; accepted: multiples of {VARIANCE_STEP:g} in range")
    whole, rest = divmod(variance, MOST_OF_A_DRAW)
    noise = np.zeros(number, dtype=np.int64)
    stream = SecureStream()
    for part in [MOST_OF_A_DRAW] * int(whole) + ([rest] if rest else []):
        for start in range(0, number, CHUNK):
            place = slice(start, min(start + CHUNK, number))
            noise[place] += _draws(part, place.stop - place.start, stream)
    return noise


def _draws(variance: float, number: int, stream: SecureStream) -> Whole:
    tails, firsts = skellam_tails(variance)
    words = stream.words(number)
    negative, uniforms = (words & np.uint64(1)).astype(bool), words >> np.uint64(1)
    above = np.searchsorted(firsts, uniforms, side="right")
    size = (len(tails) - above).astype(np.int64)
    # A first part that equals a tail's decides nothing: more bits of the same U do.
    for index in np.flatnonzero(np.searchsorted(firsts, uniforms, side="left") != above):
        size[index] = len(tails) - bisect_right(tails, _extended(int(uniforms[index]), stream))
    return np.where(negative, -size, size)


def _extended(first: int, stream: SecureStream) -> int:
    """U in units of 2^-TABLE_BITS, from its first bits and fresh ones."""
    further = TABLE_BITS - FIRST_BITS
    fresh = int.from_bytes(stream.words(-(-further // 64)).tobytes(), "little")
    return (first << further) | (fresh & ((1 << further) - 1))


@lru_cache(maxsize=8)
def skellam_tails(variance: float) -> tuple[tuple[int, ...], npt.NDArray[np.uint64]]:
    """P[|X| >= k] in units of 2^-256, ascending (k from the reach down to 1), and their first 63 bits.

    Weights w_k in proportion to P[X = k] follow from I_(k-1) = I_(k+1) + (2k / V) I_k from above down (Miller), in
    whole numbers: every term is positive, so that rounding does not grow. The recurrence starts far beyond the reach,
    so that what it leaves out has vanished where the table begins. Dividing by the sum of all weights normalizes.
    """
    reach = skellam_reach(variance, REACH_BITS)
    numerator, denominator = (variance / 2).as_integer_ratio()
    weights, upper, here = [0] * (reach + 1), 0, 1 << TABLE_BITS
    for k in range(2 * reach + 64, 0, -1):
        if k <= reach:
            weights[k] = here
        upper, here = here, upper + k * denominator * here // numerator
    weights[0] = here
    sums, total = [], 0
    for k in range(reach, 0, -1):
        total += 2 * weights[k]
        sums.append(total)
    whole = total + weights[0]
    tails = tuple((value << TABLE_BITS) // whole for value in sums)
    firsts = np.array([value >> (TABLE_BITS - FIRST_BITS) for value in tails], dtype=np.uint64)
    return tails, firsts
