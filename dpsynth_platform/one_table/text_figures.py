"""What synthetic texts are worth beside real ones, for a comparison of methods on public texts.

What belongs here: the figures of one synthetic table and of the real texts in its place, by name and group. What does
not: the measures (`quality.text`), and writing texts (`text_comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.audit.texts.pretraining import order_test
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.one_table.text_sources import LABEL, TEXT
from dpsynth_platform.quality.text.corpora import Corpus
from dpsynth_platform.quality.text.divergences import topic_divergence
from dpsynth_platform.quality.text.fluency import (
    coherence,
    perplexity,
    sentences,
    sentiment,
    token_log_likelihoods,
    zipf_exponent,
)
from dpsynth_platform.quality.text.labels import CLASSIFIERS, F1, Labelled, by_classifiers, by_guessing, parted
from dpsynth_platform.quality.text.mauve import default_clusters
from dpsynth_platform.quality.text.report import MEASURES, measure_texts
from dpsynth_platform.quality.text.words import code_words
from dpsynth_platform.synth.text.embeddings import SentenceEncoder

Figures = dict[str, float]

MOST_ALONE = 200
"""Texts whose perplexity, coherence and tone are measured."""
TOKENS_IN_ORDER = 1024
"""Of a shard whose order is tested."""
UTILITY = tuple(f"{kind} F1, {name}" for name in CLASSIFIERS for kind in ("macro", "micro"))
_OF_LABELS = ("f1_words", "accuracy_words", "f1_features", "accuracy_features")
FIDELITY = (*(name for name in MEASURES if name not in _OF_LABELS), "topics")
"""Keys of `report.MEASURES` that need no labels, and the divergence of topics."""
ALONE = ("perplexity", "zipf", "coherence", "sentiment")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "utility": UTILITY,
    "fidelity": ("mauve", "entities", "lengths", "runs_2", "next_token", "topics"),
    "texts alone": (*ALONE, "self_bleu", "distinct_2", "duplicates", "verbatim"),
}
"""What tables show; files have all figures."""


@dataclass
class Judge:
    """Measures synthetic tables against the same real ones, for which models are loaded once.

    Attributes:
        base_model: by which perplexity is measured: the same for all methods.
        trials, most: of `measure_texts`.
    """

    real: pa.Table
    held_out: pa.Table
    base_model: str
    trials: int
    most: int
    progress: Progress = silent
    _kept: dict[str, Any] = field(default_factory=dict)

    @property
    def encoder(self) -> SentenceEncoder:
        if "encoder" not in self._kept:
            self._kept["encoder"] = SentenceEncoder()
        found: SentenceEncoder = self._kept["encoder"]
        return found

    def labelled(self, table: pa.Table) -> Labelled:
        """Texts of a table with their labels and features; rows without a text are left out."""
        rows = [row for row in table.to_pylist() if row[TEXT] and row[LABEL] is not None]
        texts = [row[TEXT] for row in rows]
        return Labelled(texts, [parted(row[LABEL]) for row in rows], self.encoder.encode(texts, self.progress))

    def of_real(self, name: str) -> Labelled:
        """The real texts that methods read (`real`), or the held-out ones (`held_out`)."""
        if name not in self._kept:
            self._kept[name] = self.labelled(getattr(self, name))
        found: Labelled = self._kept[name]
        return found

    def baselines(self) -> dict[str, Figures]:
        """Figures of guessing, and utility of the real texts themselves."""
        real, held_out = self.of_real("real"), self.of_real("held_out")
        guessed = by_guessing(real.labels, held_out.labels)
        same = {name: dict.fromkeys(CLASSIFIERS, score) for name, score in guessed.items()}
        return {
            name: _utility(scores) for name, scores in {"real texts": by_classifiers(real, held_out), **same}.items()
        }

    def figures(self, synthetic: pa.Table) -> tuple[Figures, Figures]:
        """The figures of synthetic texts, and those of real texts in their place, but for `baselines`.

        Raises `SourceError` for too few texts.
        """
        made, real, held_out = self.labelled(synthetic), self.of_real("real"), self.of_real("held_out")
        sides = {"real": real, "held-out": held_out, "synthetic": made}
        corpora = [Corpus(name, tuple(side.texts), (), (), 0) for name, side in sides.items()]
        report = measure_texts(*corpora, trials=self.trials, most=self.most, progress=self.progress)
        found = {part.key: part.synthetic.mean for part in report.figures}
        of_real = {part.key: part.real.mean for part in report.figures}
        size = min(self.most, *(len(side.texts) for side in sides.values()))
        rng = np.random.default_rng(0)  # anyone can repeat it
        drawn = {name: rng.choice(len(side.texts), size, replace=False).tolist() for name, side in sides.items()}
        topics = default_clusters(size)
        for name, into in (("synthetic", found), ("real", of_real)):
            own, others = sides[name].features[drawn[name]], held_out.features[drawn["held-out"]]
            into["topics"] = topic_divergence(own, others, topics, 0)
            into |= self._alone([sides[name].texts[at] for at in drawn[name]])
        return found | _utility(by_classifiers(made, held_out)), of_real

    def _alone(self, texts: Sequence[str]) -> Figures:
        some = texts[:MOST_ALONE]
        parts = [sentences(text) for text in some]
        vectors = self.encoder.encode([part for own in parts for part in own])
        return {
            "perplexity": perplexity(token_log_likelihoods(*self._model, some)),
            "zipf": zipf_exponent(code_words(texts)[0]),
            "coherence": coherence([len(own) for own in parts], vectors),
            "sentiment": sentiment(some),
        }

    def pretraining(self) -> dict[str, Any]:
        """Whether the base model prefers the order of the real texts (`order_test`), as JSON."""

        def likelihood(texts: Sequence[str]) -> npt.NDArray[np.float64]:
            return np.array([own.sum() for own in token_log_likelihoods(*self._model, texts, TOKENS_IN_ORDER)])

        return order_test(self.of_real("real").texts, likelihood, progress=self.progress).to_json()

    @property
    def _model(self) -> tuple[Any, Any]:
        from dpsynth_platform.synth.text.base_models import load, refuse_decoder
        from dpsynth_platform.synth.text.trained import deployed

        if "model" not in self._kept:
            base = deployed(self.base_model)
            refuse_decoder(base, "perplexity")
            self._kept["model"] = load(base)
        found: tuple[Any, Any] = self._kept["model"]
        return found


def _utility(scores: Mapping[str, F1]) -> Figures:
    return {f"{kind} F1, {name}": getattr(score, kind) for name, score in scores.items() for kind in ("macro", "micro")}
