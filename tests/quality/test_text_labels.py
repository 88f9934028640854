"""Labels of texts: sets, classifiers of one label and of several, baselines; and measures of texts alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.text.divergences import topic_divergence
from dpsynth_platform.quality.text.fluency import coherence, perplexity, sentences, sentiment, zipf_exponent
from dpsynth_platform.quality.text.labels import (
    CLASSIFIERS,
    F1,
    Labelled,
    by_classifiers,
    by_guessing,
    f1_of,
    joined,
    label_sets,
    parted,
)

SIGNS = {"a": "apple", "b": "bread", "c": "cheese"}


def made(count: int, seed: int, several: bool) -> Labelled:
    """Texts in which each label has a word, and features in which it has a direction."""
    rng = np.random.default_rng(seed)
    labels, texts, features = [], [], []
    for _ in range(count):
        own = [name for name in SIGNS if rng.random() < 0.4] if several else [str(rng.choice(list(SIGNS)))]
        words = [*(SIGNS[name] for name in own), *rng.choice(["the", "of", "and"], 4)]
        labels.append(frozenset(own))
        texts.append(" ".join(rng.permutation(words)))
        features.append([float(name in own) + rng.normal(0, 0.05) for name in SIGNS])
    return Labelled(texts, labels, np.array(features, dtype=np.float32))


def test_labels_are_sets_whatever_holds_them() -> None:
    assert label_sets(["x; y;x", None, "", 3], ";") == [{"x", "y"}, None, frozenset(), {"3"}]
    assert label_sets([["x", 1], [], "x;y"], None) == [{"x", "1"}, frozenset(), {"x;y"}]
    for labels in (frozenset(), frozenset({"b", "a"})):
        assert parted(joined(labels)) == labels
    with pytest.raises(SourceError, match="accepted: others"):
        joined(frozenset({"a | b"}))


@pytest.mark.parametrize("several", [False, True])
def test_every_classifier_learns_and_guessing_does_not(several: bool) -> None:
    train, test = made(200, 0, several), made(150, 1, several)
    assert test.single != several
    found = by_classifiers(train, test)
    assert list(found) == list(CLASSIFIERS)
    guessed = by_guessing(train.labels, test.labels)
    for name, own in found.items():
        # Bayes with words that all texts have is the weakest.
        assert min(own.macro, own.micro) > 0.75, name
        assert own.micro > max(item.micro for item in guessed.values()), name
    assert set(guessed) == {"majority", "random"}


def test_f1_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(5)
    truth, guess = (
        [frozenset(rng.choice(list("abcd"), rng.integers(0, 4), replace=False).tolist()) for _ in range(60)]
        for _ in range(2)
    )
    coder = MultiLabelBinarizer(classes=list("abcd")).fit(truth)
    for name, average in (("macro", "macro"), ("micro", "micro")):
        expected = f1_score(coder.transform(truth), coder.transform(guess), average=average, zero_division=0)
        assert getattr(f1_of(truth, guess), name) == pytest.approx(expected)
    assert f1_of([frozenset("a")], [frozenset("z")]) == F1(0, 0)
    assert f1_of([frozenset()], [frozenset()]) == F1(0, 0)


def test_texts_of_one_label_teach_that_label() -> None:
    train, test = made(30, 0, False), made(30, 1, False)
    same = Labelled(train.texts, [frozenset("a")] * 30, train.features)
    assert by_classifiers(same, test)["logistic, words"] == f1_of(test.labels, same.labels)


def test_frequencies_that_fall_as_one_over_the_rank_have_exponent_one() -> None:
    words = np.concatenate([np.full(3000 // rank, rank) for rank in range(1, 400)])
    assert zipf_exponent([words[:100], words[100:]]) == pytest.approx(1, abs=0.02)
    assert math.isnan(zipf_exponent([np.arange(500)]))


def test_perplexity_is_over_tokens_of_all_texts() -> None:
    assert perplexity([np.log([0.5, 0.125]), np.zeros(0), np.log([0.25])]) == pytest.approx(4)
    assert math.isnan(perplexity([np.zeros(0)]))


def test_sentiment_is_the_mean_tone() -> None:
    friendly, hostile, plain = "What a wonderful, happy day!", "A terrible crime.", "The table has four legs."
    assert sentiment([friendly]) > 0.5 and sentiment([hostile]) < -0.5 and sentiment([plain, ""]) == 0
    assert sentiment([friendly, plain]) == pytest.approx(sentiment([friendly]) / 2)


def test_coherence_compares_sentences_of_one_text() -> None:
    assert sentences("One. Two?  Three! 3.5 is not two") == ["One.", "Two?", "Three!", "3.5 is not two"]
    features = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [1, 0]], dtype=np.float32)
    # Of the texts with 2, 1 and 2 sentences, the first's are alike and the last's are not.
    assert coherence([2, 1, 2], features) == pytest.approx(0.5)
    assert math.isnan(coherence([1, 1, 1, 1, 1], features))


def test_topics_of_other_texts_diverge() -> None:
    rng = np.random.default_rng(0)
    first, second = (
        np.concatenate([rng.normal(size=(n, 8)) + 9 * at for at, n in enumerate(sizes)])
        for sizes in ((40, 10), (10, 40))
    )
    alike = topic_divergence(first.astype(np.float32), first.astype(np.float32), 2, 0)
    assert alike == 0 < 0.1 < topic_divergence(first.astype(np.float32), second.astype(np.float32), 2, 0)
