"""The quality report of synthetic texts: every measure over several trials, with that of real texts for comparison.

What belongs here: names and directions of the figures, their means and errors, and the report as JSON, as markdown and
as rows for a terminal. What does not: measuring (`trials`), and any gate. The report compares with real texts, so it is
restricted, and says so in every form.

All trials draw from the same tables, so standard errors include sampling and random starts only; the variation between
people is larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.figures import HEADER, HIGHER, LOWER, NEAR, Figure, estimate, figures_as_json
from dpsynth_platform.quality.report import NOTICE, markdown_row
from dpsynth_platform.quality.text.corpora import Corpus, check_labels
from dpsynth_platform.quality.text.mauve import EXPLAINED_VARIANCE, SCALING, default_clusters
from dpsynth_platform.quality.text.trials import VERBATIM_WORDS, prepare, run_trial
from dpsynth_platform.synth.text.embeddings import MODEL, MOST_PIECES

TRIALS = 5
MOST_TEXTS = 1_000
"""A fixed random sample of so many texts replaces larger tables."""
_DRAWN = 0.8
"""Share of the smallest table that each trial draws; with all of it, trials would hardly differ."""

SPLIT = (
    "There were no held-out texts. A random half of the real ones replaces them, although the generator read it, and "
    "verbatim runs are searched in the other half only. Both make figures look better."
)

MEASURES: Mapping[str, tuple[str, str]] = {
    "mauve": ("MAUVE", HIGHER),
    "f1_words": ("classifier on words: macro F1", HIGHER),
    "accuracy_words": ("classifier on words: accuracy", HIGHER),
    "f1_features": ("classifier on sentence features: macro F1", HIGHER),
    "accuracy_features": ("classifier on sentence features: accuracy", HIGHER),
    "next_token": ("next-token accuracy of a word model", HIGHER),
    "lengths": ("length divergence (JS, bits)", LOWER),
    "entities": ("entity type divergence (JS, bits)", LOWER),
    "entity_rates": ("entities a text, divergence (JS, bits)", LOWER),
    "runs_1": ("1-gram divergence (JS, bits)", LOWER),
    "runs_2": ("2-gram divergence (JS, bits)", LOWER),
    "runs_3": ("3-gram divergence (JS, bits)", LOWER),
    "frontier_1": ("1-gram frontier area", HIGHER),
    "frontier_2": ("2-gram frontier area", HIGHER),
    "frontier_3": ("3-gram frontier area", HIGHER),
    "vocabulary": ("vocabulary overlap (Jaccard)", HIGHER),
    "self_bleu": ("self-BLEU-4", NEAR),
    "distinct_1": ("distinct-1", NEAR),
    "distinct_2": ("distinct-2", NEAR),
    "distinct_3": ("distinct-3", NEAR),
    "duplicates": ("duplicates, share of texts", NEAR),
    "verbatim": (f"texts with {VERBATIM_WORDS} words in a row of a training text", NEAR),
}
"""Name and direction of each figure, in the order of the report."""


@dataclass(frozen=True)
class TextQualityReport:
    """Quality of one synthetic corpus. Restricted.

    Attributes:
        texts, blank: number of texts, and of rows without one, in each table.
        drawn: number of texts of each table in a trial.
        majority_accuracy: share of the most frequent class among held-out texts; None without labels.
        settings: only figures with equal settings are comparable.
    """

    texts: dict[str, int]
    blank: dict[str, int]
    trials: int
    drawn: int
    majority_accuracy: float | None
    settings: dict[str, float | str]
    figures: tuple[Figure, ...]
    remarks: tuple[str, ...]
    notice: str = NOTICE
    restricted: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"figures": figures_as_json(self.figures)}

    def table(self) -> list[tuple[str, str, str, str]]:
        """Rows with the columns of `HEADER`: mean ± standard error."""
        return [(figure.name, figure.better, str(figure.synthetic), str(figure.real)) for figure in self.figures]

    def remarks_for_people(self) -> list[str]:
        """Sizes, settings and remarks."""
        sizes = ", ".join(f"{count} {name}" for name, count in self.texts.items())
        blank = ", ".join(f"{count} {name}" for name, count in self.blank.items())
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        share = self.majority_accuracy
        return [
            f"Texts: {sizes}; blank rows: {blank}.",
            f"Means over {self.trials} trials, of {self.drawn} texts of each table, ± standard error.",
            f"Settings: {settings}.",
            *([] if share is None else [f"Accuracy of the most frequent class alone: {share:.3f}."]),
            *self.remarks,
        ]

    def markdown(self) -> str:
        rows = [markdown_row(row) for row in (HEADER, ["---"] * len(HEADER), *self.table())]
        return "\n".join([f"**{self.notice}**", "", *rows, "", *self.remarks_for_people()])


def measure_texts(
    real: Corpus,
    held_out: Corpus,
    synthetic: Corpus,
    *,
    trials: int = TRIALS,
    most: int = MOST_TEXTS,
    clusters: int | None = None,
    remarks: Sequence[str] = (),
    progress: Progress = silent,
) -> TextQualityReport:
    """Measures synthetic texts. If all three corpora have labels, classifiers are compared, too.

    Args:
        real, held_out: texts that the generator read, and texts of other owners.
        most: sample size for larger tables, drawn once for all trials.
        clusters: of MAUVE; None: a tenth of the texts in a trial.
        progress: called with stages and percents, or numbers of trials.

    Raises `SourceError` for unsuitable labels or too few texts for the clusters, and `ConfigurationError` if the
    sentence model is not installed.
    """
    sides = (real, held_out, synthetic)
    labelled = all(side.labels for side in sides)
    if labelled:
        check_labels(*sides)
    drawn = int(_DRAWN * min(most, *(len(side.texts) for side in sides)))
    clusters = default_clusters(drawn) if clusters is None else clusters
    if not 2 <= clusters <= drawn:
        raise SourceError(f"clusters: {clusters}; accepted: 2 to {drawn}, the number of texts that a trial draws")
    materials = prepare(*sides, most, progress)
    found = []
    for trial in range(trials):
        found.append(run_trial(materials, drawn, clusters, trial))
        progress("trials", trial + 1, trials)
    return TextQualityReport(
        texts={side.name: len(side.texts) for side in sides},
        blank={side.name: side.blank for side in sides},
        trials=trials,
        drawn=drawn,
        majority_accuracy=_majority(held_out) if labelled else None,
        settings={
            "MAUVE clusters": clusters,
            "scaling": SCALING,
            "explained variance": EXPLAINED_VARIANCE,
            "features": f"{MODEL}, first {MOST_PIECES} word pieces",
        },
        figures=tuple(
            Figure(key, name, better, *(estimate([trial[side][key] for trial in found]) for side in (0, 1)))
            for key, (name, better) in MEASURES.items()
            if key in found[0][0]
        ),
        remarks=tuple(remarks),
    )


def _majority(corpus: Corpus) -> float:
    counts = Counter(label for label in corpus.labels if label is not None)
    return max(counts.values()) / counts.total()
