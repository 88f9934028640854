"""Clues: what a record's own columns say of its person, as a pattern to look for in that record's texts.

What belongs here: telling what a column holds by its name, and the forms in which its value may stand in a text. What
does not: finding what nobody tells of beforehand (`detection`).

A remark about a customer mostly names that customer, and the name stands in the next column. This finds it however
badly a language model knows the name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

# What a column holds, told by the words in its name; the first match counts.
_KINDS = {
    "EMAIL_ADDRESS": {"email", "mail"},
    "PHONE_NUMBER": {"phone", "telephone", "tel", "mobile", "fax", "cell"},
    "US_SSN": {"ssn", "social"},
    "IBAN_CODE": {"iban"},
    "IP_ADDRESS": {"ip"},
    "CREDIT_CARD": {"card", "creditcard"},
    "LOCATION": {"address", "street", "city", "town", "place"},
    "PERSON": {"name", "firstname", "lastname", "fullname", "surname", "forename", "nickname"},
}
# A column of unknown kind whose value has at most so many words is a label of the person rather than a text.
_LABEL_WORDS = 5
_SHORTEST_CLUE = 3
# What says so much, or of so many, is no clue to one person; and the time to look for it would grow with all of it.
_LONGEST_CLUE = 200
_MOST_FORMS = 300
_SHORTEST_NAME = 2
# Words of a name column that name nobody, and that a text is full of.
_NO_NAMES = {"mr", "mrs", "ms", "miss", "dr", "prof", "jr", "sr", "ii", "iii", "phd", "md", "de", "la", "der"}


def column_kind(name: str) -> str | None:
    """The entity type that a whole column holds, told by its name (`work_email`: EMAIL_ADDRESS), or None."""
    words = name_words(name)
    return next((kind for kind, markers in _KINDS.items() if words & markers), None)


def name_words(name: str) -> set[str]:
    """The words of a column's name, in small letters (`workEmail`: work, email)."""
    return set(re.split(r"[_\-]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def clues(values: Mapping[str, str | None]) -> re.Pattern[str] | None:
    """A pattern that finds, in a record's texts, what its other columns say of its person; groups are entity types.

    Args:
        values: the record's directly identifying values by column name: names, addresses, numbers, ids.

    A name is found as a whole and by each of its words, numbers whatever stands between their digits, all without
    regard to case. What stands before the @ of an e-mail address is found alone, too: as a name (PERSON) where it has
    letters only, else as an ID. Values of more than `_LONGEST_CLUE` characters are not looked for, nor more than the
    first `_MOST_FORMS` ways of writing a record's values.
    """
    found: dict[str, set[str]] = {}
    room = _MOST_FORMS
    for column, value in values.items():
        text = (value or "").strip()
        kind = column_kind(column)
        shortest = _SHORTEST_NAME if kind == "PERSON" else _SHORTEST_CLUE
        if not shortest <= len(text) <= _LONGEST_CLUE or (kind is None and len(text.split()) > _LABEL_WORDS):
            continue
        for entity, form in itertools.islice(_forms(text, kind or "ID"), room):
            found.setdefault(entity, set()).add(form)
            room -= 1
    # An e-mail address must go as a whole, whatever it has in common with ids and names; single words come last.
    ordered = sorted(found.items(), key=lambda item: {"EMAIL_ADDRESS": 0, "PERSON": 2}.get(item[0], 1))
    groups = [f"(?P<{kind}>{'|'.join(sorted(forms, key=lambda form: (-len(form), form)))})" for kind, forms in ordered]
    return re.compile(rf"(?<!\w)(?:{'|'.join(groups)})(?!\w)", re.IGNORECASE) if groups else None


def _forms(text: str, kind: str) -> Iterator[tuple[str, str]]:
    """Entity types and patterns of the ways in which a value of this kind may stand in a text."""
    digits = re.sub(r"\D", "", text)
    if kind in ("PHONE_NUMBER", "US_SSN", "CREDIT_CARD") and len(digits) >= _SHORTEST_CLUE:
        yield kind, r"\(?" + r"\D{0,3}".join(digits)
    yield kind, r"\s+".join(re.escape(word) for word in text.split())
    if kind == "PERSON":
        for word in re.findall(r"[^\W\d_]+", text):
            if len(word) >= _SHORTEST_NAME and word.lower() not in _NO_NAMES:
                yield kind, re.escape(word)
    if kind == "EMAIL_ADDRESS" and len(handle := text.partition("@")[0]) > _SHORTEST_CLUE:
        # Before another domain it is an address still; by itself, what people are called by, or their login.
        yield kind, re.escape(handle) + r"@[\w.-]*\w"
        yield "PERSON" if handle.isalpha() else "ID", re.escape(handle)
