"""The only two draws that use sensitive numbers: Gaussian noise on counts, and the exponential mechanism.

What belongs here: the two draws, exactly of the distributions that accounting assumes, and the variance of the noise.
What does not: sensitivities and noise scales, which come from the sealed plan. Both draws take and return whole
numbers, so that no floating-point rounding can leak (Mironov 2012). No argument turns the noise off. Randomness is the
operating system's.

**Exactness and speed.** A draw is a function of a real number U, uniform on (0, 1), of which 64 random bits are known
at first. Double precision gives the function's value with an error bound: half a unit of U's last bit, plus `ROUNDING`,
which exceeds the rounding of the special functions by three orders of magnitude (tests measure it). If all values
within the bound have the same outcome, that is the result. Otherwise more bits of the same U are drawn, and it is
compared at higher precision. The result is exactly the function of U, without an error that would add to delta. The
time of a draw depends on the noise (and on the distance of the two best candidates): operators may see it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import SIGMA_RANGE
from dpsynth_platform.privacy.units import RECORD_PARTS

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Bits of a uniform that are drawn at once.
WORD = 64
# Bound on the error of a normal deviate, and on the relative error of an exponential one. Tests find below 2^-49.
ROUNDING = 2.0**-40
# Half of the first word's last bit moves a normal deviate by up to 0.63 / word: a 25th of ROUNDING from here on.
LEAST_WORD = 2**44
# Counts that get their noise at once, so that temporary arrays stay in the processor's cache.
CHUNK = 2**15
# Further bits of special functions, beyond those of the uniform that is compared with them.
GUARD = 64


def rounded_gaussian_variance(sigma: float) -> float:
    """Variance of the noise of `sample_rounded_gaussian`: sigma^2 + 1/12.

    Rounding adds 1/12, as if its error were uniform and independent (Sheppard). The error of this is 1e-8 at sigma 1,
    far less above, and 0.008 at sigma 1/2; at smaller sigma the variance is smaller.
    """
    return sigma**2 + 1 / 12


def sample_rounded_gaussian(counts: Counts, sigma: float | Floats) -> Counts:
    """Counts with independent Gaussian noise N(0, sigma^2), rounded to whole numbers; same shape.

    For whole counts, rounding the noise is rounding the noisy count, which is post-processing. So the result is as
    private as the continuous Gaussian mechanism, at every sigma, for vectors by their L2 sensitivity, and also if sigma
    depends on earlier results. (The discrete Gaussian is not: at small sigma it costs more than the continuous one.)

    Of a word, one bit is the sign and the others are bits of U, uniform on (0, 1/2), for the magnitude
    -sigma * inverse normal CDF(U).

    Args:
        counts: whole numbers of any shape. Sensitive.
        sigma: deviation of the noise before rounding, in the unit of the counts: of records, or of their parts. One
            number, or one for each count.

    Raises:
        AccountingError: sigma outside `SIGMA_RANGE`, whose upper end is scaled for counts in parts of records.
    """
    low, high = SIGMA_RANGE[0], SIGMA_RANGE[1] * RECORD_PARTS
    sigmas = np.asarray(sigma, dtype=np.float64)
    if not np.all((low <= sigmas) & (sigmas <= high)):
        raise AccountingError(f"sigma {sigma!r}; accepted: {low:g} to {high:g}")
    flat, each = counts.ravel(), np.broadcast_to(sigmas, counts.shape).ravel()
    noisy = np.empty(flat.shape, dtype=np.int64)
    for start in range(0, flat.size, CHUNK):
        part = slice(start, start + CHUNK)
        noisy[part] = flat[part] + _rounded_gaussian(each[part])
    return noisy.reshape(counts.shape)


def select_by_exponential_mechanism(scores: Sequence[int] | Counts, epsilon: float, sensitivity: int) -> int:
    """Index drawn with probability proportional to exp(epsilon * score / (2 * sensitivity)).

    It is epsilon-bounded-range if one unit changes each score by at most `sensitivity` (Durfee & Rogers 2019): the
    logarithm of an outcome's probability is c * score - log(sum of exp(c * scores)), with c = epsilon /
    (2 * sensitivity). Between neighbours the sum's logarithm moves equally for all outcomes, and c * score by at most
    epsilon / 2, so the log-ratios of any two outcomes differ by at most epsilon.

    It is drawn as the maximum of c * score with independent Gumbel noise -log(-log(1 - U)), which has this distribution
    (Yellott 1977). Scores are whole numbers and c is an exact fraction, so that nothing is rounded.

    Args:
        scores: one for each candidate, within 64 bits. Sensitive.
        epsilon: the range of the choice.
        sensitivity: the most that one unit changes a score.

    Raises:
        AccountingError: no candidate, an epsilon that is not finite and positive, or a sensitivity below 1.
    """
    if not (math.isfinite(epsilon) and epsilon > 0) or sensitivity < 1 or not len(scores):
        raise AccountingError(
            f"a choice among {len(scores)} with epsilon {epsilon!r} and sensitivity {sensitivity!r}; accepted: at "
            "least one candidate, a finite epsilon above 0, a sensitivity from 1"
        )
    values = np.asarray(scores, dtype=np.int64)
    behind = values.max().astype(np.uint64) - values.astype(np.uint64)  # modulo 2^64, where the difference is exact
    sharpness = Fraction(epsilon) / (2 * int(sensitivity))
    words = _words(len(values))
    loss = behind.astype(np.float64) * float(sharpness)
    noisy, error = _gumbel(words)
    noisy -= loss
    error += ROUNDING * loss
    contenders = np.flatnonzero(noisy + error >= (noisy - error).max())
    if len(contenders) == 1:
        return int(contenders[0])
    return _best({int(i): (sharpness * int(behind[i]), _Uniform(int(words[i]), WORD)) for i in contenders})


def random_bytes(size: int) -> bytes:
    """Unpredictable bytes from the operating system."""
    return os.urandom(size)


def _words(number: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(random_bytes(number * WORD // 8), dtype="<u8")


class _Uniform:
    """A uniform number in [0, 1) of which the first `length` bits are known: (bits + rest) / 2^length, rest in (0, 1).

    `extend` draws another word of bits, which then are fixed.
    """

    def __init__(self, bits: int, length: int) -> None:
        self.bits = bits
        self.length = length

    def extend(self) -> None:
        self.bits = (self.bits << WORD) | int.from_bytes(random_bytes(WORD // 8), "little")
        self.length += WORD


# Gaussian noise.


def _rounded_gaussian(sigma: Floats) -> Counts:
    """Independent draws of N(0, sigma^2), each rounded to the nearest whole number; shape of the deviations."""
    words = _words(sigma.size)
    negative, halves = (words & np.uint64(1)).astype(bool), (words >> np.uint64(1)).view(np.int64)
    deviates = sigma * _normal_magnitude(halves)
    noise = np.rint(deviates)
    doubtful = (0.5 - np.abs(deviates - noise) <= sigma * ROUNDING) | (halves < LEAST_WORD)
    for index in np.flatnonzero(doubtful):
        # 63 bits after a zero are a number below 1/2.
        noise[index] = _exact_magnitude(_Uniform(int(halves[index]), WORD), float(sigma[index]), int(noise[index]))
    return np.where(negative, -noise, noise).astype(np.int64)


def _normal_magnitude(halves: Counts) -> Floats:
    """-(inverse normal CDF) in the middle of the interval [half, half + 1) / 2^64, for halves below 2^63."""
    from scipy.special import ndtri

    magnitudes: Floats = -ndtri((halves + 0.5) * 2.0**-WORD)
    return magnitudes


def _exact_magnitude(uniform: _Uniform, sigma: float, guess: int) -> int:
    """The whole number nearest to sigma times -(inverse normal CDF) of a uniform below 1/2, searched from a guess.

    k is right if the magnitude is above k - 1/2 and not above k + 1/2.
    """
    below, step = guess, 1  # the magnitude is above below - 1/2
    while below > 0 and not _is_above(uniform, below, sigma):
        below, step = max(0, below - step), 2 * step
    beyond, step = max(guess, below) + 1, 1  # the magnitude is not above beyond - 1/2
    while _is_above(uniform, beyond, sigma):
        below, beyond, step = beyond, beyond + step, 2 * step
    while beyond - below > 1:
        middle = (below + beyond) // 2
        below, beyond = (middle, beyond) if _is_above(uniform, middle, sigma) else (below, middle)
    return below


def _is_above(uniform: _Uniform, whole: int, sigma: float) -> bool:
    """Whether the magnitude is above whole - 1/2: the uniform is below the tail P[N(0, sigma^2) > whole - 1/2].

    By mpmath's functions of raw numbers: its contexts take most of the time otherwise, and wide noise asks each draw.
    """
    from mpmath import libmp

    while True:
        length, bits = uniform.length, uniform.length + GUARD
        boundary = libmp.mpf_div(libmp.from_man_exp(2 * whole - 1, -1), libmp.from_float(sigma), bits)
        tail = libmp.mpf_erfc(libmp.mpf_div(boundary, libmp.mpf_sqrt(libmp.from_int(2), bits), bits), bits)
        scaled = libmp.mpf_shift(tail, length - 1)  # the tail is half of erfc
        margin = libmp.mpf_shift(scaled, -length - GUARD // 2)
        if libmp.mpf_le(libmp.from_int(uniform.bits + 1), libmp.mpf_sub(scaled, margin, bits)):
            return True
        if libmp.mpf_ge(libmp.from_int(uniform.bits), libmp.mpf_add(scaled, margin, bits)):
            return False
        uniform.extend()


# The exponential mechanism.


def _gumbel(words: npt.NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """-log(-log(1 - U)) for U in the middle of [word, word + 1) / 2^64, and its largest distance from the ends' values.

    Computed from the smaller of U and 1 - U, whose relative error it increases by less than a factor of 1.5. The
    logarithm of 1 - t, for small t, is that of the rounded 1 - t, corrected for the rounding (Kahan).
    """
    low = words < np.uint64(2 ** (WORD - 1))
    side = np.where(low, words, ~words).astype(np.float64)
    smaller = (side + 0.5) * 2.0**-WORD
    larger = 1 - smaller
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log(np.where(low, larger, smaller))
        correction = np.where(low, smaller / (1 - larger), 1.0)
        exponential = np.where(low & (larger == 1), smaller, -logarithm * correction)
        return -np.log(exponential), ROUNDING + 1 / side


def _best(contenders: dict[int, tuple[Fraction, _Uniform]]) -> int:
    """The index whose Gumbel noise less its loss is largest, by as many bits as that takes."""
    while True:
        bounds = {index: _gumbel_bounds(loss, uniform) for index, (loss, uniform) in contenders.items()}
        most = max(low for low, _ in bounds.values())
        contenders = {index: contenders[index] for index, (_, high) in bounds.items() if high >= most}
        if len(contenders) == 1:
            return next(iter(contenders))
        for _, uniform in contenders.values():
            uniform.extend()


def _gumbel_bounds(loss: Fraction, uniform: _Uniform) -> tuple[Any, Any]:
    """Lower and upper bound of -log(-log(1 - U)) - loss, by the known bits of U."""
    import mpmath

    with mpmath.workprec(2 * uniform.length + GUARD + math.ceil(loss).bit_length()):
        behind = mpmath.mpf(loss.numerator) / loss.denominator
        margin = mpmath.ldexp(1, -uniform.length - GUARD // 2)

        def noisy(bits: int) -> Any:
            return -mpmath.log(-mpmath.log1p(mpmath.ldexp(-bits, -uniform.length))) - behind

        return noisy(uniform.bits + 1) - margin, noisy(uniform.bits) + margin
