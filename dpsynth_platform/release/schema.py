"""The JSON schemas of what a release is made of, and holding documents against them.

What belongs here: reading the schemas that ship with the package, and telling where a document breaks one. What does
not: what the documents mean. A schema is immutable once a release names its format: a changed document gets a new
format and a new file beside the old ones. Messages name the place and what the schema asks for, never a value found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

DOSSIERS = {f"dpsynth-dossier/{number}": f"dossier-{number}.json" for number in (1, 2, 3)}
"""Schema of each format of the public dossier that this version can read."""
REVIEWERS = "reviewers-dossier-1.json"
ATTESTATION = "attestation-1.json"


@dataclass(frozen=True)
class Breach:
    """One place where a document is not as its schema says."""

    where: str
    message: str


def text(name: str) -> str:
    """A schema as it ships."""
    return (files("dpsynth_platform.release") / "schemas" / name).read_text(encoding="utf-8")


def breaches(document: Any, name: str, most: int = 10) -> list[Breach]:
    """The first places where a document breaks a schema, by path."""
    # The library tells each missing member by itself; here they are one breach.
    found = sorted(set(_found(document, name)), key=lambda breach: (breach.where, breach.message))
    return found[:most]


def _found(document: Any, name: str) -> Iterator[Breach]:
    for error in _validator(name).iter_errors(document):
        yield Breach(error.json_path, _words(str(error.validator), error.validator_value, error.instance))


def _words(rule: str, asked: Any, found: Any) -> str:
    if rule == "required":
        return f"lacks {', '.join(sorted(set(asked) - set(found)))}"
    if rule == "additionalProperties":
        return "has a member that the schema does not know"
    if rule in ("type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "minItems", "minLength"):
        return f"is not as the schema asks ({rule}: {json.dumps(asked)})"
    return f"is not as the schema asks ({rule})"


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(text(name)))
