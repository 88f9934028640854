"""Quality of texts that need no generator, as a check of the measures. Not a test: it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_quality.py [--texts 1000] [financial newsgroups]

What belongs here: real texts, and texts that are worse in one known way each, through the product's own measures, with
the time that they take. What does not: asserting; `tests/quality` holds what must hold.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpsynth_platform.quality.files import read_file
from dpsynth_platform.quality.text.corpora import Corpus, corpus_of, halves
from dpsynth_platform.quality.text.report import measure_texts

SOURCES = {
    "financial": ("financial_phrasebank/financial_phrasebank.parquet", "label_name", None),
    "newsgroups": ("newsgroups20/newsgroups20.parquet", "newsgroup", "author_id"),
}
SEED = 1
Made = Callable[[Corpus, np.random.Generator], Corpus]


def as_they_are(texts: Corpus, rng: np.random.Generator) -> Corpus:
    """Real texts of other owners: what perfect synthetic texts would be."""
    return texts


def shuffled(texts: Corpus, rng: np.random.Generator) -> Corpus:
    """The words of each text in random order."""
    return replace(texts, texts=tuple(" ".join(rng.permutation(text.split())) for text in texts.texts))


def words_alone(texts: Corpus, rng: np.random.Generator) -> Corpus:
    """Texts of the same lengths, of words drawn by their frequency in all texts."""
    words = np.array([word for text in texts.texts for word in text.split()], dtype=object)
    return replace(texts, texts=tuple(" ".join(rng.choice(words, len(text.split()))) for text in texts.texts))


def few(texts: Corpus, rng: np.random.Generator) -> Corpus:
    """Twenty of the texts, again and again."""
    return texts.take(rng.choice(20, len(texts.texts)))


MADE: dict[str, Made] = {"real": as_they_are, "shuffled": shuffled, "words": words_alone, "few": few}


def judge(name: str, most: int, trials: int) -> None:
    """Prints the figures of each kind of text, beside real ones."""
    path, label, owner = SOURCES[name]
    whole = corpus_of("real", read_file(Path(os.environ["DPSYNTH_BENCH_DATA"]) / path), "text", label, owner)
    real, rest = halves(whole)
    held_out, other = halves(rest)
    began, columns = time.monotonic(), {}
    for kind, made in MADE.items():
        synthetic = replace(made(other, np.random.default_rng(SEED)), name="synthetic")
        report = measure_texts(real, replace(held_out, name="held-out"), synthetic, trials=trials, most=most)
        columns[kind] = report
    print(f"\n{name}: {report.drawn} texts in a trial, {(time.monotonic() - began) / len(MADE):.0f} s a report")
    print(f"{'':50}" + "".join(f"{kind:>16}" for kind in ("(real in place)", *MADE)))
    for at, figure in enumerate(report.figures):
        cells = [
            str(columns["real"].figures[at].real),
            *(str(found.figures[at].synthetic) for found in columns.values()),
        ]
        print(f"{figure.name:50}" + "".join(f"{cell:>16}" for cell in cells))


def main() -> None:
    """Reads the arguments, and judges each source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", default=[*SOURCES], help=f"of {', '.join(SOURCES)}")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--trials", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.sources:
        judge(name, arguments.texts, arguments.trials)


if __name__ == "__main__":
    main()
