"""Rows that a language model predicts value by value, `columnwise.Columnwise`.

What belongs here: passes that keep what was read, and the probabilities of all values of a column in one pass. What
does not: which values there are (`row_tokens`), training, and the order of columns (`columnwise`).

A pass reads the value before, the column's name, and the whole tree of the column's values, in which each place sees
what led to it. A value's probability is the product of those of its tokens, where at each place all tokens are ruled
out that continue no value: so nothing that is drawn has to be rejected. (DP-2Stage and GReaT draw tokens freely and
reject rows with values that do not exist.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.neural.columnwise import Reading
from dpsynth_platform.synth.neural.row_tokens import RowTokens

CORRECTED_ROWS = 2**11
NEAR = 1e-3
"""Of logarithms of probabilities by two ways of computing them, in single precision."""
_TRIED = 3


class LanguageRows:
    """A language model as a distribution of rows, on a CPU.

    Args:
        model: of transformers, causal, in evaluation mode.
    """

    def __init__(self, model: Any, tokens: RowTokens) -> None:
        self.model, self.tokens = model, tokens

    corrected = CORRECTED_ROWS

    @property
    def kept(self) -> int:
        """Keys and values of the longest row with the largest tree, and the scores of its places."""
        config, places = self.model.config, self.tokens.most_places
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = 2 * config.num_hidden_layers * heads * width
        return int(layers * (self.tokens.longest + places) + 2 * places * config.vocab_size)

    def reading(self, rows: int) -> Reading:
        return _Read(self.model, self.tokens, rows)


class _Read:
    """See `columnwise.Reading`. Rows are padded where their values differ in length; no token sees padding."""

    def __init__(self, model: Any, tokens: RowTokens, rows: int) -> None:
        from transformers import DynamicCache

        self._model, self._tokens, self._rows, self._column = model, tokens, rows, 0
        self._cache = DynamicCache(config=model.config)
        self._seen = torch.zeros(rows, 0, dtype=torch.bool)
        self._waiting = [(torch.full((rows, 1), tokens.begin), torch.ones(rows, 1, dtype=torch.bool))]
        self._common = 0

    @torch.no_grad()
    def predict(self, column: int) -> Tensor:
        self._column, own = column, self._tokens.columns[column]
        self._wait(own.name)
        choices = own.choices
        if len(own.values) == 1:
            self._common = 0
            return torch.zeros(self._rows, 1)
        self._common = len(choices.common)
        self._wait(choices.common)
        return choices.log_probabilities(self._pass(choices.tokens, choices.depths, choices.ancestors))

    def read(self, states: Tensor) -> None:
        values = [value[self._common :] for value in self._tokens.columns[self._column].values]
        longest = max(map(len, values))
        tokens = torch.tensor([[*value, *[0] * (longest - len(value))] for value in values])
        lengths = torch.tensor([len(value) for value in values])
        valid = torch.arange(longest) < lengths[states][:, None]
        self._waiting.append((tokens[states], valid))

    def _wait(self, tokens: tuple[int, ...]) -> None:
        """Tokens that all rows read next."""
        known = torch.tensor(tokens, dtype=torch.long).expand(self._rows, -1)
        self._waiting.append((known, torch.ones_like(known, dtype=torch.bool)))

    def _pass(self, tree: tuple[int, ...], depths: tuple[int, ...], ancestors: Tensor) -> Tensor:
        """Scores at the last waiting token and at each place of the tree, [rows, 1 + places, vocabulary].

        What waited is kept, the tree is not.
        """
        tokens, valid = (torch.cat(parts, 1) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        before, new, branches = self._seen.shape[1], tokens.shape[1], len(tree)
        read = self._seen.sum(1, keepdim=True)
        places = (read + valid.cumsum(1) - 1).clamp(min=0)
        ends = read + valid.sum(1, keepdim=True)
        branch = torch.tensor(tree, dtype=torch.long).expand(self._rows, -1)
        branch_places = ends + torch.tensor(depths, dtype=torch.long)
        visible = torch.zeros(self._rows, new + branches, before + new + branches, dtype=torch.bool)
        known = torch.cat([self._seen, valid], 1)
        visible[:, :, : before + new] = known[:, None]
        visible[:, :new, before : before + new] &= torch.ones(new, new, dtype=torch.bool).tril()
        visible[:, new:, before + new :] = ancestors
        visible.diagonal(before, 1, 2).fill_(True)  # padding sees itself: nothing else may be left for it
        mask = torch.zeros(visible.shape).masked_fill_(~visible, torch.finfo(torch.float32).min)
        found: Tensor = self._model(
            input_ids=torch.cat([tokens, branch], 1),
            position_ids=torch.cat([places, branch_places], 1),
            attention_mask=mask[:, None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 + branches,
        ).logits
        if branches:
            self._cache.crop(-branches)
        self._seen = known
        return found[:, -1 - branches :]


@torch.no_grad()
def refuse_unreadable(rows: LanguageRows) -> None:
    """Raises `ConfigurationError` if a model predicts other values with what it keeps than without.

    Some models cannot be read in parts, or not by these positions: before anything is paid for, it is compared with a
    plain pass over whole rows.
    """
    model, tokens = rows.model, rows.tokens
    states = torch.stack([torch.randint(size, (_TRIED,)) for size in tokens.sizes], 1)
    order = torch.tensor(tokens.order).expand(_TRIED, -1)
    reading, found = rows.reading(_TRIED), torch.zeros(_TRIED)
    expected = torch.zeros(_TRIED)
    batch = tokens.rows(states, order, 1.0)
    scores = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    for row in range(_TRIED):
        place = 0
        for column in tokens.order:
            own, state = tokens.columns[column], int(states[row, column])
            place += len(own.name)
            expected[row] += _plain(own.values, state, scores[row, place:])
            place += len(own.values[state])
    for column in tokens.order:
        found += reading.predict(column).gather(1, states[:, column : column + 1])[:, 0]
        reading.read(states[:, column])
    if not torch.allclose(found, expected, rtol=NEAR, atol=NEAR * len(tokens.columns)):
        raise ConfigurationError(
            "the base model predicts other values when a row is read in parts than at once; accepted: a causal model "
            "with ordinary attention, such as Llama or GPT-2"
        )


def _plain(values: tuple[tuple[int, ...], ...], state: int, scores: Tensor) -> Tensor:
    """The logarithm of a value's probability among its column's values, by scores at the places of its tokens."""
    found, alike = torch.zeros(()), list(values)
    for place, token in enumerate(values[state]):
        following = sorted({value[place] for value in alike})
        found = found + scores[place, following].log_softmax(0)[following.index(token)]
        alike = [value for value in alike if value[place] == token]
    return found
