"""Public topics, and which one a text is about.

What belongs here: topic models as files, their levels, and sorting texts by topic. What does not: making them
(`topic_building`), counting topics with noise and telling them to a language model (`ctcl`).

A topic model is made from public material alone, so it costs nothing and knows nothing of the data. Which topic a text
gets hangs on that text and the model, on no other text: a record more or less moves one count by one. That is the
topic model of CTCL (Tan et al. 2025, section 3.2); theirs clusters Wikipedia's articles, ours the embeddings of public
words and phrases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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
"""In place of keywords, for texts that are close to no topic."""
LEAST_SIMILARITY = 0.0
"""Cosine to the closest topic below which a text has none: it points away from all of them. Of 1,200 posts to
newsgroups that was so for 3% at 16 topics, 0.6% at 32 and next to none above, of 1,200 sentences of news for 0.3% and
none."""
_LONGEST = 2000
"""Characters of a text that are looked at: more than the encoder reads of it."""
_SCALE = 127


@dataclass(frozen=True)
class TopicModel:
    """The topics of one level. Public.

    Attributes:
        name: by which a contract names the model.
        digest: SHA-256 of its file.
        centers: float32, shape (topics, 384), each of length 1.
        keywords: of each topic, joined by commas.
    """

    name: str
    digest: str
    centers: npt.NDArray[np.float32]
    keywords: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """What a text may be sorted under: each topic's keywords, and `UNCLASSIFIED`."""
        return (*self.keywords, UNCLASSIFIED)

    def label(self, text: str | None, encoder: SentenceEncoder) -> str:
        """The label of one text; one that is missing or blank is unclassified.

        One by one: the last bits of a text's features, and of its similarities, hang on what is computed beside it, and
        with them the choice between two topics that are equally close. A record must not move another's count.
        """
        shown = (text or "")[:_LONGEST].strip()
        if not shown:
            return UNCLASSIFIED
        similarity = self.centers @ encoder.encode([shown])[0]
        best = int(similarity.argmax())
        return self.keywords[best] if similarity[best] >= LEAST_SIMILARITY else UNCLASSIFIED


def with_topics(records: pa.Table, written: str, topics: TopicModel, encoder: SentenceEncoder) -> pa.Table:
    """Records with a column of keywords, each of its own text alone.

    Args:
        written: name of the text column.
    """
    label = lru_cache(maxsize=REMEMBERED_TEXTS)(lambda text: topics.label(text, encoder))
    labels = [label(text) for text in records.column(written).to_pylist()]
    return records.append_column(KEYWORDS_COLUMN, pa.array(labels, pa.string()))


@dataclass(frozen=True)
class TopicChoice:
    """Which topics a plan goes by. Public; part of the sealed plan.

    Attributes:
        model: name of the topic model.
        level: how many topics.
        digest: SHA-256 of the model's file.
    """

    model: str
    level: int
    digest: str

    def load(self) -> TopicModel:
        """The topics. Raises `ConfigurationError` if the file is not there, or another one."""
        return load_topics(self.model, self.level, self.digest)


def file_of(name: str) -> Path:
    """Where the model of that name is: `universal`, or a file's path."""
    return (
        Path(str(files("dpsynth_platform.synth.text") / "topics.safetensors"))
        if name == UNIVERSAL_TOPICS
        else Path(name)
    )


def load_topics(name: str, level: int, digest: str | None = None) -> TopicModel:
    """One level of a topic model.

    Args:
        name: `universal`, or the path of a file that `dpsynth synth topics` has made.
        level: how many topics, one of `contracts.TOPIC_LEVELS`.
        digest: that its file must have.

    Raises:
        ConfigurationError: there is no such file, it is no topic model, or another one than the digest says.
    """
    try:
        content = file_of(name).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"topics.model: {name!r} cannot be read ({reason_of(error)}); accepted: {UNIVERSAL_TOPICS}, or a "
            "file that `dpsynth synth topics` made"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if digest not in (None, found):
        raise ConfigurationError(
            f"topics.model: {name!r} is another file than the one that was planned with; restore it, or materialize "
            "the line from raw again"
        )
    try:
        centers, keywords = _parsed(content, level)
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"topics.model: {name!r} is no topic model with {level} topics; accepted: a file that `dpsynth synth "
            "topics` made"
        ) from None
    return TopicModel(name, found, centers, keywords)


def write_topics(file: Path, levels: Mapping[int, tuple[npt.NDArray[np.float32], Sequence[str]]], material: str) -> str:
    """Writes a topic model; returns its file's SHA-256.

    Args:
        file: a new one.
        levels: of each number of topics, their centers and keywords.
        material: what it was made from, in words.
    """
    from safetensors.numpy import save

    from dpsynth_platform.foundation.storage import write_durably

    centers = {f"centers_{level}": np.rint(part * _SCALE).astype(np.int8) for level, (part, _) in levels.items()}
    about = {"format": FORMAT, "encoder": MODEL, "material": material}
    keywords = {f"keywords_{level}": list(words) for level, (_, words) in levels.items()}
    # One entry, since several would be written in an order of chance, and the file's digest with them.
    content = save(centers, metadata={"about": json.dumps(about | keywords)})
    write_durably(file, content)
    return hashlib.sha256(content).hexdigest()


def _parsed(content: bytes, level: int) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Raises `KeyError`, `TypeError` or `ValueError` where it is no topic model with that level."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    about = _about(content)
    if (about["format"], about["encoder"]) != (FORMAT, MODEL):
        raise ValueError("another format, or topics of another encoder")
    keywords = tuple(about[f"keywords_{level}"])
    centers: npt.NDArray[np.float32] = tensors[f"centers_{level}"].astype(np.float32) / np.float32(_SCALE)
    distinct = len(set(keywords) - {UNCLASSIFIED}) == level and all(isinstance(words, str) for words in keywords)
    if centers.shape != (level, FEATURES) or not distinct or len(keywords) != level:
        raise ValueError("parts that do not belong together")
    centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-6)
    return centers, keywords


def _about(content: bytes) -> Mapping[str, Any]:
    """The file's own words about itself: a safetensors file begins with their length and JSON."""
    length = int.from_bytes(content[:8], "little")
    about: Mapping[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
    return about
