"""A bounded table as tokenized examples on disk, and the batches of training.

What belongs here: reading records, dropping and cutting, the files of tokens, and batches. What does not: the text of a
record (`layout`), and which examples a batch has (`training.sampler`). All of it is sensitive: files have mode 0600 and
are deleted with the directory, and the counts (`Tally`) remain restricted.

**The examples of a record depend on this record only**, so that one record more or less changes no others:

* a record with an undeclared value of a condition, or without any text, becomes none;
* otherwise it becomes one, cut off after `max_tokens`, or up to `chunks_per_record` if it is longer. The end-of-text
  token is at the end of a complete record; a record that was cut off has none, since the text does not end there.

Training samples records (or owners) and not examples: the chunks of a record are in a batch together or not at all, and
their mean gradient is clipped as one (`Examples.units`). So bounding to b records bounds an owner's contribution.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.errors import ConfigurationError, StaleInput
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.storage import read_table, table_schema, write_durably
from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, OWNER_COLUMN
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.layout import Encoder, TextLayout

if TYPE_CHECKING:
    import torch

    from dpsynth_platform.privacy.events import Sampled

NO_LOSS = -100
"""The label of a token without loss, as in torch and transformers."""

_RECORDS_AT_ONCE = 256
_TOKENS, _ENDS, _PROMPTS, _OWNERS = "tokens.i4", "ends.i8", "prompts.i4", "owners.i4"
_RECORDS = "records.i4"
_ABOUT = "examples.json"


@dataclass(frozen=True)
class Tally:
    """Exact counts of records by outcome, which no budget has paid for: restricted, never public.

    Attributes:
        records: all that were read.
        examples: made from them.
        undeclared: records left out because of an undeclared value of a condition.
        empty: records left out because all fields are missing or blank.
        truncated: records whose end was cut off.
    """

    records: int = 0
    examples: int = 0
    undeclared: int = 0
    empty: int = 0
    truncated: int = 0

    @property
    def in_words(self) -> str:
        """One line for the restricted log."""
        return (
            f"of {self.records} records {self.examples} examples were made; cut off: {self.truncated} records; left "
            f"out: {self.undeclared} with a value that is not declared, {self.empty} without a text"
        )

    def plus(self, other: Tally) -> Tally:
        return Tally(**{name: count + getattr(other, name) for name, count in asdict(self).items()})


def bounded_columns(table: Path | pa.Schema, needed: Sequence[str]) -> list[str]:
    """The columns of a bounded table, or of its schema. Raises `StaleInput` if it lacks a needed one."""
    names: list[str] = (table if isinstance(table, pa.Schema) else table_schema(table)).names
    missing = [name for name in needed if name not in names]
    if missing:
        raise StaleInput(f"the bounded table has no column {missing[0]!r}; materialize bounded again")
    return names


def write_examples(table: Path, directory: Path, encoder: Encoder) -> Tally:
    """Makes the examples of all records of a table, in bounded memory plus about 30 bytes for each example.

    Args:
        table: bounded Delta table with the layout's columns and `_owner`, or `_owners`.
        directory: a new one.

    Raises:
        StaleInput: the table lacks a column.
    """
    names = bounded_columns(table, encoder.layout.columns)
    owned = [OWNER_COLUMN] if OWNER_COLUMN in names else []
    tally = Tally()
    with private_files():
        with _Writer(private_directory(directory)) as writer:
            for batch in read_table(table, columns=[*encoder.layout.columns, *owned]):
                for start in range(0, batch.num_rows, _RECORDS_AT_ONCE):
                    made, counted = _made(batch.slice(start, _RECORDS_AT_ONCE).to_pylist(), encoder)
                    tally = tally.plus(counted)
                    for example in made:
                        writer.write(example)
        if owned:
            _number_owners(directory)
    about = {"owned": bool(owned), "eos": encoder.eos, "layout": asdict(encoder.layout)}
    write_durably(directory / _ABOUT, json.dumps(about))
    return tally


class Examples:
    """Examples on disk, read through the page cache. Sensitive, including their number.

    Attributes:
        owners: each example's owner, numbered from 0, dtype int32; None where records have several owners.

    Args:
        directory: of `write_examples`.

    Raises:
        StaleInput: the directory has no complete examples.
    """

    def __init__(self, directory: Path) -> None:
        try:
            about = json.loads((directory / _ABOUT).read_text(encoding="utf-8"))
            self._ends = _mapped(directory / _ENDS, np.int64)
            self._prompts = _mapped(directory / _PROMPTS, np.int32)
            self._tokens = _mapped(directory / _TOKENS, np.int32)
            self._records = _mapped(directory / _RECORDS, np.int32)
            self.owners = _mapped(directory / _OWNERS, np.int32) if about["owned"] else None
            self.layout = TextLayout.from_json(about["layout"])
            self._eos = int(about["eos"])
        except (OSError, ValueError, KeyError, TypeError):
            raise StaleInput("the tokenized examples are missing or damaged; materialize model again") from None
        last = int(self._ends[-1]) if len(self._ends) else 0
        owners = self._ends if self.owners is None else self.owners
        lengths = {len(part) for part in (self._ends, self._prompts, self._records, owners)}
        if len(lengths) > 1 or last != len(self._tokens):
            raise StaleInput("the tokenized examples do not belong together; materialize model again")

    @property
    def max_length(self) -> int:
        return self.layout.max_tokens

    def __len__(self) -> int:
        return len(self._ends)

    def by_owner(self) -> list[list[int]]:
        """The positions of each owner's examples, at least one each.

        Raises:
            ConfigurationError: records have several owners.
        """
        if self.owners is None:
            raise ConfigurationError(
                "records have several owners, so users cannot be sampled: several of them would select a record; "
                "accepted: to sample records"
            )
        return _grouped(self.owners)

    def units(self, sampled: Sampled) -> list[list[int]] | None:
        """The positions of the examples of each sampled unit; None where each example is a unit.

        Raises:
            ConfigurationError: users are sampled, and records have several owners.
        """
        if sampled == "user":
            return self.by_owner()
        return None if self.layout.chunks_per_record == 1 else _grouped(self._records)

    def batch(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Examples by their positions, padded on the right to the longest of them. Each row depends on its example.

        Returns:
            `input_ids`, `attention_mask`, `labels` (`NO_LOSS` on prompt and padding) and `position_ids` (0, 1, ... in
            every row), each int64 of shape (examples, tokens). Not shifted: label t is token t, which the model
            predicts from the tokens before it.
        """
        import torch

        spans = [(int(self._ends[index - 1]) if index else 0, int(self._ends[index])) for index in indices]
        shape = (len(spans), max((end - start for start, end in spans), default=0))
        tokens = np.full(shape, self._eos, np.int64)
        mask = np.zeros(shape, np.int64)
        labels = np.full(shape, NO_LOSS, np.int64)
        for row, (index, (start, end)) in enumerate(zip(indices, spans, strict=True)):
            length, prompt = end - start, int(self._prompts[index])
            tokens[row, :length] = self._tokens[start:end]
            mask[row, :length] = 1
            labels[row, prompt:length] = tokens[row, prompt:length]
        positions = np.tile(np.arange(shape[1]), (shape[0], 1))
        arrays = {"input_ids": tokens, "attention_mask": mask, "labels": labels, "position_ids": positions}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class _Example:
    prompt: list[int]
    body: list[int]
    owner: str | None
    first: bool
    """Whether it is the first of its record."""


def _made(records: Sequence[Mapping[str, Any]], encoder: Encoder) -> tuple[list[_Example], Tally]:
    layout = encoder.layout
    # Longer texts are cut off before tokenizing: n tokens cover less than this.
    most = (layout.max_tokens * layout.chunks_per_record + 1) * encoder.longest_token
    kept: list[tuple[Given, str | None]] = []
    bodies: list[str] = []
    undeclared = empty = truncated = 0
    for record in records:
        given, body = layout.given(record), layout.body(record)
        if given is None:
            undeclared += 1
        elif body is None:
            empty += 1
        else:
            kept.append((given, record.get(OWNER_COLUMN)))
            bodies.append(body[:most])
    examples: list[_Example] = []
    for (given, owner), body_tokens in zip(kept, encoder.bodies(bodies), strict=True):
        chunks, whole = _chunks(given, [*body_tokens, encoder.eos], encoder)
        truncated += not whole
        examples += [_Example(prompt, body, owner, not number) for number, (prompt, body) in enumerate(chunks)]
    return examples, Tally(len(records), len(examples), undeclared, empty, truncated)


def _chunks(given: Given, tokens: list[int], encoder: Encoder) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """A record's chunks, each a prompt and a piece of the body, and whether they cover the whole body."""
    chunks = []
    for number in range(encoder.layout.chunks_per_record):
        prompt = encoder.prompt(given, continued=number > 0)
        room = encoder.layout.max_tokens - len(prompt)
        chunks.append((prompt, tokens[:room]))
        tokens = tokens[room:]
        if not tokens:
            break
    return chunks, not tokens


class _Writer:
    """Appends examples to the files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._end = 0
        self._record = -1

    def __enter__(self) -> _Writer:
        with ExitStack() as stack:
            names = (_TOKENS, _ENDS, _PROMPTS, _RECORDS, _OWNERS)
            self._files = {name: stack.enter_context((self._directory / name).open("xb")) for name in names}
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def write(self, example: _Example) -> None:
        tokens = example.prompt + example.body
        self._end += len(tokens)
        self._record += example.first
        self._files[_TOKENS].write(np.array(tokens, np.int32).tobytes())
        self._files[_ENDS].write(np.array(self._end, np.int64).tobytes())
        self._files[_PROMPTS].write(np.array(len(example.prompt), np.int32).tobytes())
        self._files[_RECORDS].write(np.array(self._record, np.int32).tobytes())
        if example.owner is not None:
            self._files[_OWNERS].write(bytes.fromhex(example.owner))


def _grouped(numbers: npt.NDArray[np.int32]) -> list[list[int]]:
    """The positions of each distinct number."""
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else []
    return [part.tolist() for part in parts]


def _number_owners(directory: Path) -> None:
    """Replaces the owners' fingerprints by numbers."""
    fingerprints = np.fromfile(directory / _OWNERS, FINGERPRINT_DTYPE)
    _, numbers = np.unique(fingerprints, return_inverse=True)
    write_durably(directory / _OWNERS, numbers.astype(np.int32).tobytes())


def _mapped(file: Path, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A memory-mapped file; an empty file cannot be mapped."""
    return np.memmap(file, dtype, "r") if file.stat().st_size else np.empty(0, dtype)
