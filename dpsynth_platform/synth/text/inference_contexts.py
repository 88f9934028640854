"""The assignment of owners to contexts of DP inference.

What belongs here: choosing a label for each context from public numbers, and a context for each owner. What does not:
the prompts of records (`inference_model`), and the draws from a context (`inference_writing`).

**An owner's context depends on this owner only**: on the owner's fingerprint, the labels of the owner's records, the
public labels of the contexts, and a key that is fresh for every mechanism and not stored. One owner more changes no
other's context. All used records of an owner are in one context, and have its label. If an owner has records of several
labels, one of the records, chosen uniformly by the key, decides the label. So owners have a label about as often as
records have it, by which contexts are divided. A uniform choice among the owner's labels would crowd the few contexts
of a rare label.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpsynth_platform.foundation.digests import canonical_json
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text.sampling import apportioned


@dataclass(frozen=True)
class Contexts:
    """The contexts' labels, in order: the conditions' values of a context's records and documents. Public."""

    labels: tuple[Given, ...]

    @classmethod
    def shared(cls, number: int, weights: Mapping[Given, float]) -> Contexts:
        """So many contexts, in proportion to the labels' weights from noisy counts."""
        counts = apportioned(number, weights)
        return cls(tuple(label for label, count in counts.items() for _ in range(count)))

    @property
    def places(self) -> dict[Given, list[int]]:
        """The positions of each label's contexts."""
        found: dict[Given, list[int]] = {}
        for position, label in enumerate(self.labels):
            found.setdefault(label, []).append(position)
        return found


def placed(
    records: Iterable[tuple[str, Given, str]], contexts: Contexts, key: bytes, *, most: int
) -> list[dict[str, list[str]]]:
    """The bodies of each context's records, by owner. Sensitive.

    Args:
        records: each with its owner's fingerprint, its label and its body.
        key: 32 fresh bytes.
        most: the most records of one owner.

    Returns:
        For each context, the bodies of each owner in it, sorted, independent of the order of records. A record is in no
        context if no context has its label, or its owner has another one.
    """
    places = contexts.places
    owned: dict[str, dict[Given, list[str]]] = {}
    for owner, label, body in records:
        if label in places:
            owned.setdefault(owner, {}).setdefault(label, []).append(body)
    found: list[dict[str, list[str]]] = [{} for _ in contexts.labels]
    for owner in sorted(owned):
        chances = {label: sorted(_chances(key, owner, label, own)) for label, own in owned[owner].items()}
        label = min(chances, key=lambda one: chances[one][0])
        first = [body for _, body in chances[label][:most]]
        number = int.from_bytes(_keyed(key, "context", owner), "big")
        found[places[label][number % len(places[label])]][owner] = sorted(first)
    return found


def _chances(key: bytes, owner: str, label: Given, bodies: Sequence[str]) -> Iterator[tuple[bytes, str]]:
    """Each record of an owner's label with a pseudorandom number; equal records have different numbers."""
    numbers: Counter[str] = Counter()
    for body in bodies:
        yield _keyed(key, "record", owner, list(label), body, numbers[body]), body
        numbers[body] += 1


def _keyed(key: bytes, *named: object) -> bytes:
    return hmac.digest(key, canonical_json(list(named)).encode(), "sha256")
