"""Named entity recognition of a spaCy model, for many texts at once.

What belongs here: running a spaCy pipeline of `tok2vec` and `ner` with numpy. What does not: which texts, and the use
of its labels (`names`).

spaCy decides token by token, with calls to a slow library of linear algebra (BLIS) that locks on each call. Here one
step decides for one token of every text in the batch, equal tokens are embedded once, and numpy multiplies. The model
is the same: a test compares the entities with spaCy's.

A text's entities must depend on that text alone, not on other people's texts. But the rounding of a matrix product
depends on its shape, so that scores differ by some 1e-5 with the other texts of the batch. If a decision is close, its
text is decided alone.

The model is a transition system (Lample et al. 2016, section 3; spaCy's `TransitionBasedParser.v2` for `ner`). From
left to right, each token begins an entity (B), continues it (I), ends it (L), is an entity (U) or is outside (O). A
decision depends on the token, the first token of the open entity and the previous token, each as a vector of its
features (`MultiHashEmbed.v2`) and its neighbours (`MaxoutWindowEncoder.v2`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.process_state import own_warning_filters

_Floats = npt.NDArray[np.float32]
_Whole = npt.NDArray[np.intp]
_LEAST_VARIANCE = np.float32(1e-8)
_CLOSE = 1e-3
"""Difference of scores below which a decision is close: far above rounding, and in one of two hundred texts only."""


@dataclass(frozen=True)
class Entity:
    """Characters [start, end) and the model's label."""

    start: int
    end: int
    label: str


class Tagger:
    """A spaCy pipeline for batches of texts. Loading takes a second."""

    def __init__(self, name: str) -> None:
        import spacy

        with own_warning_filters():
            # The model was trained with an older spaCy; its quality was measured with this one.
            warnings.filterwarnings("ignore", message=r"\[W095\]")
            model: Any = spacy.load(name)
        recognizer = model.get_pipe("ner")
        lower, upper = recognizer.model.get_ref("lower"), recognizer.model.get_ref("upper")
        self._tokenizer = model.tokenizer
        self._encoder = _Encoder(model.get_pipe("tok2vec").model)
        projection = recognizer.model.get_ref("tok2vec").layers[-1]
        self._projection: _Floats = projection.get_param("W").T
        self._projection_bias: _Floats = projection.get_param("b")
        # Pieces come before hidden units, so that maxout compares two halves: features, pieces, hidden, width.
        self._lower: _Floats = np.ascontiguousarray(lower.get_param("W").swapaxes(1, 2))
        self._pad: _Floats = lower.get_param("pad")[0].swapaxes(1, 2)
        self._bias: _Floats = lower.get_param("b").T
        self._upper: _Floats = np.ascontiguousarray(upper.get_param("W").T)  # hidden, moves
        self._upper_bias: _Floats = upper.get_param("b")
        self._moves = _Moves([recognizer.moves.get_class_name(number) for number in range(len(self._upper_bias))])

    def entities(self, texts: Sequence[str]) -> list[list[Entity]]:
        """The entities of each text, in order. Memory grows with the total number of characters."""
        documents = list(self._tokenizer.pipe(texts))
        found, close = self._together(documents)
        for number in close if len(documents) > 1 else ():
            found[number] = self._together([documents[number]])[0][0]
        return found

    def _together(self, documents: Sequence[Any]) -> tuple[list[list[Entity]], list[int]]:
        """The entities of each text, in order, and the texts with a close decision."""
        found: list[list[Entity]] = [[] for _ in documents]
        # The longest first, so that unfinished texts are at the front of every array.
        order = sorted((number for number, item in enumerate(documents) if len(item)), key=lambda n: -len(documents[n]))
        if not order:
            return found, []
        ordered = [documents[number] for number in order]
        vectors = self._encoder.vectors(ordered) @ self._projection + self._projection_bias
        lengths = np.array([len(item) for item in ordered], np.intp)
        blank = np.concatenate([item.to_array("IS_SPACE") for item in ordered]).astype(np.bool_)
        decided, close = self._decide(vectors, lengths, blank)
        for row, first, last, label in decided:
            item = ordered[row]
            end = item[last]
            found[order[row]].append(Entity(item[first].idx, end.idx + len(end), label))
        return [sorted(items, key=lambda item: item.start) for items in found], [order[row] for row in close]

    def _decide(
        self, vectors: _Floats, lengths: _Whole, blank: npt.NDArray[np.bool_]
    ) -> tuple[list[tuple[int, int, int, str]], Sequence[int]]:
        """(text, first token, last token, label) of each entity, and texts with a close decision. Longest first."""
        seen = (vectors @ self._lower.reshape(-1, self._lower.shape[-1]).T).reshape(-1, *self._lower.shape[:-1])
        closed = self._pad[1] + self._pad[2] + self._bias
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        moves = self._moves
        opened = np.full(len(lengths), -1, np.intp)  # first token of the open entity, or -1
        label = np.zeros(len(lengths), np.intp)
        close = np.zeros(len(lengths), np.bool_)
        found = []
        for step in range(int(lengths[0])):
            active = int(np.searchsorted(-lengths, -step, side="left"))
            rows = offsets[:active] + step
            state = seen[rows, 0] + closed
            inside = np.flatnonzero(opened[:active] >= 0)
            if len(inside):
                state[inside] += (
                    seen[offsets[inside] + opened[inside], 1] + seen[rows[inside] - 1, 2] - self._pad[1] - self._pad[2]
                )
            scores = _largest(state) @ self._upper + self._upper_bias
            last = lengths[:active] == step + 1
            scores += moves.barred_outside[(blank[rows] * 2 + last).astype(np.intp)]
            if len(inside):
                scores[inside] = (
                    _largest(state[inside]) @ self._upper
                    + self._upper_bias
                    + moves.barred_inside[last[inside].astype(np.intp), label[inside]]
                )
            chosen = scores.argmax(axis=1)
            second, first = np.partition(scores, -2, axis=1)[:, -2:].T
            close[:active] |= first - second < _CLOSE
            kinds = moves.kind[chosen]
            begins = np.flatnonzero(kinds == moves.BEGIN)
            opened[begins], label[begins] = step, moves.label[chosen[begins]]
            for row in np.flatnonzero(kinds == moves.UNIT):
                found.append((int(row), step, step, moves.labels[moves.label[chosen[row]]]))
            for row in np.flatnonzero(kinds == moves.LAST):
                found.append((int(row), int(opened[row]), step, moves.labels[label[row]]))
                opened[row] = -1
        return found, np.flatnonzero(close).tolist()


class _Encoder:
    """Tokens as vectors: `MultiHashEmbed.v2`, then `MaxoutWindowEncoder.v2` with a window of one token to each side."""

    def __init__(self, model: Any) -> None:
        from thinc.api import NumpyOps

        embed, encode = model.layers
        features, _, hashed, mixed, _ = embed.layers
        self._features: list[str] = features.attrs["columns"]
        self._hashed = hashed.layers[0]
        for layer in self._hashed.walk():
            layer.ops = NumpyOps(use_blis=False)
        self._mixed = _Maxout(mixed)
        self._windows = [_Maxout(layer) for layer in encode.layers[0].layers]
        # Rows of zeros between texts, so that no text influences another through all layers.
        self._padding = len(self._windows)

    def vectors(self, documents: Sequence[Any]) -> _Floats:
        """A vector (row) for each token of all texts, one text after the other."""
        ids = np.concatenate([item.to_array(self._features) for item in documents])
        # Only these features determine a token's embedding, and most tokens of a batch repeat.
        distinct, of_token = np.unique(ids, axis=0, return_inverse=True)
        embedded = self._mixed(self._hashed.predict(distinct))
        text = np.repeat(np.arange(1, len(documents) + 1), [len(item) for item in documents])
        places = np.arange(len(ids)) + self._padding * text
        rows = np.zeros((len(ids) + self._padding * (len(documents) + 1), embedded.shape[1]), np.float32)
        rows[places] = embedded[of_token.reshape(-1)]
        for layer in self._windows:
            edge = np.zeros((1, rows.shape[1]), np.float32)
            before, after = np.concatenate([edge, rows[:-1]]), np.concatenate([rows[1:], edge])
            rows += layer(np.concatenate([before, rows, after], axis=1))
        found: _Floats = rows[places]
        return found


class _Maxout:
    """A maxout layer (Goodfellow et al. 2013) with layer normalization."""

    def __init__(self, model: Any) -> None:
        params = {
            (layer.name, name): layer.get_param(name)
            for layer in model.walk()
            for name in layer.param_names
            if layer.has_param(name)
        }
        weights: _Floats = params["maxout", "W"]  # width, pieces, input
        self._width, self._pieces, inputs = weights.shape
        self._weights = np.ascontiguousarray(weights.transpose(1, 0, 2).reshape(-1, inputs).T)
        self._bias = params["maxout", "b"].T.reshape(-1)
        self._scale: _Floats = params["layernorm", "G"]
        self._shift: _Floats = params["layernorm", "b"]

    def __call__(self, rows: _Floats) -> _Floats:
        pieces: _Floats = rows @ self._weights
        pieces += self._bias
        largest = _largest(pieces.reshape(-1, self._pieces, self._width))
        largest -= largest.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", largest, largest) / self._width + _LEAST_VARIANCE
        largest *= (1 / np.sqrt(variance))[:, None]
        largest *= self._scale
        largest += self._shift
        return largest


def _largest(pieces: _Floats) -> _Floats:
    """The maximum over pieces (axis 1); comparing slices is faster than reducing an axis."""
    largest = np.maximum(pieces[:, 0], pieces[:, 1])
    for number in range(2, pieces.shape[1]):
        np.maximum(largest, pieces[:, number], out=largest)
    return largest


class _Moves:
    """The transition system's moves, and scores to add (0 or -inf) that exclude invalid ones."""

    OUTSIDE, BEGIN, INSIDE, LAST, UNIT = range(5)

    def __init__(self, names: Sequence[str]) -> None:
        parts = [name.partition("-") for name in names]
        self.labels = sorted({label for _, _, label in parts})
        self.kind = np.array(["OBILU".find(kind) for kind, _, _ in parts], np.intp)
        self.label = np.array([self.labels.index(label) for _, _, label in parts], np.intp)
        named = np.array([bool(label) for _, _, label in parts])
        outside = self.kind == self.OUTSIDE
        begin, unit = named & (self.kind == self.BEGIN), named & (self.kind == self.UNIT)
        # Without an open entity, by (is the token white space) * 2 + (is it the last one).
        self.barred_outside = self._barred([outside | begin | unit, outside | unit, outside, outside])
        # With an open entity, by (is the token the last one), label.
        inside, last = self.kind == self.INSIDE, self.kind == self.LAST
        self.barred_inside = np.stack(
            [
                self._barred([(inside | last) & (self.label == number) for number in range(len(self.labels))]),
                self._barred([last & (self.label == number) for number in range(len(self.labels))]),
            ]
        )

    @staticmethod
    def _barred(valid: Sequence[npt.NDArray[np.bool_]]) -> _Floats:
        return np.where(np.stack(valid), 0.0, -np.inf).astype(np.float32)
