"""Which owner's records are in which context of DP inference.

What belongs here: choosing a label for each context from public numbers, and a context for each owner. What does not:
the prompts that records become (`inference_model`), and what is drawn of a context (`inference_writing`).

**An owner's place hangs on this owner alone**: on the owner's fingerprint and the labels of the owner's records, beside
the labels of the contexts, which are public, and a key that is drawn afresh for every mechanism and kept nowhere. One
owner more changes no other's place. All records of an owner that are used are in one context, and have its label; of an
owner with records of several labels, those of one are used, which the key decides: the label of one of the records, any
of them alike, so that owners go by a label about as often as records have it, by which contexts are shared out. Owners
who chose among their labels, all alike, would crowd in the few contexts of a rare one.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpsynth_platform.foundation.digests import canonical_json
from dpsynth_platform.synth.text.layout import Given
from dpsynth_platform.synth.text.sampling import apportioned


@dataclass(frozen=True)
class Contexts:
    """The contexts' labels, in their order. Public.

    Attributes:
        labels: of each context, the conditions' values that its records have and that its documents are written for.
    """

    labels: tuple[Given, ...]

    @classmethod
    def shared(cls, number: int, weights: Mapping[Given, float]) -> Contexts:
        """So many contexts, in proportion to weights.

        Args:
            number: of contexts.
            weights: of each label, from noisy counts.
        """
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
        contexts: where they go.
        key: 32 fresh bytes.
        most: records of one owner.

    Returns:
        Of each context, the bodies of each owner in it, sorted: in which order records come has no part in it. A record
        whose label no context has, or whose owner goes by another label, is in none.
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
        found[_one_of(places[label], _keyed(key, "context", owner))][owner] = sorted(first)
    return found


def _chances(key: bytes, owner: str, label: Given, bodies: Sequence[str]) -> Iterator[tuple[bytes, str]]:
    """Each record of an owner's label with a number by chance; equal records have numbers of their own."""
    numbers: Counter[str] = Counter()
    for body in bodies:
        yield _keyed(key, "record", owner, list(label), body, numbers[body]), body
        numbers[body] += 1


def _keyed(key: bytes, *named: object) -> bytes:
    return hmac.digest(key, canonical_json(list(named)).encode(), "sha256")


def _one_of(places: Sequence[int], digest: bytes) -> int:
    return places[int.from_bytes(digest, "big") % len(places)]
