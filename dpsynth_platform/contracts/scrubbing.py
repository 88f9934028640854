"""The contract's `scrub`: what is detected in texts, and what replaces it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpsynth_platform.contracts.base import EntityName, Part, Phrase, refuse
from dpsynth_platform.contracts.columns import PiiAction
from dpsynth_platform.contracts.validation import _meant

ENTITY_TYPES: Mapping[str, str] = {
    "PERSON": "names of people, with titles and degrees",
    "ORGANIZATION": "companies, authorities, schools, clubs",
    "LOCATION": "countries, regions, towns",
    "ADDRESS": "postal addresses, from the flat to the country",
    "ZIP_CODE": "postal codes that stand alone, or are named as such",
    "NRP": "nationalities, religions, political groups",
    "TITLE": "occupations, as under a letter",
    "EMAIL_ADDRESS": "e-mail addresses",
    "URL": "web addresses, domains",
    "PHONE_NUMBER": "telephone and fax numbers",
    "CREDIT_CARD": "card numbers: valid ones, and 12 to 19 digits that are named as such",
    "IBAN_CODE": "account numbers, international",
    "US_BANK_NUMBER": "account, routing and bank numbers that are named as such",
    "US_SSN": "social security and taxpayer numbers, USA",
    "US_PASSPORT": "passport numbers that are named as such",
    "US_DRIVER_LICENSE": "driver's licence numbers that are named as such",
    "TAX_ID": "tax numbers that are named as such",
    "NATIONAL_ID": "numbers of identity, insurance and taxes of other states, by name, or by form and check digit",
    "MEDICAL_RECORD": "patient, insurance and medical record numbers that are named as such",
    "ID": "other numbers that are named as somebody's (customer, order, plate); a record's own identifiers",
    "DATE_TIME": "dates, with the time of day; years after words such as in and since",
    "AGE": "ages",
    "COORDINATES": "latitude and longitude",
    "IP_ADDRESS": "IP addresses",
    "MAC_ADDRESS": "MAC addresses",
    "UUID": "universally unique identifiers",
    "CRYPTO": "Bitcoin addresses",
    "UNREAD": "a whole text on which the contract's own patterns took too long; always masked",
}
"""What is detected, by entity type; a contract's patterns and lists can add types."""


class ScrubPattern(Part):
    """A pattern of the contract, such as the form of its customer numbers.

    `pattern` is a regular expression; with `context`, one of these words must be near a match.
    """

    entity: EntityName
    pattern: str = Field(min_length=1, max_length=1000)
    context: list[Phrase] = Field(default_factory=list, max_length=100)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            empty = re.compile(pattern).search("") is not None
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{pattern!r} is not a regular expression ({error})") from None
        if empty:
            raise ValueError(f"{pattern!r} matches the empty text; accepted: a pattern that needs a character")
        return pattern


class Scrub(Part):
    """Additions to the built-in detection in free text, and the action for each entity type.

    `deny` lists words that are always personal data, by entity type; `allow` words that never are. `actions` of entity
    types override the `pii` of columns. `consistent: owner` gives the same original the same fictional value in all
    records of one owner, instead of within one record.
    """

    patterns: list[ScrubPattern] = Field(default_factory=list, max_length=200)
    deny: dict[EntityName, Annotated[list[Phrase], Field(min_length=1, max_length=10_000)]] = Field(
        default_factory=dict
    )
    allow: list[Phrase] = Field(default_factory=list, max_length=10_000)
    actions: dict[EntityName, PiiAction] = Field(default_factory=dict)
    consistent: Literal["document", "owner"] = "document"
    locale: Literal[
        "en_US", "en_GB", "en_CA", "en_AU", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL", "pt_BR"
    ] = Field(default="en_US", description="The locale of fictional names, towns and companies.")

    @model_validator(mode="after")
    def _known_types(self) -> Scrub:
        refuse(self._unknown_types())
        return self

    def _unknown_types(self) -> Iterator[str]:
        known = sorted(ENTITY_TYPES.keys() | {item.entity for item in self.patterns} | self.deny.keys())
        for entity in self.actions:
            if entity not in known:
                yield f"actions: {entity!r} is not an entity type{_meant(entity, known)}; accepted: {', '.join(known)}"
