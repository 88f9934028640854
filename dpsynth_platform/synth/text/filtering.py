"""Which synthetic texts are kept. It reads synthetic texts only, so it is post-processing, and so are its counts.

What belongs here: the rules, and drawing replacements. What does not: any comparison with real texts, which would be an
access to the data (an equal real text is no reason to drop a synthetic one here).

| reason | texts that are left out |
| --- | --- |
| `malformed` | bodies that do not keep the layout: a field's marker is missing, repeated, or of another place |
| `control` | texts with a special token of the model spelled out, or with a character of `_CONTROL` |
| `cut` | texts that were cut off, if the rules say so |
| `short` | texts with fewer characters than the rules require |
| `repetitive` | texts in which too many word n-grams repeat earlier ones |
| `duplicate` | texts equal to an earlier one, by letters or by words (no case, blanks, punctuation) |
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.digests import canonical_json
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.sampling import Sampling, SyntheticText, read_texts, sample_texts

DUPLICATES = ("kept", "exact", "words")
_WORD = re.compile(r"\w+")
_CONTROL = re.compile(
    "\r(?!\n)"  # the following text would overwrite the line
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ud800-\udfff"
    "\u2028-\u202e\u2066-\u206f"  # breaks other than newlines; overrides of the writing direction
    "\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # invisible characters; tags can spell words
)
"""Control and replacement characters, and characters that hide or reorder words. Joiners, direction marks and soft
hyphens are part of languages, and are allowed."""
_MOST_AGAIN = 3
"""Replacements are drawn until so many times the requested number were drawn."""


@dataclass(frozen=True)
class Rules:
    """The rules for texts. Public.

    Attributes:
        least_characters: of all fields together, without blanks at the ends.
        words: of an n-gram; texts with fewer words are never repetitive.
        most_repeated: the largest share of a text's n-grams that repeat an earlier one.
        duplicates: `kept`, or left out if equal by `exact` letters or by `words`, also across prompts.
        whole: whether a text must end with its end-of-text token.
    """

    least_characters: int = 1
    words: int = 4
    most_repeated: float = 0.5
    duplicates: str = "words"
    whole: bool = False

    def __post_init__(self) -> None:
        if self.duplicates not in DUPLICATES or self.words < 1 or not 0 <= self.most_repeated <= 1:
            raise ContractError(
                f"generate: {self}; accepted: words from 1, most_repeated in [0, 1], duplicates one of "
                f"{', '.join(DUPLICATES)}"
            )


@dataclass
class Filter:
    """Filters texts one by one.

    Attributes:
        special: the model's special tokens, spelled out.
        dropped: how many were left out, by the first reason. Counts of synthetic texts: public.
    """

    layout: TextLayout
    rules: Rules
    special: Sequence[str] = ()
    dropped: Counter[str] = field(default_factory=Counter)
    _seen: set[bytes] = field(default_factory=set)

    def row(self, text: SyntheticText) -> dict[str, str | None] | None:
        """The text as a row of the layout's columns; None if it is left out."""
        fields = self.layout.parsed(text.body)
        reason = "malformed" if fields is None else self._problem(text, fields)
        if fields is None or reason is not None:
            self.dropped[str(reason)] += 1
            return None
        columns = (condition.column for condition in self.layout.conditions)
        return dict(zip(columns, text.given, strict=True)) | fields

    def _problem(self, text: SyntheticText, fields: Mapping[str, str | None]) -> str | None:
        written = "\n".join(value for value in fields.values() if value)
        words = _WORD.findall(unicodedata.normalize("NFKC", written).casefold())
        if any(token in written for token in self.special) or _CONTROL.search(written):
            return "control"
        if self.rules.whole and not text.ended:
            return "cut"
        if len(written.strip()) < self.rules.least_characters:
            return "short"
        if repeated_share(words, self.rules.words) > self.rules.most_repeated:
            return "repetitive"
        return "duplicate" if self._was_seen(canonical_json(fields), words) else None

    def _was_seen(self, written: str, words: Sequence[str]) -> bool:
        if self.rules.duplicates == "kept":
            return False
        by_words = self.rules.duplicates == "words" and words
        digest = hashlib.sha256((" ".join(words) if by_words else written).encode("utf-8", "replace")).digest()[:16]
        seen = digest in self._seen
        self._seen.add(digest)
        return seen


def repeated_share(words: Sequence[str], size: int) -> float:
    """The share of a text's n-grams that repeat an earlier one; 0 without n-grams."""
    grams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass(frozen=True)
class Kept:
    """Synthetic records that keep the rules.

    Attributes:
        rows: of the layout's columns, prompt by prompt.
        of_prompt: the number of rows of each prompt.
        drawn: the number of texts that were drawn for them.
        dropped: how many of these were left out, by reason.
    """

    rows: list[dict[str, str | None]]
    of_prompt: dict[Given, int]
    drawn: int
    dropped: dict[str, int]


def filtered(
    texts: Iterable[SyntheticText],
    counts: Mapping[Given, int],
    layout: TextLayout,
    rules: Rules,
    special: Sequence[str],
) -> Kept:
    """The first texts of each prompt that keep the rules, by their numbers, so that interruptions do not matter."""
    chosen = Filter(layout, rules, special)
    order = {given: place for place, given in enumerate(counts)}
    ordered = sorted((text for text in texts if text.given in order), key=lambda text: (order[text.given], text.number))
    rows: list[dict[str, str | None]] = []
    of_prompt = dict.fromkeys(counts, 0)
    for text in ordered:
        row = chosen.row(text)
        if row is not None and of_prompt[text.given] < counts[text.given]:
            rows.append(row)
            of_prompt[text.given] += 1
    return Kept(rows, of_prompt, len(ordered), dict(chosen.dropped))


def sample_records(
    model: Any,
    encoder: Encoder,
    counts: Mapping[Given, int],
    directory: Path,
    *,
    of: str,
    rules: Rules | None = None,
    sampling: Sampling | None = None,
    batch: int = 32,
    progress: Progress = silent,
) -> Kept:
    """Draws until each prompt has the requested records that keep the rules, or `_MOST_AGAIN` times as many texts.

    After a crash, call it again with the same arguments. Arguments and errors as for `sampling.sample_texts`.
    """
    requested = dict(counts)
    while True:
        sample_texts(model, encoder, requested, directory, of=of, sampling=sampling, batch=batch, progress=progress)
        kept = filtered(read_texts(directory), counts, encoder.layout, rules or Rules(), encoder.special)
        more = {given: _next_request(requested[given], kept.of_prompt[given], count) for given, count in counts.items()}
        if more == requested:
            return kept
        requested = more


def _next_request(requested: int, kept: int, count: int) -> int:
    """The next total of a prompt's texts, by the share of texts that were kept so far."""
    share = max(kept / requested if requested else 1.0, 1 / _MOST_AGAIN)
    return min(requested + math.ceil((count - kept) / share), count * _MOST_AGAIN)
