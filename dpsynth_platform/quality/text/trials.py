"""One trial: every measure on equal numbers of randomly drawn texts of each table.

What belongs here: what is computed once for all trials, the draw, and which texts each measure compares. What does not:
the measures, and their names and errors (`report`).

A trial measures the synthetic texts against held-out ones, and then real texts that the generator read instead. That
second figure is what perfect synthetic texts would reach (guide, section 5.6, "real vs. real"). All draws have the same
size, since most figures depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.text import divergences
from dpsynth_platform.quality.text.classification import by_features, by_words
from dpsynth_platform.quality.text.corpora import Corpus
from dpsynth_platform.quality.text.diversity import distinct, duplicates, self_bleu, verbatim
from dpsynth_platform.quality.text.entities import entity_counts
from dpsynth_platform.quality.text.mauve import Features, mauve
from dpsynth_platform.quality.text.next_token import next_token_accuracy
from dpsynth_platform.quality.text.words import Codes, code_words
from dpsynth_platform.synth.text.embeddings import SentenceEncoder

VERBATIM_WORDS = 10
MOST_TRAINING_TEXTS = 50_000
"""Size of the sample of the generator's texts in which verbatim runs are searched."""
LENGTHS = (1, 2, 3)
"""Of n-grams."""
_NAN = float("nan")


@dataclass(frozen=True)
class Material:
    """Texts of one table with the measures' inputs, one entry per text in every part.

    Attributes:
        features, entities: shapes (texts, 384) and (texts, types).
        copied: whether a text has a verbatim run of a text that the generator read.
    """

    corpus: Corpus
    words: tuple[Codes, ...]
    features: Features
    entities: Codes
    copied: npt.NDArray[np.bool_]

    def take(self, rows: Codes) -> Material:
        words = tuple(self.words[at] for at in rows)
        return Material(self.corpus.take(rows), words, self.features[rows], self.entities[rows], self.copied[rows])

    def labelled(self) -> Material:
        return self.take(np.flatnonzero([label is not None for label in self.corpus.labels]))


def prepare(
    real: Corpus, held_out: Corpus, synthetic: Corpus, most: int, progress: Progress = silent
) -> tuple[Material, Material, Material]:
    """What is computed once, for a random sample of at most `most` texts of each table.

    Raises `ConfigurationError` if the sentence model is not installed, and `SourceError` if a detector process ends
    unexpectedly.
    """
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    training = _some(real, MOST_TRAINING_TEXTS, rng)
    sides = [_some(side, most, rng) for side in (real, held_out, synthetic)]
    *words, training_words = code_words(*(side.texts for side in sides), training.texts)
    texts = [text for side in sides for text in side.texts]
    cuts = np.cumsum([len(side.texts) for side in sides])[:-1]
    features = np.split(SentenceEncoder().encode(texts, progress), cuts)
    entities = np.split(entity_counts(texts, progress), cuts)
    copied = np.split(verbatim([text for part in words for text in part], training_words, VERBATIM_WORDS), cuts)
    first, second, third = (
        Material(side, tuple(coded), vectors, counts, copies)
        for side, coded, vectors, counts, copies in zip(sides, words, features, entities, copied, strict=True)
    )
    return first, second, third


def run_trial(
    materials: tuple[Material, Material, Material], texts: int, clusters: int, trial: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of the synthetic texts, and of real ones instead, by key (`report.MEASURES`).

    Draws `texts` of the real, held-out and synthetic texts, with `trial` as random state.
    """
    rng = np.random.default_rng(trial)
    real, held_out, synthetic = (item.take(rng.choice(len(item.words), texts, replace=False)) for item in materials)
    all_held_out = materials[1]
    made = _compared(synthetic, held_out, clusters, trial) | _classified(synthetic, all_held_out)
    kept = _compared(real, held_out, clusters, trial) | _classified(real, all_held_out)
    runs = {length: min(_runs(item, length) for item in (real, synthetic)) for length in LENGTHS}
    return (
        made | _alone(synthetic, runs, rng) | {"verbatim": float(synthetic.copied.mean())},
        kept | _alone(real, runs, rng) | {"verbatim": float(held_out.copied.mean())},
    )


def _some(corpus: Corpus, most: int, rng: np.random.Generator) -> Corpus:
    if len(corpus.texts) <= most:
        return corpus
    return corpus.take(rng.choice(len(corpus.texts), most, replace=False))


def _compared(item: Material, held_out: Material, clusters: int, trial: int) -> dict[str, float]:
    """Measures that compare texts with as many held-out ones."""
    lengths = [np.array([len(text) for text in side.words]) for side in (item, held_out)]
    found = {
        "mauve": mauve(held_out.features, item.features, clusters, trial),
        "next_token": next_token_accuracy(item.words, held_out.words),
        "lengths": divergences.length_divergence(*lengths),
        "entities": divergences.entity_divergence(item.entities, held_out.entities),
        "entity_rates": divergences.entity_rate_divergence(item.entities, held_out.entities),
        "vocabulary": divergences.vocabulary_overlap(item.words, held_out.words),
    }
    for length in LENGTHS:
        found[f"runs_{length}"], found[f"frontier_{length}"] = divergences.run_divergences(
            item.words, held_out.words, length
        )
    return found


def _classified(item: Material, held_out: Material) -> dict[str, float]:
    """Classifiers trained on texts, tested on all held-out ones; nothing without labels."""
    if not item.corpus.labels:
        return {}
    item, held_out = item.labelled(), held_out.labelled()
    keys = ("f1_words", "accuracy_words", "f1_features", "accuracy_features")
    if not item.words or not held_out.words:
        return dict.fromkeys(keys, _NAN)
    classes, truth = ([label or "" for label in side.corpus.labels] for side in (item, held_out))
    words = by_words(item.corpus.texts, classes, held_out.corpus.texts, truth)
    meaning = by_features(item.features, classes, held_out.features, truth)
    return dict(zip(keys, (words.f1, words.accuracy, meaning.f1, meaning.accuracy), strict=True))


def _runs(item: Material, length: int) -> int:
    return sum(max(0, len(text) - length + 1) for text in item.words)


def _alone(item: Material, runs: dict[int, int], rng: np.random.Generator) -> dict[str, float]:
    """Measures of one corpus, on equal numbers of n-grams of each length."""
    found = {"self_bleu": self_bleu(item.words, rng), "duplicates": duplicates(item.words)}
    return found | {f"distinct_{n}": distinct(item.words, n, count) for n, count in runs.items()}
