"""Names of organizations, found by their form or by context words.

What belongs here: forms of companies' names (a legal form, a head such as University, partners' family names, coined
words), a small grammar of employment, ownership and trade, and lists of organizations in a text. What does not:
entities of the language model (`names`), and names of people and places (`names`, `addresses`).

Many company names look like names of people or ordinary words; only their context identifies them: people work *at*
them or buy *from* them, and they announce, hire and merge. The grammar compares word lists with the few words before a
capitalized phrase and the one or two after it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from dpsynth_platform.scrub.findings import Candidate, Finding, Trust
from dpsynth_platform.scrub.letters import LOWER, UPPER, alternatives, words
from dpsynth_platform.scrub.lists import WordLists
from dpsynth_platform.scrub.name_parts import NAME_WORD, first_word

_COMPANY = re.compile(
    rf"\b(?:{alternatives('organizations', 'company_words')})\b\.?|(?:,| and| &) Sons\b|"
    rf"\s(?:{alternatives('organizations', 'company_endings')})$"
)
# A capital inside a word, except after Mc, Mac, De and similar prefixes, or a digit before one.
_TRADE_NAME = re.compile(
    rf"(?<!\w)(?!M[ac]?c[{UPPER}]|[DLV][aeiou]n?[{UPPER}]|O['\u2019])\w*[{LOWER}\d][{UPPER}]{{1,3}}[{LOWER}]*(?!\w)"
)
# Endings that are frequent in coined company names only.
_COINED = re.compile(rf"\w{{2,}}(?:{alternatives('organizations', 'coined_endings')})$")

_LEGAL_FORM = (
    r"(?:Inc|Ltd|LLC|L\.L\.C|LLP|PLC|Corp|Corporation|Limited|Incorporated|Pty|Pvt|GmbH|mbH|AG|KG|KGaA|OHG|GbR|e\.V|"
    r"S\.?A\.?R\.?L|S[àA]RL|Sàrl|S\.?A\.?S|S\.[ ]?A|SA|S/A|S\.?p\.?A|SPA|[Ss]\.?r\.?l|N\.?V|B\.?V|VOF|AB|HB|A/S|ApS|AS|"
    r"ASA|Oyj?|Tmi|Ky|Osk|ry|Kft|Kkt|Bt|Zrt|Nyrt|Sp\.[ ]?(?:z[ ]?o\.[ ]?o|j|k)|s\.[ ]?[crp]\.(?:[ ]?o)?|a\.[ ]?s|"
    r"d\.[ ]?o\.[ ]?o|d\.[ ]?d|[vk]\.(?:o\.)?s|S\.[CLR](?:\.[A-Z]){0,3}|EIRL|SPI|CommV|VZW|BVBA|ME|EI|Limitada|Ltda|"
    r"Lda|A\.Ş|Şti|Tic|(?:(?!U\.)[A-Z]\.){2,4}[A-Z]|Groep|Gruppe|Grupo|Group|Gruppen)"
)
_AND_OTHERS = (
    r"(?:&|and|und|et|e|y|og|och|i|en|ja)[ ](?:Sons?|Söhne|Co|Company|Partners?|Partner|Associates|Brothers|Daughters|"
    r"Fils|[Ff]igli|Filhos|Hijos|Asociados|Sønner|Söner|Zonen|syn)"
)
_PLAIN = rf"[{UPPER}][{UPPER}{LOWER}'\u2019]{{1,40}}"
_THREE = rf"{_PLAIN},[ ]{_PLAIN},?[ ](?:and|&|und|y|e|et|og|och)[ ]{_PLAIN}"
_NAMES = rf"(?:{_THREE}|{NAME_WORD}(?:(?:[ ]|[ ](?:&|und|et|e|y|og|och|en|van|de)[ ]){NAME_WORD}){{0,4}})"
_FORMED = re.compile(
    rf"(?<![\w-])(?P<value>{_NAMES}(?:,?[ ](?:-[ ])?{_LEGAL_FORM}(?![\w/-])\.?"
    rf"(?:[ ](?:&[ ]Co\.?(?:[ ](?:KG|KGaA|OHG))?|de[ ]C\.V\.))?|[ ]{_AND_OTHERS}\b\.?))"
)
_HEADED = re.compile(
    rf"(?<![\w-])(?:(?:University|College|Institute|Bank|Department|Ministry|Bureau|Office|Church|Academy|Museum|Board|"
    rf"Federation|Association|Society|Council)[ ](?:of|for)[ ](?:the[ ])?|(?:Grupo|Stichting|Koninklijke|Grupa|"
    rf"Fundacja|Stowarzyszenie|Corporaci[oó]n|Compañía|Despacho|Club|Industrias|Laboratorios|Proyectos)[ ]){_NAMES}"
)
# Partners' family names: two joined by a hyphen, or three in a row.
_PARTNERS = re.compile(rf"(?<![\w-])(?P<value>{_PLAIN}-{_PLAIN}|{_THREE})(?![\w-])")
_LIST_BEFORE = re.compile(r"s:\s$")
_NAME_BEFORE = re.compile(rf"(?P<word>[{UPPER}][\w.]*)[ ]$")
_NAME_AFTER = re.compile(rf"[ ][{UPPER}]")

_BRAND_WORD = rf"(?:[{UPPER}]|\d{{1,3}}(?=[{UPPER}])|[a-z](?=[A-Z][a-z]))(?:[\w-]|['\u2019](?!s\b)\w|\.(?=\w)){{0,40}}"
_BETWEEN = r"(?:[ ]|[ ]?&[ ]?|[ ](?:of|for|de|del|n'|'n')[ ](?:the[ ])?)"
_PHRASE = re.compile(rf"(?<![\w@.'\u2019/-]){_BRAND_WORD}(?:{_BETWEEN}{_BRAND_WORD}){{0,4}}")
_LEADING = words("organizations", "leading")
"""Words that are capitalized at the beginning of a sentence, or that precede a name."""
_LEADS = re.compile(r"(?P<word>[\w'\u2019-]+)(?:[ ]|$)(?P<joined>(?:of|for)[ ](?:the[ ])?)?")
_NO_NAMES = words("organizations", "no_names")

_WORK = words("organizations", "work")
_TRADE = words("organizations", "trade")
_CUES = _WORK | _TRADE
_JOINING = words("organizations", "joining")
"""Words between one of `_CUES`, at most `_WINDOW` words before, and a company's name."""
_WINDOW = 4
_DIRECT = words("organizations", "direct")
"""Words immediately before a company's name."""
_ACTS = words("organizations", "acts")
_STATE_OF = words("organizations", "state_of")
_STATES = words("organizations", "states")
_OWNED = re.compile(
    rf"['\u2019]s? (?:new |latest |first |main |online )?(?:{alternatives('organizations', 'owned')})\b", re.IGNORECASE
)
_IS_COMPANY = re.compile(
    rf"(?:,| is| was) (?:an?|the|our|one of the) (?:[\w-]+ ){{0,3}}?(?:{alternatives('organizations', 'kinds')})\b",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?:employer|company(?:[ ]name)?|organi[sz]ation|firm|vendor|supplier)[ ]?:[ ]*$", re.IGNORECASE)
_QUOTE = "\"'\u201c\u2018("

_SIGNATURE_LINE = re.compile(
    rf"[ ]*\n[> ]*(?P<value>{NAME_WORD}(?:(?:[ ]|,[ ]|[ ]?&[ ]?|[ ]and[ ]){NAME_WORD}){{0,4}})[ ]*\n[> ]*"
)
_JOINED = re.compile(r",? (?:and|&|or) |, ")


def has_company_form(words: str, lists: WordLists) -> bool:
    """Whether a name alone has an organization's form."""
    if _COMPANY.search(words):
        return True
    folded = words.casefold()
    known = folded in lists.first_names or folded in lists.last_names or folded in lists.places
    return words.isalnum() and not known and bool(_TRADE_NAME.fullmatch(words) or _COINED.fullmatch(words))


def find_formed(text: str, lists: WordLists) -> Iterator[Candidate]:
    """Organizations that are recognized by form."""
    for pattern in (_FORMED, _HEADED):
        for match in pattern.finditer(text):
            span = _without_leading(text, *match.span())
            if span is not None:
                yield _candidate(*span)
    for match in _PARTNERS.finditer(text):
        if _are_partners(text, match, lists):
            yield _candidate(*match.span())


def find_by_context(text: str, lists: WordLists) -> Iterator[Candidate]:
    """All occurrences of names that the context identifies as an organization at least once."""
    phrases = [span for match in _PHRASE.finditer(text) if (span := _without_leading(text, *match.span())) is not None]
    names = {
        text[start:end]
        for start, end in phrases
        if _may_be_organization(text[start:end], lists) and _context_identifies(text, start, end, lists)
    }
    yield from (_candidate(start, end) for start, end in phrases if text[start:end] in names)


def _candidate(start: int, end: int) -> Candidate:
    return Candidate(start, end, "ORGANIZATION", Trust.LIKELY)


def _are_partners(text: str, match: re.Match[str], lists: WordLists) -> bool:
    """Whether joined names are family names without given names, as in a firm's name."""
    words = [word.casefold() for word in re.findall(r"[^\W_]{2,}", match["value"]) if word[0].isupper()]
    family = sum(word in lists.last_names for word in words)
    if family < 2 or _LIST_BEFORE.search(text, max(0, match.start() - 3), match.start()):
        return False
    named = _NAME_BEFORE.search(text, max(0, match.start() - 30), match.start())
    if (named and named["word"] not in _LEADING) or _NAME_AFTER.match(text, match.end()):
        return False
    if not all(word in lists.first_names for word in words):
        return True
    return _context_identifies(text, match.start(), match.end(), lists)


def _without_leading(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The phrase without the first words that are in `_LEADING`; None if nothing remains."""
    while (leading := _LEADS.match(text, start, end)) is not None:
        word = leading["word"]
        if word not in _LEADING and not (leading["joined"] and word.lower() in _CUES):
            break
        start = leading.end()
    return (start, end) if start < end else None


def _may_be_organization(words: str, lists: WordLists) -> bool:
    folded, first = words.casefold(), first_word(words)
    if first in _NO_NAMES or folded in lists.places:
        return False
    if " " in words:
        if all(word.casefold() in lists.common for word in words.split()):
            return words.istitle()
        named = first in lists.first_names and words.rpartition(" ")[2].casefold() not in lists.common
        return not named or has_company_form(words, lists)
    return folded not in lists.common and folded not in lists.first_names and len(words) > 1


def _context_identifies(text: str, start: int, end: int, lists: WordLists) -> bool:
    """Whether the words before or after a phrase identify it as an organization."""
    before = text[max(0, start - 60) : start].rstrip(_QUOTE)
    if before.endswith((" ", ":")) and _identified_before(before):
        return True
    if _IS_COMPANY.match(text, end):
        return True
    # The following contexts also fit a person's family name.
    if text[start:end].casefold() in lists.last_names:
        return False
    if _OWNED.match(text, end):
        return True
    following = text[end : end + 40].split(None, 2)[:2] if text[end : end + 1] == " " else []
    first, second = (*(word.strip(".,;:!?").lower() for word in following), "", "")[:2]
    return first in _ACTS or (first in _STATE_OF and second in _STATES)


def _identified_before(before: str) -> bool:
    if _LABEL.search(before):
        return True
    sentence = re.split(r"[.;!?\n]", before)[-1].lower()
    words = [word.strip(",:\"'()") for word in sentence.split()]
    if words and words[-1] in ("the", "a", "an", "our", "another"):
        words.pop()
    if not words:
        return False
    return words[-1] in _DIRECT or (words[-1] in _JOINING and not _CUES.isdisjoint(words[-1 - _WINDOW : -1]))


def in_signature(text: str, findings: Sequence[Finding], lists: WordLists) -> list[Finding]:
    """Turns a line between a person's name and an address, as in a letter's signature, into an organization."""
    starts = [item.start for item in findings]
    replaced: set[Finding] = set()
    organizations = []
    for item in findings:
        if item.entity not in ("PERSON", "TITLE"):
            continue
        line = _SIGNATURE_LINE.match(text, item.end)
        if line is None or first_word(line["value"]) in lists.first_names:
            continue
        after = findings[bisect_left(starts, item.end) : bisect_right(starts, line.end())]
        inside = [other for other in after if line.start("value") < other.end and other.start < line.end("value")]
        follows = any(other.entity in ("ADDRESS", "PERSON", "TITLE") and other.start == line.end() for other in after)
        if follows and all(other.entity in ("PERSON", "LOCATION", "ORGANIZATION") for other in inside):
            replaced.update(inside)
            organizations.append(Finding(*line.span("value"), "ORGANIZATION"))
    return sorted({*(set(findings) - replaced), *organizations})


def organizations_in_lists(text: str, findings: Sequence[Finding], lists: WordLists) -> list[Finding]:
    """Turns findings that are listed with organizations ("Xqz, Acme Corp. and Blue Fork") into organizations."""
    result: list[Finding] = []
    for item in findings:
        last = result[-1] if result else None
        joined = last is not None and _JOINED.fullmatch(text, last.end, item.start) is not None
        if joined and last is not None and "ORGANIZATION" in (last.entity, item.entity):
            if _may_change(text, last, lists):
                result[-1] = Finding(last.start, last.end, "ORGANIZATION")
            elif _may_change(text, item, lists):
                item = Finding(item.start, item.end, "ORGANIZATION")
        result.append(item)
    return result


def _may_change(text: str, item: Finding, lists: WordLists) -> bool:
    return item.entity in ("PERSON", "LOCATION") and first_word(text[item.start : item.end]) not in lists.first_names
