"""Rows in a language model's tokens, and which tokens may follow at each place of a value.

What belongs here: the tokens of names and values, batches of rows for training, and the tree of a column's values. What
does not: the texts (`row_words`), models, and passes (`row_reading`, `row_training`).

Names, values and commas become tokens apart from each other, in training as in drawing. A value ends with the comma
after it, a token that no value has: so no value is the beginning of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.training.families import IGNORED
from dpsynth_platform.training.interface import Batch

MOST_VALUE_TOKENS = 24
"""Longer values are cut off there, and numbered where that makes two alike."""


_NUMBER = " ({})"
_UNWRITABLE = (
    "the base model's tokenizer cannot write a column's name, one of its declared values, or numbers; accepted: one "
    "that can write every text, such as one of bytes"
)
KINDS = ("names", "values", "commas")
"""Of tokens."""


@dataclass(frozen=True)
class Choices:
    """The tree of a column's values, without what they have in common at their beginning.

    A place is where the next token is not certain, or lies behind such a place. Place 0 follows the name and the common
    beginning; each other one has a token of its own and a parent.

    Attributes:
        common: tokens that all values begin with.
        tokens: of the places after place 0, each after its parent, with their parents and depths, from 0.
        edges: at each place with a choice, the tokens to choose from.
        path: of each state, the numbers of its edges, counted over all places in their order.
    """

    common: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    edges: dict[int, tuple[int, ...]]
    path: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, values: Sequence[tuple[int, ...]]) -> Choices:
        """The tree of distinct values, of which none is the beginning of another."""
        common = _common(values)
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        edges: dict[int, tuple[int, ...]] = {}
        paths: list[list[int]] = [[] for _ in values]
        begun = 0

        def grow(place: int, members: list[int], depth: int) -> None:
            nonlocal begun
            following = sorted({values[member][depth] for member in members})
            if len(following) > 1:
                edges[place] = tuple(following)
                for member in members:
                    paths[member].append(begun + following.index(values[member][depth]))
                begun += len(following)
            for token in following:
                behind = [member for member in members if values[member][depth] == token]
                if len(behind) > 1:
                    tokens.append(token)
                    parents.append(place)
                    depths.append(depth - len(common))
                    grow(len(tokens), behind, depth + 1)

        grow(0, list(range(len(values))), len(common))
        return cls(common, tuple(tokens), tuple(parents), tuple(depths), edges, tuple(map(tuple, paths)))

    @cached_property
    def ancestors(self) -> Tensor:
        """Which places after place 0 are on the way to which, itself included: [places, places], True or False."""
        found = torch.eye(len(self.tokens), dtype=torch.bool)
        for place, parent in enumerate(self.parents):
            if parent:
                found[place] |= found[parent - 1]
        return found

    @cached_property
    def on_path(self) -> Tensor:
        """Which edges each state takes: [edges, states] of 0 and 1, double precision."""
        found = torch.zeros(sum(map(len, self.edges.values())), len(self.path), dtype=torch.float64)
        for state, numbers in enumerate(self.path):
            found[list(numbers), state] = 1
        return found

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """Logarithms of the probabilities of all states, [rows, states], from a model's scores at all places.

        Tokens that no value has are ruled out at each place.

        Args:
            scores: [rows, places, vocabulary].
        """
        parts = [scores[:, place, list(tokens)].double().log_softmax(1) for place, tokens in self.edges.items()]
        return torch.cat(parts, 1) @ self.on_path


def _common(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first, length = values[0], 0
    while len(values) > 1 and all(len(value) > length + 1 and value[length] == first[length] for value in values):
        length += 1
    return first[:length]


@dataclass(frozen=True)
class ColumnTokens:
    """A column's name as tokens, and each of its values with the comma after it."""

    name: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]

    @cached_property
    def choices(self) -> Choices:
        return Choices.of(self.values)

    @property
    def longest(self) -> int:
        return max(map(len, self.values))


@dataclass(frozen=True)
class RowTokens:
    """The tokens of a table's rows.

    Attributes:
        begin: the token before a row.
        columns: in the table's order, in which states are numbered.
        order: in which rows are written.
    """

    begin: int
    columns: tuple[ColumnTokens, ...]
    order: tuple[int, ...]

    @classmethod
    def of(
        cls, tokenizer: Any, names: Sequence[str], words: Sequence[Sequence[str]], order: Sequence[int]
    ) -> RowTokens:
        """From names of columns, and the words of their values without commas.

        Raises:
            ConfigurationError: the tokenizer loses names or numbers, or has no token to begin or end with.
        """
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        commas = _encoded(tokenizer, ["a,"])[0]
        if begin is None or not commas:
            raise ConfigurationError("the base model's tokenizer has no token that begins or ends a text; use another")
        columns = []
        for name, texts in zip(_encoded(tokenizer, [f" {name} is" for name in names]), words, strict=True):
            if not name:
                raise ConfigurationError(_UNWRITABLE)
            columns.append(ColumnTokens(tuple(name), tuple(_distinct(tokenizer, texts, commas[-1]))))
        return cls(int(begin), tuple(columns), tuple(order))

    def refuse_unknown(self, unknown: int | None) -> None:
        """Raises `ConfigurationError` if a name or a value has the tokenizer's token for what it cannot write."""
        parts = (part for column in self.columns for part in (column.name, *column.values))
        if unknown is not None and any(unknown in part for part in parts):
            raise ConfigurationError(_UNWRITABLE)

    @property
    def sizes(self) -> list[int]:
        """States of each column."""
        return [len(column.values) for column in self.columns]

    @property
    def longest(self) -> int:
        """The most tokens of a row."""
        return 1 + sum(len(column.name) + column.longest for column in self.columns)

    @property
    def longest_cell(self) -> int:
        """The most tokens of a column's name and value."""
        return max(len(column.name) + column.longest for column in self.columns)

    @property
    def most_places(self) -> int:
        """The most places of a column's tree of values."""
        return max(1 + len(column.choices.tokens) for column in self.columns)

    def rows(self, states: Tensor, order: Tensor, value_weight: float, edges: Tensor | None = None) -> Batch:
        """A batch of rows for training, padded on the right.

        Args:
            states: whole numbers, [rows, columns].
            order: the columns of each row's places, [rows, columns].
            value_weight: of the loss of a value's tokens, as far as the comma; other tokens have the rest.
            edges: a number for each token of all states of all columns, [all states, tokens], -1: none.

        Returns:
            `input_ids`, `position_ids`, `labels`, `token_weights` and `kinds` (of `KINDS`, -1: none), [rows, tokens],
            and so `edges`, if given. Weights are divided by the number of columns, which all rows have.
        """
        device = states.device
        tokens, kinds = (part.to(device) for part in self._padded)
        first = torch.tensor([0, *self.sizes[:-1]], device=device).cumsum(0)
        cells = (states + first).gather(1, order)
        kinds, tokens = kinds[cells].flatten(1), tokens[cells].flatten(1)
        places = (kinds < 0).long().argsort(dim=1, stable=True)[:, : int((kinds >= 0).sum(1).max())]
        kinds, tokens = kinds.gather(1, places), tokens.gather(1, places)
        begin = torch.full_like(tokens[:, :1], self.begin)
        kinds, tokens = torch.cat([torch.full_like(begin, -1), kinds], 1), torch.cat([begin, tokens], 1)
        weights = torch.where(kinds == KINDS.index("values"), value_weight, 1 - value_weight) / len(self.columns)
        numbered = {}
        if edges is not None:
            numbered["edges"] = torch.cat([torch.full_like(begin, -1), edges[cells].flatten(1).gather(1, places)], 1)
        return {
            "input_ids": tokens,
            "position_ids": torch.arange(tokens.shape[1], device=device).expand_as(tokens),
            "labels": torch.where(kinds < 0, IGNORED, tokens),
            "token_weights": torch.where(kinds < 0, 0.0, weights),
            "kinds": kinds,
            **numbered,
        }

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor]:
        """Of all states of all columns, the tokens of name, value and comma, and their kinds; [all states, tokens]."""
        tokens, kinds = [], []
        for column in self.columns:
            for value in column.values:
                filler = self.longest_cell - len(column.name) - len(value)
                tokens.append([*column.name, *value, *[self.begin] * filler])
                kinds.append([0] * len(column.name) + [1] * (len(value) - 1) + [2] + [-1] * filler)
        return torch.tensor(tokens), torch.tensor(kinds)


def most_tokens(tokenizer: Any, names: Sequence[str], words: Sequence[Sequence[str] | None], most: int) -> int:
    """The most tokens of a row, whatever is counted; raises as `RowTokens.of`.

    Args:
        words: all that a column's values may be; None: they may be cut off and numbered.
        most: values of such a column.
    """
    known = RowTokens.of(tokenizer, names, [found or [""] for found in words], range(len(names)))
    numbers = _encoded(tokenizer, [_NUMBER.format(number) for number in range(2, most + 1)])
    if None in words and len(set(map(tuple, numbers))) < len(numbers):
        raise ConfigurationError(_UNWRITABLE)
    cut_off = MOST_VALUE_TOKENS + max(map(len, numbers), default=0) + 1
    longest = (cut_off if found is None else column.longest for column, found in zip(known.columns, words, strict=True))
    return 1 + sum(len(column.name) for column in known.columns) + sum(longest)


def _encoded(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    found: list[list[int]] = []
    if texts:
        found = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return found


def _distinct(tokenizer: Any, texts: Sequence[str], comma: int) -> Iterator[tuple[int, ...]]:
    """Values with the comma after them, cut off where they are too long, and numbered where they would be alike."""
    taken = set[tuple[int, ...]]()
    numbers = dict[tuple[int, ...], int]()
    for tokens in _encoded(tokenizer, [f" {text}" for text in texts]):
        value = tuple(token for token in tokens if token != comma)[:MOST_VALUE_TOKENS]
        number, unique = numbers.get(value, 1), value
        while unique in taken:
            number += 1
            if number > len(texts) + 1:  # so many numbers are not alike, unless the tokenizer cannot write them
                raise ConfigurationError(_UNWRITABLE)
            (written,) = _encoded(tokenizer, [_NUMBER.format(number)])
            unique = (*value, *(token for token in written if token != comma))
        numbers[value] = number
        taken.add(unique)
        yield (*unique, comma)
