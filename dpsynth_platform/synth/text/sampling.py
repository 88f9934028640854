"""Texts from a trained model: batched, resumable, post-processing.

What belongs here: the distribution of next tokens, the loop that keeps a batch full, and the file of finished texts.
What does not: the batch's keys and values (`rows`), which texts are kept (`filtering`), and the number of requested
texts. Nothing here reads the data.

**A restart changes no distribution.** Every text has its own random numbers, derived from a key that the operating
system gave when the directory was first used, from its prompt and from its number. Unfinished texts are drawn again
from the same numbers; with new numbers they would be shorter on average, since a crash interrupts long texts more
often. A next token is the one at which the cumulative probabilities pass a uniform number of 53 bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from dpsynth_platform.foundation.digests import canonical_digest, canonical_json
from dpsynth_platform.foundation.errors import ContractError, StaleInput
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.rows import TextRows, check_rows, rows_for

Key = TypeVar("Key")

TEXTS = "sample"
"""The stage of progress that counts synthetic texts."""
TEXTS_FILE, _ABOUT = "texts.jsonl", "sampling.json"
_SECONDS_BETWEEN_WRITES = 5.0
_MOSTLY_ENOUGH, _NEGLIGIBLE = 1e-4, 1e-12
_READ_AHEAD = 15
"""Prompts that are read in one batch with the next one."""


@dataclass(frozen=True)
class Sampling:
    """How texts are drawn. Public. By default from the model's own distribution.

    Attributes:
        temperature: divides logits.
        top_k: only the k most probable tokens; None: all.
        top_p: only the fewest tokens, most probable first, that have this probability together.
        min_tokens: the fewest of a body.
        max_tokens: the most of a body, which is cut off there; None: as many as the layout leaves.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (
            0 < self.temperature < float("inf")
            and (self.top_k is None or self.top_k >= 1)
            and 0 < self.top_p <= 1
            and 0 <= self.min_tokens <= (self.min_tokens if self.max_tokens is None else self.max_tokens)
            and (self.max_tokens is None or self.max_tokens >= 1)
        ):
            raise ContractError(
                f"generate: {self}; accepted: a finite temperature above 0, top_k from 1, top_p in (0, 1], and "
                "min_tokens not above max_tokens, which is at least 1"
            )


@dataclass(frozen=True)
class SyntheticText:
    """A text that was drawn.

    Attributes:
        given: the conditions' values that it was drawn for.
        number: among the texts of these values, from 0.
        ended: whether it has its end-of-text token; otherwise it was cut off.
        tokens: drawn, including the end-of-text token.
    """

    given: Given
    number: int
    body: str
    ended: bool
    tokens: int


def apportioned(rows: int, weights: Mapping[Key, float]) -> dict[Key, int]:
    """How many of `rows` each key gets, in proportion to noisy counts or declared shares.

    Negative weights count as 0; the rest after rounding goes to the largest remainders.

    Raises:
        ContractError: no weight is positive.
    """
    positive = {given: max(float(weight), 0.0) for given, weight in weights.items()}
    total = sum(positive.values())
    if not 0 < total < float("inf"):
        raise ContractError("generate: no label has a positive weight; accepted: at least one")
    exact = {given: rows * weight / total for given, weight in positive.items()}
    counts = {given: int(share) for given, share in exact.items()}
    by_remainder = sorted(exact, key=lambda given: counts[given] - exact[given])
    for given in by_remainder[: rows - sum(counts.values())]:
        counts[given] += 1
    return counts


def sample_texts(
    model: Any,
    encoder: Encoder,
    counts: Mapping[Given, int],
    directory: Path,
    *,
    of: str,
    sampling: Sampling | None = None,
    batch: int = 32,
    progress: Progress = silent,
) -> None:
    """Draws the texts that a directory lacks, for `read_texts`.

    An interrupted call is repeated with the same arguments; larger counts add texts.

    Args:
        model: a language model of transformers in evaluation mode, on its device.
        encoder: the layout that the model was trained with.
        counts: how many texts for each prompt.
        directory: for this model and these settings only.
        of: digest of the trained model.
        batch: concurrent texts; it changes texts by rounding only.
        progress: receives counts of synthetic texts.

    Raises:
        StaleInput: the directory's files are damaged.
        ContractError: a prompt has values that are not declared.
        ConfigurationError: the model cannot be sampled from; see `rows.check_rows`.
    """
    sampling = sampling or Sampling()
    _check_counts(counts, encoder)
    check_rows(model, encoder.layout.max_tokens)
    about = {"of": of, "layout": asdict(encoder.layout), "sampling": asdict(sampling)}
    key = _opened(private_directory(directory), canonical_digest(about))
    there = {(text.given, text.number) for text in read_texts(directory)}
    requested = ((given, number) for given, count in counts.items() for number in range(count))
    missing = deque(text for text in requested if text not in there)
    total = sum(counts.values())
    done = total - len(missing)
    progress(TEXTS, done, total)
    rows = rows_for(model, max(1, min(batch, len(missing))), encoder.layout.max_tokens)
    loop = _Loop(rows, encoder, sampling, key)
    with _Appender(directory / TEXTS_FILE, lambda written: progress(TEXTS, done + written, total)) as file:
        for text in loop.texts(missing):
            file.append(text)


def read_texts(directory: Path) -> Iterator[SyntheticText]:
    """The finished texts of a directory, in the order of their ends. Raises `StaleInput` if a line is damaged."""
    try:
        with (directory / TEXTS_FILE).open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):  # otherwise a crash cut it off
                    part = json.loads(line)
                    yield SyntheticText(**{**part, "given": tuple(part["given"])})
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):  # a disk that cannot be read just now has damaged nothing
        raise StaleInput("the file of synthetic texts is damaged; materialize synthetic again") from None


def probabilities(logits: torch.Tensor, sampling: Sampling, barred: torch.Tensor | None = None) -> torch.Tensor:
    """The distributions of next tokens, float64; rows sum to 1.

    Args:
        logits: shape (texts, vocabulary).
        sampling: temperature, then top-k, then top-p. Top-k keeps exactly k, also among equals.
        barred: excluded tokens, of the logits' shape.
    """
    scaled = logits.double() / sampling.temperature
    if barred is not None:
        scaled = scaled.masked_fill(barred, -torch.inf)
    if sampling.top_k is not None and sampling.top_k < scaled.shape[1]:
        best, places = scaled.topk(sampling.top_k, dim=1)
        scaled = torch.full_like(scaled, -torch.inf).scatter(1, places, best)
    found = scaled.softmax(dim=1)
    if sampling.top_p < 1:
        ordered, places = _most_probable(found, sampling.top_p)
        before = ordered.cumsum(dim=1) - ordered
        found = torch.zeros_like(found).scatter_add(1, places, ordered.masked_fill(before >= sampling.top_p, 0.0))
        found = found / found.sum(dim=1, keepdim=True)
    return found


def _most_probable(chances: torch.Tensor, mass: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in descending order and their tokens: enough of them to have this mass together, then zeros.

    Usually these are few, and sorting them is far faster than sorting a whole vocabulary.
    """
    least = _MOSTLY_ENOUGH
    while bool((chances * (chances > least)).sum(dim=1).le(mass).any()) and least > 0:
        least = least / 16 if least > _NEGLIGIBLE else 0.0
    kept = chances > least
    columns = kept.cumsum(dim=1)[kept] - 1
    rows, tokens = kept.nonzero(as_tuple=True)
    width = int(columns.max()) + 1
    likely, places = chances.new_zeros(len(chances), width), tokens.new_zeros(len(chances), width)
    likely[rows, columns], places[rows, columns] = chances[kept], tokens
    ordered, order = likely.sort(dim=1, descending=True, stable=True)
    return ordered, places.gather(1, order)


def drawn(chances: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token for each row, by the inverse of the cumulative distribution; int64, shape (texts,).

    Args:
        chances: of `probabilities`; tokens of probability 0 are never drawn.
        uniforms: in [0, 1), float64, shape (texts,).
    """
    cumulative = chances.cumsum(dim=1)
    total = cumulative[:, -1]
    # Rounding up, the product could reach the total, which no token exceeds.
    points = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points[:, None], right=True)[:, 0]


class _Text:
    """An unfinished text, with its own random numbers."""

    def __init__(self, given: Given, number: int, room: int, key: bytes) -> None:
        self.given, self.number, self.room = given, number, room
        self.tokens: list[int] = []
        named = key + canonical_json([list(given), number]).encode()
        stream = int.from_bytes(hashlib.sha256(named).digest()[:16], "little")
        self._random = np.random.Generator(np.random.Philox(key=stream))

    def uniform(self) -> float:
        return float(self._random.random())


class _Loop:
    """Keeps the rows full until all texts are drawn."""

    def __init__(self, slots: TextRows, encoder: Encoder, sampling: Sampling, key: bytes) -> None:
        self._slots, self._encoder, self._sampling, self._key = slots, encoder, sampling, key
        self._rows: list[_Text] = []
        self._read: dict[Given, Any] = {}

    def texts(self, missing: deque[tuple[Given, int]]) -> Iterator[SyntheticText]:
        """Draws all missing texts and removes them from the queue, in which texts of one prompt are adjacent."""
        while missing or self._rows:
            yield from self._begin(missing)
            if self._rows:
                last = torch.tensor([text.tokens[-1] for text in self._rows], device=self._slots.device)
                yield from self._go_on(self._rows, self._slots.step(last))

    def _begin(self, missing: deque[tuple[Given, int]]) -> Iterator[SyntheticText]:
        """Fills the free rows. A text's first token follows from its prompt, and may be its last."""
        while missing and self._slots.free:
            given, number = missing.popleft()
            prompt = self._prompt(given, missing)
            room = self._encoder.layout.max_tokens - prompt.length
            text = _Text(given, number, min(room, self._sampling.max_tokens or room), self._key)
            self._slots.put(prompt, len(self._rows))
            self._rows.append(text)
            yield from self._go_on([text], prompt.logits[None])

    def _go_on(self, texts: list[_Text], logits: torch.Tensor) -> Iterator[SyntheticText]:
        """Draws one more token of each text; yields the finished texts, whose rows become free."""
        for text, token in zip(texts, self._tokens(texts, logits), strict=True):
            text.tokens.append(token)
        for text in [text for text in texts if text.tokens[-1] == self._encoder.eos or len(text.tokens) >= text.room]:
            row = self._rows.index(text)
            self._slots.remove(row)
            self._rows[row] = self._rows[-1]
            self._rows.pop()
            yield self._finished(text)

    def _tokens(self, texts: list[_Text], logits: torch.Tensor) -> list[int]:
        barred = None
        early = [len(text.tokens) < self._sampling.min_tokens for text in texts]
        if any(early):
            barred = torch.zeros_like(logits, dtype=torch.bool)
            barred[:, self._encoder.eos] = torch.tensor(early, device=logits.device)
        uniforms = torch.tensor([text.uniform() for text in texts], dtype=torch.float64, device=logits.device)
        tokens: list[int] = drawn(probabilities(logits, self._sampling, barred), uniforms).tolist()
        return tokens

    def _prompt(self, given: Given, missing: deque[tuple[Given, int]]) -> Any:
        """The prompt as the model has read it; reads some of the next ones together with a new prompt."""
        if given not in self._read:
            coming = list(dict.fromkeys([given, *(other for other, _ in islice(missing, _READ_AHEAD))]))
            read = self._slots.read([self._encoder.prompt(other) for other in coming])
            self._read = dict(zip(coming, read, strict=True))
        return self._read[given]

    def _finished(self, text: _Text) -> SyntheticText:
        ended = text.tokens[-1] == self._encoder.eos
        body = self._encoder.text(text.tokens[:-1] if ended else text.tokens)
        return SyntheticText(text.given, text.number, body, ended, len(text.tokens))


class _Appender:
    """Appends finished texts line by line; durable every few seconds, and at the end, also after an error."""

    def __init__(self, path: Path, report: Callable[[int], None]) -> None:
        self._path, self._report = path, report
        self._lines: list[str] = []
        self._last = time.monotonic()
        self._number = 0

    def __enter__(self) -> _Appender:
        return self

    def __exit__(self, *error: object) -> None:
        self._write()

    def append(self, text: SyntheticText) -> None:
        self._lines.append(json.dumps(asdict(text), ensure_ascii=False) + "\n")
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        with private_files(), self._path.open("ab") as file:
            file.write("".join(self._lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self._number += len(self._lines)
        self._lines, self._last = [], time.monotonic()
        self._report(self._number)


def _check_counts(counts: Mapping[Given, int], encoder: Encoder) -> None:
    conditions = encoder.layout.conditions
    for given, count in counts.items():
        if len(given) != len(conditions) or count < 0:
            raise ContractError(
                f"generate: a prompt of {len(given)} values, {count} times; accepted: {len(conditions)}"
            )
        for value, condition in zip(given, conditions, strict=True):
            if value not in condition.values:
                raise ContractError(f"generate: {condition.column}: {value!r} is not declared")


def _opened(directory: Path, digest: str) -> bytes:
    """The directory's key, drawn at the first use. An incomplete last line is cut off."""
    texts, about = directory / TEXTS_FILE, directory / _ABOUT
    if texts.exists():
        os.truncate(texts, texts.read_bytes().rfind(b"\n") + 1)
    if not about.exists() and not texts.exists():
        write_durably(about, json.dumps({"digest": digest, "key": os.urandom(32).hex()}))
    try:
        found = json.loads(about.read_text(encoding="utf-8"))
        key = bytes.fromhex(found["key"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise StaleInput(
            "the key and settings of the synthetic texts are damaged; materialize synthetic again"
        ) from None
    if found.get("digest") == digest:
        return key
    # Of another model, layout or settings: nothing of an interrupted draw was released.
    shutil.rmtree(directory)
    private_directory(directory)
    return _opened(directory, digest)
