"""Names of people who run, approve and refuse, and their reasons.

What belongs here: when two names are the same person's, and which names and reasons may be recorded. What does not:
authentication; names come from the command line, the login, the console or Dagster's tags.

New decisions compare names by their looks (`same_person`). Recorded decisions are verified by the rule of their time
(`person_key`), so that old chains stay valid.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from dpsynth_platform.foundation.errors import ConfigurationError

# Joiners belong to the spelling of some scripts; other format characters only change the display.
_JOINERS = "\u200c\u200d"
_CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
# Invisible letters and marks: fillers, variation selectors, the blank Braille pattern.
_UNSEEN = dict.fromkeys(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)
MOST_CHARACTERS = 1000
NAMES_ACCEPTED = "accepted: a name in the letters of one script"
REQUESTED_BY_TAG = "dpsynth/requested_by"
"""Dagster run tag: who requested the run; by default the code server's user."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Each letter after a first ASCII one looks like that: of UTS #39, version 13.0.0, the letters of Latin, Cyrillic, Greek
# and Armenian without a compatibility form that look like one ASCII letter or digit. A capital that looks like a bar is
# an I here. https://www.unicode.org/Public/security/13.0.0/confusables.txt
_LOOKS = _words(
    """
    2ꝚƧꙄ 3ꞫȜƷꝪЗӠ 5Ƽ 6б 8ȣȢ 9Ꝯ aɑаα AАΑ bƄЬ BꞴВΒ cᴄс CС dԁ eꬲеҽ EЕΕ fꬵꞙẝք FꞘϜ gɡᶃƍց GԌ hһհ HНΗ iıɪɩіꙇӏι IІӀΙ jјϳ JƝЈͿ
    KКΚ lƖǀ MМΜϺ nոռ NΝ oᴏᴑꬽоοσօ OОΟՕ pрρ PРΡ qԛգզ rꭇꭈгᴦ RƦ sꜱƽѕ SЅՏ TТΤ uꞟᴜꭎꭒʋυս UՍ vᴠѵν VѴ wɯᴡѡԝա WԜ xх XꞳХΧ
    yɣᶌʏỿꭚуүγ YУҮΥ zᴢ ZΖ
    """
)
_BARS_AND_RINGS = str.maketrans("I1|0", "lllO")
"""ASCII characters that look like other ASCII characters."""
_LATIN_FORM = str.maketrans({letter: word[0] for word in _LOOKS for letter in word[1:]})
# Unicode's recommended scripts (UAX #31, table 5), of which a name has one; and those that are written together (UTS
# #39, 5.1, and Latin with these as in its level "highly restrictive").
_SCRIPTS = _words(
    """
    Latin Greek Cyrillic Armenian Georgian Hebrew Arabic Thaana Devanagari Bengali Gurmukhi Gujarati Oriya Tamil Telugu
    Kannada Malayalam Sinhala Thai Lao Tibetan Myanmar Khmer Ethiopic Han Hiragana Katakana Bopomofo Hangul
    """
)
_TOGETHER = ({"Latin", "Han", "Hiragana", "Katakana"}, {"Latin", "Han", "Bopomofo"}, {"Latin", "Han", "Hangul"})
_JOINING = _words(
    "Arabic Devanagari Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala Myanmar Khmer"
)
"""Scripts to whose spelling joiners belong."""


def person_key(name: str) -> str:
    """A name without compatibility forms, case, blanks and invisible characters."""
    plain = unicodedata.normalize("NFKC", name).casefold().translate(_UNSEEN)
    return "".join(item for item in plain if unicodedata.category(item)[0] not in "CZ")


def same_person(one: str, other: str) -> bool:
    """Whether two names look alike, and so count as one person for the four-eyes principle.

    Compares them as written, in upper case and in lower case, since different letters look alike in each. A name in
    Cyrillic letters is the same person's as the Latin one that it looks like.
    """
    return not _looks(one).isdisjoint(_looks(other))


@lru_cache(maxsize=10_000)
def _looks(name: str) -> frozenset[str]:
    """The keys of a name and of its Latin look-alikes."""
    plain = unicodedata.normalize("NFKD", name)
    digits = "".join(str(unicodedata.decimal(item, item)) for item in plain)
    forms = [form.translate(_LATIN_FORM) for form in (digits, digits.upper(), digits.lower())]
    return frozenset(person_key(form) for form in (name, *forms, forms[0].translate(_BARS_AND_RINGS)))


def name_problem(name: str) -> str | None:
    """Why a new record must not have this name, or None: invisible characters, or letters of several scripts."""
    plain = unicodedata.normalize("NFKC", name)
    scripts = _scripts(plain)
    joined = any(item in plain for item in _JOINERS) and scripts.isdisjoint(_JOINING)
    if joined or any(is_control(item) or ord(item) in _UNSEEN for item in name):
        return f"{name!a} contains invisible characters"
    if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
        return f"{name!a} mixes {' and '.join(sorted(scripts))} letters, some of which look the same"
    if "" in scripts:
        return f"{name!a} has letters outside of the recommended scripts of Unicode"
    return None


def _scripts(text: str) -> set[str]:
    """The scripts of a text's letters, without shared letters; "" stands for a script that is not recommended."""
    if text.isascii():
        return {"Latin"}
    import regex  # late: most names are ASCII

    found = {script for script in _SCRIPTS if regex.search(rf"\p{{Script={script}}}", text)}
    known = "".join(rf"\p{{Script={script}}}" for script in ("Common", *found))
    return found | ({""} if regex.search(rf"(?V1)[\p{{L}}--[{known}]]", text) else set())


def is_control(character: str) -> bool:
    """Whether a character can change how text is displayed: escapes, line breaks, writing direction."""
    return unicodedata.category(character) in _CONTROLS and character not in _JOINERS


def visible(text: str) -> str:
    """External text on one line, with control characters escaped, such as `\\x1b` or `\\n`."""
    return "".join(ascii(item)[1:-1] if is_control(item) else item for item in text)


def recorded(text: str, option: str, *, optional: bool = False) -> str:
    """Checks a name or a reason before it is recorded.

    Args:
        text: a name or a reason.
        option: where it comes from, for the message.
        optional: whether it may be empty.

    Raises:
        ConfigurationError: it is too long, has control characters, or is empty.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigurationError(f"{option}: {len(text)} characters; accepted: at most {MOST_CHARACTERS}")
    if any(map(is_control, text)):
        raise ConfigurationError(f"{option}: {text!r} contains control characters; accepted: one line of plain text")
    if not optional and not person_key(text):
        raise ConfigurationError(f"{option}: {text!r} is empty; accepted: visible words")
    return text


def recorded_name(name: str, option: str) -> str:
    """Checks a person's name before it is recorded.

    Raises:
        ConfigurationError: as `recorded`, or it has invisible characters or mixes scripts.
    """
    problem = name_problem(recorded(name, option))
    if problem is not None:
        raise ConfigurationError(f"{option}: {problem}; {NAMES_ACCEPTED}")
    return name


def acting(named: str | None, user: str) -> str:
    """The acting person: `--as`, else the deployment's user. Raises `ConfigurationError` like `recorded_name`."""
    return user if named is None else recorded_name(named, "--as")
