"""Attacks on released texts: their arithmetic against an oracle, and whether they find what was copied."""

from __future__ import annotations

import secrets
from collections import Counter

import numpy as np
import pytest

from dpsynth_platform.audit.attacks import TEXT_OVERLAP
from dpsynth_platform.audit.bounds import area_under_curve
from dpsynth_platform.audit.texts import TEXT_ONLY_ATTACKS, TextEvidence, attacks
from dpsynth_platform.audit.texts.copies import count_text_copies
from dpsynth_platform.audit.texts.ngrams import grams, mean_log_probabilities, words
from dpsynth_platform.audit.texts.outliers import outliers
from dpsynth_platform.audit.texts.similarity import similarity_scores
from dpsynth_platform.foundation.errors import AccountingError

RANDOM = secrets.SystemRandom()
COMMON = [f"word{number}" for number in range(200)]


def text(length: int = 30) -> str:
    return " ".join(RANDOM.choices(COMMON, k=length))


def spliced(texts: list[str]) -> str:
    """What a generator that remembers writes: halves of two texts."""
    first, second = (RANDOM.choice(texts).split() for _ in range(2))
    return " ".join(first[:15] + second[15:])


def test_words_are_small_and_signs_stand_alone() -> None:
    assert words("Don't  PANIC,\n42!") == ["don", "'", "t", "panic", ",", "42", "!"]
    assert list(grams("a b", 2)) == [("", "a"), ("a", "b")]
    assert list(grams("", 2)) == list(grams(" \n", 3)) == []


@pytest.mark.parametrize("order", [1, 2, 3])
def test_n_gram_probabilities_are_those_of_laplace(order: int) -> None:
    texts = ["the cat sat", "the dog sat on the cat", ""]
    targets = ["the cat ran", "dog", "?"]
    known = {word for one in [*texts, *targets] for word in words(one)}
    counts = Counter(gram for one in texts for gram in grams(one, order))
    before = Counter(gram[:-1] for gram in counts.elements())
    expected = [
        np.mean([np.log((counts[gram] + 1) / (before[gram[:-1]] + len(known))) for gram in grams(target, order)])
        for target in targets
    ]
    np.testing.assert_allclose(mean_log_probabilities(targets, iter(texts), order), expected)


def test_a_model_of_n_grams_is_a_distribution() -> None:
    texts = ["a b a c", "b a"]
    chances = np.exp(mean_log_probabilities(["a", "b", "c"], texts, 1))
    assert chances.sum() == pytest.approx(1)


def test_texts_without_words_have_no_probability_and_orders_are_positive() -> None:
    assert mean_log_probabilities(["", " "], ["a"]).tolist() == [0, 0]
    with pytest.raises(AccountingError, match="accepted: from 1"):
        mean_log_probabilities(["a"], ["a"], 0)


def test_similarity_is_the_mean_of_the_nearest_jaccard_similarities() -> None:
    targets = [*(text(8) for _ in range(70)), "unheard of", ""]
    texts = [*(text(8) for _ in range(30)), targets[0], ""]

    def brute(target: str) -> float:
        own = set(grams(target, 2))
        alike = [len(own & held) / max(1, len(own | held)) for held in (set(grams(one, 2)) for one in texts)]
        return float(np.mean(sorted(alike)[-3:]))

    found = similarity_scores(targets, texts, most_similar=3)
    np.testing.assert_allclose(found, [brute(target) for target in targets])
    assert found[0] > 0.33
    np.testing.assert_allclose(similarity_scores(targets[:1], texts[-2:-1]), [1.0])


def test_every_attack_finds_texts_that_were_spliced_from_its_members() -> None:
    members, others, reference = ([text() for _ in range(200)] for _ in range(3))
    evidence = TextEvidence([*members, *others], [spliced(members) for _ in range(600)], reference)
    included = np.arange(400) < 200
    found = attacks(evidence)
    assert [item.attack.name for item in found] == list(TEXT_ONLY_ATTACKS)
    for item in found:
        # Runs of eight letters say little of words that all texts share: their area is 0.858 on average, its deviation
        # 0.023, 15 below. That of the others is 0.998, lowest of 40 runs 0.990, deviation 0.002.
        least = 0.5 if item.attack is TEXT_OVERLAP else 0.9
        assert area_under_curve(item.scores, included) > least, item.attack.name


def test_the_reference_takes_away_what_is_common_anyway() -> None:
    common, rare = "we are sorry for the delay", "zaphod mislaid seven teapots"
    release = [*[common] * 50, rare, *(text() for _ in range(50))]
    evidence = TextEvidence([common, rare], release, [*[common] * 50, *(text() for _ in range(51))])
    raw = mean_log_probabilities(evidence.targets, release)
    (scored,) = attacks(evidence, ["n-gram model"])
    assert raw[0] > raw[1]
    assert scored.scores[1] > scored.scores[0]


def test_attacks_run_as_far_as_the_evidence_goes() -> None:
    evidence = TextEvidence(["a b"], ["a b c"], canaries=True)
    assert [item.attack.name for item in attacks(evidence)] == [
        name for name in TEXT_ONLY_ATTACKS if name != "n-gram model"
    ]
    assert [item.attack for item in attacks(evidence, ["text overlap"])] == [TEXT_OVERLAP]
    with pytest.raises(AccountingError, match="lacks a reference"):
        attacks(evidence, ["n-gram model"])
    with pytest.raises(AccountingError, match="accepted: n-gram model, "):
        attacks(evidence, ["telepathy"])


def test_only_canaries_without_a_reference_are_publishable() -> None:
    assert TextEvidence(["a"], ["b"], canaries=True).publishable
    assert not TextEvidence(["a"], ["b"], ["c"], canaries=True).publishable
    assert not TextEvidence(["a"], ["b"]).publishable


@pytest.mark.parametrize("empty", ["targets", "synthetic", "reference"])
def test_evidence_without_texts_is_refused(empty: str) -> None:
    with pytest.raises(AccountingError, match="accepted: at least one text"):
        TextEvidence(**({"targets": ["a"], "synthetic": ["b"], "reference": ["c"]} | {empty: []}))


def test_unusual_texts_are_found() -> None:
    usual = [text() for _ in range(200)]
    strange = ["quantum teapots sing beneath marmalade", "vogon poetry ruins every picnic"]
    chosen = outliers([*usual[:100], *strange, *usual[100:]], 0.05)
    assert chosen[[100, 101]].all()
    assert 11 <= chosen.sum() <= 22  # whatever was drawn: two rules choose 11 each


@pytest.mark.parametrize(
    ("texts", "share"), [(["a b"] * 19, 0.1), (["a b"] * 40, 0.0), (["a b"] * 40, 1.0), ([" "] * 40, 0.1)]
)
def test_where_nothing_can_be_unusual_it_is_said(texts: list[str], share: float) -> None:
    with pytest.raises(AccountingError, match="accepted: "):
        outliers(texts, share)


def test_texts_that_are_all_alike_have_outliers_as_many_as_asked() -> None:
    assert 4 <= outliers(["same words here"] * 40, 0.1).sum() <= 8


def test_copies_are_told_word_for_word() -> None:
    found = count_text_copies(["The cat.", "a dog"], ["a bird"], ["the  CAT .", "a dog barks", "something else"])
    assert (found.members, found.of_members, found.held_out, found.of_held_out) == (1, 2, 0, 1)
    with pytest.raises(AccountingError, match="0 members, 1 held-out records; accepted: at least one of each"):
        count_text_copies([], ["a"], ["a"])
