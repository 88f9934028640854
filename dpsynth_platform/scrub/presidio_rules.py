"""Rules of Presidio's recognizer registry as those of a contract.

What belongs here: converting the custom recognizers of a registry's YAML (of presidio-analyzer 2.2), and naming what
has no counterpart. What does not: validating the result (`contracts.scrubbing`), and Presidio itself, which is not
used: its own recognizers have their counterpart in the built-in detection.

| Presidio | here |
| --- | --- |
| `patterns` of a custom recognizer, with `global_regex_flags` | `patterns`, with these flags |
| a pattern's score below the threshold, with `context` | needs one of these words nearby |
| `deny_list` | `deny` |

Presidio adds 0.35 to a score next to a word of `context`, and makes it at least 0.4. The threshold is that of
`score_thresholds`; without it 0.4, so that what Presidio's authors think weak needs its context.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsynth_platform.contracts.scrubbing import Scrub, ScrubPattern
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.people import visible

LANGUAGE = "en"
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.ASCII: "a", re.VERBOSE: "x"}
_DEFAULT_FLAGS = 26
_FLAGS_BEFORE = re.compile(r"\(\?([aimsux]+)\)")
_LEAST_WITH_CONTEXT, _ADDED_BY_CONTEXT = 0.4, 0.35
_TYPE_OF_RULES = re.compile(r"[A-Z][A-Z0-9_]{1,40}")
_MOST_CONTEXT = 100
_KNOWN = {
    *("name", "type", "enabled", "version", "country_code", "context", "patterns", "deny_list", "deny_list_score"),
    *("supported_language", "supported_languages", "supported_entity", "supported_entities", "score_thresholds"),
}
_REGISTRY = ("recognizers", "recognizer_registry", "supported_languages", "global_regex_flags")
_THRESHOLD = "default_score_threshold"


@dataclass(frozen=True)
class Converted:
    """Rules, and in words what was left out or changed."""

    rules: Scrub
    notes: tuple[str, ...] = ()


@dataclass
class _Found:
    patterns: list[dict[str, Any]] = field(default_factory=list)
    deny: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_registry(document: Mapping[Any, Any]) -> bool:
    """Whether a file's content is a registry of Presidio, or has one, as the file of its engine."""
    return "recognizers" in document or "recognizer_registry" in document


def converted(document: Mapping[Any, Any], where: str) -> Converted:
    """The rules of a registry. Raises `ContractError` if it has not the form of one."""
    found = _Found()
    registry = document.get("recognizer_registry", document)
    listed = registry.get("recognizers") if isinstance(registry, dict) else None
    if not isinstance(registry, dict) or not isinstance(listed, list):
        raise ContractError(f"{where}: recognizers: no list; accepted: a list of recognizers, as Presidio has")
    keys = dict.fromkeys(map(str, (*document, *registry)))
    found.notes += [f"{visible(key)}: has no effect here" for key in keys if key not in (*_REGISTRY, _THRESHOLD)]
    flags = _inline(registry.get("global_regex_flags", _DEFAULT_FLAGS), where)
    languages = registry.get("supported_languages") or [LANGUAGE]
    threshold = document.get(_THRESHOLD)
    for number, one in enumerate(listed, 1):
        name = _name(one, number)
        if reason := _left_out(one, languages):
            found.notes.append(f"{name}: left out: {reason}")
        else:
            _convert(found, one, name, flags, threshold, where)
    return Converted(validated(Scrub, {"patterns": found.patterns, "deny": found.deny}, where), tuple(found.notes))


def _name(one: Any, number: int) -> str:
    name = one.get("name") if isinstance(one, dict) else one
    return visible(str(name)) if isinstance(name, str) else f"recognizer {number}"


def _left_out(one: Any, languages: Any) -> str:
    """Why a whole recognizer has no counterpart, or an empty text."""
    if isinstance(one, dict) and one.get("enabled") is False:
        return "it is not enabled"
    if not isinstance(one, dict) or one.get("type", "custom") != "custom":
        return "it is Presidio's own, by its class; the built-in detection is in its place"
    spoken = _languages(one) or languages
    if LANGUAGE not in spoken:
        return f"it is for {', '.join(map(str, spoken))}; accepted: {LANGUAGE}"
    if not one.get("patterns") and not one.get("deny_list"):
        return "it has neither patterns nor a deny_list"
    return ""


def _languages(one: Mapping[str, Any]) -> list[Any]:
    if one.get("supported_language"):
        return [one["supported_language"]]
    listed = one.get("supported_languages") or []
    return [item.get("language") if isinstance(item, dict) else item for item in listed]


def _context(one: Mapping[str, Any]) -> list[str]:
    """The words of a recognizer's context in English."""
    listed = one.get("supported_languages") or []
    own = [item.get("context") for item in listed if isinstance(item, dict) and item.get("language") == LANGUAGE]
    return [str(word) for word in (next(filter(None, own), None) or one.get("context") or [])]


def _convert(found: _Found, one: Mapping[str, Any], name: str, flags: str, threshold: Any, where: str) -> None:
    entity = one.get("supported_entity") or next(iter(one.get("supported_entities") or []), None)
    plain = re.sub(r"[^A-Z0-9]+", "_", str(entity or "").upper()).strip("_")
    if not _TYPE_OF_RULES.fullmatch(plain):
        raise ContractError(f"{where}: {name}: supported_entity: {entity!r}; accepted: a name, such as STAFF_ID")
    if plain != entity:
        found.notes.append(f"{name}: its entity type {visible(str(entity))} is {plain} here")
    found.notes += [f"{name}: {visible(key)}: has no effect here" for key in map(str, one) if key not in _KNOWN]
    own = one.get("score_thresholds")
    own = own if isinstance(own, dict) else {}
    threshold = own.get(str(entity), own.get("default", threshold))
    least = _LEAST_WITH_CONTEXT if threshold is None else _number(threshold, f"{where}: {name}: score_thresholds")
    context = _context(one)
    for number, pattern in enumerate(_listed(one, "patterns", name, where), 1):
        if not isinstance(pattern, dict) or not isinstance(pattern.get("regex"), str):
            raise ContractError(f"{where}: {name}: pattern {number}: no regex; accepted: name, regex and score")
        label = f"{name}: pattern {visible(str(pattern.get('name', number)))}"
        score = _number(pattern.get("score", 1.0), f"{where}: {label}: score")
        words: Sequence[str] = ()
        if score < least:
            if context and max(score + _ADDED_BY_CONTEXT, _LEAST_WITH_CONTEXT) >= least:
                words = context
                found.notes.append(f"{label}: its score {score:g} is below {least:g}: it counts near its context only")
            elif threshold is not None:
                found.notes.append(f"{label}: left out: its score {score:g} is below the threshold {least:g}")
                continue
        _add_pattern(found, label, plain, _with_flags(pattern["regex"], flags), words)
    if words := [str(word) for word in _listed(one, "deny_list", name, where)]:
        score = _number(one.get("deny_list_score", 1.0), f"{where}: {name}: deny_list_score")
        if threshold is not None and score < least:
            found.notes.append(f"{name}: deny_list: left out: its score {score:g} is below the threshold {least:g}")
            return
        fits = [word for word in words if 2 <= len(word.strip()) <= 200]
        if len(fits) < len(words):
            short = len(words) - len(fits)
            found.notes.append(f"{name}: deny_list: left out: {short} words of less than 2 or more than 200 characters")
        if fits:
            found.deny.setdefault(plain, []).extend(fits)


def _add_pattern(found: _Found, label: str, entity: str, pattern: str, context: Sequence[str]) -> None:
    words = [word for word in dict.fromkeys(context) if 2 <= len(word.strip()) <= 200][:_MOST_CONTEXT]
    if len(words) < len(set(context)):
        found.notes.append(
            f"{label}: left out: words of its context of less than 2 characters, or beyond the first 100"
        )
    problem = "none of the words of its context can be used" if context and not words else _problem(pattern)
    if problem:
        found.notes.append(f"{label}: left out: {problem}")
    else:
        found.patterns.append({"entity": entity, "pattern": pattern, "context": words})


def _problem(pattern: str) -> str:
    """Why a pattern is none of a contract, or an empty text."""
    import regex

    try:
        ScrubPattern(entity="ANY", pattern=pattern)
        regex.compile(pattern)
        return ""
    except (ValueError, regex.error) as error:
        text = str(error)
    if "empty text" in text:
        return "it matches the empty text"
    return "it is longer than 1,000 characters" if "too_long" in text else "it is no regular expression of Python"


def _inline(flags: Any, where: str) -> str:
    """Flags of a registry (a number) as letters."""
    if isinstance(flags, bool) or not isinstance(flags, int) or flags & ~sum(_FLAGS):
        raise ContractError(f"{where}: global_regex_flags: {flags!r}; accepted: a sum of Python's flags, such as 26")
    return "".join(letter for flag, letter in _FLAGS.items() if flags & flag)


def _with_flags(pattern: str, flags: str) -> str:
    """A pattern with flags before it; Python accepts them at its very beginning only."""
    own = _FLAGS_BEFORE.match(pattern)
    letters = "".join(sorted({*flags, *(own[1] if own else "")}))
    return f"(?{letters}){pattern[own.end() if own else 0 :]}" if letters else pattern


def _listed(one: Mapping[str, Any], key: str, name: str, where: str) -> list[Any]:
    value = one.get(key) or []
    if not isinstance(value, list):
        raise ContractError(f"{where}: {name}: {key}: no list; accepted: a list")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(f"{where}: {value!r}; accepted: a number from 0 to 1")
    return float(value)
