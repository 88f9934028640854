"""Capital and small letters of the Latin, Greek and Cyrillic scripts, as parts of a regular expression's class.

What belongs here: what the standard library's expressions lack, a class of capital letters. What does not: anything
about personal data.
"""

_LETTERS = [chr(code) for code in range(0x41, 0x530)]

UPPER = "".join(letter for letter in _LETTERS if letter.isupper())
LOWER = "".join(letter for letter in _LETTERS if letter.islower())


def words_of(text: str) -> frozenset[str]:
    """The words of a text, as a set; for lists that stand in a module."""
    return frozenset(text.split())
