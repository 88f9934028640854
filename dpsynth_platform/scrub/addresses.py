"""Postal addresses in the formats of many countries.

What belongs here: recognizing an address's beginning (a house number with a street name, a post-office box, a military
address, a crossing of streets) and its further parts (flats, towns, states, countries, postal codes). What does not:
places without an address (`names`).

An address has a word for a street in one of a dozen languages, or words before it that announce an address, or a name
with a number before a flat, a postal code or a state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dpsynth_platform.scrub.findings import Candidate, Trust
from dpsynth_platform.scrub.letters import LOWER, UPPER, alternatives, words
from dpsynth_platform.scrub.lists import WordLists
from dpsynth_platform.scrub.rules import MONTHS

# Words for a street before its name (in any case), after it, and as the ending of its name.
_STREET_BEFORE = (
    r"Via|Viale|Vicolo|Piazza|Piazzale|Corso|Largo|Strada|Stradă|Contrada|Rua|R\.|Avenida|Av\.|Avda\.?|Travessa|Praça|"
    r"Estrada|Calle|C/|Carrer|Paseo|Plaza|Camino|Ronda|Alameda|Carretera|Ctra\.?|Cerrada|Privada|Rue|Avenue|Boulevard|"
    r"Bd\.?|Place|Chemin|Allée|Impasse|Quai|Cours|Route|Ulica|Ul\.?|Aleja|Al\.|Plac|Pl\.|Osiedle|Os\.|Trg|Cesta|Ulice|"
    r"Náměstí|Nám\.|Praca|Bulevar|Bulevardul|Aleea|Intrarea|Calea|[SȘŞ]oseaua|Andador|Calzada|Callejón|Circuito|"
    r"Circunvalación|Corredor|Diagonal|Periférico|Peatonal|Prolongación|Retorno|Viaducto|Ruta|Pasaje|Rodovia|Beco|Viela|"
    r"Fazenda|Quadra|Loteamento|Borgo|Rotonda|An[ ]der|Auf[ ]der|Im|In[ ]der|Zum|Zur|Alte|"
    r"Οδός|Λεωφόρος|улица|ул\.|проспект"
)
_ENGLISH_STREET = alternatives("addresses", "english_street")
_OTHER_STREET = alternatives("addresses", "other_street")
_STREET_AFTER = rf"(?:(?:{_ENGLISH_STREET})|(?i:{_OTHER_STREET}))\b\.?"
_STREET_ENDINGS = alternatives("addresses", "street_endings")
_STATES = alternatives("addresses", "states")
_ANNOUNCED = (
    r"\baddress(?:es)?(?:\s+(?:is|was|are|with|to|of|as))?\s*:?|\b(?:lives?|lived|living|resides?|residing|located|"
    r"stays?|arrived?|meet\s+(?:me|us)|deliver(?:ed)?|moved|moving|ship(?:ped)?|sent|send\s+it|mailed?|forward(?:ed)?|"
    r"return(?:ed)?|taxi|cab|drive|ride|directions|navigate|pick\s+(?:me|us)\s+up)\s+(?:in|at|to|from|on)\b|"
    r"\b(?:here\s+they\s+are|headquarters?\s+at|offices?\s+at|house\s+(?:at|on)|home\s+at|flat\s+at|apartment\s+at)\s*:?"
)
PARTICLES = words("addresses", "particles")
"""Lower-case words inside a street's or town's name."""
ADDRESS_WORDS = frozenset(["street", "road", "avenue", "drive", "lane", "court", "place", "square", "park", "apt"])
"""Common words that are capitalized in an address."""

# Limited words and possessive repeats (`*+`) avoid exponential time in texts of apostrophes or spaces.
_WORD = (
    r"(?!(?:Apt|Apartment|Suite|Ste|Unit|Flat|Room|Floor|Box|PO|P\.O|Nr|No)\b)"
    rf"(?:(?:St|Ste|Sta|Sto|Mt|Ft|Dr|Gen|Gral|Prof|Av|[{UPPER}])\.[ ]?)?[{UPPER}][{UPPER}{LOWER}'\u2019-]{{0,40}}"
)
_SMALL = rf"(?:{'|'.join(sorted(PARTICLES))})"
# Capitalized words, joined by spaces and particles.
_WORDS = rf"{_WORD}(?:[ ](?:{_SMALL}[ ]){{0,2}}{_WORD}){{0,4}}"
_NUMBER = r"(?:(?:Nr|No|N°)\.?[ ])?\d{1,5}[A-Za-z]?(?:[-/]\d{1,4})?[A-Za-z]?\.?"
# After a name, five digits are a postal code.
_LAST_NUMBER = r"(?:(?:(?:Nr|No|N°)\.?[ ])?\d{1,4}[A-Za-z]?(?:[-/]\d{1,4})?[A-Za-z]?(?!\d)\.?|[Ss]/[Nn]\b|km[ ]\d{1,4})"
_FLAT = (
    r"(?:Apt|Apartment|Suite|Ste|Unit|Flat|Studio|Room|Rm|Floor|Fl|Bldg|Building|Block|Door|Stair|Dept|Interior|Edif|Depto|"
    r"Dpto|Of|Piso|Puerta|Esc|Bloque|RD|\#)\.?\s?\#?"
    r"[A-Z]?\d{1,5}[A-Z]?"
)
_BOX = r"(?:P\.?[ ]?O\.?[ ]?Box|Post(?:al)?[ ]Box|Postfach|B\.P\.|Apartado)[ ]\d{1,6}"
_BRITISH = r"[A-Z]{1,2}\d[A-Z\d]{0,2}\s\d[A-Z]{2}"
_CODE = (
    rf"(?:{_BRITISH}|[A-Z]\d[A-Z]\s?\d[A-Z]\d|[A-Z]\d\d\s?[A-Z\d]{{4}}|(?:[A-Z]{{1,2}}-)?(?:\d{{5}}-\d{{4}}|\d{{4}}-\d{{3}}|\d{{3}}\s\d{{2}}|"
    r"\d{2}-\d{3}|\d{4}\s?[A-Z]{2}|\d{4,6}))(?![\w-])"
)

_BEGINNING = re.compile(
    rf"""(?<![\w.,/$-])(?:
      (?P<military>(?:(?:PSC|CMR|Unit)[ ]\d{{1,5}},?[ ]Box[ ]\d{{1,5}}|US(?:S|NS|NV|CGC)[ ]\w+)
          [\s,]+[AFD]PO[\s,]+A[AEP][ ]\d{{5}})
    | (?P<crossing>(?i:(?:the[ ])?corner[ ]of)[ ][^\n;:?!]{{2,60}}?[ ](?:and|&)[ ][^\n;:?!,]{{1,50}}?[ ]{_STREET_AFTER})
    | (?P<street>(?:{_NUMBER},?[ ]){{0,2}}(?:
          (?i:{_STREET_BEFORE})[ ](?:{_SMALL}[ ]){{0,2}}{_WORDS}(?:[ ]{_STREET_AFTER})?(?:,?[ ]{_LAST_NUMBER})?
        | {_WORDS}[ ]{_NUMBER}[ ]{_WORDS}[ ]{_STREET_AFTER}
        | {_WORDS}[ ][{LOWER}]{{3,20}}[ ](?i:{_OTHER_STREET})[ ]{_LAST_NUMBER}
        | (?:\d{{1,3}}(?:st|nd|rd|th)|{_WORDS})[ ]{_STREET_AFTER}(?:[ ]{_LAST_NUMBER})?
        | (?:{_WORD}[ ]){{0,2}}(?:[{UPPER}][{LOWER}-]+(?:{_STREET_ENDINGS})|{_WORD}-(?:Stra(?:ss|ß)e|Str\.|Platz|Allee))
              [ ]{_NUMBER}
      ))
    | (?P<before_code>{_WORD}(?:[ ][{LOWER}]{{2,20}}){{1,2}}[ ]{_LAST_NUMBER}
          (?=,?\s(?:[A-Z]{{1,2}}-)?\d{{2,5}}(?:[ -]\d{{2,3}})?[ ][{UPPER}]))
    | (?P<flat_first>{_FLAT},?[ ](?:{_NUMBER},?[ ]){{1,2}}{_WORDS}(?:[ ]{_NUMBER})?)
    | (?P<pair>{_WORDS}[ ](?:and|&)[ ](?:{_NUMBER}[ ])?(?:{_BOX}|{_WORDS}(?:[ ]{_NUMBER})?))
    | (?P<box>(?:{_NUMBER}[ ])?{_BOX})
    | (?P<numbered>(?:{_NUMBER}[ ]){{1,2}}{_WORDS}(?P<second>[ ]{_NUMBER})?)
    | (?P<named>(?:{_WORDS},?[ ]{_LAST_NUMBER}|{_FLAT}))
    | (?P<town_first>{_WORDS},?[ ](?:{_STATES}),?[ ]+\d{{5}}(?:-\d{{4}})?)
    )(?![\w@])""",
    re.VERBOSE,
)
_FURTHER = re.compile(
    rf"""(?P<gap>[ ]*+[,;]?[ ]*+(?:\n[ >|]*+,?[ ]*+){{0,2}}+)(?:
      (?P<flat>{_FLAT}|{_BOX})
    | (?P<state>(?:{_STATES}|(?<=[,\n][ ])[A-Z]{{2}}|nan)(?:\s+{_CODE})?(?!\w))
    | (?P<code_town>{_CODE},?[ ]{_WORDS})
    | (?P<code>{_CODE})
    | (?P<town>{_WORDS}(?:[ ][A-Z\d])?)(?P<town_code>,?[ ]{_CODE})?
    )(?![\w@])""",
    re.VERBOSE,
)
_ANNOUNCEMENT = re.compile(rf"(?:{_ANNOUNCED})\s*$", re.IGNORECASE)
_ANNOUNCED_WITHIN = 40
_SURE_ENDING = re.compile(
    r"(?:Street|St|Str|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Terrace|Parkway|Pkwy|Highway|Hwy|utca|ulica|"
    r"Straße|Strasse)\.?$"
)
_MOST_TOWNS = 3
_YEAR = re.compile(r"(?:19|20)\d\d\b")
_DIGIT = re.compile(r"\d")
_MONTH = re.compile(rf"(?:\d+\.?\s)?{MONTHS}\b", re.IGNORECASE)
_INSIDE_WORD = re.compile(r"[\w'.-]+")
_CODES = frozenset(["code", "state", "code_town"])


def find_addresses(text: str, lists: WordLists) -> Iterator[Candidate]:
    """Whole addresses in the text, as entity type ADDRESS."""
    position = 0
    while (match := _BEGINNING.search(text, position)) is not None:
        end = _end(text, match, lists)
        if end is None:
            # The next beginning may be inside this one.
            word = _INSIDE_WORD.match(text, match.start())
            position = (word.end() if word else match.start()) + 1
        else:
            yield Candidate(match.start(), end, "ADDRESS", Trust.ADDRESS)
            position = end


def _end(text: str, match: re.Match[str], lists: WordLists) -> int | None:
    """The end of the address that begins with the match, or None if it is no address."""
    kind, found = match.lastgroup, match.group()
    kind = "numbered" if kind == "second" else kind
    if kind in ("military", "crossing", "town_first"):
        return match.end()
    end, further = _further(text, match.end(), lists)
    if kind in ("box", "flat_first", "before_code"):
        return end
    announced = _ANNOUNCEMENT.search(text, max(0, match.start() - _ANNOUNCED_WITHIN), match.start()) is not None
    coded = bool(_CODES & set(further))
    if kind == "pair":
        return match.end() if announced and (_DIGIT.search(found) or _SURE_ENDING.search(found)) else None
    if kind == "street":
        sure = _DIGIT.search(found) is not None and not _MONTH.match(found)
        return end if sure or announced or coded or _SURE_ENDING.search(found) else None
    if _MONTH.match(found) or (_YEAR.match(found) and not announced):
        return None
    if kind == "named":
        return end if announced or (coded and not _YEAR.search(found)) else None
    return end if announced or coded or "flat" in further or (match["second"] and further) else None


def _further(text: str, position: int, lists: WordLists) -> tuple[int, set[str]]:
    """The end of the address's further parts from the position on, and their kinds."""
    kinds: list[str] = []
    while (match := _FURTHER.match(text, position)) is not None:
        gap, kind = match["gap"], match.lastgroup or ""
        coded = bool(_CODES & set(kinds))
        if not gap:
            break
        if match["town"]:
            continued = match["town_code"] is not None or _is_continued(text, match.end(), lists)
            if not (continued and not coded) and not _is_town(match["town"], gap, kinds, coded, lists):
                break
            kinds.append("town")
            if match["town_code"]:
                kinds.append("code")
        elif kind in ("code", "code_town") and ((coded and "state" not in kinds) or not (kinds or gap.strip(" "))):
            break
        else:
            kinds.append(kind)
        position = match.end()
    return position, set(kinds)


def _is_continued(text: str, position: int, lists: WordLists) -> bool:
    """Whether a code, a state or a country follows, so that the word before is a town."""
    following = _FURTHER.match(text, position)
    if following is None or not following["gap"]:
        return False
    town = following["town"]
    return town is None or following["town_code"] is not None or town.casefold() in lists.countries


def _is_town(words: str, gap: str, kinds: list[str], coded: bool, lists: WordLists) -> bool:
    """Whether words after an address are its town, region or country."""
    folded = words.casefold()
    if kinds.count("town") >= _MOST_TOWNS:
        return False
    if coded or folded in lists.places:
        return folded in lists.places
    first = re.split(r"[ '\u2019-]", folded, maxsplit=1)[0].rstrip(".")
    if first in lists.common:
        return False
    if not gap.strip(" "):
        # Only a space between: valid on one line after a flat or a town, but not after a street's name.
        return bool(kinds) and kinds[-1] in ("flat", "town")
    return not (first in lists.first_names and "\n" in gap and "," not in gap)
