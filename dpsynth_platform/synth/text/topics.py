"""Public topics, and the topic of a text.

What belongs here: topic models as files, their levels, and sorting texts by topic. What does not: making topic models
(`topic_building`), counting topics with noise and giving them to a language model (`ctcl`).

A topic model is made from public material only, so it has no cost and no knowledge of the data. A text's topic depends
on that text and the model only: one record more or less moves one count by one. That is the topic model of CTCL (Tan et
al. 2025, section 3.2); theirs clusters Wikipedia's articles, ours the embeddings of public words and phrases, or of
public documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN, UNIVERSAL_TOPICS
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.synth.text.embeddings import FEATURES, MODEL, REMEMBERED_TEXTS, SentenceEncoder

FORMAT = "dpsynth-topics-1"
KEYWORDS = 10
"""Words that describe a topic, as in the paper."""
UNCLASSIFIED = "unclassified"
"""The label of texts that are close to no topic, instead of keywords."""
LEAST_SIMILARITY = 0.0
"""The least cosine to the closest topic; below, a text has no topic. Of 1,200 posts to newsgroups these were 3% at 16
topics, 0.6% at 32 and almost none above; of 1,200 sentences of news 0.3% and none."""
LONGEST = 2000
"""Characters of a text that are used: more than the encoder reads."""
_SCALE = 127
_KEYWORDS_OF = "keywords_"


@dataclass(frozen=True)
class TopicModel:
    """The topics of one level. Public.

    Attributes:
        centers: float32, shape (topics, 384), each of length 1.
        keywords: of each topic, joined by commas.
    """

    name: str
    digest: str
    centers: npt.NDArray[np.float32]
    keywords: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of texts: each topic's keywords, and `UNCLASSIFIED`."""
        return (*self.keywords, UNCLASSIFIED)

    def label(self, text: str | None, encoder: SentenceEncoder) -> str:
        """The label of one text; missing and blank texts are unclassified.

        Texts are computed one by one: in a batch, the last bits of features and similarities depend on other texts, and
        so would the choice between two equally close topics. A record must not move another's count.
        """
        shown = (text or "")[:LONGEST].strip()
        if not shown:
            return UNCLASSIFIED
        similarity = self.centers @ encoder.encode([shown])[0]
        best = int(similarity.argmax())
        return self.keywords[best] if similarity[best] >= LEAST_SIMILARITY else UNCLASSIFIED


def with_topics(records: pa.Table, written: str, topics: TopicModel, encoder: SentenceEncoder) -> pa.Table:
    """Records with a column of keywords, each from the record's text in the column `written` only."""
    label = lru_cache(maxsize=REMEMBERED_TEXTS)(lambda text: topics.label(text, encoder))
    labels = [label(text) for text in records.column(written).to_pylist()]
    return records.append_column(KEYWORDS_COLUMN, pa.array(labels, pa.string()))


@dataclass(frozen=True)
class TopicChoice:
    """The topics of a plan: name, number of topics and file's SHA-256 of their model. Public."""

    model: str
    level: int
    digest: str

    def load(self) -> TopicModel:
        """The topics. Raises `ConfigurationError` if the file is missing or changed."""
        return load_topics(self.model, self.level, self.digest)


def load_topics(name: str, level: int, digest: str | None = None) -> TopicModel:
    """The topics of a model (`universal`, or the path of a file) at one of `contracts.TOPIC_LEVELS`.

    Raises:
        ConfigurationError: there is no such file, it is no topic model, lacks the level, or has another digest.
    """
    content = _read(name)
    found = hashlib.sha256(content).hexdigest()
    if digest not in (None, found):
        raise ConfigurationError(
            f"topics.model: {name!r} is not the file of the plan; restore that file, or materialize the line from raw "
            "again"
        )
    with _refusing(name):
        about, tensors = _parts(content)
        if level in (levels := _levels(about)):
            centers, keywords = _topics(about, tensors, level)
            return TopicModel(name, found, centers, keywords)
    raise ConfigurationError(
        f"topics.count: {level}; accepted: {', '.join(map(str, levels))}, which {name!r} has, or another topics.model"
    )


def topic_levels(name: str) -> tuple[int, ...]:
    """The numbers of topics that a model has. Raises `ConfigurationError` if it cannot be read or is none."""
    with _refusing(name):
        return _levels(_parts(_read(name))[0])


def topics_content(levels: Mapping[int, tuple[npt.NDArray[np.float32], Sequence[str]]], material: str) -> bytes:
    """The content of a topic model's file.

    Args:
        levels: centers and keywords by number of topics.
        material: the public sources, in words.
    """
    from safetensors.numpy import save

    centers = {f"centers_{level}": np.rint(part * _SCALE).astype(np.int8) for level, (part, _) in levels.items()}
    about = {"format": FORMAT, "encoder": MODEL, "material": material}
    keywords = {f"{_KEYWORDS_OF}{level}": list(words) for level, (_, words) in levels.items()}
    # One entry: several would be written in random order, which would change the file's digest.
    return save(centers, metadata={"about": json.dumps(about | keywords)})


def write_topics(file: Path, levels: Mapping[int, tuple[npt.NDArray[np.float32], Sequence[str]]], material: str) -> str:
    """Writes a topic model (`topics_content`); returns its file's SHA-256."""
    from dpsynth_platform.foundation.storage import write_durably

    content = topics_content(levels, material)
    write_durably(file, content)
    return hashlib.sha256(content).hexdigest()


def _read(name: str) -> bytes:
    try:
        universal = files("dpsynth_platform.synth.text") / "topics.safetensors"
        return (universal if name == UNIVERSAL_TOPICS else Path(name)).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"topics.model: {name!r} cannot be read ({reason_of(error)}); accepted: {UNIVERSAL_TOPICS}, or a "
            "file that `dpsynth synth topics` made"
        ) from None


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Says of what cannot be parsed that it is no topic model."""
    try:
        yield
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"topics.model: {name!r} is no topic model; accepted: a file that `dpsynth synth topics` made"
        ) from None


def _parts(content: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What a file says about itself, and its centers. Raises as `_topics` if it is no topic model."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    length = int.from_bytes(content[:8], "little")  # a safetensors file begins with the length of its JSON header
    about: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
    if (about["format"], about["encoder"]) != (FORMAT, MODEL):
        raise ValueError("another format, or topics of another encoder")
    return about, tensors


def _levels(about: Mapping[str, Any]) -> tuple[int, ...]:
    found = sorted(int(key.removeprefix(_KEYWORDS_OF)) for key in about if key.startswith(_KEYWORDS_OF))
    if not found:
        raise ValueError("no topics")
    return tuple(found)


def _topics(
    about: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]], level: int
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Raises `KeyError`, `TypeError` or `ValueError` if the parts of a level do not belong together."""
    keywords = tuple(about[f"{_KEYWORDS_OF}{level}"])
    centers: npt.NDArray[np.float32] = tensors[f"centers_{level}"].astype(np.float32) / np.float32(_SCALE)
    distinct = len(set(keywords) - {UNCLASSIFIED}) == level and all(isinstance(words, str) for words in keywords)
    if centers.shape != (level, FEATURES) or not distinct or len(keywords) != level:
        raise ValueError("parts that do not belong together")
    centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-6)
    return centers, keywords
