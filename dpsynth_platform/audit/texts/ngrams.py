"""N-gram models: is a text likelier among the released ones than elsewhere?

What belongs here: texts as words, the n-gram model, and an attack by its probabilities (Meeus, Wutschitz,
Zanella-Beguelin, Tople & Shokri, "The Canary's Echo: Auditing Privacy Risks of LLM-Generated Synthetic Text", ICML
2025). What does not: sets of shared n-grams (`similarity`), language models.

A common text is likely under every model, so its probability under the release's model is compared with that under a
model of other texts of the population. (Without such texts, a comparison with the probability of the single words found
almost nothing, even of a model that had memorized its members.) All values are per word, so that long texts do not
dominate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy import sparse

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.texts.evidence import TextEvidence
from dpsynth_platform.foundation.errors import AccountingError

ORDER = 2
"""Words in an n-gram: in SynBench (Sun et al. 2025, section 5) the best of 2, 3 and 4."""
_WORD = re.compile(r"\w+|[^\w\s]")
_START = ""
"""Not a possible word."""

Gram = tuple[str, ...]


def words(text: str) -> list[str]:
    """A text's words in lower case; each other character except blanks is a separate word."""
    return _WORD.findall(text.lower())


def grams(text: str, order: int) -> Iterator[Gram]:
    """Every run of `order` words; start marks precede the first words, so there are as many runs as words."""
    return _runs([_START] * (order - 1) + words(text), order)


def _runs(marked: Sequence[str], length: int) -> Iterator[Gram]:
    return zip(*(marked[place:] for place in range(length)), strict=False)


@dataclass(frozen=True)
class GramCounts:
    """How often some texts have the n-grams of targets (`TargetGrams`); counts of two corpora add up.

    Attributes:
        grams, contexts: of each n-gram, and of its first n - 1 words; shape (n-grams,).
        known: all words of the texts and the targets.
    """

    grams: Floats
    contexts: Floats
    known: frozenset[str]

    def __add__(self, other: GramCounts) -> GramCounts:
        return GramCounts(self.grams + other.grams, self.contexts + other.contexts, self.known | other.known)


class TargetGrams:
    """The n-grams of some targets, which alone are counted in texts, so that memory grows with the vocabulary only.

    Attributes:
        sizes: number of words of each target, shape (targets,).

    Raises:
        AccountingError: the order n is below 1.
    """

    def __init__(self, targets: Sequence[str], order: int = ORDER) -> None:
        if order < 1:
            raise AccountingError(f"audit: n-grams of {order} words; accepted: from 1")
        asked = [list(grams(target, order)) for target in targets]
        self._order = order
        self._places = {gram: place for place, gram in enumerate(dict.fromkeys(chain.from_iterable(asked)))}
        self._contexts = {gram[:-1] for gram in self._places}
        self._known = frozenset(gram[-1] for gram in self._places)
        columns = [self._places[gram] for own in asked for gram in own]
        self.sizes = np.array([len(own) for own in asked], dtype=np.int64)
        ends = np.concatenate([[0], np.cumsum(self.sizes)])
        self._held = sparse.csr_matrix((np.ones(len(columns)), columns, ends), (len(asked), len(self._places)))

    def count(self, texts: Iterable[str]) -> GramCounts:
        """The counts of the targets' n-grams in some texts."""
        counts, contexts, known = Counter[Gram](), Counter[Gram](), set(self._known)
        asked, before = self._places.__contains__, self._contexts.__contains__
        for text in texts:
            own = words(text)
            marked = [_START] * (self._order - 1) + own
            known.update(own)
            counts.update(filter(asked, _runs(marked, self._order)))
            contexts.update(
                filter(before, _runs(marked[:-1], self._order - 1) if self._order > 1 else ((),) * len(own))
            )
        return GramCounts(
            np.array([counts[gram] for gram in self._places], dtype=np.float64),
            np.array([contexts[gram[:-1]] for gram in self._places], dtype=np.float64),
            frozenset(known),
        )

    def log_probabilities(self, counts: GramCounts) -> Floats:
        """Each target's log-probability under the n-gram model of the counted texts, shape (targets,).

        Laplace smoothing: (count of the n-gram + 1) / (count of its first n - 1 words + number of words in all texts
        and targets). A target without words gets 0.
        """
        chances = np.log((counts.grams + 1) / (counts.contexts + len(counts.known)))
        return np.asarray(self._held @ chances, dtype=np.float64)


def mean_log_probabilities(targets: Sequence[str], texts: Iterable[str], order: int = ORDER) -> Floats:
    """Each target's mean log-probability per word (`TargetGrams.log_probabilities`), shape (targets,).

    Raises `AccountingError` if the order n is below 1.
    """
    asked = TargetGrams(targets, order)
    return asked.log_probabilities(asked.count(texts)) / np.maximum(1, asked.sizes)


def reference_attack(evidence: TextEvidence) -> Floats:
    """How much likelier each target is among the released texts than among the reference; needs a reference.

    The difference of logarithms is the ratio of Meeus et al., and differs from 0 for long texts, too. SynBench
    subtracts probabilities instead, has four references, of which two contain the target, and makes a hundred releases
    (`synbench`). Here there are one reference, without targets, and one release.
    """
    if evidence.reference is None:
        raise AccountingError("audit: there is no reference, which this attack needs; accepted: evidence with one")
    own = mean_log_probabilities(evidence.targets, evidence.synthetic)
    return own - mean_log_probabilities(evidence.targets, evidence.reference)
