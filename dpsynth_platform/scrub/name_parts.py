"""The parts of names: titles, particles, degrees and capitalized words, as sets and as patterns.

What belongs here: parts that several detectors, or a detector and the replacement, share. What does not: deciding that
words are a name (`names`, `organizations`), and lists of names (`lists`).
"""

from __future__ import annotations

import re

from dpsynth_platform.scrub.letters import LOWER, UPPER, words

TITLES = words("name_parts", "titles")
"""Words before a name, in lower case and without a full stop."""
PARTICLES = words("name_parts", "particles")
"""Lower-case words inside a person's name."""
DEGREES = words("name_parts", "degrees")
"""Words after a name, in lower case and without full stops."""

_NO_NAME = r"(?!(?:Apt|Apartment|Suite|Ste|Unit|Flat|Room|PO|P\.O)\b)"
# The limit keeps the search linear in texts of many apostrophes.
NAME_WORD = rf"{_NO_NAME}[{UPPER}](?:[{UPPER}{LOWER}-]|['\u2019](?!s\b)[{UPPER}{LOWER}]){{0,60}}"
"""A capitalized word, without a possessive ending."""
PARTICLE = rf"(?:{'|'.join(sorted(PARTICLES))})"
FULL_NAME = rf"{NAME_WORD}(?:[ ](?:{PARTICLE}[ ]){{0,2}}{NAME_WORD}){{0,3}}"
"""One to four capitalized words, with particles between them."""
TITLE = rf"(?:{'|'.join(sorted(word.capitalize() for word in TITLES))})\.?"
DEGREE = r"(?:,?[ ](?:Jr|Sr|M\.?D|Ph\.?D|D\.?D\.?S|D\.?V\.?M|Esq|II|III|IV)\b\.?)"


def first_word(words: str) -> str:
    """The first word of a name, casefolded."""
    return re.split(r"[ '\u2019-]", words, maxsplit=1)[0].casefold()
