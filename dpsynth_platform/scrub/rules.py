"""Personal data that has a shape: e-mail addresses, numbers, dates, URLs and the like.

What belongs here: one rule for each shape, with the check (sum, date, number plan) and the context words that tell it
from any other number. What does not: names and places (`names`), postal addresses (`addresses`).

A shape that cannot be anything else needs no check: Presidio's recognizers hold numbers against the rules of those who
issue them, so that a mistyped or fictional number passes as harmless. Sums and context only decide where the shape
alone could be anything. Sums are Presidio's, number plans those of `phonenumbers`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.scrub.findings import Candidate, Trust

Check = Callable[[str], bool]

CONTEXT_BEFORE, CONTEXT_AFTER = 60, 25
"""Characters before a match in which a context word makes it likely, and after it."""

MONTHS = (
    r"(?:jan(?:uary|\.)?|feb(?:ruary|\.)?|mar(?:ch|\.)?|apr(?:il|\.)?|may|june?|july?|aug(?:ust|\.)?|"
    r"sept?(?:ember|\.)?|oct(?:ober|\.)?|nov(?:ember|\.)?|dec(?:ember|\.)?)"
)
WEEKDAYS = r"(?:mon|tues?|wednes|thurs?|fri|satur|sun)day"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[ap]\.?m\b\.?)?"
_ORDINAL = r"(?:st|nd|rd|th)?"
_COUNTRIES = (
    "ac|ae|ar|at|au|be|bg|br|by|ca|ch|cl|cn|co|cr|cu|cy|cz|de|dk|ec|ee|eg|es|eu|fi|fr|gr|hk|hr|hu|id|ie|il|in|ir|is|"
    "it|jp|ke|kr|kw|kz|lt|lu|lv|ma|mx|my|ng|nl|no|nz|pe|ph|pk|pt|ro|ru|sa|se|sg|si|sk|su|th|tn|tr|tw|ua|uk|us|uy|uz|"
    "ve|vn|yu|za"
)
_DOMAIN_ENDS = f"com|org|net|edu|gov|mil|int|info|biz|name|museum|app|dev|io|tv|{_COUNTRIES}"


@dataclass(frozen=True)
class Rule:
    """One shape.

    Attributes:
        pattern: what to look for; the group `value`, where there is one, is the finding.
        check: says whether a match is one; None: every match is.
        context: words of which one must stand near; None: none is needed.
        unless_checked: with `context`: a match that passes `check` needs no context, any other does.
        needs: a character without which no match is possible, so that most texts are passed over quickly.
    """

    entity: str
    pattern: re.Pattern[str]
    trust: Trust = Trust.SHAPE
    check: Check | None = None
    context: re.Pattern[str] | None = None
    unless_checked: bool = False
    needs: re.Pattern[str] | None = None

    def find(self, text: str) -> Iterator[Candidate]:
        """Matches in the text that hold."""
        if self.needs is not None and not self.needs.search(text):
            return
        for match in self.pattern.finditer(text):
            group = "value" if "value" in self.pattern.groupindex else 0
            start, end = match.span(group)
            if start < end and self._holds(text, start, end):
                yield Candidate(start, end, self.entity, self.trust)

    def _holds(self, text: str, start: int, end: int) -> bool:
        checked = self.check is None or self.check(text[start:end])
        if self.context is None:
            return checked
        if self.unless_checked and checked:
            return True
        if not self.unless_checked and not checked:
            return False
        near = text[max(0, start - CONTEXT_BEFORE) : start], text[end : end + CONTEXT_AFTER]
        return any(self.context.search(part) for part in near)


def _pattern(text: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    return re.compile(text, flags | re.VERBOSE)


def _context(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{words})", re.IGNORECASE)


_DIGIT = re.compile(r"\d")
_AT = re.compile("@")
_DOT = re.compile(r"\w\.\w|://")
_HEX = re.compile(r"[0-9A-Fa-f]{1,4}[:-][0-9A-Fa-f]")
_CARD_WORDS = _context(r"cards?\b|credit|debit|cc\b|visa|master\s?card|amex|american express|discover|maestro|diners")
_PHONE_WORDS = _context(
    r"phones?\b|tel\b|tel[.:]|telephone|fax|mobile|cell|call|dial|text\b|message|voice\s?mail|reach|contact|number|whats\s?app|ring|voice|"
    r"home\b|office\b|work\b|pager|hotline|helpline|sms|line\b|ext\b"
)
_SSN_WORDS = _context(r"ssns?\b|social security|soc\.? sec|ss#|itin|taxpayer|tax\s?id")


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All rules; the check sums come from Presidio, hence late."""
    return (
        Rule(
            "EMAIL_ADDRESS",
            _pattern(r"@{0,3}[^\s@<>()\[\]{},;:\"'=|]{1,64}(?:@[\w-]{1,255}(?:\.[\w-]+)*)+"),
            Trust.CHECKED,
            needs=_AT,
        ),
        Rule(
            "URL",
            _pattern(
                rf"""(?<![\w@.-])(?:
                    (?:https?|ftps?|gopher|telnet|news|ldap|ssh|file)://[^\s<>"]+
                  | www\d?\.[\w-]+\.[^\s<>"]+
                  | [a-z0-9][a-z0-9-]*[a-z0-9]\.(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*(?:{_DOMAIN_ENDS})
                    (?![\w@-]|\.\w)(?:/[^\s<>"]*)?
                )(?<![.,;:!?)\]}}'])"""
            ),
            Trust.CHECKED,
            needs=_DOT,
        ),
        Rule(
            "IBAN_CODE",
            _pattern(r"(?<!\w)[a-z]{2}\d{2}(?:[ -]?[a-z\d]{4}){2,7}(?:[ -]?[a-z\d]{1,3})?(?!\w)"),
            Trust.CHECKED,
            check=_iban,
            context=_context("iban"),
            unless_checked=True,
            needs=_DIGIT,
        ),
        Rule(
            "CREDIT_CARD",
            # Not a postal code with a telephone number after it, one in ten of which has a valid sum.
            _pattern(r"(?<![\w+-])(?!\d{5}(?:-\d{4})?[ ]\d{3}[ -]\d{3}-)[2-6]\d{3}(?:[ -]?\d){9,15}(?![\w-])"),
            Trust.CHECKED,
            check=is_card,
            context=_CARD_WORDS,
            unless_checked=True,
            needs=_DIGIT,
        ),
        Rule("CREDIT_CARD", _pattern(r"(?<![\w-])\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}(?![\w-])"), needs=_DIGIT),
        Rule("CREDIT_CARD", _pattern(r"(?<![\w-])3\d{3}([ -])\d{6}\1\d{4,5}(?![\w-])"), needs=_DIGIT),
        Rule(
            "IP_ADDRESS",
            _pattern(
                r"""(?<![\w.:-])(?<!\+\d\d[ ])(?:
                    (?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:/\d{1,2})?(?![\w-]|\.\d)
                  | (?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])
                  | (?=[0-9a-f:]*::)(?=[a-f:]*\d)[0-9a-f]{0,4}(?::{1,2}[0-9a-f]{1,4}){1,7}(?![\w:])
                )"""
            ),
            Trust.CHECKED,
            needs=_DIGIT,
        ),
        Rule(
            "MAC_ADDRESS",
            _pattern(r"(?<![\w:-])[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])"),
            Trust.CHECKED,
            needs=_HEX,
        ),
        Rule(
            "UUID",
            _pattern(r"(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])"),
            Trust.CHECKED,
            needs=_DIGIT,
        ),
        Rule(
            "CRYPTO",
            _pattern(r"(?<!\w)(?:bc1|[13])[a-km-zA-HJ-NP-Z0-9]{25,59}(?!\w)", re.NOFLAG),
            check=_crypto,
            needs=_DIGIT,
        ),
        Rule("US_SSN", _pattern(r"(?<![\w-])\d{3}([-\ .])\d{2}\1\d{4}(?![\w-])"), Trust.CHECKED, needs=_DIGIT),
        Rule("US_SSN", _pattern(r"(?<![\w-])\d{9}(?![\w-])"), context=_SSN_WORDS, needs=_DIGIT),
        Rule(
            "DATE_TIME",
            _pattern(
                rf"""(?<![\w/.-])(?:
                    \d{{4}}([/.-])\d{{1,2}}\1\d{{1,2}} | \d{{1,2}}([/.-])\d{{1,2}}\2(?:\d{{4}}|\d{{2}})
                )(?:[T\ ]\ ?{_CLOCK}(?:Z|\s?[+-]\d{{2}}:?\d{{2}})?)?(?![\w/-])"""
            ),
            Trust.CHECKED,
            check=_date,
            needs=_DIGIT,
        ),
        Rule(
            "DATE_TIME",
            _pattern(
                rf"""(?<!\w)(?:(?:{WEEKDAYS}|mon|tue|wed|thu|fri|sat|sun),?\s)?(?:
                    \d{{1,2}}{_ORDINAL}[\s-](?:of\s)?{MONTHS}(?:,?[\s-]'?\d{{2,4}})?
                  | {MONTHS}\s\d{{1,2}}{_ORDINAL}(?:,?\s\d{{4}})?
                  | {MONTHS},?\s\d{{4}}
                )(?:,?\s(?:at\s)?{_CLOCK})?(?!\w|:\d)"""
            ),
            needs=_DIGIT,
        ),
        Rule("DATE_TIME", _pattern(rf"(?<!\w){WEEKDAYS}(?!\w)")),
        Rule(
            "AGE",
            _pattern(
                r"""(?<![\w.-])(?:
                    (?P<value>\d{1,3})(?=(?:[\s-]?(?:years?|yrs?|months?)[\s-]+(?:old|of\ age)\b|\s?y/?o\b))
                )"""
            ),
            needs=_DIGIT,
        ),
        Rule("AGE", _pattern(r"\b(?:aged|age(?:\ is|\ of|:)?)\s(?P<value>\d{1,3})(?![\w.%-])"), needs=_DIGIT),
        Rule("PHONE_NUMBER", _pattern(_PHONE_AMERICAN), Trust.CHECKED, check=_separated, needs=_DIGIT),
        Rule("PHONE_NUMBER", _pattern(_PHONE_SURE), Trust.SHAPE, check=_phone, needs=_DIGIT),
        Rule("PHONE_NUMBER", _pattern(_PHONE_GROUPS), Trust.LIKELY, check=_phone, needs=_DIGIT),
        Rule("PHONE_NUMBER", _pattern(_PHONE_MAYBE), Trust.LIKELY, check=_phone, context=_PHONE_WORDS, needs=_DIGIT),
        *_numbers_by_name(),
        Rule(
            "ZIP_CODE",
            _pattern(
                r"\b(?:zip|postal|post)[\s-]?codes?(?:\ is)?:?\s(?P<value>[A-Z]{0,2}\d[\dA-Z -]{2,8}[\dA-Z])(?!\w)"
            ),
            Trust.LIKELY,
            needs=_DIGIT,
        ),
        Rule(
            "ZIP_CODE",
            _pattern(r"(?<![\w-])(?:[A-Z]{1,2}\d[A-Z\d]{0,2}\ \d[A-Z]{2}|[A-Z]\d[A-Z]\ \d[A-Z]\d)(?![\w-])", re.NOFLAG),
            Trust.LIKELY,
            needs=_DIGIT,
        ),
        Rule(
            "ZIP_CODE",
            _pattern(r"\b[A-Z]{2},?\ +(?P<value>\d{5}(?:-\d{4})?)(?![\w-])", re.NOFLAG),
            Trust.LIKELY,
            needs=_DIGIT,
        ),
    )


_EXTENSION = r"(?:\s?(?:x|ext\.?|extension|/)\s?\d{1,5}(?!\w|-\d))?"
# A number in the form of North America, whatever stands beside it.
_PHONE_AMERICAN = rf"""
    (?<!\d)(?<!\d[.-])(?:\+?1[\ ./-]?)?(?:\(\d{{3}}\)[\ -]?|\d{{3}}[\ ./-])\d{{3}}[\ .-]?\d{{4}}(?!\d){_EXTENSION}"""
# A number that is written as only telephone numbers are.
_PHONE_SURE = rf"""
    (?<![\w./-])(?<!\d[ ])(?:
        (?:\+|00)\d{{1,3}}[\ ./-]?(?:\(?\d{{1,5}}\)?[\ ./-]?){{2,5}}\d{{2,5}}
      | \+?\(\d{{1,5}}\)[\ ./-]{{0,2}}\d{{2,9}}(?:[\ ./-]\d{{2,5}}){{0,3}}
      | \d{{3}}[\ ./-]\d{{7}} | \d{{3}}-\d{{4}}
      | 0\d{{1,4}}[\ ./-]\d{{3,8}}(?:[\ ./-]\d{{2,4}}){{0,3}}
      | 0\d{{9,10}}
    ){_EXTENSION}(?![^\W_]|[./-]\d|[ ]\d)"""
# A number that may be anything: groups of digits, or one long one.
_PHONE_MAYBE = rf"""
    (?<![\w./$-])(?<!\d,)(?:\d{{2,5}}(?:[\ ./-]\d{{2,8}}){{1,4}} | \d{{7,12}}){_EXTENSION}(?![\w%]|[./,-]\d)"""
# The same, with so many groups that little else is written so (tables have more), or of the length and with the first
# digits of a North American number.
_PHONE_GROUPS = rf"""
    (?<![\w./$-])(?<!\d[, ])(?:
        \d{{2,4}}(?:\ \d{{2,4}}){{2,4}} | \d{{4}}[\ -]\d{{4}} | \d{{2,4}}(?:-\d{{2,4}}){{2,3}} | \d{{2,4}}-\d{{6,8}}
      | \d{{2,4}}-\d{{1,3}}(?:[\ /]\d{{2,4}}){{1,3}} | \d{{2,4}}/\d{{3,4}}[\ -]\d{{3,4}} | \d{{2,3}}\ \d{{4}}-\d{{4}}
      | \d{{2,3}}\ \d{{6,7}}
      | (?:(?<=\n)|\A)\d{{8,11}}(?=\s*(?:\n|\Z)) | 1?[2-9]\d{{2}}[2-9]\d{{6}} | 0\d{{8}}
    ){_EXTENSION}(?![\w%]|[./,-]\d|[ ]\d)"""

# Numbers that have no shape of their own, told by what is said before them.
_NAMED_NUMBERS = {
    "US_DRIVER_LICENSE": r"(?:driver'?s?|driving)['\u2019]?s?\s?(?:license|licence|permit)|\bdl",
    "US_PASSPORT": r"passport",
    "US_BANK_NUMBER": r"(?:bank\s)?(?:account|acct|a/c)|routing|aba|sort\scode|swift(?:\scode)?|bic",
    "MEDICAL_RECORD": r"medical\srecord|mrn|patient|npi|medicare|medicaid|health\s(?:plan|insurance)|member(?:ship)?",
    "TAX_ID": r"ein|vat|tax\sid|tin|utr",
    "ID": (
        r"customer|client|employee|staff|student|badge|policy|claim|case|record|file|order|invoice|reference|ref|"
        r"booking|reservation|ticket|tracking|serial|registration|licen[sc]e\splate|plate|vehicle|vin|id|identity\scard"
    ),
}


def _numbers_by_name() -> Iterator[Rule]:
    for entity, words in _NAMED_NUMBERS.items():
        yield Rule(
            entity,
            _pattern(
                rf"""\b(?:{words})
                    (?:\s?(?:numbers?|num\b|no\b\.?|nr\b\.?|id\b|code|\#))?
                    \s{{0,2}}(?:is|was|are|[:=\#])?:?\s{{0,2}}\#?
                    (?P<value>(?=[a-z-]{{0,8}}\d)[a-z\d]{{1,40}}(?:[-/][a-z\d]{{1,40}}){{0,8}})(?!\w)"""
            ),
            Trust.CHECKED,
            check=_four_digits,
            needs=_DIGIT,
        )


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _four_digits(text: str) -> bool:
    return len(_digits(text)) >= 4


def _iban(text: str) -> bool:
    return bool(_presidio("IbanRecognizer").validate_result(re.sub(r"[ -]", "", text).upper()))


def is_card(text: str) -> bool:
    """Whether the digits are a card number: of a known issuer's kind, with a valid check digit (Luhn)."""
    digits = _digits(text)
    return digits[0] in "3456" and bool(_presidio("CreditCardRecognizer").validate_result(digits))


def _crypto(text: str) -> bool:
    return bool(_presidio("CryptoRecognizer").validate_result(text))


@functools.cache
def _presidio(name: str) -> Any:
    from presidio_analyzer import predefined_recognizers

    return getattr(predefined_recognizers, name)()


def _date(text: str) -> bool:
    """Whether the first three numbers can be year, month and day in some order."""
    first, second, third = (int(number) for number in re.findall(r"\d+", text)[:3])
    month, day = (second, third) if first > 31 else (min(first, second), max(first, second))
    return 1 <= month <= 12 and 1 <= day <= 31


_YEARS = re.compile(r"(?:1[5-9]|20)\d\d[ ./-](?:1[5-9]|20)\d\d")


def _separated(text: str) -> bool:
    """Ten digits in a row may be anything."""
    return re.search(r"\d{7}", text) is None or "(" in text


_MOST_DIGITS = 15


def _phone(text: str) -> bool:
    """Six to fifteen digits that are not two years; more are two numbers with the same beginning."""
    number = re.split(r"\s?(?:x|ext)", text, maxsplit=1, flags=re.IGNORECASE)[0]
    if len(_digits(number)) > _MOST_DIGITS:
        number = number.rpartition("/")[0]
    return 6 <= len(_digits(number)) <= _MOST_DIGITS and not _YEARS.fullmatch(number.strip())
