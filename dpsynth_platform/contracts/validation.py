"""Validation errors of declared files as one sentence a line: the key's path, the value and what is accepted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dpsynth_platform.contracts.base import shown_value
from dpsynth_platform.contracts.columns import COLUMN_TAGS
from dpsynth_platform.foundation.errors import ContractError

_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], document: Any, where: str) -> _Model:
    """A model of a file's content. Raises `ContractError` with one line for each fault, which names its key."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        lines = [line for problem in error.errors() for line in explain(model, problem)]
    raise ContractError("\n".join(f"{where}: {line}" for line in lines))


def explain(model: type[BaseModel], problem: Any) -> list[str]:
    """Faults as `key.path: value; what is accepted`. Contracts are public, so the value may be shown."""
    # Below a column's name stands its type, which is no key; a column may be named like one.
    location = [
        str(part) for place, part in enumerate(problem["loc"]) if place != 2 or part not in (*COLUMN_TAGS, "ignored")
    ]
    path = ".".join(location)
    kind, context, value = problem["type"], problem.get("ctx", {}), problem.get("input")
    if kind == "value_error":
        return [_below(path, line) for line in str(context["error"]).split("\n")]
    return [_explained(model, location, kind, context, value, problem["msg"])]


def _below(path: str, text: str) -> str:
    """What a model's own check says; it names the key below its path first ("guarantee.epsilon: ..."), or nothing."""
    names_a_key = re.match(r"[a-z_.]+:", text) is not None
    separator = "." if path and names_a_key else ": " if path else ""
    return f"{path}{separator}{text}"


def _explained(
    model: type[BaseModel], location: list[str], kind: str, context: Mapping[str, Any], value: Any, message: str
) -> str:
    """One of pydantic's own faults."""
    path = ".".join(location)
    if kind == "extra_forbidden":
        accepted = _accepted_keys(model, location[:-1])
        return f"{path}: unknown key{_meant(location[-1], accepted)}; accepted: {', '.join(accepted)}"
    if kind == "missing":
        return f"{path}: missing; it is required"
    if kind == "string_pattern_mismatch" and path.endswith("record_order"):
        return f"{path}: {value!r}; accepted: random, fewest-owners-first, weight:COLUMN"
    if kind in ("string_pattern_mismatch", "string_type") and path.endswith("time_limit"):
        return f"{path}: {value!r}; accepted: whole seconds, minutes or hours, such as 90s, 2m or 1h"
    if kind == "string_pattern_mismatch":
        return f"{path}: {value!r}; accepted: text that matches {context['pattern']}"
    if kind == "string_type" and isinstance(value, int | float):
        written = str(value).lower() if isinstance(value, bool) else getattr(value, "written", value)
        return f"{path}: {written} without quotes is no text; accepted: a text, so quote it: '{written}'"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        shown = value.get("type") if isinstance(value, dict) else value
        return f"{path}.type: {shown_value(shown)}; accepted: {', '.join(COLUMN_TAGS)}; or ignore: true"
    if kind == "model_type":
        return f"{path}: {shown_value(value)}; accepted: keys below it, of {', '.join(_accepted_keys(model, location))}"
    return f"{path}: {shown_value(value)}; {message[0].lower()}{message[1:]}"


def _meant(word: str, accepted: Sequence[str]) -> str:
    """A hint at the accepted word that is nearest, if one is near."""
    near = difflib.get_close_matches(word, accepted, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _accepted_keys(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys of the part that a path leads to; every column type's keys together for a column."""
    kinds: list[Any] = [model]
    for name in location:
        kinds = [kind for outer in kinds for inner in _inside(outer, name) for kind in _alternatives(inner)]
    parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return sorted({key for part in parts for key in part.model_fields})


def _inside(kind: Any, name: str) -> tuple[Any, ...]:
    """The type of what stands under a key of a part or mapping, or at a place in a list."""
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1:]
    field = kind.model_fields.get(name) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return () if field is None else (field.annotation,)


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a declaration accepts, without what it says about them."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind
