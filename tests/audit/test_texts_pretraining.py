"""Whether a model prefers the order of a file: found where it does, and as often as chance where it does not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.texts.pretraining import ORDERS, SHARDS, order_test
from dpsynth_platform.foundation.errors import AccountingError

TEXTS = [f"text {number}" for number in range(200)]


def remembering(texts: Sequence[str]) -> Floats:
    """Of a model that knows which text follows which."""
    known = set(itertools.pairwise(TEXTS))
    orders = [text.split("\n") for text in texts]
    return np.array([sum(pair in known for pair in itertools.pairwise(own)) for own in orders], dtype=float)


def test_a_model_that_knows_the_order_is_found() -> None:
    found = order_test(TEXTS, remembering)
    assert (found.found, found.shards) == (SHARDS, SHARDS) and found.p_value == pytest.approx(2.0**-SHARDS)
    assert "20 of 20" in found.in_words and found.to_json()["p_value"] == found.p_value


def test_a_model_to_which_all_orders_are_alike_is_not_found() -> None:
    assert order_test(TEXTS, lambda texts: np.zeros(len(texts))).found == 0


def test_of_exchangeable_orders_each_half_is_as_likely() -> None:
    rng = np.random.default_rng(1)
    found = [order_test(TEXTS, lambda texts: rng.random(len(texts)), seed=seed) for seed in range(400)]
    assert np.mean([one.found for one in found]) == pytest.approx(SHARDS / 2, abs=0.4)
    assert np.mean([one.p_value <= 0.05 for one in found]) <= 0.05


def test_each_shard_is_compared_with_its_own_other_orders() -> None:
    asked: list[list[str]] = []

    def noted(texts: Sequence[str]) -> Floats:
        asked.append(list(texts))
        return np.zeros(len(texts))

    order_test(TEXTS, noted)
    assert len(asked) == SHARDS and all(len(orders) == ORDERS for orders in asked)
    assert asked[1][0].split("\n") == TEXTS[10:20]
    assert all(sorted(order.split("\n")) == sorted(orders[0].split("\n")) for orders in asked for order in orders)


def test_too_few_texts_have_no_order_to_speak_of() -> None:
    with pytest.raises(AccountingError, match="at least 60"):
        order_test(TEXTS[:59], remembering)
