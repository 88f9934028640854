"""Letters and words: classes of letters for regular expressions, and the word lists in `words.toml`.

What belongs here: upper-case and lower-case letters of the Latin, Greek and Cyrillic scripts, for which `re` has no
class; reading lists. What does not: personal data.
"""

import tomllib
from functools import cache
from importlib.resources import files

_LETTERS = [chr(code) for code in range(0x41, 0x530)]

UPPER = "".join(letter for letter in _LETTERS if letter.isupper())
LOWER = "".join(letter for letter in _LETTERS if letter.islower())


def words(table: str, name: str) -> frozenset[str]:
    """A list of `words.toml` as a set."""
    return frozenset(word_list(table, name))


def word_list(table: str, name: str) -> list[str]:
    """A list of `words.toml`, in its order."""
    return _tables()[table][name].split()


def alternatives(table: str, name: str) -> str:
    """A list of `words.toml`, of words or expressions, as the alternatives of a regular expression."""
    return "|".join(word_list(table, name))


@cache
def _tables() -> dict[str, dict[str, str]]:
    return tomllib.loads(files("dpsynth_platform.scrub").joinpath("words.toml").read_text(encoding="utf-8"))
