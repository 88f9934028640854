"""Texts of a public table as candidates of a private evolution: some at random, and those nearest to others.

What belongs here: choosing texts of a table in memory, by nothing but their features and labels. What does not: reading
the table (`public_texts`), and votes: the data cannot reach this module, as they cannot reach prompts.

A record votes for the few candidates of a round, and so for all texts of the table that are nearer to one of them than
to others. The nearest texts of a candidate with many votes are the next candidates: a table of any size costs one
histogram a round. Released texts may be these texts word for word.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.private_text import Features
from dpsynth_platform.synth.text.public_text import PublicText


@dataclass(frozen=True)
class PublicCandidates:
    """The distinct texts of a public table. Public.

    Attributes:
        by_label: the texts of each label of the table, in its order.
        places: which of a layout's conditions the labels are; the table may lack some, or all.
        encode: features of texts, shape (texts, features), of length 1 each.
    """

    by_label: Mapping[Given, Sequence[str]]
    places: tuple[int, ...]
    encode: Callable[[Sequence[str]], Features]
    _features: dict[Given | None, Features] = field(default_factory=dict, init=False, repr=False)

    def of(self, given: Given) -> Sequence[str]:
        """The candidates for these values of the conditions: texts of this label, or all if there are none."""
        key = self._key(given)
        if key is None:
            return list(dict.fromkeys(text for own in self.by_label.values() for text in own))
        return self.by_label[key]

    def some(self, givens: Sequence[Given], chance: random.Random) -> list[PublicText | None]:
        """A text for each: those of a label at random, each at most once; None if there are no more."""
        left = {given: iter(chance.sample(own, len(own))) for given in set(givens) if (own := list(self.of(given)))}
        found = [next(left[given], None) for given in givens]
        return [None if text is None else PublicText(text) for text in found]

    def nearest(
        self, samples: Sequence[PublicText], givens: Sequence[Given], taken: Collection[tuple[Given, str]] | None = None
    ) -> list[PublicText]:
        """For each sample the nearest text that is neither a sample nor found for an earlier sample, of its label.

        Where a label has no such text any more, all of its texts are found again.

        Args:
            taken: further texts that are not found. With these, no text is found for two labels: it is for a release.
        """
        labels = [given if taken is None else self._key(given) for given in givens]
        out = {(label, sample.words) for label, sample in zip(labels, samples, strict=True)}
        out |= {(self._key(given), text) for given, text in taken or ()}
        texts = {label: self.of(given) for label, given in zip(labels, givens, strict=True)}
        free = {label: np.array([(label, text) not in out for text in own]) for label, own in texts.items()}
        found = []
        wanted = self.encode([sample.words for sample in samples])
        for label, given, features in zip(labels, givens, wanted, strict=True):
            if not free[label].any():
                free[label][:] = True
            place = int(np.where(free[label], self._features_of(given) @ features, -np.inf).argmax())
            free[label][place] = False
            found.append(PublicText(texts[label][place]))
        return found

    def _key(self, given: Given) -> Given | None:
        key = tuple(given[place] for place in self.places)
        return key if key in self.by_label else None

    def _features_of(self, given: Given) -> Features:
        key = self._key(given)
        if key not in self._features:
            self._features[key] = self.encode(self.of(given))
        return self._features[key]
