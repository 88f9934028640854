"""Utility of labelled texts, of one label or several each: F1 of several classifiers, and of guessing.

What belongs here: labels as sets, classifiers that are trained on some texts and tested on others, and two baselines.
What does not: the two classifiers of every quality report (`classification`), and which texts train (`one_table`).

With one label a text, a classifier chooses one; with several, each label has a classifier of its own. SynBench
(section 3, "utility") fine-tunes language models, so its scores are not comparable.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.process_state import own_warning_filters
from dpsynth_platform.quality.text.mauve import Features
from dpsynth_platform.quality.text.words import WORD

LabelSet = frozenset[str]

NONE = "(none)"
"""How a text without a label is written."""
JOINED = " | "
"""Between the labels of a text, where they are one value."""
GUESSES = 20
_MOST_TERMS = 50_000
_STEPS = 500


@dataclass(frozen=True)
class F1:
    """Macro F1 over the labels of the tested texts, and micro F1 over all labels, in [0, 1]."""

    macro: float
    micro: float


@dataclass(frozen=True)
class Labelled:
    """Texts with their labels and sentence features, shape (texts, features)."""

    texts: Sequence[str]
    labels: Sequence[LabelSet]
    features: Features

    @property
    def single(self) -> bool:
        """Whether each text has exactly one label."""
        return all(len(own) == 1 for own in self.labels)


def label_sets(values: Sequence[Any], separator: str | None) -> list[LabelSet | None]:
    """The labels of each text: a list's items, or the parts of a value; None where the value is missing.

    Without a separator, a value is one label, and a blank one is missing. A whole number is one label in every type.
    """
    found: list[LabelSet | None] = []
    for value in values:
        whole = value if isinstance(value, list) else _as_text(value)
        if whole is None or not (separator or whole or isinstance(value, list)):
            found.append(None)
            continue
        parts = whole if isinstance(whole, list) else whole.split(separator) if separator else [whole]
        found.append(frozenset(text for part in parts if (text := _as_text(part))))
    return found


def _as_text(value: Any) -> str | None:
    """One value without blanks around it; None if it is missing."""
    if value is None or value != value:  # pandas and polars write missing numbers as NaN
        return None
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def joined(labels: LabelSet) -> str:
    """A set of labels as one value, the same for the same set. Raises `SourceError` if a label contains `JOINED`."""
    if any(JOINED in label or label == NONE for label in labels):
        raise SourceError(
            f"label: one contains {JOINED!r} or is {NONE!r}; accepted: others, and --separator '{JOINED.strip()}' "
            "where it divides several"
        )
    return JOINED.join(sorted(labels)) or NONE


def parted(value: str) -> LabelSet:
    """The inverse of `joined`."""
    return frozenset() if value == NONE else frozenset(value.split(JOINED))


def by_classifiers(train: Labelled, test: Labelled) -> dict[str, F1]:
    """F1 of each classifier of `CLASSIFIERS`, by its name. Neither side may be empty."""
    single = train.single and test.single
    found = {}
    for name, (inputs, classifier) in CLASSIFIERS.items():
        learned, asked = inputs(train, test)
        with own_warning_filters():
            warnings.simplefilter("ignore")  # of steps that do not converge, and of labels that all texts have
            guessed = _guess(classifier, learned, train.labels, asked, single)
        found[name] = f1_of(test.labels, guessed)
    return found


def by_guessing(train: Sequence[LabelSet], test: Sequence[LabelSet]) -> dict[str, F1]:
    """F1 of always guessing the most frequent set of labels, and of guessing a random text's, a mean of some draws."""
    most = min(Counter(train).items(), key=lambda item: (-item[1], sorted(item[0])))[0]
    rng = np.random.default_rng(0)  # anyone can repeat it
    drawn = [f1_of(test, [train[at] for at in rng.integers(len(train), size=len(test))]) for _ in range(GUESSES)]
    return {
        "majority": f1_of(test, [most] * len(test)),
        "random": F1(*(float(np.mean([getattr(one, name) for one in drawn])) for name in ("macro", "micro"))),
    }


def f1_of(truth: Sequence[LabelSet], guessed: Sequence[LabelSet]) -> F1:
    """Macro F1 over the labels that occur in the truth, micro F1 over all; 0 for a label that is never found."""
    right, said, are = Counter[str](), Counter[str](), Counter[str]()
    for own, guess in zip(truth, guessed, strict=True):
        right.update(own & guess)
        said.update(guess)
        are.update(own)
    of_each = [2 * right[label] / (said[label] + count) for label, count in are.items()]
    total = said.total() + are.total()
    return F1(float(np.mean(of_each)) if of_each else 0.0, 2 * right.total() / total if total else 0.0)


def _guess(
    classifier: Callable[[], Any], learned: Any, labels: Sequence[LabelSet], asked: Any, single: bool
) -> list[LabelSet]:
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    if len(set(labels)) == 1:
        return [labels[0]] * asked.shape[0]
    if single:
        model = classifier().fit(learned, [label for own in labels for label in own])
        return [frozenset([label]) for label in model.predict(asked).tolist()]
    coder = MultiLabelBinarizer()
    codes = coder.fit_transform(labels)
    return [
        frozenset(own)
        for own in coder.inverse_transform(OneVsRestClassifier(classifier()).fit(learned, codes).predict(asked))
    ]


def _words(train: Labelled, test: Labelled) -> tuple[Any, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    terms = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, max_features=_MOST_TERMS)
    return terms.fit_transform(train.texts), terms.transform(test.texts)


def _features(train: Labelled, test: Labelled) -> tuple[Any, Any]:
    return train.features, test.features


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(class_weight="balanced", max_iter=_STEPS)


def _bayes() -> Any:
    from sklearn.naive_bayes import MultinomialNB

    return MultinomialNB()


Inputs = Callable[[Labelled, Labelled], tuple[Any, Any]]
CLASSIFIERS: Mapping[str, tuple[Inputs, Callable[[], Any]]] = {
    "logistic, words": (_words, _logistic),
    "Bayes, words": (_words, _bayes),
    "logistic, features": (_features, _logistic),
}
"""By name: what each learns from, and the model."""
