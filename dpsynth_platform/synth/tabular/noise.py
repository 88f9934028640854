"""The only two draws of MST that touch sensitive numbers, both exact and from the operating system's randomness.

What belongs here: the discrete Gaussian and the exponential mechanism. What does not: sensitivities and noise scales,
which come from the sealed plan. Both take whole numbers, so no floating-point rounding of the data can leak (Mironov
2012), and OpenDP samples both in exact arithmetic. No argument turns the noise off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


def sample_discrete_gaussian(counts: Counts, sigma: float) -> Counts:
    """Counts with independent noise of the discrete Gaussian N_Z(0, sigma^2), same shape.

    Canonne, Kamath & Steinke 2020, definition 1; OpenDP's rejection sampler draws it exactly for every rational sigma,
    and a float is a rational.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    noisy = dp.m.make_gaussian(*space, scale=sigma)(counts.ravel().tolist())
    return np.asarray(noisy, dtype=np.int64).reshape(counts.shape)


def select_by_exponential_mechanism(scores: Sequence[int], epsilon: float, sensitivity: int) -> int:
    """Index drawn with probability proportional to exp(epsilon * score / (2 * sensitivity)).

    epsilon-bounded-range when one unit changes each score by at most `sensitivity` (Durfee & Rogers 2019). Drawn as
    the maximum of scores with Gumbel noise, which has the same distribution; OpenDP compares the noisy scores digit by
    digit until they differ, so ties and rounding do not occur.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
    # The quotient is rounded up: a float's rounding must not make the choice sharper than epsilon.
    scale = math.nextafter(2 * sensitivity / epsilon, math.inf)
    choose = dp.m.make_noisy_max(*space, dp.zero_concentrated_divergence(), scale=scale)
    return int(choose([int(score) for score in scores]))
