"""The JSON schemas of release documents, and validation against them.

What belongs here: reading the package's schemas, and reporting where a document breaks one. What does not: the
documents' meaning. A schema is immutable once a release names its format; a changed document gets a new format and a
new file. Messages name the place and the schema's rule, never a value that was found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

DOSSIERS = {f"dpsynth-dossier/{number}": f"dossier-{number}.json" for number in range(1, 11)}
"""Schema of each readable format of the public dossier."""
REVIEWERS = "reviewers-dossier-1.json"
ATTESTATION = "attestation-1.json"


@dataclass(frozen=True)
class Breach:
    """One place (JSON path) where a document breaks its schema."""

    where: str
    message: str


def text(name: str) -> str:
    """A schema file's text."""
    return (files("dpsynth_platform.release") / "schemas" / name).read_text(encoding="utf-8")


def breaches(document: Any, name: str, most: int = 10) -> list[Breach]:
    """The first places where a document breaks a schema, by path."""
    # The set merges jsonschema's errors for each missing member of one object.
    found = {
        Breach(error.json_path, _message(str(error.validator), error.validator_value, error.instance))
        for error in _validator(name).iter_errors(document)
    }
    return sorted(found, key=lambda breach: (breach.where, breach.message))[:most]


def _message(rule: str, expected: Any, found: Any) -> str:
    if rule == "required":
        return f"lacks {', '.join(sorted(set(expected) - set(found)))}"
    if rule == "additionalProperties":
        return "has a member that the schema does not know"
    if rule in ("type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "minItems", "minLength"):
        return f"breaks the schema's rule {rule}: {json.dumps(expected)}"
    return f"breaks the schema's rule {rule}"


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(text(name)))
