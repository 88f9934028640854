"""Findings: positions of personal data in a text, and resolving overlaps.

What belongs here: the detectors' result type, the trust in each kind of evidence, and resolving overlaps by trust. What
does not: detection (`rules`, `addresses`, `names`) and replacement (`replacement`).
"""

from __future__ import annotations

import bisect
import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dpsynth_platform.scrub.letters import UPPER


class Trust(enum.IntEnum):
    """The source of a finding; of two that overlap, the one with the lower number keeps its bounds and type."""

    RECORD = 0
    CONTRACT = 1
    CHECKED = 2
    SHAPE = 3
    ADDRESS = 4
    LIKELY = 5
    MODEL = 6
    LIST = 7


@dataclass(frozen=True, order=True)
class Finding:
    """Personal data in a text: characters [start, end) and the entity type, such as PERSON.

    `trust` is that of its source, as far as it is known; findings are equal without it.
    """

    start: int
    end: int
    entity: str
    trust: Trust = field(default=Trust.LIST, compare=False, repr=False)


UNREAD = "UNREAD"
"""Entity type of a whole text for which a contract's own rules took too long; it is always masked."""


@dataclass(frozen=True)
class Candidate:
    """A finding with its trust, before overlaps are resolved."""

    start: int
    end: int
    entity: str
    trust: Trust


_WORD = re.compile(r"[^\W_]")
# The rest of a name that was cut is a finding only if it has a capital or a digit.
_CAPITAL_OR_DIGIT = re.compile(rf"[{UPPER}\d]")
_BLANK = re.compile(r"[ \t]+")


def resolved(text: str, candidates: Iterable[Candidate]) -> list[Finding]:
    """Ordered findings without overlaps that cover every candidate's letters and digits.

    The more trusted candidate keeps its bounds, among equals the longer one. The parts of others outside it keep their
    own type, unless they are punctuation only. Neighbouring parts of a person's name become one.
    """
    taken: list[Finding] = []
    for item in sorted(candidates, key=lambda item: (item.trust, item.start - item.end, item.start)):
        for start, end in _free(taken, item.start, item.end):
            first, last = _WORD.search(text, start, end), end
            if first is None:
                continue
            if (start, end) != (item.start, item.end):
                # A remaining part begins and ends with a word.
                start = first.start()
                while not _WORD.match(text, last - 1):
                    last -= 1
                if item.trust >= Trust.MODEL and not _CAPITAL_OR_DIGIT.search(text, start, last):
                    continue
            bisect.insort(taken, Finding(start, last, item.entity, item.trust))
    return _joined_names(text, taken)


def _free(taken: list[Finding], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) outside all findings."""
    at = bisect.bisect_right(taken, start, key=lambda item: item.end)
    parts = []
    while at < len(taken) and taken[at].start < end:
        if taken[at].start > start:
            parts.append((start, taken[at].start))
        start = taken[at].end
        at += 1
    if start < end:
        parts.append((start, end))
    return parts


def _joined_names(text: str, findings: list[Finding]) -> list[Finding]:
    joined: list[Finding] = []
    for item in findings:
        last = joined[-1] if joined else None
        if (
            last is not None
            and item.entity == last.entity == "PERSON"
            and (last.end == item.start or _BLANK.fullmatch(text, last.end, item.start))
        ):
            joined[-1] = Finding(last.start, item.end, item.entity, min(last.trust, item.trust))
        else:
            joined.append(item)
    return joined
