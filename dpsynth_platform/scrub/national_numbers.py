"""National numbers of identity, insurance and taxes, found by name or by a check digit.

What belongs here: their names and formats. What does not: American numbers (`rules`, as US_SSN), and numbers of no
state (`rules`).

A name before the number suffices, since mistyped numbers are sensitive, too. Without a name a number needs a specific
format and, if it has one, a valid check digit: Presidio's checks, and Brazil's, which Presidio lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from dpsynth_platform.scrub.findings import Trust
from dpsynth_platform.scrub.rule import DIGIT, Rule, digits_in, pattern_of, presidio

ENTITY = "NATIONAL_ID"

# Names of numbers in several languages, grouped by first letters so that most words are skipped quickly.
_NAMES = r"""
    n(?:ational\sinsurance(?=\s(?:numbers?|no|nr|id|code)\b|\W{1,3}[A-Z]{2}\s?\d)
      | ational\s(?:id\b|(?:identity|identification)(?=\s(?:cards?|numbers?|no|code)\b))
      | (?:ational\stax|hs)(?=\s(?:numbers?|no\b|nr\b|id\b|\#))
      | ino | ric | um[ée]ro\s(?:insee|de\ss[ée]curit[ée]\ssociale))
  | c(?:pf | npj | odice\sfiscale | urp | ui[tl] | itizen\sid\b)
  | s(?:teuer(?:id\w* | (?:liche)?[\s-]{0,2}(?:id(?:nr)?\b|ident\w*|nummer)) | ofi-?nummer | amordningsnummer
      | ocial\sinsurance(?=\s(?:numbers?|no\b|nr\b|id\b|\#)))
  | p(?:esel | psn | ersonnummer) | a(?:adh?aa?r | hv) | t(?:fn | ax\sfile(?=\s(?:numbers?|no\b|nr\b|id\b|\#)))
  | b(?:sn | urgerservicenummer) | r(?:ijksregisternummer | odn[ée]\s[čc][íi]slo) | dni | idnr | kimlik
  | f[øo]dselsnummer | henkil[öo]tunnus
"""
# Names that are ambiguous in English: only before "number" or similar words, or before their own format.
_SHORT = r"""
    (?-i:NIE?|NIR|SIN|PAN|RUT|PPS|CPR|NIF|HETU|AVS)(?=
        \s?(?:[:=\#]|is\s|num|no\b|nr\b|card\sn)
      | \s(?:[A-Z]{2}\s?\d{2}\s?\d{2}\s?\d{2}|[XYZ][-\s]?\d{7}|[A-Z]{5}\d{4}[A-Z]|[12]\s\d\d\s\d\d
           | \d{3}[-\s]\d{3}[-\s]\d{3}(?!\d) | \d{6}-\d{4} | \d{8}-?[A-Z]))
  | (?:nie?|nir|sin|pan|rut|pps|cpr|nif)(?=\s(?:numbers?|no\.?|nr\.?|\#)\s)
"""
_INSURANCE = r"[A-Z]{2}[ ]?\d{2}[ ]?\d{2}[ ]?\d{2}(?:[ ]?[A-D](?!\w))?"
_FISCAL_CODE = r"[A-Z]{3}[ ]?[A-Z]{3}[ ]?\d{2}[A-Z]\d{2}[ ]?[A-Z]\d{3}[A-Z]"
_SPANISH = r"[XYZ][ -]?\d\.?\d{3}\.?\d{3}[ -]?[A-Z]"
_FRENCH = r"[12][ ]?\d\d[ ]?\d\d[ ]?\d[\dAB][ ]?\d{3}[ ]?\d{3}(?:[ ]?\d\d)?"
# Groups of digits, with an optional letter at the end; after a space it must be a capital.
_GROUPS = r"\d{1,14}(?:[./-]\d{1,6}|[ ]\d{2,6}|(?<=\b\d)[ ]\d{2}){0,7}(?:-?[A-Z]{1,2}|(?-i:[ ](?!I)[A-Z]))?"
_LETTERS_AND_DIGITS = r"(?=[a-z-]{0,8}\d)[a-z\d]{1,40}(?:[-/.][a-z\d]{1,40}){0,8}"
_VALUE = rf"(?:{_INSURANCE}|{_FISCAL_CODE}|{_SPANISH}|{_GROUPS}|{_LETTERS_AND_DIGITS})"
_JOINT = r"""
    (?:[\s-]?(?:card\s)?(?:numbers?|nummer|num\b|no\b\.?|nr\b\.?|n[º°]|code|id\b|\#))?(?:\s\([^()\n]{1,20}\))?
    \s{0,2}(?:is|was|are|es|est|ist|är|[:=\#])?:?\s{0,2}\#?
"""
_LINK = r"(?:\s?\(|,?\s(?:is|was)\s(?:my|his|her|their|your|our|the|a)\s)"
_AFTER = rf"{_LINK}(?:\w+\s)?(?:{_NAMES}|(?-i:NIE?|NIR|SIN|PAN|RUT|PPS|CPR|NIF)\b)"
_NEEDS_AFTER = pattern_of(rf"\d[A-Z]?{_LINK}")
_LONG = re.compile(r"\d(?:[ ]?[\dAB]){11}")
_NAME = rf"(?:{_NAMES}|{_SHORT})"


def national_rules() -> Iterator[Rule]:
    """The rules; those by name come first."""
    named = rf"(?<!\w){_NAME}{_JOINT}(?P<value>{_VALUE})(?!\w|[.,]\d)"
    yield Rule(ENTITY, pattern_of(named), Trust.CHECKED, _enough, needs=DIGIT)
    yield Rule(
        ENTITY, pattern_of(rf"(?<![\w.-])(?P<value>{_VALUE}){_AFTER}"), Trust.CHECKED, _enough, needs=_NEEDS_AFTER
    )
    yield Rule(ENTITY, pattern_of(rf"social\ssecurity{_JOINT}(?P<value>{_FRENCH})(?!\w)"), Trust.CHECKED, needs=_LONG)
    yield _alone(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z](?:\d{6}|(?:[ ]\d\d){3}[ ]?|[ ]\d{6}[ ])[A-D]")
    yield _alone(r"\d{3}\.\d{3}\.\d{3}-\d{2}", is_brazilian)
    yield _alone(r"\d{2}\.\d{3}\.\d{3}/\d{4}-\d{2}", is_brazilian)
    yield _alone(r"[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]", _checked("ItFiscalCodeRecognizer"))
    yield _alone(r"\d{8}-?[A-Z]", _checked("EsNifRecognizer"))
    yield _alone(r"[XYZ]-?\d{7}-?[A-Z]", _checked("EsNieRecognizer"))
    yield _alone(r"756\.\d{4}\.\d{4}\.\d{2}")


def is_brazilian(text: str) -> bool:
    """Whether both check digits of a CPF (11 digits) or a CNPJ (14) are valid and the digits are not all equal.

    Sums modulo 11, with weights from the right of 2 to 9, repeated (CPF: 2 to 11).
    """
    digits = [int(digit) for digit in digits_in(text)]
    period = 10 if len(digits) == _CPF_DIGITS else 8
    for length in (len(digits) - 2, len(digits) - 1):
        total = sum(digit * (2 + place % period) for place, digit in enumerate(reversed(digits[:length])))
        if digits[length] != (0 if total % 11 < 2 else 11 - total % 11):
            return False
    return len(set(digits)) > 1


_CPF_DIGITS = 11
_FEWEST, _MOST = 4, 18


def _enough(text: str) -> bool:
    return _FEWEST <= len(digits_in(text)) <= _MOST


def _checked(recognizer: str) -> Callable[[str], bool]:
    return lambda text: bool(presidio(recognizer).validate_result(text.replace("-", "")))


def _alone(form: str, check: Callable[[str], bool] | None = None) -> Rule:
    """A format in capitals that needs no name."""
    return Rule(ENTITY, pattern_of(rf"(?<![\w.-]){form}(?![\w-])", re.NOFLAG), Trust.SHAPE, check, needs=DIGIT)
