"""Personal data with a pattern: e-mail addresses, numbers, dates, URLs and others.

What belongs here: one rule for each pattern, with the check (sum, date) and the context words that distinguish it from
other numbers. What does not: names and places (`names`), postal addresses (`addresses`).

An unambiguous pattern needs no check. Presidio's recognizers validate numbers, so that mistyped ones would pass as
harmless; here check sums (Presidio's) and context only decide about ambiguous patterns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from dpsynth_platform.scrub.coordinates import coordinate_rules
from dpsynth_platform.scrub.findings import Trust
from dpsynth_platform.scrub.letters import alternatives, word_list
from dpsynth_platform.scrub.national_numbers import national_rules
from dpsynth_platform.scrub.nationalities import nationality_rules
from dpsynth_platform.scrub.rule import DIGIT, Rule, context_of, digits_in, pattern_of, presidio

MONTHS = (
    r"(?:jan(?:uary|\.)?|feb(?:ruary|\.)?|mar(?:ch|\.)?|apr(?:il|\.)?|may|june?|july?|aug(?:ust|\.)?|"
    r"sept?(?:ember|\.)?|oct(?:ober|\.)?|nov(?:ember|\.)?|dec(?:ember|\.)?)"
)
WEEKDAYS = r"(?:mon|tues?|wednes|thurs?|fri|satur|sun)day"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s?[ap]\.?m\b\.?)?"
_ORDINAL = r"(?:st|nd|rd|th)?"
_COUNTRIES = alternatives("rules", "countries")
_DOMAIN_ENDS = f"com|org|net|edu|gov|mil|int|info|biz|name|museum|app|dev|io|tv|{_COUNTRIES}"


_AT = re.compile("@")
_DOT = re.compile(r"\w\.\w|://")
_TURN = re.compile(r"[Tt](?:urn|URN)")
_LONG_NUMBER = re.compile(r"\d(?:[ -]?\d){11}")
_CODES = re.compile(r"(?i:codes\s\d)")
_ZIP = re.compile(r"[Zz][Ii][Pp]")
_HEX = re.compile(r"[0-9A-Fa-f]{1,4}[:-][0-9A-Fa-f]")
_CARD_WORDS = context_of(r"cards?\b|credit|debit|cc\b|visa|master\s?card|amex|american express|discover|maestro|diners")
_PHONE_WORDS = context_of(alternatives("rules", "phone_words"))
_SSN_WORDS = context_of(r"ssns?\b|social security|soc\.? sec|ss#|itin|taxpayer|tax\s?id")


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All rules, made on first use, since their check sums come from Presidio."""
    return (
        Rule(
            "EMAIL_ADDRESS",
            pattern_of(r"@{0,3}[^\s@<>()\[\]{},;:\"'=|]{1,64}(?:@[\w-]{1,255}(?:\.[\w-]+)*)+"),
            Trust.CHECKED,
            needs=_AT,
        ),
        Rule(
            "URL",
            pattern_of(
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
            pattern_of(r"(?<!\w)[a-z]{2}\d{2}(?:[ -]?[a-z\d]{4}){2,7}(?:[ -]?[a-z\d]{1,3})?(?!\w)"),
            Trust.CHECKED,
            check=_iban,
            context=context_of("iban"),
            unless_checked=True,
            needs=DIGIT,
        ),
        Rule(
            "CREDIT_CARD",
            # Excludes a postal code before a telephone number, one in ten of which has a valid sum.
            pattern_of(r"(?<![\w+-])(?!\d{5}(?:-\d{4})?[ ]\d{3}[ -]\d{3}-)[2-6]\d{3}(?:[ -]?\d){9,15}(?![\w-])"),
            Trust.CHECKED,
            check=is_card,
            context=_CARD_WORDS,
            unless_checked=True,
            needs=DIGIT,
        ),
        Rule("CREDIT_CARD", pattern_of(_CARD_BY_NAME), Trust.CHECKED, check=_card_digits, needs=_LONG_NUMBER),
        Rule("CREDIT_CARD", pattern_of(r"(?<![\w-])\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}(?![\w-])"), needs=DIGIT),
        Rule("CREDIT_CARD", pattern_of(r"(?<![\w-])3\d{3}([ -])\d{6}\1\d{4,5}(?![\w-])"), needs=DIGIT),
        Rule(
            "IP_ADDRESS",
            pattern_of(
                r"""(?<![\w.:-])(?<!\+\d\d[ ])(?:
                    (?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:/\d{1,2})?(?![\w-]|\.\d)
                  | (?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])
                  | (?=[0-9a-f:]*::)(?=[a-f:]*\d)[0-9a-f]{0,4}(?::{1,2}[0-9a-f]{1,4}){1,7}(?![\w:])
                )"""
            ),
            Trust.CHECKED,
            needs=DIGIT,
        ),
        Rule(
            "MAC_ADDRESS",
            pattern_of(r"(?<![\w:-])[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])"),
            Trust.CHECKED,
            needs=_HEX,
        ),
        Rule(
            "UUID",
            pattern_of(r"(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])"),
            Trust.CHECKED,
            needs=DIGIT,
        ),
        Rule(
            "CRYPTO",
            pattern_of(r"(?<!\w)(?:bc1|[13])[a-km-zA-HJ-NP-Z0-9]{25,59}(?!\w)", re.NOFLAG),
            check=_crypto,
            needs=DIGIT,
        ),
        Rule("US_SSN", pattern_of(r"(?<![\w-])\d{3}([-\ .])\d{2}\1\d{4}(?![\w-])"), Trust.CHECKED, needs=DIGIT),
        Rule("US_SSN", pattern_of(r"(?<![\w-])\d{9}(?![\w-])"), context=_SSN_WORDS, needs=DIGIT),
        Rule(
            "DATE_TIME",
            pattern_of(
                rf"""(?<![\w/.-])(?:
                    \d{{4}}([/.-])\d{{1,2}}\1\d{{1,2}} | \d{{1,2}}([/.-])\d{{1,2}}\2(?:\d{{4}}|\d{{2}})
                )(?:[T\ ]\ ?{_CLOCK}(?:Z|\s?[+-]\d{{2}}:?\d{{2}})?)?(?![\w/-])"""
            ),
            Trust.CHECKED,
            check=_date,
            needs=DIGIT,
        ),
        Rule(
            "DATE_TIME",
            pattern_of(
                rf"""(?<!\w)(?:(?:{WEEKDAYS}|mon|tue|wed|thu|fri|sat|sun),?\s)?(?:
                    \d{{1,2}}{_ORDINAL}[\s-](?:of\s)?{MONTHS}(?:,?[\s-]'?\d{{2,4}})?
                  | {MONTHS}\s\d{{1,2}}{_ORDINAL}(?:,?\s\d{{4}})?
                  | {MONTHS},?\s\d{{4}}
                )(?:,?\s(?:at\s)?{_CLOCK})?(?!\w|:\d)"""
            ),
            needs=DIGIT,
        ),
        Rule("DATE_TIME", pattern_of(rf"(?<!\w){WEEKDAYS}(?!\w)")),
        Rule("DATE_TIME", pattern_of(_YEAR_ALONE), needs=_NEEDS_YEAR),
        Rule("DATE_TIME", pattern_of(_YEAR_BEFORE_YEAR), needs=_NEEDS_YEAR),
        Rule("DATE_TIME", pattern_of(_YEAR_AFTER_YEAR), needs=_NEEDS_YEAR),
        *national_rules(),
        *coordinate_rules(),
        *nationality_rules(),
        Rule("ZIP_CODE", pattern_of(_ZIP_BY_NAME), needs=DIGIT),
        Rule("ZIP_CODE", pattern_of(_ZIP_SHORT), needs=_ZIP),
        Rule("ZIP_CODE", pattern_of(_ZIP_AFTER_ZIP), needs=_CODES),
        Rule(
            "AGE",
            pattern_of(
                r"""(?<![\w.-])(?:
                    (?P<value>\d{1,3})(?=(?:[\s-]?(?:years?|yrs?|months?)[\s-]+(?:old|of\ age)\b|\s?y/?o\b))
                )"""
            ),
            needs=DIGIT,
        ),
        Rule("AGE", pattern_of(_AGE_TURNED), needs=_TURN),
        Rule("AGE", pattern_of(r"\b(?:aged|age(?:\ is|\ of|:)?)\s(?P<value>\d{1,3})(?![\w.%-])"), needs=DIGIT),
        Rule("PHONE_NUMBER", pattern_of(_PHONE_AMERICAN), Trust.CHECKED, check=_separated, needs=DIGIT),
        Rule("PHONE_NUMBER", pattern_of(_PHONE_SURE), Trust.SHAPE, check=_phone, needs=DIGIT),
        Rule("PHONE_NUMBER", pattern_of(_PHONE_GROUPS), Trust.LIKELY, check=_phone, needs=DIGIT),
        Rule("PHONE_NUMBER", pattern_of(_PHONE_MAYBE), Trust.LIKELY, check=_phone, context=_PHONE_WORDS, needs=DIGIT),
        *_numbers_by_name(),
        Rule(
            "ZIP_CODE",
            pattern_of(
                r"(?<![\w-])(?:[A-Z]{1,2}\d[A-Z\d]{0,2}\ \d[A-Z]{2}|[A-Z]\d[A-Z]\ \d[A-Z]\d)(?![\w-])", re.NOFLAG
            ),
            Trust.LIKELY,
            needs=DIGIT,
        ),
        Rule(
            "ZIP_CODE",
            pattern_of(r"\b[A-Z]{2},?\ +(?P<value>\d{5}(?:-\d{4})?)(?![\w-])", re.NOFLAG),
            Trust.LIKELY,
            needs=DIGIT,
        ),
    )


# Numbers after a word for a card, with any check sum.
_CARD_BY_NAME = r"""
    (?:\bcards?|\bcc|visa|master\s?card|amex|maestro)\b
    (?:\s?(?:numbers?|num\b|no\b\.?|nr\b\.?|\#))?(?:\s\([^()\n]{1,20}\))?
    (?:\s(?:ends?|ending|begins?|beginning|starting)\s(?:in|with))?\s{0,2}(?:is|was|are|[:=\#])?:?\s{0,2}\#?
    (?P<value>\d(?:[ -]?\d){11,18})(?![\w-]|[ ]\d)"""
# Years of age; the following words exclude turns of a road, degrees and pages.
_AGE_TURNED = r"""
    \b(?:turned|turning|(?<!\bthe\ )(?<!\bat\ )(?<!\bmy\ )(?<!\bour\ )(?<!\bin\ )(?<!\beach\ )(?<!\bof\ )turns?)
    \s(?P<value>(?:1[01])?\d{1,2})(?!\w|[.,:/-]\d|,\s\d|\s?[%°])
    (?=\s*(?:[.;!?)]|,|$)|\s(?:and|in|on|last|next|this|that|today|tomorrow|yesterday|soon|recently|when|while|before|
        after|but|so|now|years?|just|ago|during|at|with|or|as|since|because|earlier|later|
        {MONTHS}|{WEEKDAYS})\b(?!\s\d+\s(?:and|,)))""".replace("{MONTHS}", MONTHS).replace("{WEEKDAYS}", WEEKDAYS)
_YEAR = r"(?:19\d\d|20[0-3]\d)"
_NEEDS_YEAR = re.compile(rf"(?<!\d){_YEAR}(?!\d)")
# Excludes quantities, and years of ranges or versions.
_NO_YEAR = r"""
    (?![\w%'\u2019]|[.,:/-]\d|-\w|\s?(?:to|until|through|\u2013|-)\s?\d|\s(?:of\s(?:the|them|these|those|our)|people|
        persons|cases|words|lines|bytes|copies|units|feet|met(?:er|re)s|miles|patients|percent|times|rpm|hz|mhz|km|
        dollars|euros|pounds|million|thousand|hours|minutes|days|pages|points|shares|samples|items|votes|steps|rows|
        records|cells)\b)"""
_BEFORE_YEAR = "|".join(rf"(?<=\b{words}\s\d{{4}})" for words in word_list("rules", "before_year"))
_YEAR_ALONE = rf"(?<!\w)(?P<value>{_YEAR})(?:{_BEFORE_YEAR}){_NO_YEAR}"
_RANGE = r"\s(?:to|until|till|through|and|up\sto)\s"
_YEAR_BEFORE_YEAR = rf"(?<!\w){_YEAR}(?:(?<=\bfrom\s\d{{4}})|(?<=\bbetween\s\d{{4}}))(?={_RANGE}{_YEAR}(?!\w|[.,]\d))"
_YEAR_AFTER_YEAR = (
    rf"(?<!\w){_YEAR}(?:(?<=\bfrom\s\d{{4}})|(?<=\bbetween\s\d{{4}})){_RANGE}(?P<value>{_YEAR})(?!\w|[.,]\d)"
)
# Postal codes: British, Canadian, Irish, Dutch, with a country's letters, with hyphens, digits only.
_ZIP_LETTERS = r"""
    (?:[A-Z]{1,2}\d[A-Z\d]?\s?\d[A-Z]{2} | [A-Z]\d[A-Z][\s-]?\d[A-Z]\d | [A-Z]\d[\dW]\s?[A-Z\d]{4}
      | \d{4}\s?(?-i:[A-Z]{2}) | [A-Z]{1,3}[- ]?\d{3,6}(?:[ -]\d{2,4})?)"""
_ZIP_DIGITS = r"(?:\d{5}[- ]\d{3,4} | \d{2}-\d{3} | \d{3}[- ]\d{2,4} | \d{3,8})"
_ZIP_JOINT = r"(?:\s?(?:numbers?|no\b\.?|\#))?\s{0,2}(?:is|was|of|[:=\#])?:?\s{0,2}"
_ZIP_NAMES = r"(?:(?:zip|postal|post|pin)[\s-]?codes?|zip\+4|plz|postleitzahl|eircode|code\spostal|c[oó]digo\spostal)"
_ZIP_BY_NAME = rf"\b{_ZIP_NAMES}{_ZIP_JOINT}(?P<value>{_ZIP_LETTERS}|{_ZIP_DIGITS})(?!\w|[.,:/-]\d)"
# Files are zipped, too; so without the word "code" only the most frequent formats.
_ZIP_SHORT = rf"""
    \bzips?{_ZIP_JOINT}(?P<value>\d{{5}}(?:-\d{{4}})?|[A-Z]\d[A-Z]\s\d[A-Z]\d|[A-Z]{{1,2}}\d[A-Z\d]?\s\d[A-Z]{{2}})
    (?!\w|[.,:/-]\d|\s?(?:files?|archives?|bytes|[kmg]b)\b)"""
_ZIP_AFTER_ZIP = (
    rf"\b(?:zip|postal|post|pin)[\s-]?codes\s{_ZIP_DIGITS},?\s(?:and|or|to)\s(?P<value>{_ZIP_DIGITS})(?!\w|[.,]\d)"
)

_EXTENSION = r"(?:\s?(?:x|ext\.?|extension|/)\s?\d{1,5}(?!\w|-\d))?"
# A number in the format of North America, in any context.
_PHONE_AMERICAN = rf"""
    (?<!\d)(?<!\d[.-])(?:\+?1[\ ./-]?)?(?:\(\d{{3}}\)[\ -]?|\d{{3}}[\ ./-])\d{{3}}[\ .-]?\d{{4}}(?!\d){_EXTENSION}"""
# Formats that only telephone numbers have.
_PHONE_SURE = rf"""
    (?<![\w./-])(?<!\d[ ])(?:
        (?:\+|00)\d{{1,3}}[\ ./-]?(?:\(?\d{{1,5}}\)?[\ ./-]?){{2,5}}\d{{2,5}}
      | \+?\(\d{{1,5}}\)[\ ./-]{{0,2}}\d{{2,9}}(?:[\ ./-]\d{{2,5}}){{0,3}}
      | \d{{3}}[\ ./-]\d{{7}} | \d{{3}}-\d{{4}}
      | 0\d{{1,4}}[\ ./-]\d{{3,8}}(?:[\ ./-]\d{{2,4}}){{0,3}}
      | 0\d{{9,10}}
    ){_EXTENSION}(?![^\W_]|[./-]\d|[ ]\d)"""
# Ambiguous: groups of digits, or one long group.
_PHONE_MAYBE = rf"""
    (?<![\w./$-])(?<!\d,)(?:\d{{2,5}}(?:[\ ./-]\d{{2,8}}){{1,4}} | \d{{7,12}}){_EXTENSION}(?![\w%]|[./,-]\d)"""
# Less ambiguous: several groups (tables have more), or the length and first digits of a North American number.
_PHONE_GROUPS = rf"""
    (?<![\w./$-])(?<!\d[, ])(?:
        \d{{2,4}}(?:\ \d{{2,4}}){{2,4}} | \d{{4}}[\ -]\d{{4}} | \d{{2,4}}(?:-\d{{2,4}}){{2,3}} | \d{{2,4}}-\d{{6,8}}
      | \d{{2,4}}-\d{{1,3}}(?:[\ /]\d{{2,4}}){{1,3}} | \d{{2,4}}/\d{{3,4}}[\ -]\d{{3,4}} | \d{{2,3}}\ \d{{4}}-\d{{4}}
      | \d{{2,3}}\ \d{{6,7}}
      | (?:(?<=\n)|\A)\d{{8,11}}(?=\s*(?:\n|\Z)) | 1?[2-9]\d{{2}}[2-9]\d{{6}} | 0\d{{8}}
    ){_EXTENSION}(?![\w%]|[./,-]\d|[ ]\d)"""

# Numbers without a specific format, found by the name before them.
_NAMED_NUMBERS = ("US_DRIVER_LICENSE", "US_PASSPORT", "US_BANK_NUMBER", "MEDICAL_RECORD", "TAX_ID", "ID")


def _numbers_by_name() -> Iterator[Rule]:
    for entity in _NAMED_NUMBERS:
        words = alternatives("numbers_by_name", entity)
        yield Rule(
            entity,
            pattern_of(
                rf"""\b(?:{words})
                    (?:\s?(?:numbers?|num\b|no\b\.?|nr\b\.?|id\b|code|\#))?
                    \s{{0,2}}(?:is|was|are|[:=\#])?:?\s{{0,2}}\#?
                    (?P<value>(?=[a-z-]{{0,8}}\d)[a-z\d]{{1,40}}(?:[-/][a-z\d]{{1,40}}){{0,8}})(?!\w)"""
            ),
            Trust.CHECKED,
            check=_four_digits,
            needs=DIGIT,
        )


def _card_digits(text: str) -> bool:
    return 12 <= len(digits_in(text)) <= 19


def _four_digits(text: str) -> bool:
    return len(digits_in(text)) >= 4


def _iban(text: str) -> bool:
    return bool(presidio("IbanRecognizer").validate_result(re.sub(r"[ -]", "", text).upper()))


def is_card(text: str) -> bool:
    """Whether the digits are a card number of a known kind of issuer, with a valid check digit (Luhn)."""
    digits = digits_in(text)
    return digits[0] in "3456" and bool(presidio("CreditCardRecognizer").validate_result(digits))


def _crypto(text: str) -> bool:
    return bool(presidio("CryptoRecognizer").validate_result(text))


def _date(text: str) -> bool:
    """Whether the first three numbers can be year, month and day in some order."""
    first, second, third = (int(number) for number in re.findall(r"\d+", text)[:3])
    month, day = (second, third) if first > 31 else (min(first, second), max(first, second))
    return 1 <= month <= 12 and 1 <= day <= 31


_YEARS = re.compile(r"(?:1[5-9]|20)\d\d[ ./-](?:1[5-9]|20)\d\d")


def _separated(text: str) -> bool:
    """Ten digits without a separator are ambiguous."""
    return re.search(r"\d{7}", text) is None or "(" in text


_MOST_DIGITS = 15


def _phone(text: str) -> bool:
    """Six to fifteen digits that are not two years; of more digits, those before a slash."""
    number = re.split(r"\s?(?:x|ext)", text, maxsplit=1, flags=re.IGNORECASE)[0]
    if len(digits_in(number)) > _MOST_DIGITS:
        number = number.rpartition("/")[0]
    return 6 <= len(digits_in(number)) <= _MOST_DIGITS and not _YEARS.fullmatch(number.strip())
