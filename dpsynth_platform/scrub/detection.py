"""Finding personal data in free text with all detectors.

What belongs here: a detector's input and output, combining all detectors' candidates, and the contract's own rules.
What does not: the detectors (`rules`, `addresses`, `names`, `organizations`), a record's own values (`clues`), running
on all cores (`parallel`), replacing findings (`replacement`), and which columns are texts (`scrub`).

Nothing here uses a network. Best effort, and no part of the privacy guarantee.
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
from dpsynth_platform.scrub.names import NameModel, find_listed, find_residences, people_in_lists
from dpsynth_platform.scrub.organizations import find_by_context, find_formed, in_signature, organizations_in_lists
from dpsynth_platform.scrub.rule import CONTEXT_AFTER, CONTEXT_BEFORE
from dpsynth_platform.scrub.rules import rules

# Longer texts are read in sections, so that time and memory are linear in the text's length.
SECTION_CHARACTERS = 50_000
# Sections overlap by so much, so that personal data across a cut is found.
OVERLAP_CHARACTERS = 200
# If the contract's own rules take longer than this for one text, they are stopped, and the whole text is masked. Linear
# rules need a hundredth of it.
PATTERN_SECONDS = 0.2
PATTERN_SECONDS_PER_CHARACTER = 1e-5

_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile(r"\s")
_SMALL_WORD = re.compile(r"[^\W\d_]+")
# After a first name, a word without a typical ending of verbs and adverbs is likely the family name.
_AFTER_NAME = re.compile(
    rf"(?<!\w)(?P<first>[{UPPER}]\w+) (?P<word>[{LOWER}]{{4,}}(?<!ed)(?<!ing)(?<!ly)(?<!es))(?!\w)"
)
_CAPITALS = re.compile(rf"(?<![\w-])(?:[{UPPER}]{{5,}}|[{UPPER}]{{2,}}(?:-[{UPPER}]{{2,}})+)(?![\w-])")
_MILITARY = frozenset(["psc", "usns", "usnv", "uss", "uscgc", "apo", "fpo", "dpo"])


@dataclass(frozen=True, repr=False)
class Document:
    """A text, best in English, with its record's identifying values by column name."""

    text: str
    values: Mapping[str, str | None] = field(default_factory=dict)


class TextDetector:
    """Finds personal data in texts. Loading takes a second or two, so share `text_detector`."""

    def __init__(self) -> None:
        self._names = NameModel()
        self._lists = word_lists()
        self._rules = rules()
        self._places_in_address = self._lists.common - ADDRESS_WORDS | frozenset(PARTICLES)

    def find(self, documents: Sequence[Document], own: Scrub | None = None) -> list[list[Finding]]:
        """The findings of each document, in order and without overlaps.

        A text for which the contract's `own` rules exceed their processor time is one finding of type `UNREAD`.
        """
        # Texts often repeat in a table; only their records' values differ.
        texts = list(dict.fromkeys(item.text for item in documents))
        found = dict(zip(texts, self._candidates(texts), strict=True))
        rules_of_contract = _ContractRules(own) if own is not None else None
        return [self._findings(item, found[item.text], rules_of_contract) for item in documents]

    def _findings(self, document: Document, candidates: list[Candidate], own: _ContractRules | None) -> list[Finding]:
        text = document.text
        if own is not None:
            allowed = [item for item in candidates if text[item.start : item.end].casefold() not in own.allowed]
            try:
                candidates = allowed + list(own.find(text))
            except TimeoutError:
                return [Finding(0, len(text), UNREAD, Trust.CONTRACT)]
        pattern = clues(document.values) if document.values else None
        if pattern is not None:
            candidates = candidates + [
                Candidate(match.start(), match.end(), match.lastgroup or "ID", Trust.RECORD)
                for match in pattern.finditer(text)
            ]
        findings = organizations_in_lists(text, resolved(text, candidates), self._lists)
        return in_signature(text, people_in_lists(text, findings, self._lists), self._lists)

    def _candidates(self, texts: Sequence[str]) -> list[list[Candidate]]:
        found: list[list[Candidate]] = [[] for _ in texts]
        sections = [(number, start, section) for number, text in enumerate(texts) for start, section in _sections(text)]
        cased = [self._cased(section) for _, _, section in sections]
        named = self._names.find(cased, self._lists)
        for (number, start, section), text, names in zip(sections, cased, named, strict=True):
            found[number] += (
                Candidate(item.start + start, item.end + start, item.entity, item.trust) if start else item
                for item in (*names, *self._by_rule(section, text))
            )
        return found

    def _by_rule(self, text: str, cased: str) -> Iterator[Candidate]:
        for rule in self._rules:
            yield from rule.find(text)
        yield from find_listed(cased, self._lists)
        in_address = self._address_cased(text)
        yield from find_addresses(in_address, self._lists)
        yield from find_residences(in_address, self._lists)
        yield from find_formed(in_address, self._lists)
        yield from find_by_context(cased, self._lists)

    def _cased(self, text: str) -> str:
        """The text with names capitalized if it is in lower case, and with words in capitals as titles.

        The length stays the same, so that positions are valid.
        """
        text = _SURROGATE.sub("\ufffd", text)
        if text.islower():
            return _AFTER_NAME.sub(self._surname, _SMALL_WORD.sub(self._known, text))
        return _CAPITALS.sub(_title_case, text)

    def _known(self, match: re.Match[str]) -> str:
        word, lists = match.group(), self._lists
        known = word in lists.first_names or word in lists.last_names or word in lists.places
        return _capital(word) if known and word not in lists.common else word

    def _surname(self, match: re.Match[str]) -> str:
        first, word = match["first"], match["word"]
        name = first.casefold() in self._lists.first_names and word not in self._lists.common
        return f"{first} {_capital(word)}" if name else match.group()

    def _address_cased(self, text: str) -> str:
        """The text with every uncommon word capitalized if it is in lower case, since streets are on no list."""
        return _SMALL_WORD.sub(self._as_in_address, text) if text.islower() else text

    def _as_in_address(self, match: re.Match[str]) -> str:
        word = match.group()
        if word in self._places_in_address or len(word) == 1:
            return word
        upper = word.upper()
        return upper if (len(word) == 2 or word in _MILITARY) and len(upper) == len(word) else _capital(word)


@functools.cache
def text_detector() -> TextDetector:
    """The process's detector, loaded at first use."""
    return TextDetector()


class _ContractRules:
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
        """Candidates of the rules. Raises `TimeoutError` if they take too long."""
        deadline = time.process_time() + PATTERN_SECONDS + PATTERN_SECONDS_PER_CHARACTER * len(text)
        for entity, pattern, context in self._rules:
            for match in pattern.finditer(text, timeout=_time_left(deadline)):
                start, end = match.span()
                near = text[max(0, start - CONTEXT_BEFORE) : start], text[end : end + CONTEXT_AFTER]
                if start < end and (
                    context is None or any(context.search(part, timeout=_time_left(deadline)) for part in near)
                ):
                    yield Candidate(start, end, entity, Trust.CONTRACT)


def _time_left(deadline: float) -> float:
    left = deadline - time.process_time()
    if left <= 0:
        raise TimeoutError
    return left


def _sections(text: str) -> Iterator[tuple[int, str]]:
    """Overlapping sections of a text with their positions; they begin at white space if possible."""
    for cut, piece in pieces_of(text, SECTION_CHARACTERS):
        start = max(0, cut - OVERLAP_CHARACTERS)
        blank = _BLANK.search(text, start, cut) if start else None
        start = blank.start() if blank else start
        yield start, text[start : cut + len(piece)]


def _phrases(phrases: Sequence[str]) -> Any:
    """A pattern of whole words, ignoring case and the kind of white space; the longest come first."""
    import regex

    forms = sorted((r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases), key=lambda form: -len(form))
    return regex.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)", regex.IGNORECASE)


def _title_case(match: re.Match[str]) -> str:
    word = match.group()
    title = "-".join(part[0] + part[1:].lower() for part in word.split("-"))
    return title if len(title) == len(word) else word


def _capital(word: str) -> str:
    capital = word[0].upper() + word[1:]
    return capital if len(capital) == len(word) else word
