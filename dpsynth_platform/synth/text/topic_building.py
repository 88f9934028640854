"""Making a topic model from public words and phrases, or from public documents.

What belongs here: the universal material, clusters of embeddings, and the keywords of each. What does not: the file,
and sorting texts (`topics`), and whether other material is public (`one_table.public_topics`): prompts have its words,
which texts may repeat, and no budget pays for that.

The universal model's material installs with the platform: the whole words of the sentence encoder's vocabulary (which
come from English Wikipedia and books) without stop words, and English job titles. First and last names are left out:
they form separate clusters, which say nothing about a text. Each level is a separate k-means over all of it, so that
its topics are as even as possible.

A topic of phrases has those that are nearest to its center as keywords; a topic of documents, words that more of its
documents have than of all, by class-based TF-IDF (Grootendorst 2022, section 3.3), as BERTopic gives them, with which
CTCL clusters articles (Tan et al. 2025, section 3.2; KeyBERT chooses its keywords).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from dpsynth_platform.synth.text.topics import KEYWORDS, LONGEST, topics_content

UNIVERSAL_MATERIAL = "whole words of all-MiniLM-L6-v2's vocabulary without stop words and names; job titles of Faker"
_WORD = re.compile("[a-z]{3,}")
_STARTS_ALIKE = 5
"""Keywords of a topic differ in so many first letters, so that ten keywords are not forms of two words."""
_STARTS = 4
"""Repetitions of k-means, of which the best is kept."""

Ranked = tuple[npt.NDArray[np.int64], Sequence[str]]
"""Places of words, the best first, and the words."""
Similarity = npt.NDArray[np.float32]
"""Of texts to centers of topics, shape (texts, topics)."""


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


def topics_of_phrases(
    phrases: Sequence[str], *, material: str, levels: Sequence[int] = TOPIC_LEVELS, progress: Progress = silent
) -> bytes:
    """Clusters public phrases into topics. Minutes on one core. Returns the content of the model's file.

    Args:
        material: what the phrases are and where they are from, in words.
        levels: numbers of topics.

    Raises:
        ConfigurationError: there are too few different phrases.
    """
    found = sorted({phrase.strip() for phrase in phrases if phrase.strip()})
    check_enough(len(found), levels, "different phrases")
    return _built(found, levels, material, progress, lambda similarity: _nearest(similarity, found))


def topics_of_documents(
    documents: Sequence[str], *, material: str, levels: Sequence[int] = TOPIC_LEVELS, progress: Progress = silent
) -> bytes:
    """As `topics_of_phrases`, of the beginnings of documents (`LONGEST`), as texts are sorted by theirs.

    Documents without a word of three letters, a to z, that is no stop word are left out: they say nothing of a topic.

    Raises:
        ConfigurationError: there are too few different documents, or topics without words of their own.
    """
    beginnings = sorted({document.strip()[:LONGEST] for document in documents})
    counts, words = _counted(beginnings)
    found = [text for text, counted in zip(beginnings, counts.getnnz(axis=1), strict=True) if counted]
    check_enough(len(found), levels, "different documents with words (of three letters, a to z, and no stop words)")
    counts = counts[counts.getnnz(axis=1) > 0]
    return _built(found, levels, material, progress, lambda similarity: _distinctive(similarity, counts, words))


def check_enough(found: int, levels: Sequence[int], what: str) -> None:
    """Raises `ConfigurationError` if there is less than two times the number of topics."""
    if found < 2 * max(levels):
        raise ConfigurationError(
            f"{found} {what}; accepted: at least {2 * max(levels)}, for {max(levels)} topics, or fewer --topics"
        )


def _built(
    texts: Sequence[str],
    levels: Sequence[int],
    material: str,
    progress: Progress,
    keywords: Callable[[Similarity], Iterable[Ranked]],
) -> bytes:
    features = SentenceEncoder().encode(texts, progress)
    made = {}
    for done, level in enumerate(levels):
        progress("clusters", done, len(levels))
        centers = _centers(features, level)
        made[level] = (centers, _distinct_keywords(keywords(features @ centers.T)))
    progress("clusters", len(levels), len(levels))
    return topics_content(made, material)


def _centers(features: npt.NDArray[np.float32], level: int) -> npt.NDArray[np.float32]:
    """Centers of length 1."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # The seed is fixed, and threads would add in the order in which they end: the same material gives the same topics.
    with threadpool_limits(limits=1):
        centers = KMeans(level, n_init=_STARTS, max_iter=100, random_state=0).fit(features).cluster_centers_
    unit: npt.NDArray[np.float32] = (centers / np.linalg.norm(centers, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _distinct_keywords(ranked: Iterable[Ranked]) -> list[str]:
    """The first words of each topic; one more for a topic that would have the same as another.

    Raises:
        ConfigurationError: a topic has no words, or all of them are another's.
    """
    made: list[str] = []
    for order, words in ranked:
        size = KEYWORDS
        while (chosen := _distinct(order, words, size)) in made and size < len(order):
            size += 1
        if chosen in made or not chosen:
            raise ConfigurationError(
                f"topic {len(made) + 1} has no words of its own, since texts are alike; accepted: fewer --topics, or "
                "more different texts"
            )
        made.append(chosen)
    return made


def _nearest(similarity: Similarity, phrases: Sequence[str]) -> Iterator[Ranked]:
    """The phrases by their similarity to each center."""
    for topic in range(similarity.shape[1]):
        yield np.argsort(-similarity[:, topic], kind="stable"), phrases


def _distinctive(similarity: Similarity, counts: Any, words: Sequence[str]) -> Iterator[Ranked]:
    """The words of each topic's documents by class-based TF-IDF.

    A word counts once for each document, so that a document that repeats it has no more weight than another.

    Args:
        counts: whether a document has a word; sparse, shape (documents, words).
    """
    from scipy.sparse import csr_matrix

    documents, topics = similarity.shape
    belongs = csr_matrix((np.ones(documents), (similarity.argmax(axis=1), np.arange(documents))), (topics, documents))
    of_topics = (belongs @ counts).tocsr()
    rarity = np.log1p(of_topics.sum() / topics / np.asarray(of_topics.sum(axis=0)).ravel())
    for topic in range(topics):
        yield _ranked(of_topics.getrow(topic).multiply(rarity).tocsr()), words


def text_keywords(texts: Sequence[str]) -> list[str]:
    """The words of each text that are most its own among these texts, by TF-IDF; "" for a text without such words."""
    from sklearn.feature_extraction.text import TfidfTransformer

    counts, words = _counted(texts, once=False)
    weights = TfidfTransformer(sublinear_tf=True).fit_transform(counts) if words else counts
    return [_distinct(_ranked(weights.getrow(row)), words, KEYWORDS) for row in range(len(texts))]


def _counted(texts: Sequence[str], *, once: bool = True) -> tuple[Any, list[str]]:
    """The words of texts that are no stop words: counts, a sparse matrix of shape (texts, words), and the words.

    Args:
        once: count a word of a text once.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

    counted = CountVectorizer(stop_words="english", token_pattern=rf"\b{_WORD.pattern}\b", binary=once)
    try:
        counts = counted.fit_transform(texts)
    except ValueError:  # no text has any such word
        return csr_matrix((len(texts), 0)), []
    return counts.tocsr(), counted.get_feature_names_out().tolist()


def _ranked(row: Any) -> npt.NDArray[np.int64]:
    """The places of a sparse row's values, highest first, equal ones by place."""
    row.sort_indices()
    found: npt.NDArray[np.int64] = row.indices[np.argsort(-row.data, kind="stable")]
    return found


def _distinct(order: npt.NDArray[np.int64], phrases: Sequence[str], size: int) -> str:
    chosen: dict[str, str] = {}
    for at in order:
        phrase = phrases[at]
        if "," not in phrase:
            chosen.setdefault(phrase[:_STARTS_ALIKE], phrase)
        if len(chosen) == size:
            break
    return ", ".join(chosen.values())
