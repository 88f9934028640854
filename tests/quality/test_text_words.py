"""Words, their counts, what is distinct and what is copied, and the word model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.quality.text.divergences import (
    entity_divergence,
    entity_rate_divergence,
    jensen_shannon,
    length_divergence,
    run_divergences,
    vocabulary_overlap,
)
from dpsynth_platform.quality.text.diversity import bleu, distinct, duplicates, self_bleu, verbatim
from dpsynth_platform.quality.text.next_token import next_token_accuracy
from dpsynth_platform.quality.text.words import code_words, runs_of

TEXTS = st.lists(st.lists(st.sampled_from("abcd"), max_size=8), min_size=1, max_size=6)


def test_words_are_coded_alike_in_all_corpora() -> None:
    first, second = code_words(["Over the hill, over."], ["the HILL", ""])
    assert [text.tolist() for text in first + second] == [[0, 1, 2, 3, 0, 4], [1, 2], []]


@settings(max_examples=100, deadline=None)
@given(corpora=st.tuples(TEXTS, TEXTS), length=st.integers(1, 5))
def test_runs_are_equal_where_their_words_are(corpora: tuple[list[list[str]], ...], length: int) -> None:
    coded = code_words(*([" ".join(text) for text in corpus] for corpus in corpora))
    expected = [
        (corpus, number, tuple(text[at : at + length]))
        for corpus, texts in enumerate(corpora)
        for number, text in enumerate(texts)
        for at in range(len(text) - length + 1)
    ]
    found = [
        (corpus, int(number), int(code))
        for corpus, runs in enumerate(runs_of(length, *coded))
        for number, code in zip(runs.texts, runs.codes, strict=True)
    ]
    assert [item[:2] for item in found] == [item[:2] for item in expected]
    pairs = {(item[2], other[2]) for item, other in zip(found, expected, strict=True)}
    assert len(pairs) == len({code for code, _ in pairs}) == len({words for _, words in pairs})


def test_jensen_shannon_by_hand() -> None:
    assert jensen_shannon([3, 0], [0, 5]) == pytest.approx(1)
    assert jensen_shannon([1, 1], [4, 4]) == pytest.approx(0, abs=1e-12)
    # Of (1/2, 1/2) and (1, 0): middle (3/4, 1/4).
    expected = (0.5 * math.log2(2 / 3) + 0.5 * math.log2(2) + math.log2(4 / 3)) / 2
    assert jensen_shannon([2, 2], [1, 0]) == pytest.approx(expected)


def test_lengths_are_compared_in_cells_that_grow() -> None:
    assert length_divergence(np.array([100, 100]), np.array([101, 102])) == 0
    assert length_divergence(np.array([4, 4]), np.array([100, 2])) == pytest.approx(1)
    assert length_divergence(np.array([2, 20]), np.array([2, 2])) == pytest.approx(jensen_shannon([1, 1], [2, 0]))


def test_entities_by_type_and_by_text() -> None:
    people, places = np.array([[2, 0], [0, 0]]), np.array([[0, 2], [0, 0]])
    assert entity_divergence(people, places) == pytest.approx(1)
    assert entity_rate_divergence(people, places) == 0
    assert math.isnan(entity_divergence(people, places * 0))
    assert entity_rate_divergence(people, places * 0) > 0.3


def test_runs_of_words_by_hand() -> None:
    first, second = code_words(["a b c"], ["a b d"])
    for length, common in ((1, 2 / 3), (2, 1 / 2), (3, 0)):
        # The common runs have equal shares in both, the others are in one only.
        assert run_divergences(first, second, length)[0] == pytest.approx(1 - common)
    assert run_divergences(first, first, 2) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert all(math.isnan(value) for value in run_divergences(first, second, 4))


def test_word_order_shows_in_pairs_only() -> None:
    rng = np.random.default_rng(0)
    sentences = ["the small dog ran over the long road to the old house in the north"] * 20
    mixed = [" ".join(rng.permutation(text.split())) for text in sentences]
    plain, shuffled = code_words(sentences, mixed)
    assert run_divergences(plain, shuffled, 1)[0] == pytest.approx(0, abs=1e-12)
    assert run_divergences(plain, shuffled, 2)[0] > 0.5
    assert run_divergences(plain, shuffled, 2)[1] < 0.8


def test_vocabularies() -> None:
    first, second = code_words(["a b", "b c"], ["c d"])
    assert vocabulary_overlap(first, second) == 1 / 4


def test_bleu_by_hand() -> None:
    hypothesis, reference = (text.tolist() for text in code_words(["a b c d e", "a b c x e y"])[0])
    # 4 of 5 words, 2 of 4 pairs, 1 of 3 triples, none of 2 (0.1 counts); shorter than the reference: exp(1 - 6/5).
    expected = math.exp(1 - 6 / 5) * (4 / 5 * 2 / 4 * 1 / 3 * 0.1 / 2) ** 0.25
    assert bleu(hypothesis, [reference]) == pytest.approx(expected)
    assert bleu(hypothesis, [hypothesis]) == 1
    assert bleu([0, 0, 0, 0], [[0, 1]], order=1) == 1 / 4  # a word counts as often as the reference has it
    assert bleu([0, 1], [[0, 1]]) == 1  # too short for triples


def test_bleu_takes_the_best_of_each_run_and_the_nearest_length() -> None:
    assert bleu([1, 2, 3], [[1, 2], [2, 3, 9, 9, 9]], order=2) == pytest.approx((1 * 1) ** 0.5)
    assert bleu([1, 2, 3], [[1, 2, 3, 4, 5]], order=2) == pytest.approx(math.exp(1 - 5 / 3))


def test_self_bleu_tells_repetition() -> None:
    rng = np.random.default_rng(1)
    various, same = code_words([" ".join(rng.choice(list("abcdefghij"), 12)) for _ in range(30)], ["a b c d e"] * 30)
    assert self_bleu(same, rng) == 1
    assert self_bleu(various, rng) < 0.5


def test_self_bleu_is_the_mean_against_the_others() -> None:
    rng = np.random.default_rng(3)
    for words in (2, 5, 40):
        texts = [rng.integers(0, words, rng.integers(1, 12)) for _ in range(12)]
        lists = [text.tolist() for text in texts]
        alone = [bleu(text, lists[:at] + lists[at + 1 :]) for at, text in enumerate(lists)]
        assert self_bleu(texts, rng) == pytest.approx(np.mean(alone), rel=1e-12)


def test_distinct_runs_and_duplicates() -> None:
    (texts,) = code_words(["a b a b", "A  B a b", "c"])
    assert distinct(texts, 1, 9) == 3 / 9
    assert distinct(texts, 2, 4) == 2 / 4
    assert math.isnan(distinct(texts, 5, 0))
    assert duplicates(texts) == pytest.approx(1 / 3)


def test_verbatim_runs() -> None:
    texts, training = code_words(["say a b c d now", "a b c x d", "a b c"], ["z A b c d", "d e"])
    assert verbatim(texts, training, 4).tolist() == [True, False, False]
    assert verbatim(texts, training, 3).tolist() == [True, True, True]


def test_next_words_by_hand() -> None:
    train, test = code_words(["a b c", "a b c", "x b b d"], ["a b c", "x b c", "q b"])
    # All of "a b c" and its end; b after x; the end after "b c"; b after q, since b is the most frequent of all. Not x
    # and q, since more texts begin with a; not c after "x b", which b followed; not the end after b, which c followed.
    assert next_token_accuracy(train, test) == pytest.approx(7 / 11)


def test_of_equally_frequent_words_the_more_frequent_is_told() -> None:
    train, test = code_words(["a b", "a c", "c", "c"], ["a c"])
    assert next_token_accuracy(train, test) == pytest.approx(2 / 3)  # not a: as many texts begin with c


@settings(max_examples=60, deadline=None)
@given(train=TEXTS, test=TEXTS)
def test_next_words_are_those_of_the_definition(train: list[list[str]], test: list[list[str]]) -> None:
    coded = code_words(*([" ".join(text) for text in corpus] for corpus in (train, test)))
    followers: dict[tuple[int, ...], list[int]] = {}
    whole = [[[-1, *text.tolist(), -2] for text in corpus] for corpus in coded]
    everything = [word for text in whole[0] for word in text[1:]]
    for text in whole[0]:
        for at in range(1, len(text)):
            for context in range(min(3, at) + 1):
                followers.setdefault(tuple(text[at - context : at]), []).append(text[at])
    hits = total = ties = 0
    for text in whole[1]:
        for at in range(1, len(text)):
            known = next(c for c in range(min(3, at), -1, -1) if tuple(text[at - c : at]) in followers)
            words = followers[tuple(text[at - known : at])]
            ranks = {word: (words.count(word), everything.count(word)) for word in words}
            best = [word for word, rank in ranks.items() if rank == max(ranks.values())]
            total += 1
            hits += best == [text[at]]
            ties += len(best) > 1 and text[at] in best
    assert hits <= round(next_token_accuracy(*coded) * total) <= hits + ties


def test_a_corpus_of_other_words_tells_only_ends() -> None:
    train, test = code_words(["a b", "c d"], ["p q", "r s"])
    assert next_token_accuracy(train, test) == pytest.approx(2 / 6)
