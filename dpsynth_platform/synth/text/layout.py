"""A record as text and back: the prompt that training and generation share, and the body that the model writes.

What belongs here: the layout of a record (public), its text, its tokens, and parsing a body into the record's fields.
What does not: reading tables (`examples`), the model, and sampling.

A record with the condition `topic` and the fields `title` and `text` becomes

    topic: Business
    title: Shares are up
    text: First line
    second line

The prompt ends after `title:`, and the model writes the rest until its end-of-text token. After the colon of a missing
value there is nothing, not even a blank. A line inside a value that looks like a marker (`topic:`), or that starts with
a backslash, gets a backslash in front, so that no text can imitate a field; a special token in a text
(`<|endoftext|>`) is tokenized as its letters. A column whose name cannot begin a line has a marker like it. Each line
of the prompt is tokenized separately, and so is the body, so that a prompt has the same tokens before any body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.synth.conditions import Condition, Given, text_of
from dpsynth_platform.synth.text.base_models import special_tokens

LEAST_BODY = 16
"""Tokens that the longest prompt must leave for the body."""
_CONTINUED = "(continued)"
"""Replaces the first field's name in the prompt of a later chunk, which starts in the middle of a body."""
_NAME = re.compile(r"[^\s:\\]([^\n\r:\\]*[^\s:\\])?")
_ESCAPE = "\\"


@dataclass(frozen=True)
class TextLayout:
    """How records are written for the model. Public.

    Attributes:
        fields: columns that the model learns to write, in this order.
        conditions: columns in the prompt, which has no loss.
        max_tokens: the most tokens of one example, including prompt and end-of-text token.
        chunks_per_record: the most examples of a long record, whose rest is cut off. They are sampled and clipped
            together (`Examples.units`): a record remains one contribution of its owner.
    """

    fields: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    max_tokens: int = 256
    chunks_per_record: int = 1

    def __post_init__(self) -> None:
        columns = self.columns
        if not self.fields or len(set(columns)) < len(columns):
            raise ContractError(
                f"generate: columns {', '.join(columns)}; accepted: no duplicates, and at least one field"
            )
        for condition in self.conditions:
            if not condition.values or len(set(condition.values)) < len(condition.values):
                raise ContractError(f"generate: {condition.column}: accepted: distinct values, at least one")
        if self.max_tokens < LEAST_BODY or self.chunks_per_record < 1:
            raise ContractError(
                f"generate: max_tokens {self.max_tokens}, chunks_per_record {self.chunks_per_record}; accepted: from "
                f"{LEAST_BODY} and from 1"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(condition.column for condition in self.conditions), *self.fields)

    @cached_property
    def _markers(self) -> dict[str, str]:
        """What begins the line of each column: its name, or a similar text where that cannot begin a line."""
        found = {name: name for name in self.columns if _NAME.fullmatch(name) and name != _CONTINUED}
        for name in self.columns:
            plain = re.sub(r"[\s:\\]+", " ", name).strip() or "column"
            taken = {_CONTINUED, *found.values()}
            options = (plain, *(f"{plain} {number}" for number in range(2, len(taken) + 3)))
            found.setdefault(name, next(option for option in options if option not in taken))
        return found

    def given(self, record: Mapping[str, Any]) -> Given | None:
        """The conditions' values of a record; None if one is not declared."""
        found = tuple(text_of(record[condition.column]) for condition in self.conditions)
        declared = all(value in condition.values for value, condition in zip(found, self.conditions, strict=True))
        return found if declared else None

    def body(self, record: Mapping[str, Any]) -> str | None:
        """The text of a record that the model learns to write; None if all fields are missing or blank."""
        values = [text_of(record[name]) for name in self.fields]
        if not any(value and value.strip() for value in values):
            return None
        first, *others = (self._written(value) for value in values)
        markers = (self._markers[name] for name in self.fields[1:])
        return first + "".join(f"\n{marker}:{value}" for marker, value in zip(markers, others, strict=True))

    def parsed(self, body: str) -> dict[str, str | None] | None:
        """The fields of a body; None if a marker is missing, repeated or of another place."""
        values: list[list[str]] = []
        coming = [self._markers[name] for name in self.fields[1:]]
        first, *lines = body.split("\n")
        values.append([first])
        for line in lines:
            if not self._imitates(line):
                values[-1].append(line.removeprefix(_ESCAPE))
            elif coming and line.startswith(f"{coming[0]}:"):
                values.append([line.removeprefix(f"{coming.pop(0)}:")])
            else:
                return None
        texts = ["\n".join(value) for value in values]
        if coming or not all(text == "" or text.startswith(" ") for text in texts):
            return None
        return {name: text[1:] if text else None for name, text in zip(self.fields, texts, strict=True)}

    def prompt_lines(self, given: Given, *, continued: bool = False) -> list[str]:
        """The prompt, line by line; all but the last end with a line break."""
        lines = [self.line(condition, value) for condition, value in zip(self.conditions, given, strict=True)]
        return [*lines, f"{_CONTINUED if continued else self._markers[self.fields[0]]}:"]

    def line(self, condition: Condition, value: str | None) -> str:
        return f"{self._markers[condition.column]}:{self._written(value)}\n"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TextLayout:
        """Reads the JSON of `asdict` back. Raises `ContractError`."""
        try:
            conditions = tuple(Condition(part["column"], tuple(part["values"])) for part in document["conditions"])
            return cls(**{**document, "fields": tuple(document["fields"]), "conditions": conditions})
        except (KeyError, TypeError):
            raise ContractError("generate: no layout of texts; materialize the line from raw again") from None

    def _written(self, value: str | None) -> str:
        if value is None:
            return ""
        first, *lines = value.split("\n")
        kept = (_ESCAPE + line if line.startswith(_ESCAPE) or self._imitates(line) else line for line in lines)
        return " " + "\n".join([first, *kept])

    def _imitates(self, line: str) -> bool:
        return line.startswith(tuple(f"{name}:" for name in (*self._markers.values(), _CONTINUED)))


class Encoder:
    """A layout in a model's tokens.

    Attributes:
        eos: the end-of-text token; also pads rows, under masks, so that no token is added to the model.
        special: the special tokens, spelled out.
        longest_token: the most characters of a token: n tokens cover at most n times as many.

    Args:
        tokenizer: the model's (`base_models.load`).

    Raises:
        ConfigurationError: the tokenizer has no end-of-text token, lets texts imitate it, does not restore texts, or
            the longest prompt leaves no room.
    """

    def __init__(self, layout: TextLayout, tokenizer: Any) -> None:
        self.layout = layout
        self._tokenizer = tokenizer
        if tokenizer.eos_token_id is None:
            raise ConfigurationError("the tokenizer has no end-of-text token; accepted: the base model's own")
        self.eos = int(tokenizer.eos_token_id)
        self._start = self.eos if tokenizer.bos_token_id is None else int(tokenizer.bos_token_id)
        self.special = tuple(special_tokens(tokenizer).values())
        self.longest_token = max(len(token) for token in tokenizer.get_vocab())
        self._lines: dict[str, list[int]] = {}
        self._check_tokenizer()
        self._check_room()

    def without(self, first: int) -> Encoder:
        """This encoder without so many first conditions, which then have no line in prompts."""
        return (
            Encoder(replace(self.layout, conditions=self.layout.conditions[first:]), self._tokenizer) if first else self
        )

    def prompt(self, given: Given, *, continued: bool = False) -> list[int]:
        """The start token, and the tokens of each line."""
        lines = self.layout.prompt_lines(given, continued=continued)
        return [self._start, *(token for line in lines for token in self._line(line))]

    def bodies(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of bodies, without the end-of-text token."""
        if not texts:
            return []
        # `verbose` would log the length of long texts.
        found = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        tokens: list[list[int]] = found["input_ids"]
        return tokens

    def text(self, tokens: Sequence[int]) -> str:
        """The text of a body's tokens; invalid UTF-8 becomes replacement characters."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def longest_prompt(self, *, continued: bool = False) -> int:
        """Tokens of the longest possible prompt: with each condition's longest line, in any combination."""
        longest = tuple(self._longest_value(condition) for condition in self.layout.conditions)
        return len(self.prompt(longest, continued=continued))

    def _line(self, line: str) -> list[int]:
        # Prompts have public values only, so there are few lines.
        if line not in self._lines:
            self._lines[line] = self.bodies([line])[0]
        return self._lines[line]

    def _check_tokenizer(self) -> None:
        spelled = self.bodies([f" {token}" for token in self.special])
        special = set(special_tokens(self._tokenizer))
        if any(special.intersection(tokens) for tokens in spelled):
            raise ConfigurationError("the tokenizer reads special tokens in texts; accepted: one that can split them")
        sample = " A b,  c.\n\\d: e's\t\N{LATIN SMALL LETTER U WITH DIAERESIS}\n"
        if self.text(self.bodies([sample])[0]) != sample:
            raise ConfigurationError("the tokenizer does not restore texts; accepted: a byte-level one")

    def _check_room(self) -> None:
        layout = self.layout
        most = max(self.longest_prompt(continued=chunk > 0) for chunk in range(min(2, layout.chunks_per_record)))
        if layout.max_tokens - most < LEAST_BODY:
            raise ConfigurationError(
                f"generate: max_tokens {layout.max_tokens}: the longest prompt takes {most}; accepted: from "
                f"{most + LEAST_BODY}"
            )

    def _longest_value(self, condition: Condition) -> str | None:
        return max(condition.values, key=lambda value: len(self._line(self.layout.line(condition, value))))
