"""How well public topics separate the labels of texts, by topic model. Not a test: it takes minutes and prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_topics.py [NAME=FILE ...]

Files are those of `dpsynth synth topics`, beside the universal topics. *Themselves* are clusters of the very texts,
which no private method may have: what topics could be at best.

What belongs here: topics of texts, and what these say of labels, without noise and without training a model. What does
not: texts that are written from topics (`bench_text_utility.py`).

Texts are those of `text_cells`, of posts the first `WORDS` words, about as many as `bench_text_utility.py` reads. By
the topics of three quarters of the units the others' labels are guessed. `gain` is how much likelier, in nats, a
held-out text's label is given its topic than without (one pseudo-count for each topic, at the labels' frequencies); F1
is that of the most frequent label of each topic. ± is the standard deviation over `SPLITS` divisions of the units, of
one clustering.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.metrics import f1_score
from text_cells import SOURCES, divided

from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.topics import load_topics, topic_levels

LEVELS = (16, 64, 256)
SPLITS, WORDS, MOST, ENOUGH = 5, 35, 10, 30
"""`MOST`: so many of the most frequent topics. `ENOUGH`: records that a topic has, three times the usual noise."""
Places = npt.NDArray[np.int64]


def figures(topics: Places, labels: Places, read: Places, held_out: Places) -> list[float]:
    """Gain in nats, macro F1, share of the `MOST` most frequent topics, and topics with `ENOUGH` records."""
    counts = np.zeros((topics.max() + 1, labels.max() + 1))
    np.add.at(counts, (topics[read], labels[read]), 1)
    before = counts.sum(axis=0) / len(read)
    given = (counts + before) / (counts.sum(axis=1, keepdims=True) + 1)
    true, found = labels[held_out], given[topics[held_out]]
    gain = np.log(found[np.arange(len(true)), true] / before[true]).mean()
    f1 = f1_score(true, found.argmax(axis=1), average="macro", zero_division=0)
    sizes = np.sort(counts.sum(axis=1))[::-1]
    return [gain, f1, sizes[:MOST].sum() / len(read), (sizes >= ENOUGH).sum()]


def centers(level: int, models: dict[str, str], features: Any) -> Iterator[tuple[str, Any]]:
    """The centers of each model that has so many topics, and of the texts themselves."""
    for name, file in models.items():
        if level in topic_levels(file):
            yield name, load_topics(file, level).centers
    own = KMeans(level, n_init=4, max_iter=100, random_state=0).fit(features).cluster_centers_
    yield "themselves", own / np.linalg.norm(own, axis=1, keepdims=True)


def main(data: Path, models: dict[str, str]) -> None:
    """Prints a table."""
    print("| texts | topics | made of | gain | F1 | most frequent | with enough records |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for source, about in SOURCES.items():
        rows = about.rows(data)
        splits = [
            [np.array([int(at, 16) for at in side["record"].to_pylist()]) for side in divided(rows, about, seed)]
            for seed in range(SPLITS)
        ]
        labels = np.array([about.labels.index(label) for _, label, _ in rows])
        most = WORDS if source == "newsgroups" else None
        features = SentenceEncoder().encode([" ".join(text.split()[:most]) for _, _, text in rows])
        for level in LEVELS:
            for name, own in centers(level, models, features):
                topics = (features @ own.T).argmax(axis=1)
                found = np.array([figures(topics, labels, *split) for split in splits])
                told = (f"{each.mean():.2f} ± {each.std(ddof=1):.2f}" for each in found.T)
                print(f"| {source} | {level} | {name} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main(
        Path(os.environ["DPSYNTH_BENCH_DATA"]),
        {"words": "universal", **dict(given.split("=", 1) for given in sys.argv[1:])},
    )
