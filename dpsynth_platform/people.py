"""Names of people who run, approve and refuse.

What belongs here: when two names are one person's. What does not: whether somebody is who they say; there is no
authentication in this platform, names come from the command line, the login or Dagster's tags.
"""

from __future__ import annotations

import unicodedata


def person_key(name: str) -> str:
    """A name without what cannot be seen or told apart: compatibility forms, case, blanks, invisible characters."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(item for item in plain if unicodedata.category(item)[0] not in "CZ")
