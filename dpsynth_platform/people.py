"""Names of people who run, approve and refuse, and the words that they leave.

What belongs here: when two names are one person's, and which names and reasons may be recorded. What does not: whether
somebody is who they say; there is no authentication in this platform, names come from the command line, the login or
Dagster's tags.
"""

from __future__ import annotations

import unicodedata

from dpsynth_platform.errors import ConfigurationError

# Joiners belong to the spelling of some scripts; all other format characters only change how a line is shown.
_JOINERS = "\u200c\u200d"
_CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
# Letters and marks that leave no trace on a screen: fillers, variation selectors, the blank Braille pattern.
_UNSEEN = dict.fromkeys(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)
MOST_CHARACTERS = 1000
REQUESTED_BY_TAG = "dpsynth/requested_by"
"""Dagster run tag: who asked for the run. Without it the code server's user did."""


def person_key(name: str) -> str:
    """A name without what cannot be seen or told apart: compatibility forms, case, blanks, invisible characters."""
    plain = unicodedata.normalize("NFKC", name).casefold().translate(_UNSEEN)
    return "".join(item for item in plain if unicodedata.category(item)[0] not in "CZ")


def is_control(character: str) -> bool:
    """Whether a character can make text look like other text: escapes, line breaks, reversed writing and the like."""
    return unicodedata.category(character) in _CONTROLS and character not in _JOINERS


def visible(text: str) -> str:
    """Text from elsewhere on one line, with every control character written out, such as `\\x1b` or `\\n`."""
    return "".join(ascii(item)[1:-1] if is_control(item) else item for item in text)


def recorded(text: str, option: str, *, optional: bool = False) -> str:
    """A name or a reason as it may stand in a record.

    Args:
        text: what somebody gave.
        option: where they gave it, for the message.
        optional: whether it may say nothing.

    Raises:
        ConfigurationError: it is too long, holds control characters, or says nothing.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigurationError(f"{option}: {len(text)} characters; accepted: at most {MOST_CHARACTERS}")
    if any(map(is_control, text)):
        raise ConfigurationError(f"{option}: {text!r} holds control characters; accepted: one line of plain text")
    if not optional and not person_key(text):
        raise ConfigurationError(f"{option}: {text!r} says nothing; accepted: words that can be seen")
    return text


def acting(named: str | None, user: str) -> str:
    """Who acts: whom `--as` names, or else the deployment's user. Raises `ConfigurationError` like `recorded`."""
    return user if named is None else recorded(named, "--as")
