"""Utility: text classifiers trained on synthetic texts against classifiers trained on real ones.

What belongs here: two classifiers and their scores. What does not: which texts train and which test (`report`); test
texts are real ones that the generator did not read.

Both are logistic regressions with balanced classes: one on TF-IDF of words and pairs of words, one on sentence
features. SynBench (section 3, "utility") fine-tunes language models, so its scores are not comparable.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.foundation.process_state import own_warning_filters
from dpsynth_platform.quality.text.mauve import Features
from dpsynth_platform.quality.text.words import WORD

_MOST_TERMS = 50_000
_STEPS = 500


@dataclass(frozen=True)
class Scores:
    """A classifier's macro F1 (over the classes of the held-out texts) and accuracy, in [0, 1]."""

    f1: float
    accuracy: float


def by_words(train: Sequence[str], classes: Sequence[str], test: Sequence[str], truth: Sequence[str]) -> Scores:
    """Scores on TF-IDF of words and pairs of words. No argument may be empty."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    terms = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, max_features=_MOST_TERMS)
    return _train_and_test(terms.fit_transform(train), classes, terms.transform(test), truth)


def by_features(train: Features, classes: Sequence[str], test: Features, truth: Sequence[str]) -> Scores:
    """Scores on sentence features, shapes (texts, features). No argument may be empty."""
    return _train_and_test(train, classes, test, truth)


def _train_and_test(train: Any, classes: Sequence[str], test: Any, truth: Sequence[str]) -> Scores:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    if len(set(classes)) == 1:
        guessed = [classes[0]] * len(truth)
    else:
        with own_warning_filters():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(class_weight="balanced", max_iter=_STEPS).fit(train, classes)
        guessed = model.predict(test).tolist()
    return Scores(
        f1=float(f1_score(truth, guessed, average="macro", labels=sorted(set(truth)), zero_division=0)),
        accuracy=float(accuracy_score(truth, guessed)),
    )
