"""Finding personal data in free text: all detectors together.

What belongs here: what a detector is given and gives back, the order in which detectors see a text, one answer from
all of them, and the contract's own rules. What does not: the detectors themselves (`rules`, `addresses`, `names`,
`organizations`),
what a record's own columns tell of its person (`clues`), running on all cores (`parallel`), what is put in a
finding's place (`replacement`) and which columns are texts (`scrub`).

Nothing here touches a network. Best effort, and no part of the privacy guarantee.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.scrub.addresses import ADDRESS_WORDS, PARTICLES, find_addresses
from dpsynth_platform.scrub.batches import pieces_of
from dpsynth_platform.scrub.clues import clues
from dpsynth_platform.scrub.findings import UNREAD, Candidate, Finding, Trust, resolved
from dpsynth_platform.scrub.letters import LOWER, UPPER
from dpsynth_platform.scrub.lists import word_lists
from dpsynth_platform.scrub.names import NameModel, find_homes, find_listed, in_company
from dpsynth_platform.scrub.organizations import find_formed, find_told, in_row, in_signature
from dpsynth_platform.scrub.rule import CONTEXT_AFTER, CONTEXT_BEFORE
from dpsynth_platform.scrub.rules import rules

# Longer texts are read section by section, so that neither time nor memory grows faster than the text.
SECTION_CHARACTERS = 50_000
# A section begins so far before its place, so that what stands across a cut is read as a whole.
OVERLAP_CHARACTERS = 200
# Where the contract's own rules need longer than this for one text, all together, they are stopped, and the text goes
# as a whole. A rule that is linear needs a hundredth of it.
PATTERN_SECONDS = 0.2
PATTERN_SECONDS_PER_CHARACTER = 1e-5

_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile(r"\s")
_SMALL_WORD = re.compile(r"[^\W\d_]+")
# After a first name, a word that does not end as verbs and adverbs do is likely the family name.
_AFTER_NAME = re.compile(
    rf"(?<!\w)(?P<first>[{UPPER}]\w+) (?P<word>[{LOWER}]{{4,}}(?<!ed)(?<!ing)(?<!ly)(?<!es))(?!\w)"
)
_LOUD_WORD = re.compile(rf"(?<![\w-])(?:[{UPPER}]{{5,}}|[{UPPER}]{{2,}}(?:-[{UPPER}]{{2,}})+)(?![\w-])")
_MILITARY = frozenset(["psc", "usns", "usnv", "uss", "uscgc", "apo", "fpo", "dpo"])


@dataclass(frozen=True, repr=False)
class Document:
    """A text with what its record says of its person.

    Attributes:
        text: of any length, in one language: English. Names of other languages are found less well.
        values: the record's directly identifying values by column name (see `clues.clues`).
    """

    text: str
    values: Mapping[str, str | None] = field(default_factory=dict)


class TextDetector:
    """Finds personal data in texts. Loading takes a second or two: see `text_detector`."""

    def __init__(self) -> None:
        self._names = NameModel()
        self._lists = word_lists()
        self._rules = rules()
        self._places_in_address = self._lists.common - ADDRESS_WORDS | frozenset(PARTICLES)

    def find(self, documents: Sequence[Document], own: Scrub | None = None) -> list[list[Finding]]:
        """The findings of each document: in order, and free of overlap.

        Args:
            own: the contract's own rules.

        A text for which those take longer than `PATTERN_SECONDS` of the processor's time, and more for a long one, is a
        single finding, of type `UNREAD`.
        """
        # Many a table says the same thing again and again; what the record adds is looked at each time.
        texts = list(dict.fromkeys(item.text for item in documents))
        found = dict(zip(texts, self._candidates(texts), strict=True))
        mine = _OwnRules(own) if own is not None else None
        return [self._answer(item, found[item.text], mine) for item in documents]

    def _answer(self, document: Document, candidates: list[Candidate], own: _OwnRules | None) -> list[Finding]:
        text = document.text
        if own is not None:
            allowed = [item for item in candidates if text[item.start : item.end].casefold() not in own.allowed]
            try:
                candidates = allowed + list(own.find(text))
            except TimeoutError:
                return [Finding(0, len(text), UNREAD)]
        pattern = clues(document.values) if document.values else None
        if pattern is not None:
            candidates = candidates + [
                Candidate(match.start(), match.end(), match.lastgroup or "ID", Trust.RECORD)
                for match in pattern.finditer(text)
            ]
        findings = in_row(text, resolved(text, candidates), self._lists)
        return in_signature(text, in_company(text, findings, self._lists), self._lists)

    def _candidates(self, texts: Sequence[str]) -> list[list[Candidate]]:
        found: list[list[Candidate]] = [[] for _ in texts]
        sections = [(number, start, section) for number, text in enumerate(texts) for start, section in _sections(text)]
        cased = [self._cased(section) for _, _, section in sections]
        for (number, start, section), text, named in zip(
            sections, cased, self._names.find(cased, self._lists), strict=True
        ):
            candidates = [*named, *self._by_rule(section, text)]
            found[number] += (
                candidates
                if start == 0
                else (Candidate(item.start + start, item.end + start, item.entity, item.trust) for item in candidates)
            )
        return found

    def _by_rule(self, text: str, cased: str) -> Iterator[Candidate]:
        for rule in self._rules:
            yield from rule.find(text)
        yield from find_listed(cased, self._lists)
        in_address = self._address_cased(text)
        yield from find_addresses(in_address, self._lists)
        yield from find_homes(in_address, self._lists)
        yield from find_formed(in_address, self._lists)
        yield from find_told(cased, self._lists)

    def _cased(self, text: str) -> str:
        """The text with names' words capitalized where it has no capitals, or nothing but capitals, to tell them by.

        Of the same length, so that positions hold.
        """
        text = _SURROGATE.sub("\ufffd", text)
        if text.islower():
            return _AFTER_NAME.sub(self._surname, _SMALL_WORD.sub(self._known, text))
        return _LOUD_WORD.sub(_softened, text)

    def _known(self, match: re.Match[str]) -> str:
        word, lists = match.group(), self._lists
        known = word in lists.first_names or word in lists.last_names or word in lists.places
        return _capital(word) if known and word not in lists.common else word

    def _surname(self, match: re.Match[str]) -> str:
        first, word = match["first"], match["word"]
        name = first.casefold() in self._lists.first_names and word not in self._lists.common
        return f"{first} {_capital(word)}" if name else match.group()

    def _address_cased(self, text: str) -> str:
        """The text with every word capitalized that is not common, where it has no capitals: streets are on no list."""
        return _SMALL_WORD.sub(self._as_in_address, text) if text.islower() else text

    def _as_in_address(self, match: re.Match[str]) -> str:
        word = match.group()
        if word in self._places_in_address or len(word) == 1:
            return word
        loud = word.upper()
        return loud if (len(word) == 2 or word in _MILITARY) and len(loud) == len(word) else _capital(word)


@functools.cache
def text_detector() -> TextDetector:
    """The process's detector, loaded at first use."""
    return TextDetector()


class _OwnRules:
    """A contract's patterns and lists, compiled."""

    def __init__(self, own: Scrub) -> None:
        import regex

        self.allowed = frozenset(phrase.casefold() for phrase in own.allow)
        self._rules: list[tuple[str, Any, Any]] = [
            (item.entity, regex.compile(item.pattern), _phrases(item.context) if item.context else None)
            for item in own.patterns
        ]
        self._rules += [(entity, _phrases(phrases), None) for entity, phrases in own.deny.items()]

    def find(self, text: str) -> Iterator[Candidate]:
        """What the rules find. Raises `TimeoutError` where they take too long."""
        end_of_time = time.process_time() + PATTERN_SECONDS + PATTERN_SECONDS_PER_CHARACTER * len(text)
        for entity, pattern, context in self._rules:
            for match in pattern.finditer(text, timeout=_left(end_of_time)):
                start, end = match.span()
                near = text[max(0, start - CONTEXT_BEFORE) : start], text[end : end + CONTEXT_AFTER]
                if start < end and (
                    context is None or any(context.search(part, timeout=_left(end_of_time)) for part in near)
                ):
                    yield Candidate(start, end, entity, Trust.CONTRACT)


def _left(end_of_time: float) -> float:
    left = end_of_time - time.process_time()
    if left <= 0:
        raise TimeoutError
    return left


def _sections(text: str) -> Iterator[tuple[int, str]]:
    """A text in sections that overlap, each with its position; they begin at a blank where there is one."""
    for cut, piece in pieces_of(text, SECTION_CHARACTERS):
        start = max(0, cut - OVERLAP_CHARACTERS)
        blank = _BLANK.search(text, start, cut) if start else None
        start = blank.start() if blank else start
        yield start, text[start : cut + len(piece)]


def _phrases(phrases: Sequence[str]) -> Any:
    """Whole words, in any case, whatever blanks stand between them; the longest first."""
    import regex

    forms = sorted((r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases), key=lambda form: -len(form))
    return regex.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)", regex.IGNORECASE)


def _softened(match: re.Match[str]) -> str:
    word = match.group()
    title = "-".join(part[0] + part[1:].lower() for part in word.split("-"))
    return title if len(title) == len(word) else word


def _capital(word: str) -> str:
    capital = word[0].upper() + word[1:]
    return capital if len(capital) == len(word) else word
