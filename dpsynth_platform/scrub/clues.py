"""Clues: patterns that find a record's own identifying values in its texts.

What belongs here: the kind of a column by its name, and the forms of its value in texts. What does not: finding other
personal data (`detection`).

A remark about a customer mostly contains that customer's name, which is in another column. Clues find it even if the
language model does not know the name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

# The kind of a column by the words in its name; the first match counts.
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
# In a column of unknown kind, longer values are texts, and no labels of a person.
LABEL_WORDS = 5
_SHORTEST_CLUE = 3
# Limits of the search's time; longer values identify no single person.
_LONGEST_CLUE = 200
_MOST_FORMS = 300
_SHORTEST_NAME = 2
# Frequent words of name columns that identify nobody.
_NO_NAMES = {"mr", "mrs", "ms", "miss", "dr", "prof", "jr", "sr", "ii", "iii", "phd", "md", "de", "la", "der"}


def column_kind(name: str) -> str | None:
    """The entity type of a column by its name (`work_email`: EMAIL_ADDRESS), or None."""
    words = name_words(name)
    return next((kind for kind, markers in _KINDS.items() if words & markers), None)


def name_words(name: str) -> set[str]:
    """The lower-case words of a column's name (`workEmail`: work, email)."""
    return set(re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def clues(values: Mapping[str, str | None]) -> re.Pattern[str] | None:
    """A pattern that finds a record's identifying values (by column name) in its texts; groups are entity types.

    Case is ignored. A name is found as a whole and by each of its words, a number with any separators. The local part
    of an e-mail address is found alone, too: as PERSON if it has letters only, else as ID. Values of more than
    `_LONGEST_CLUE` characters, and forms beyond the first `_MOST_FORMS`, are ignored.
    """
    found: dict[str, set[str]] = {}
    room = _MOST_FORMS
    for column, value in values.items():
        text = (value or "").strip()
        kind = column_kind(column)
        shortest = _SHORTEST_NAME if kind == "PERSON" else _SHORTEST_CLUE
        if not shortest <= len(text) <= _LONGEST_CLUE or (kind is None and len(text.split()) > LABEL_WORDS):
            continue
        for entity, form in itertools.islice(_forms(text, kind or "ID"), room):
            found.setdefault(entity, set()).add(form)
            room -= 1
    # E-mail addresses come first, so that they match as a whole, and single words last.
    ordered = sorted(found.items(), key=lambda item: {"EMAIL_ADDRESS": 0, "PERSON": 2}.get(item[0], 1))
    groups = [f"(?P<{kind}>{'|'.join(sorted(forms, key=lambda form: (-len(form), form)))})" for kind, forms in ordered]
    return re.compile(rf"(?<!\w)(?:{'|'.join(groups)})(?!\w)", re.IGNORECASE) if groups else None


def _forms(text: str, kind: str) -> Iterator[tuple[str, str]]:
    """Entity types and patterns of the forms of a value in texts."""
    digits = re.sub(r"\D", "", text)
    if kind in ("PHONE_NUMBER", "US_SSN", "CREDIT_CARD") and len(digits) >= _SHORTEST_CLUE:
        yield kind, r"\(?" + r"\D{0,3}".join(digits)
    yield kind, r"\s+".join(re.escape(word) for word in text.split())
    if kind == "PERSON":
        for word in re.findall(r"[^\W\d_]+", text):
            if len(word) >= _SHORTEST_NAME and word.lower() not in _NO_NAMES:
                yield kind, re.escape(word)
    if kind == "EMAIL_ADDRESS" and len(handle := text.partition("@")[0]) > _SHORTEST_CLUE:
        # With another domain it is an address; alone it is a name or a login.
        yield kind, re.escape(handle) + r"@[\w.-]*\w"
        yield "PERSON" if handle.isalpha() else "ID", re.escape(handle)
