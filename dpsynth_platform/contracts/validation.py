"""Validation errors of declared files, one a line: the key's path, the value and what is accepted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dpsynth_platform.contracts.base import IN_WORDS, NOT_FILLED_IN, key_path, shown_value
from dpsynth_platform.contracts.columns import COLUMN_TAGS
from dpsynth_platform.contracts.source import FORMAT_HINTS
from dpsynth_platform.contracts.uris import may_be_secret
from dpsynth_platform.foundation.errors import ContractDraft, ContractError
from dpsynth_platform.foundation.figures import number_of

_Model = TypeVar("_Model", bound=BaseModel)
_DIALECT = {
    **dict.fromkeys(("delimiter", "sep", "separator", "field_delimiter"), "separator"),
    **dict.fromkeys(("encoding", "charset"), "encoding"),
    **dict.fromkeys(("quote", "quotechar", "quote_char"), "quote"),
    **dict.fromkeys(("decimal", "decimal_point", "decimal_mark"), "decimal"),
    **dict.fromkeys(("skip_blanks", "skipinitialspace", "trim"), "skip_blanks"),
}
_PLACES = {
    **dict.fromkeys(("path", "url", "file", "location", "connection", "dsn"), "uri"),
    **dict.fromkeys(("type", "kind", "file_format"), "format"),
    **dict.fromkeys(("sql", "statement", "select"), "query"),
    **dict.fromkeys(("table_name", "view"), "table"),
    **dict.fromkeys(("primary_key", "id", "keys"), "key"),
}
_LIMITS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "a valid integer": "a whole number",
    "a valid ": "a ",
}
"""Of pydantic's messages, in this order."""
_SYNONYMS: dict[tuple[str, ...], str] = {
    **{("source", word): f"csv.{meant}" for word, meant in _DIALECT.items()},
    **{("source", "csv", word): meant for word, meant in _DIALECT.items() if word != meant},
    **{("source", word): meant for word, meant in _PLACES.items()},
}
"""Keys of other tools, at the place where they are written, and the key here, from the same part."""


def validated(model: type[_Model], document: Any, where: str) -> _Model:
    """Parses a file's content. Raises `ContractError` with one line for each fault, which names its key."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        _, problems, lines = without_unknown_keys(model, document, error.errors())
    lines += [line for problem in problems for line in explain(model, problem)]
    raise refused(where, lines)


def refused(where: str, faults: Sequence[str]) -> ContractError:
    """The error of a file with faults, one a line; where keys are not filled in, it is a draft."""
    lines = "\n".join(f"{where}: {fault}" for fault in faults)
    empty = any(fault.partition(": ")[2].startswith(NOT_FILLED_IN) for fault in faults)
    return ContractDraft(lines) if empty else ContractError(lines)


def without_unknown_keys(
    model: type[BaseModel], document: Any, problems: Sequence[Any]
) -> tuple[Any, Sequence[Any], list[str]]:
    """Renames each unknown key of an invalid document to the missing key that it resembles, or removes it.

    A mistyped key is then one fault, not also a missing key, and hides no other fault of its part.

    Returns:
        The document without unknown keys, its remaining problems, and a fault for each unknown key.
    """
    document, faults = _copied(document), []
    while found := [fault for problem in problems for fault in _removed(model, document, problem)]:
        faults += found
        try:
            model.model_validate(document)
            return document, (), faults
        except ValidationError as error:
            problems = error.errors()
    return document, problems, faults


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _removed(model: type[BaseModel], document: Any, problem: Any) -> list[str]:
    """Removes or renames the unknown key of a problem in the document; returns its fault, or nothing if it has none."""
    location, tag = _location(problem)
    if problem["type"] == "union_tag_not_found" and isinstance(problem["input"], dict):  # a column without a type
        near = difflib.get_close_matches("type", [str(key) for key in problem["input"]], n=1)
    else:
        near = [location.pop()] if problem["type"] == "extra_forbidden" else []
    if not near:
        return []
    outer, key = location, near[0]
    part = document
    for name in outer:
        if isinstance(part, list):
            part = part[int(name)] if name.isdecimal() else {}
        else:
            part = part.get(name, {}) if isinstance(part, dict) else {}
    accepted = _accepted_keys(model, outer, tag)
    if key not in part or key in accepted:
        return []
    value = part.pop(key)
    free = [name for name in accepted if name not in part]
    for meant in [name for name in [_SYNONYMS.get((*outer, key))] if name in free] or difflib.get_close_matches(
        key, free, n=1
    ):
        part[meant] = value
    comma = "; a text with a comma inside of { } needs quotes" if value is None and " " in key else ""
    return [unknown_key(outer, key, accepted) + comma]


def unknown_key(outer: Sequence[str], key: str, accepted: Sequence[str]) -> str:
    """The fault of an unknown key of the part at a path."""
    synonym = _SYNONYMS.get((*outer, key))
    meant = f" (did you mean {'.'.join([*outer, synonym])}?)" if synonym else _meant(key, accepted)
    shown = "(a key that may hold credentials, not shown)" if may_be_secret(key) else key
    return f"{key_path(*outer, shown)}: unknown key{meant}; accepted: {', '.join(accepted)}"


def _location(problem: Any) -> tuple[list[str], str | None]:
    """The keys on the way to a problem, and the declared type of the column that they pass, if any.

    pydantic puts a column's type after its name, and a mark after a wrong name; neither is a key of the file. A column
    may be named like a type.
    """
    location = [str(part) for part in problem["loc"]]
    if location[-1:] == ["[key]"]:  # of a mapping, as pydantic marks it; the key itself stands before
        location.pop()
    # Of columns, or tables.TABLE.columns.
    at = 2 if location[:1] == ["columns"] else 4 if location[:1] + location[2:3] == ["tables", "columns"] else None
    typed = at is not None and len(location) > at and location[at] in (*COLUMN_TAGS, "ignored")
    return location, location.pop(at) if at is not None and typed else None


def explain(model: type[BaseModel], problem: Any) -> list[str]:
    """Faults as `key.path: value; what is accepted`. Contracts are public, so the value may be shown."""
    location, tag = _location(problem)
    path = key_path(*location)
    kind, context, value = problem["type"], problem.get("ctx", {}), problem.get("input")
    if kind == "value_error":
        return [_below(path, line) for line in str(context["error"]).split("\n")]
    return [_explained(model, location, tag, kind, context, value, problem["msg"])]


def _below(path: str, text: str) -> str:
    """Joins the path of a part with a fault of its own check, which may start with a key ("guarantee.epsilon: ...")."""
    names_a_key = re.match(r"[a-z_][a-z0-9_.]*:", text) is not None
    separator = "." if path and names_a_key else ": " if path else ""
    return f"{path}{separator}{text}"


def _explained(
    model: type[BaseModel],
    location: list[str],
    tag: str | None,
    kind: str,
    context: Mapping[str, Any],
    value: Any,
    message: str,
) -> str:
    path = key_path(*location)
    if kind == "extra_forbidden":
        return unknown_key(location[:-1], location[-1], _accepted_keys(model, location[:-1], tag))
    if kind == "literal_error" and location == ["source", "format"] and str(value).lower() in FORMAT_HINTS:
        return f"{path}: {value!r}; accepted: {context['expected']}; {FORMAT_HINTS[str(value).lower()]}"
    if kind == "missing":
        return f"{path}: missing; it is required"
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return f"{path}: {shown_value(value)}; accepted: {IN_WORDS.get(pattern, f'text that matches {pattern}')}"
    if kind.endswith(("too_short", "too_long")):
        thing = "character" if kind.startswith("string") else "item"
        few = "at least" if kind.endswith("short") else "at most"
        number = context["min_length" if kind.endswith("short") else "max_length"]
        return f"{path}: {shown_value(value)}; accepted: {few} {number_of(number, thing)}"
    if kind == "string_type" and path.endswith("time_limit"):
        return f"{path}: {value!r}; accepted: whole seconds, minutes or hours, such as 90s, 2m or 1h"
    if kind == "string_type" and isinstance(value, int | float):
        written = str(value).lower() if isinstance(value, bool) else getattr(value, "written", value)
        return f"{path}: {written} without quotes is no text; accepted: a text, so quote it: '{written}'"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        shown = value.get("type") if isinstance(value, dict) else value
        return f"{path}.type: {shown_value(shown)}; accepted: {', '.join(COLUMN_TAGS)}; or ignore: true"
    if kind == "model_type":
        accepted = ", ".join(_accepted_keys(model, location, tag))
        return f"{path}: {shown_value(value)}; accepted: keys below it, of {accepted}"
    return f"{path}: {shown_value(value)}; {_accepted(message)}"


def _accepted(message: str) -> str:
    """What pydantic accepts, in the words of all other faults."""
    for theirs, ours in _LIMITS.items():
        message = message.replace(theirs, ours)
    wanted = message.removeprefix("Input should be ")
    return f"accepted: {wanted}" if wanted != message else f"{message[:1].lower()}{message[1:]}"


def _meant(word: str, accepted: Sequence[str]) -> str:
    """A hint at the most similar accepted word, if one is similar."""
    near = difflib.get_close_matches(word, accepted, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _accepted_keys(model: type[BaseModel], location: Sequence[str], tag: str | None) -> list[str]:
    """The keys of the part at a path; for a column, those of its type `tag`, or of all types if it has none."""
    kinds: list[Any] = [model]
    for name in location:
        kinds = [kind for outer in kinds for inner in _inside(outer, name) for kind in _alternatives(inner)]
    parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    typed = [
        part for part in parts if "type" in part.model_fields and tag in get_args(part.model_fields["type"].annotation)
    ]
    return sorted({key for part in typed or parts for key in part.model_fields})


def _inside(kind: Any, name: str) -> tuple[Any, ...]:
    """The type of the value under a key of a part or mapping, or of a list's items."""
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1:]
    field = kind.model_fields.get(name) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return () if field is None else (field.annotation,)


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a declaration accepts, without annotations."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind
