"""SynBench's attack: its arithmetic against definitions, planted leaks, and a private generator within its bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from dpsynth_platform.audit.plots import synbench_plot
from dpsynth_platform.audit.texts.ngrams import TargetGrams, mean_log_probabilities
from dpsynth_platform.audit.texts.synbench import (
    RATES,
    TEXT,
    WORD,
    Design,
    attack,
    bound_curve,
    design,
    evaluate,
    ordered_difference,
)
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon as epsilon_of
from dpsynth_platform.privacy.events import GaussianVotesEvent
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.evolution import votes

RNG = np.random.default_rng(7)
TOPICS = [[f"topic{topic}word{number}" for number in range(15)] for topic in range(6)]
SURE = 1 - 1e-7
"""A correct mechanism is refuted with a probability of 1e-7 at most."""
DELTA = 1e-5


def usual() -> str:
    return " ".join(RNG.choice(TOPICS[RNG.integers(len(TOPICS))], size=12))


def strange(number: int) -> str:
    return " ".join(f"odd{number}and{word}" for word in range(12))


TEXTS = [*(usual() for _ in range(588)), *(strange(number) for number in range(12))]
WORDS = sorted({word for text in TEXTS for word in text.split()})
CODES = {word: at for at, word in enumerate(WORDS)}


def features(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Words of each text, counted; of length one."""
    found = np.zeros((len(texts), len(WORDS)))
    for at, text in enumerate(texts):
        for word in text.split():
            found[at, CODES[word]] += 1
    return found / np.linalg.norm(found, axis=1, keepdims=True)


FEATURES = features(TEXTS)
POOL = [*(usual() for _ in range(60)), *(strange(number) for number in range(12))]
NEAREST = (FEATURES @ features(POOL).T).argmax(axis=1)
"""A language model that wrote the strange texts by itself would give private evolution such candidates."""


def evolved(sigma: float) -> Callable[[Sequence[int], int], list[str]]:
    """Private evolution of one round: records vote for public candidates, which are released as often as voted for."""

    def generate(rows: Sequence[int], run: int) -> list[str]:
        exact = votes.histogram(NEAREST[list(rows)], np.array(rows), len(POOL))
        counts = np.round(votes.with_noise(exact, sigma) / RECORD_PARTS).astype(int)
        return [text for text, count in zip(POOL, counts, strict=True) for _ in range(max(0, count))] or [""]

    return generate


def test_strange_texts_are_the_targets_and_parts_are_apart() -> None:
    plan = design(FEATURES, runs=40, share=0.02)
    assert set(range(588, 600)) <= set(plan.targets.tolist())
    assert len(plan.targets) <= 24
    others = 600 - len(plan.targets)
    assert len(plan.auxiliary) == others - others // 3
    private = set(plan.subsets.ravel().tolist())
    assert plan.subsets.shape == (40, math.ceil(0.9 * (others // 3)))
    assert not private & set(plan.auxiliary.tolist()) and not private & set(plan.targets.tolist())
    assert not set(plan.auxiliary.tolist()) & set(plan.targets.tolist())
    assert (plan.held.sum(axis=1) == 2).all()
    for run in range(plan.runs):
        own, target = plan.rows(run), plan.targets[plan.chosen[run]]
        assert own == sorted(own) and (target in own) == plan.included[run]
        assert len(own) == plan.subsets.shape[1] + plan.included[run]


def test_a_design_is_that_of_its_seed_whatever_the_lengths_of_features() -> None:
    first, again = design(FEATURES, runs=9), design(FEATURES * 2.0 ** RNG.integers(-3, 4, (600, 1)), runs=9)
    for name in vars(first):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert (design(FEATURES, runs=9, seed=1).subsets != first.subsets).any()
    more = design(FEATURES, runs=30)
    for name in ("subsets", "chosen", "included"):
        np.testing.assert_array_equal(getattr(more, name)[:9], getattr(first, name))


@pytest.mark.parametrize(
    ("found", "runs", "subset"),
    [(FEATURES[:19], 5, 1), (FEATURES[0], 5, 1), (FEATURES, 0, 1), (FEATURES * np.nan, 5, 1), (FEATURES, 5, 1.1)],
)
def test_a_design_of_too_little_is_refused(found: npt.NDArray[np.float64], runs: int, subset: float) -> None:
    with pytest.raises(AccountingError, match="accepted: "):
        design(found, runs=runs, subset=subset)


def test_counts_of_two_corpora_add_up() -> None:
    first, second = TEXTS[:200], TEXTS[200:]
    asked = TargetGrams(TEXTS[::50], 2)
    np.testing.assert_allclose(
        asked.log_probabilities(asked.count(first) + asked.count(second)),
        mean_log_probabilities(TEXTS[::50], TEXTS) * asked.sizes,
    )


def test_scores_are_differences_of_probabilities_from_four_copies_of_the_auxiliary_part() -> None:
    plan = design(FEATURES, runs=3)
    found = attack(TEXTS, plan, lambda rows, run: [TEXTS[row] for row in rows][run:])
    targets = [TEXTS[at] for at in plan.targets]
    auxiliary = [TEXTS[at] for at in plan.auxiliary]
    references = [
        mean_log_probabilities(targets, [*auxiliary, *(text for text, own in zip(targets, held, strict=True) if own)])
        for held in plan.held.T
    ]
    for run in range(3):
        own = mean_log_probabilities(targets, [TEXTS[row] for row in plan.rows(run)][run:])
        np.testing.assert_allclose(found[WORD][run], np.exp(own) - np.mean(np.exp(references), axis=0), atol=1e-12)
        whole = np.exp(12 * own) - np.mean(np.exp(12 * np.array(references)), axis=0)
        distinct = np.unique(whole.round(40), return_inverse=True)[1]
        assert np.unique(found[TEXT][run].round(12), return_inverse=True)[1].tolist() == distinct.tolist()
        assert (np.sign(found[TEXT][run]) == np.sign(whole)).all()


def test_differences_keep_their_order_where_probabilities_are_zero_to_a_computer() -> None:
    first = np.array([-1e5, -1e5, -2000.0, -2000.0, -3.0, -3.0, -1.0])
    second = np.array([-1e5, -2e5, -1999.0, -2001.0, -3.5, -2.5, -0.0])
    found = ordered_difference(first, second)
    assert np.argsort(found).tolist() == [6, 5, 2, 0, 1, 3, 4]
    assert found[0] == 0 and (np.abs(found) <= 1).all()


def test_copied_texts_are_found() -> None:
    plan = design(FEATURES, runs=200, share=0.02)
    found = evaluate(
        attack(TEXTS, plan, lambda rows, run: [TEXTS[row] for row in rows])[WORD], plan, epsilon=1, delta=0
    )
    assert found.curve.area.value > 0.99 and found.area.value > 0.99
    assert found.refuted and found.curve.above


def test_private_evolution_is_within_its_bound_and_above_it_without_noise() -> None:
    sigma = 3.8
    claim = epsilon_of(GaussianVotesEvent(sigma, "add-or-remove", 1), DELTA).epsilon
    assert 0.9 < claim < 1.0
    plan = design(FEATURES, runs=250, share=0.02)
    private = evaluate(attack(TEXTS, plan, evolved(sigma))[WORD], plan, epsilon=claim, delta=DELTA, confidence=SURE)
    assert not private.refuted and private.highest > claim
    with mock.patch.object(votes, "with_noise", lambda exact, sigma: exact):
        scores = attack(TEXTS, plan, evolved(sigma))[WORD]
    bare = evaluate(scores, plan, epsilon=claim, delta=DELTA, confidence=SURE)
    assert bare.refuted and bare.curve.above and bare.curve.area.value > 0.9


def planned(runs: int, targets: int, included: npt.NDArray[np.bool_]) -> Design:
    nothing = np.zeros((runs, 0), dtype=np.int64)
    chosen = RNG.integers(targets, size=runs)
    return Design(np.arange(targets), np.arange(0), np.zeros((targets, 4), bool), nothing, chosen, included)


def test_scores_without_evidence_prove_nothing_even_if_their_curve_is_above_the_bound() -> None:
    plan = planned(100, 30, np.arange(100) % 2 == 0)
    rng = np.random.default_rng(3)
    found = evaluate(rng.random((100, 30)), plan, epsilon=0.01, delta=0)
    assert found.curve.above and not found.refuted and found.bound == 0
    flat = evaluate(np.zeros((100, 30)), plan, epsilon=0.0, delta=0)
    assert (flat.area.value, flat.curve.area.value, flat.bound) == (0.5, 0.5, 0)
    np.testing.assert_allclose(flat.curve.mean, RATES, atol=1e-12)
    assert not flat.curve.above


def test_one_score_of_each_release_proves_and_the_others_draw_the_curve() -> None:
    included = np.arange(100) < 50
    plan = planned(100, 30, included)
    scores = np.tile(included.astype(float)[:, None], 30)
    perfect = evaluate(scores, plan, epsilon=2.5, delta=1e-5)
    assert perfect.curve.area.value == 1 and perfect.bound == perfect.highest
    # So few releases cannot refute a claim of 2.5.
    assert 2 < perfect.highest < 2.5 and not perfect.refuted
    others = np.ones_like(scores, dtype=bool)
    others[np.arange(100), plan.chosen] = False
    scores[others] = 2.0
    again = evaluate(scores, plan, epsilon=2.5, delta=1e-5)
    assert (again.bound, again.area) == (perfect.bound, perfect.area)
    assert again.curve.area.value < 0.2


def test_the_bound_is_that_of_kairouz_and_others() -> None:
    for eps, delta in ((0.5, 1e-5), (4.0, 0.01), (0.0, 0.0)):
        steep, flat = np.exp(eps) * RATES + delta, 1 - np.exp(-eps) * (1 - delta - RATES)
        np.testing.assert_allclose(bound_curve(eps, delta), np.minimum(1, np.minimum(steep, flat)))


def test_what_cannot_be_judged_is_refused() -> None:
    plan = planned(10, 3, np.arange(10) < 5)
    for scores in (np.zeros((10, 4)), np.full((10, 3), np.nan)):
        with pytest.raises(AccountingError, match="accepted: "):
            evaluate(scores, plan, epsilon=None, delta=0)
    with pytest.raises(AccountingError, match="10 of 10 runs with their target"):
        evaluate(np.zeros((10, 3)), planned(10, 3, np.ones(10, bool)), epsilon=None, delta=0)
    with pytest.raises(AccountingError, match="made no texts"):
        attack(TEXTS, design(FEATURES, runs=2), lambda rows, run: [])


def test_results_are_said_and_drawn() -> None:
    plan = planned(100, 30, np.arange(100) % 2 == 0)
    scores = np.random.default_rng(3).random((100, 30))
    found, claimless = (evaluate(scores, plan, epsilon=claim, delta=0) for claim in (1.0, None))
    assert "not refuted" in " ".join(found.in_words()) and "refuted" not in " ".join(claimless.in_words())
    assert found.to_json()["refuted"] is False and claimless.to_json()["curve"]["excess"] is None
    assert "epsilon 1" in synbench_plot(found) and "epsilon" not in synbench_plot(claimless)
