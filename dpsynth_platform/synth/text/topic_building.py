"""Making a topic model from public words and phrases.

What belongs here: the public material, clusters of its embeddings, and the keywords of each. What does not: the file,
and sorting texts (`topics`). Other phrases must come from public sources: a topic model's content is released with
every text, and no budget pays for it.

The universal model's material installs with the platform: the whole words of the sentence encoder's vocabulary (which
come from English Wikipedia and books) without stop words, and English job titles. First and last names are left out:
they form separate clusters, which say nothing about a text. Each level is a separate k-means over all of it, so that
its topics are as even as possible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.contracts.text_generation import TOPIC_LEVELS
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.synth.text.embeddings import SentenceEncoder, vocabulary
from dpsynth_platform.synth.text.topics import KEYWORDS, write_topics

UNIVERSAL_MATERIAL = "whole words of all-MiniLM-L6-v2's vocabulary without stop words and names; job titles of Faker"
_WORD = re.compile("[a-z]{3,}")
_STARTS_ALIKE = 5
"""Keywords of a topic differ in so many first letters, so that ten keywords are not forms of two words."""
_STARTS = 4
"""Repetitions of k-means, of which the best is kept."""


def universal_phrases() -> list[str]:
    """The material of the universal model."""
    from faker.providers.job import Provider as Jobs
    from faker.providers.person.en_US import Provider as People
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    names = {
        name.lower()
        for group in (People.first_names_female, People.first_names_male, People.last_names)
        for name in group
    }
    words = [word for word in vocabulary() if _WORD.fullmatch(word) and word not in ENGLISH_STOP_WORDS | names]
    titles = {" ".join(reversed(re.sub(r"\(.*?\)", "", title).strip().lower().split(", "))) for title in Jobs.jobs}
    return sorted({*words, *titles})


def read_phrases(file: Path) -> list[str]:
    """The lines of a file. Raises `ConfigurationError` if it cannot be read as UTF-8."""
    try:
        return read_regular(file).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{file}: cannot be read ({reason_of(error)}); accepted: a text file in UTF-8, one phrase a line"
        ) from None


def build_topics(
    phrases: Sequence[str],
    file: Path,
    *,
    material: str,
    levels: Sequence[int] | None = None,
    progress: Progress = silent,
) -> str:
    """Clusters public phrases into topics and writes the model. Minutes on one core. Returns the file's SHA-256.

    Args:
        file: a new one.
        material: what the phrases are and where they are from, in words.
        levels: numbers of topics; by default all that a contract accepts.

    Raises:
        ConfigurationError: there are too few different phrases, or the file exists.
    """
    levels = levels or TOPIC_LEVELS
    found = sorted({phrase.strip() for phrase in phrases if phrase.strip()})
    if len(found) < 2 * max(levels):
        raise ConfigurationError(
            f"{len(found)} different phrases; accepted: at least {2 * max(levels)}, for {max(levels)} topics"
        )
    if file.exists():
        raise ConfigurationError(f"{file} exists; accepted: the name of a new file")
    features = SentenceEncoder().encode(found, progress)
    made = {}
    for done, level in enumerate(levels):
        progress("clusters", done, len(levels))
        centers = _clusters(features, level)
        made[level] = (centers, _keywords(features @ centers.T, found))
    progress("clusters", len(levels), len(levels))
    return write_topics(file, made, material)


def _clusters(features: npt.NDArray[np.float32], level: int) -> npt.NDArray[np.float32]:
    """Centers of length 1."""
    from sklearn.cluster import KMeans

    # The seed is fixed: the same public material gives the same topics everywhere.
    centers = KMeans(level, n_init=_STARTS, max_iter=100, random_state=0).fit(features).cluster_centers_
    unit: npt.NDArray[np.float32] = (centers / np.linalg.norm(centers, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _keywords(similarity: npt.NDArray[np.float32], phrases: Sequence[str]) -> list[str]:
    """The phrases closest to each center; one more for a center that would have the same keywords as another.

    Args:
        similarity: shape (phrases, topics).
    """
    made: list[str] = []
    for topic in range(similarity.shape[1]):
        order = np.argsort(-similarity[:, topic], kind="stable")
        size = KEYWORDS
        while (words := _distinct(order, phrases, size)) in made:
            size += 1
        made.append(words)
    return made


def text_keywords(texts: Sequence[str]) -> list[str]:
    """The words of each text that are most its own among these texts, by TF-IDF; "" for a text without such words."""
    weights, words = _weighted_words(texts)
    made = []
    for row in range(len(texts)):
        own = weights.getrow(row)
        order = own.indices[np.argsort(-own.data, kind="stable")]
        made.append(_distinct(order, words, KEYWORDS))
    return made


def _weighted_words(texts: Sequence[str]) -> tuple[Any, list[str]]:
    """TF-IDF of words that are no stop words, as a sparse matrix of shape (texts, words), and the words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    counted = TfidfVectorizer(stop_words="english", token_pattern=rf"\b{_WORD.pattern}\b", sublinear_tf=True)
    try:
        weights = counted.fit_transform(texts)
    except ValueError:  # no text has any such word
        from scipy.sparse import csr_matrix

        return csr_matrix((len(texts), 1)), [""]
    return weights.tocsr(), counted.get_feature_names_out().tolist()


def _distinct(order: npt.NDArray[np.int64], phrases: Sequence[str], size: int) -> str:
    chosen: dict[str, str] = {}
    for at in order:
        phrase = phrases[at]
        if "," not in phrase:
            chosen.setdefault(phrase[:_STARTS_ALIKE], phrase)
        if len(chosen) == size:
            break
    return ", ".join(chosen.values())
