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
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

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
    marked = [_START] * (order - 1) + words(text)
    return zip(*(marked[place:] for place in range(order)), strict=False)


def mean_log_probabilities(targets: Sequence[str], texts: Iterable[str], order: int = ORDER) -> Floats:
    """Each target's mean log-probability per word under the n-gram model of some texts, shape (targets,).

    Laplace smoothing: (count of the n-gram + 1) / (count of its first n - 1 words + number of words in all texts and
    targets). Only n-grams of targets are counted, so memory grows with the texts' vocabulary only. A target without
    words gets 0. Raises `AccountingError` if the order n is below 1.
    """
    if order < 1:
        raise AccountingError(f"audit: n-grams of {order} words; accepted: from 1")
    asked = [list(grams(target, order)) for target in targets]
    counts = {gram: 0 for own in asked for gram in own}
    contexts = {gram[:-1]: 0 for gram in counts}
    known = {gram[-1] for gram in counts}
    for text in texts:
        for gram in grams(text, order):
            known.add(gram[-1])
            if gram[:-1] in contexts:
                contexts[gram[:-1]] += 1
                if gram in counts:
                    counts[gram] += 1
    chances = {gram: np.log((count + 1) / (contexts[gram[:-1]] + len(known))) for gram, count in counts.items()}
    return np.array([sum(chances[gram] for gram in own) / max(1, len(own)) for own in asked], dtype=np.float64)


def reference_attack(evidence: TextEvidence) -> Floats:
    """How much likelier each target is among the released texts than among the reference; needs a reference.

    The difference of logarithms is the ratio of Meeus et al., and differs from 0 for long texts, too. SynBench
    subtracts probabilities instead, and its reference is the mean of four models, of which two had the target (Sun et
    al. 2025, section 3, stages 2 and 3). Here there is one reference, without targets.
    """
    if evidence.reference is None:
        raise AccountingError("audit: there is no reference, which this attack needs; accepted: evidence with one")
    own = mean_log_probabilities(evidence.targets, evidence.synthetic)
    return own - mean_log_probabilities(evidence.targets, evidence.reference)
