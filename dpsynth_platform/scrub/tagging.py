"""The language model's decisions, for many texts at once.

What belongs here: running a spaCy pipeline of `tok2vec` and `ner` with numpy. What does not: which texts, what its
labels mean and what becomes of them (`names`).

spaCy takes one decision after the other, each with calls into a library of linear algebra (BLIS) that knows no
processor of today and locks on every call. Here one step decides for one token of every text of the batch, equal tokens
are embedded once, and numpy multiplies. It is the very same model: the entities are those that spaCy gives (a test
compares them).

A text's entities depend on that text alone: what is found in one person's text must not change with what stands in
another's. But a product's sums are rounded in an order that libraries choose by its shape, so that scores differ by
some 1e-5 with the company that a text is in. Where a decision is close enough for that, its text is decided alone.

The model is a transition system (Lample et al. 2016, section 3; spaCy's `TransitionBasedParser.v2` for `ner`): from
left to right, each token begins an entity (B), goes on in it (I), ends it (L), is one by itself (U) or is outside (O).
What a decision sees is the token, the first token of the open entity and the token before. A token is seen as a vector
of its own features (`MultiHashEmbed.v2`) after layers that look at its neighbours (`MaxoutWindowEncoder.v2`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Whole = npt.NDArray[np.intp]
_LEAST_VARIANCE = np.float32(1e-8)
_CLOSE = 1e-3
"""Scores that differ by less make a close decision: far more than rounding, and in one text of two hundred only."""


@dataclass(frozen=True)
class Entity:
    """Characters [start, end) and the model's label."""

    start: int
    end: int
    label: str


class Tagger:
    """A spaCy pipeline whose entities are decided batch by batch. Loading takes a second."""

    def __init__(self, name: str) -> None:
        import spacy

        with warnings.catch_warnings():
            # The model says that it was trained with an older spaCy; its quality was measured with this one.
            warnings.filterwarnings("ignore", message=r"\[W095\]")
            model: Any = spacy.load(name)
        recognizer = model.get_pipe("ner")
        lower, upper = recognizer.model.get_ref("lower"), recognizer.model.get_ref("upper")
        self._tokenizer = model.tokenizer
        self._encoder = _Encoder(model.get_pipe("tok2vec").model)
        projection = recognizer.model.get_ref("tok2vec").layers[-1]
        self._projection: _Floats = projection.get_param("W").T
        self._projection_bias: _Floats = projection.get_param("b")
        # Pieces come before hidden units, so that the larger of two pieces is one comparison of two halves.
        self._lower: _Floats = np.ascontiguousarray(
            lower.get_param("W").swapaxes(1, 2)
        )  # features, pieces, hidden, width
        self._pad: _Floats = lower.get_param("pad")[0].swapaxes(1, 2)
        self._bias: _Floats = lower.get_param("b").T
        self._upper: _Floats = np.ascontiguousarray(upper.get_param("W").T)  # hidden, moves
        self._upper_bias: _Floats = upper.get_param("b")
        self._moves = _Moves([recognizer.moves.get_class_name(number) for number in range(len(self._upper_bias))])

    def entities(self, texts: Sequence[str]) -> list[list[Entity]]:
        """The entities of each text, in order. Memory grows with the characters of all texts together."""
        documents = list(self._tokenizer.pipe(texts))
        found, close = self._together(documents)
        for number in close if len(documents) > 1 else ():
            found[number] = self._together([documents[number]])[0][0]
        return found

    def _together(self, documents: Sequence[Any]) -> tuple[list[list[Entity]], list[int]]:
        """The entities of each text, in order; and the texts with a close decision."""
        found: list[list[Entity]] = [[] for _ in documents]
        # The longest first, so that the texts which are still going on stand at the front of every array.
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
        """(text, first token, last token, label) of each entity, for texts in order of falling length; and the texts
        with a close decision.
        """
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
        # Texts are parted by so many rows of zeros that none sees another through all layers.
        self._apart = len(self._windows)

    def vectors(self, documents: Sequence[Any]) -> _Floats:
        """A vector (row) for each token of all texts, one text after the other."""
        ids = np.concatenate([item.to_array(self._features) for item in documents])
        # What a token is embedded as depends on nothing but these; most tokens of a batch repeat.
        distinct, of_token = np.unique(ids, axis=0, return_inverse=True)
        embedded = self._mixed(self._hashed.predict(distinct))
        text = np.repeat(np.arange(1, len(documents) + 1), [len(item) for item in documents])
        places = np.arange(len(ids)) + self._apart * text
        rows = np.zeros((len(ids) + self._apart * (len(documents) + 1), embedded.shape[1]), np.float32)
        rows[places] = embedded[of_token.reshape(-1)]
        for layer in self._windows:
            edge = np.zeros((1, rows.shape[1]), np.float32)
            before, after = np.concatenate([edge, rows[:-1]]), np.concatenate([rows[1:], edge])
            rows += layer(np.concatenate([before, rows, after], axis=1))
        found: _Floats = rows[places]
        return found


class _Maxout:
    """A layer that takes the largest of its pieces (Goodfellow et al. 2013), then normalizes each row."""

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
    """The largest of a row's pieces (axis 1), unit by unit; numpy compares halves faster than it reduces an axis."""
    largest = np.maximum(pieces[:, 0], pieces[:, 1])
    for number in range(2, pieces.shape[1]):
        np.maximum(largest, pieces[:, number], out=largest)
    return largest


class _Moves:
    """The transition system's moves, and which of them are barred in which state (as -inf to add to scores)."""

    OUTSIDE, BEGIN, INSIDE, LAST, UNIT = range(5)

    def __init__(self, names: Sequence[str]) -> None:
        parts = [name.partition("-") for name in names]
        self.labels = sorted({label for _, _, label in parts})
        self.kind = np.array(["OBILU".find(kind) for kind, _, _ in parts], np.intp)
        self.label = np.array([self.labels.index(label) for _, _, label in parts], np.intp)
        named = np.array([bool(label) for _, _, label in parts])
        outside = self.kind == self.OUTSIDE
        begin, unit = named & (self.kind == self.BEGIN), named & (self.kind == self.UNIT)
        # No entity is open. By (is the token blank) * 2 + (is it the last one).
        self.barred_outside = self._barred([outside | begin | unit, outside | unit, outside, outside])
        # An entity of a label is open. By (is the token the last one), label.
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
