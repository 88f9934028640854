"""Questions that fill the gaps of a contract's draft.

What belongs here: what is asked, in which order, and holding each answer against what a contract accepts. What does
not: the draft (`drafting`) and the terminal (`contract_command`). An answer is somebody's knowledge: the table is not
asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpsynth_platform.contracts.columns import LEARNED
from dpsynth_platform.drafting.draft import Document, Drafted, of_family
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.yaml_files import parse_value

_TEXTS, _LIST, _VALUE = "a text", "a list, with commas between", "a value"
_KINDS = {
    "description": _TEXTS,
    "owners": _LIST,
    "family": _TEXTS,
    "source.key": _LIST,
    "privacy.unit": _TEXTS,
    "privacy.owner_columns": _LIST,
    "privacy.namespace": _TEXTS,
    "privacy.max_contributions": _VALUE,
    "privacy.guarantee.epsilon": _VALUE,
    "privacy.expected_units": _VALUE,
}
"""What is asked for, in this order, before columns are; and as what an answer is read."""
_OF_COLUMNS = ("source.key", "privacy.owner_columns")
"""Keys whose values are names of columns."""
_COLUMN_KINDS = {"type": _TEXTS, "min": _VALUE, "max": _VALUE, "values": _LIST, "pii": _TEXTS}
_GAPS_OF = {
    "integer": ("min", "max"),
    "float": ("min", "max"),
    "date": ("min", "max"),
    "datetime": ("min", "max"),
    "categorical": ("values",),
    "text": ("pii",),
}
"""Keys of a column that must not be guessed, by its type."""

Ask = Callable[[str], str]
Say = Callable[[str], None]


class NoAnswer(Exception):
    """Whoever is asked does not want to be asked further."""


def asked(settings: Settings, draft: Drafted, ask: Ask, say: Say) -> Drafted:
    """The draft with the gaps filled that somebody has an answer for.

    Args:
        settings: the deployment.
        draft: with gaps.
        ask: shows a question and returns the answer; an empty one leaves the gap. Raises `NoAnswer` to end it all.
        say: is told why an answer cannot be accepted; the question comes again.
    """
    try:
        for path, kind in _KINDS.items():
            draft = _answered(settings, draft, path, kind, ask, say)
        for name in draft.contract["columns"]:
            draft = _typed(settings, draft, name, ask, say)
            for key in _GAPS_OF.get(draft.contract["columns"][name].get("type"), ()):
                draft = _answered(settings, draft, f"columns.{name}.{key}", _COLUMN_KINDS[key], ask, say)
    except NoAnswer:
        pass
    return draft


def _typed(settings: Settings, draft: Drafted, name: str, ask: Ask, say: Say) -> Drafted:
    """The draft with a column's type, where it must be asked for. Whole numbers may be codes or ids as well."""
    path = f"columns.{name}.type"
    if name in (draft.contract["privacy"]["owner_columns"] or ()):
        return _with(settings, draft, f"columns.{name}", {"type": "identifier"})
    if "ignore" in draft.contract["columns"][name]:
        return draft
    return _answered(settings, draft, path, _TEXTS, ask, say, again=_at(draft.contract, path) == "integer")


def _answered(
    settings: Settings, draft: Drafted, path: str, kind: str, ask: Ask, say: Say, *, again: bool = False
) -> Drafted:
    """The draft with an answer to one gap; asks until there is one that can be accepted, or none.

    Args:
        again: ask also where something stands, which an empty answer leaves.
    """
    if _at(draft.contract, path) is not None and not again:
        return draft
    while answer := ask(_question(draft, path, kind)).strip():
        try:
            return _accepted(settings, draft, path, _read(answer, kind))
        except ContractError as problem:
            say(str(problem))
    return draft


def _accepted(settings: Settings, draft: Drafted, path: str, value: Any) -> Drafted:
    """The draft with an answer. Raises `ContractError` where a contract does not accept it."""
    names = draft.contract["columns"]
    strangers = [name for name in value if name not in names] if path in _OF_COLUMNS else []
    problems = [f"{path}: {name!r} is no column; accepted: {', '.join(names)}" for name in strangers]
    if not problems:
        # A column of lists may be of owners' ids.
        for name in value if path == "privacy.owner_columns" else ():
            if "ignore" in names[name]:
                draft = _with(settings, draft, f"columns.{name}", {"type": "identifier"})
        tried = _with(settings, draft, path, value)
        whole = path.rpartition(".")[0] if path.startswith("columns.") else path
        faults = tried.gaps(settings.variables)
        problems = [fault for fault in faults if fault.startswith((f"{path}:", f"{path}.", f"{whole}:"))]
        if not problems:
            return tried
    raise ContractError("\n".join(problems))


def _question(draft: Drafted, path: str, kind: str) -> str:
    """What is asked: the note that the file has on it, the columns to choose from, and what an answer looks like."""
    if path.startswith("columns."):
        standing = _at(draft.contract, path)
        kept = f"; {standing} without an answer" if standing else ""
        return f"{path} ({draft.beside[path.split('.')[1]]}{kept})"
    notes = draft.notes()
    note = notes.get(path) or notes.get(path.rpartition(".")[0], "")
    columns = f" Columns: {', '.join(draft.contract['columns'])}." if path in _OF_COLUMNS else ""
    return f"{note}{columns}\n{path} ({kind})"


def _read(answer: str, kind: str) -> Any:
    """An answer's value. A list may also be YAML's, in brackets."""
    if kind == _TEXTS or answer == LEARNED:
        return answer
    if kind == _LIST and not answer.startswith("["):
        return [part.strip() for part in answer.split(",")]
    return parse_value(answer)


def _at(document: Document, path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key)
    return value


def _with(settings: Settings, draft: Drafted, path: str, value: Any) -> Drafted:
    """The draft with another value at a path, and with what follows: a family's terms, the gaps of a column's type."""
    if path == "family":
        return of_family(settings, draft, value)
    keys = path.split(".")
    if path.startswith("columns.") and keys[-1] == "type":
        keys, value = keys[:-1], {"type": value, **dict.fromkeys(_GAPS_OF.get(value, ()))}
    return Drafted(_replaced(draft.contract, keys, value), draft.family, draft.beside, draft.known)


def _replaced(document: Document, path: list[str], value: Any) -> Document:
    first, *rest = path
    return document | {first: _replaced(document[first], rest, value) if rest else value}
