"""The contract's `scrub`: what is searched for in texts, and what replaces it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpsynth_platform.contracts.base import EntityName, Part, Phrase, refuse
from dpsynth_platform.contracts.columns import PiiAction
from dpsynth_platform.contracts.validation import _meant
from dpsynth_platform.scrub.findings import ENTITY_TYPES


class ScrubPattern(Part):
    """A shape of the contract's own, such as the form of its customer numbers.

    `pattern` is a regular expression; with `context`, one of these words must stand near a match.
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
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from None
        if empty:
            raise ValueError(f"{pattern!r} matches an empty text; accepted: a pattern that needs a character")
        return pattern


class Scrub(Part):
    """What scrubbing looks for in free text besides what it knows, and what becomes of each entity type.

    `deny` names words that are always personal data, by entity type; `allow` words that never are. `actions` says what
    becomes of an entity type in free text, whatever its column's `pii` says. `consistent: owner` gives the same
    original the same fictional value in all records of one owner, instead of within one record.
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
    ] = Field(default="en_US", description="Whose names, towns and companies fictional values are.")

    @model_validator(mode="after")
    def _known_types(self) -> Scrub:
        refuse(self._unknown_types())
        return self

    def _unknown_types(self) -> Iterator[str]:
        """Actions for types that nothing finds, such as one that is misspelt."""
        known = sorted(ENTITY_TYPES.keys() | {item.entity for item in self.patterns} | self.deny.keys())
        for entity in self.actions:
            if entity not in known:
                yield f"actions: {entity!r} is no entity type{_meant(entity, known)}; accepted: {', '.join(known)}"
