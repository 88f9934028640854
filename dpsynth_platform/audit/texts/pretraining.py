"""Whether a language model has read a file of texts before: a test by the file's order.

What belongs here: the test, as a function of likelihoods. What does not: models and their likelihoods.

Oren, Meister, Chatterji, Ladhak & Hashimoto, "Proving Test Set Contamination in Black Box Language Models" (ICLR 2024):
if the order of some texts is exchangeable, a model that has not read the file finds their order in it no likelier than
any other. The file is divided into shards of successive texts (their section 3.3), of which each is compared with some
of its other orders. They compare means by a t-test; here an exact sign test counts the shards whose own order is in the
upper half of eight: for exchangeable texts each has a chance of one half, whatever the model.

What it cannot show: that a model has **not** read the texts. One that has read them in another order, alone, in
another form, or too seldom to remember them is not found, nor is one as small as the platform's default likely to be.
A file that is sorted (by label, time or source) is not exchangeable, and a small p-value then says that it is sorted.
SynBench (section 5) instead searches a pretraining corpus for n-grams of synthetic texts, which needs the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.progress import Progress, silent

SHARDS = 20
ORDERS = 8
"""Orders of each shard, its own included. An even number: then a half has a chance of exactly one half."""
TEXTS_IN_SHARD = 12
"""At most; more would not fit into what a model reads at once."""
_LEAST = 3

Likelihood = Callable[[Sequence[str]], Floats]
"""The log-likelihood of each of some texts, whole."""


@dataclass(frozen=True)
class OrderTest:
    """The result: `found` of `shards` prefer their own order; `p_value` is one-sided, for orders that do not matter."""

    shards: int
    found: int
    p_value: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"words": self.in_words}

    @property
    def in_words(self) -> str:
        """The result as a sentence."""
        return (
            f"The base model finds the texts' own order in the file likelier than most others in {self.found} of "
            f"{self.shards} places (p-value {self.p_value:.2g}, if the order does not matter otherwise). A small value "
            "says that it has read the file, or that the file is sorted; a large one does not say that it has not."
        )


def order_test(
    texts: Sequence[str], likelihood: Likelihood, *, seed: int = 0, progress: Progress = silent
) -> OrderTest:
    """Tests whether a model prefers the order of some texts.

    Args:
        texts: in the order of the file, of which shards are taken at equal distances.
        likelihood: of the model.
        seed: of the other orders.

    Raises `AccountingError` if there are too few texts for shards of three.
    """
    size = min(TEXTS_IN_SHARD, len(texts) // SHARDS)
    if size < _LEAST:
        raise AccountingError(f"audit: the order of {len(texts)} texts; accepted: at least {_LEAST * SHARDS}")
    rng, found = np.random.default_rng(seed), 0
    for shard in range(SHARDS):
        progress("orders of texts", shard, SHARDS)
        start = shard * len(texts) // SHARDS
        own = list(texts[start : start + size])
        orders = [own, *([own[at] for at in rng.permutation(size)] for _ in range(ORDERS - 1))]
        likely = likelihood(["\n".join(order) for order in orders])
        # Ties count against the file's order.
        found += int((likely[1:] < likely[0]).sum() >= ORDERS // 2)
    progress("orders of texts", SHARDS, SHARDS)
    return OrderTest(SHARDS, found, float(stats.binom.sf(found - 1, SHARDS, 0.5)))
