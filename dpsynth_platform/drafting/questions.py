"""Questions that fill the gaps of a contract's draft.

What belongs here: the questions, their order, and checks of each answer against the contract. What does not: the draft
(`draft`) and the terminal (`cli.contract`). Answers are the user's knowledge: the table is not read.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpsynth_platform.contracts.base import MOST_CAP, key_path
from dpsynth_platform.contracts.columns import LEARNED
from dpsynth_platform.drafting.draft import Document, Drafted, template_notes, template_text, with_family
from dpsynth_platform.drafting.pictures import GAPS, generate_of, picture
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.yaml_files import parse_value

_TEXT, _LIST, _VALUE, _SIZE = "text", "a list, separated by commas", "a value", "height x width"
_KINDS = {
    "description": _TEXT,
    "owners": _LIST,
    "family": _TEXT,
    "privacy.owner_columns": _LIST,
    "privacy.max_contributions": _VALUE,
    "source.key": _LIST,
    "privacy.unit": _TEXT,
    "privacy.namespace": _TEXT,
    "privacy.expected_units": _VALUE,
    "privacy.guarantee.epsilon": _VALUE,
}
"""The kinds of answers for keys outside of columns, in the order of the questions."""
_OF_COLUMNS = ("source.key", "privacy.owner_columns")
"""Keys whose values are names of columns."""
_COLUMN_KINDS = {"type": _TEXT, "min": _VALUE, "max": _VALUE, "values": _LIST, "pii": _TEXT}
_COLUMN_KINDS |= {"size": _SIZE, "channels": _VALUE, "accept_unscrubbed": _TEXT}
_GAPS_OF = {
    "integer": ("min", "max"),
    "float": ("min", "max"),
    "date": ("min", "max"),
    "datetime": ("min", "max"),
    "categorical": ("values",),
    "text": ("pii",),
    "image": GAPS,
}
"""Required keys of a column by its type."""
_KIND_WORDS: dict[str, Document] = {
    "boolean": {"type": "boolean"},
    "time": {"type": "time"},
    "id": {"type": "identifier"},
    "ignore": {"ignore": True},
    LEARNED: {"type": "categorical", "values": LEARNED},
    **{action: {"type": "text", "pii": action} for action in ("drop", "mask", "hash", "replace")},
}
_NUMBERS = ("integer", "float")
_PICTURE = re.compile(r"(\d+)\s*x\s*(\d+)\s*x\s*(\d+)")
_PICTURE_SIZE = re.compile(r"(\d+)\s*[x,]\s*(\d+)")
_OTHERS = "*"

Path = tuple[str, ...]
"""The keys on the way to a value; the name of a column may have dots."""
Ask = Callable[[str], str]
ShowProblem = Callable[[str], None]


class NoAnswer(Exception):
    """The user ends the questions."""


def ask_gaps(settings: Settings, draft: Drafted, ask: Ask, show_problem: ShowProblem) -> Drafted:
    """The draft with gaps filled by answers.

    Args:
        ask: shows a question and returns the answer; an empty one leaves the gap. Raises `NoAnswer` to end.
        show_problem: shows why an answer is not accepted; the question is then repeated.
    """
    try:
        for path, kind in _KINDS.items():
            draft = _ask_gap(settings, draft, tuple(path.split(".")), kind, ask, show_problem)
        for name in draft.contract["privacy"]["owner_columns"] or ():
            draft = _with(settings, draft, ("columns", name), {"type": "identifier"})
        draft, answered = _ask_columns(settings, draft, ask, show_problem)
        for name in draft.contract["columns"]:
            draft = _ask_type(settings, draft, name, ask, show_problem, codes=not answered)
            for key in _GAPS_OF.get(draft.contract["columns"][name].get("type"), ()):
                draft = _ask_gap(settings, draft, ("columns", name, key), _COLUMN_KINDS[key], ask, show_problem)
        draft = _ask_cap(draft, ask, show_problem)
    except NoAnswer:
        pass
    return draft


def _usual(settings: Settings, draft: Drafted, path: str) -> Any:
    """What Enter takes for a gap; None: it stays open."""
    privacy = draft.contract["privacy"]
    owners = privacy["owner_columns"] or []
    usual = {
        "description": f"The rows of {draft.contract['dataset']}.",
        "owners": [settings.user],
        "family": draft.new_family,
        "privacy.max_contributions": 1,
        "privacy.guarantee.epsilon": 1.0,
        "source.key": owners if privacy["max_contributions"] == 1 else None,
    }
    return usual.get(path) or None


def _follows(draft: Drafted, path: str) -> Any:
    """The value of a gap that follows from earlier answers, so that it is not asked for; None: it does not."""
    owners = draft.contract["privacy"]["owner_columns"]
    if draft.family is not None or draft.contract["family"] is None or not owners:
        return None
    name = re.sub(r"[^a-z0-9_-]+", "_", owners[0].lower()).strip("_-")
    names = name[:60] if re.match("[a-z]", name) else "person"
    return {"privacy.unit": "user", "privacy.namespace": names}.get(path)


def _ask_columns(settings: Settings, draft: Drafted, ask: Ask, show_problem: ShowProblem) -> tuple[Drafted, bool]:
    """Asks for all columns at once; also returns whether the answer was not empty."""
    names = [name for name, column in draft.contract["columns"].items() if not column or None in column.values()]
    if not names:
        return draft, False
    shown = ", ".join(f"{name} ({draft.column_comments[name]})" for name in names)
    while answer := ask(f"{template_text('all_columns')}Open: {shown}.\ncolumns (NAME = KIND; ...)").strip():
        try:
            return _with_answer(settings, draft, names, answer), True
        except ContractError as problem:
            show_problem(str(problem))
    return draft, False


def _with_answer(settings: Settings, draft: Drafted, names: list[str], answer: str) -> Drafted:
    """The draft with the columns of an answer. Raises `ContractError` for the first part that is not accepted."""
    known = [*sorted(draft.contract["columns"], key=len, reverse=True), _OTHERS]
    others, named = None, set()
    for part in filter(None, map(str.strip, answer.split(";"))):
        name = next((name for name in known if re.match(rf"{re.escape(name)}\s*=", part)), None)
        if name is None:
            raise ContractError(f"columns: {part!r}; accepted: NAME = KIND, of {', '.join(names)}")
        kind = part[len(name) :].strip().removeprefix("=").strip()
        if name == _OTHERS:
            others = kind
            continue
        named.add(name)
        draft = _accepted(settings, draft, ("columns", name), _declaration(draft, name, kind))
    for name in names if others else ():
        if name not in named:
            draft = _accepted(settings, draft, ("columns", name), _declaration(draft, name, str(others)))
    return draft


def _declaration(draft: Drafted, name: str, text: str) -> Document:
    """A column's declaration by a word, a range or a list of values."""
    kind = text.removesuffix("?").strip()
    missing = {"nullable": True} if text.endswith("?") else {}
    if kind in _KIND_WORDS:
        word = _KIND_WORDS[kind]
        return word if "ignore" in word else word | missing
    if found := _PICTURE.fullmatch(kind):
        height, width, channels = map(int, found.groups())
        return picture() | {"size": [height, width], "channels": channels} | missing
    if ".." in kind:
        ends = [parse_value(end) for end in kind.split("..", 1)]
        drafted = draft.contract["columns"][name]
        if all(isinstance(end, int | float) for end in ends):
            whole = all(isinstance(end, int) for end in ends)
            type_ = drafted["type"] if drafted.get("type") in _NUMBERS else "integer" if whole else "float"
            kept = {key: value for key, value in drafted.items() if key == "decimals"}
        else:
            type_ = "datetime" if all(isinstance(end, dt.datetime) or "T" in str(end) for end in ends) else "date"
            kept = {}
        return {"type": type_, "min": ends[0], "max": ends[1], **kept, **missing}
    if "|" in kind:
        return {"type": "categorical", "values": [value.strip() for value in kind.split("|")], **missing}
    raise ContractError(
        f"columns.{name}: {kind!r}; accepted: {', '.join(_KIND_WORDS)}, LOW..HIGH, HEIGHTxWIDTHxCHANNELS of "
        "pictures, or a list of values as A|B"
    )


def _ask_cap(draft: Drafted, ask: Ask, show_problem: ShowProblem) -> Drafted:
    """Asks for the cap of a new family, once the cost of a release is known."""
    privacy = draft.contract["privacy"]
    epsilon, units = privacy["guarantee"]["epsilon"], privacy["expected_units"]
    if draft.family is not None or draft.contract["family"] is None or None in (epsilon, units):
        return draft
    delta = float(units) ** -1.1
    question = template_text("family_cap").format(family=draft.new_family, epsilon=epsilon, delta=delta)
    while answer := ask(f"{question}\ncap.epsilon (a value)").strip():
        cap = parse_value(answer)
        if isinstance(cap, int | float) and epsilon <= cap <= MOST_CAP:
            # Rounded up to two digits, so that as many releases fit.
            digits = math.floor(math.log10(delta)) - 1
            most = math.ceil(delta / 10**digits) * int(cap / epsilon)
            # At most one divided by the number of owners, which is more than a release costs.
            return replace(draft, cap={"epsilon": float(cap), "delta": min(float(f"{most}e{digits}"), 1 / units)})
        show_problem(f"cap.epsilon: {answer!r}; accepted: a number from {epsilon:g} to {MOST_CAP:g}")
    return draft


def _ask_type(
    settings: Settings, draft: Drafted, name: str, ask: Ask, show_problem: ShowProblem, *, codes: bool
) -> Drafted:
    """Asks for a column's type where necessary, and with `codes` for that of integers, which may be codes or ids."""
    path = ("columns", name, "type")
    if name in (draft.contract["privacy"]["owner_columns"] or ()):
        return _with(settings, draft, ("columns", name), {"type": "identifier"})
    if "ignore" in draft.contract["columns"][name]:
        return draft
    return _ask_gap(
        settings, draft, path, _TEXT, ask, show_problem, again=codes and _at(draft.contract, path) == "integer"
    )


def _ask_gap(
    settings: Settings,
    draft: Drafted,
    path: Path,
    kind: str,
    ask: Ask,
    show_problem: ShowProblem,
    *,
    again: bool = False,
) -> Drafted:
    """Asks about one gap until an answer is accepted or empty.

    Args:
        again: ask also about an existing value, which an empty answer keeps.
    """
    if _at(draft.contract, path) is not None and not again:
        return draft
    shown = key_path(*path)
    if (value := _follows(draft, shown)) is not None:
        return _accepted(settings, draft, path, value)
    usual = _usual(settings, draft, shown)
    while answer := ask(_question(draft, path, kind, usual)).strip():
        try:
            return _accepted(settings, draft, path, _read(answer, kind))
        except ContractError as problem:
            show_problem(str(problem))
    return draft if usual is None else _accepted(settings, draft, path, usual)


def _accepted(settings: Settings, draft: Drafted, path: Path, value: Any) -> Drafted:
    """The draft with an answer. Raises `ContractError` if the answer is invalid."""
    names = draft.contract["columns"]
    shown = key_path(*path)
    unknown = [name for name in value if name not in names] if shown in _OF_COLUMNS else []
    known_names = ", ".join(name for name in names if name)  # an index without a name can only be ignored
    problems = [f"{shown}: there is no column {name!r}; accepted: {known_names}" for name in unknown]
    if not problems:
        # A column of lists may contain owners' ids.
        for name in value if shown == "privacy.owner_columns" else ():
            if "ignore" in names[name]:
                draft = _with(settings, draft, ("columns", name), {"type": "identifier"})
        tried = _with(settings, draft, path, value)
        whole = key_path(*path[:2]) if path[0] == "columns" else shown
        # Another column's gap may begin with the same characters; it was there before.
        known = set(draft.gaps(settings.variables))
        faults = [fault for fault in tried.gaps(settings.variables) if fault not in known]
        problems = [fault for fault in faults if fault.startswith((f"{shown}:", f"{shown}.", f"{whole}:"))]
        if not problems:
            return tried
    raise ContractError("\n".join(problems))


def _question(draft: Drafted, path: Path, kind: str, usual: Any = None) -> str:
    """The key's note, the columns to choose from, and the form of an answer."""
    shown = key_path(*path)
    if path[0] == "columns":
        value = _at(draft.contract, path)
        kept = f"; Enter keeps {value}" if value else ""
        note = template_notes("picture_keys").get(path[2])
        before, form = (f"{note}\n", kind) if note else ("", draft.column_comments[path[1]])
        return f"{before}{shown} ({form}{kept})"
    notes = draft.notes()
    note = notes.get(shown) or notes.get(shown.rpartition(".")[0], "")
    columns = f" Columns: {', '.join(filter(None, draft.contract['columns']))}." if shown in _OF_COLUMNS else ""
    taken = ", ".join(map(str, usual)) if isinstance(usual, list) else usual
    enter = "" if usual is None else f"; Enter takes {taken}"
    return f"{note}{columns}\n{shown} ({kind}{enter})"


def _read(answer: str, kind: str) -> Any:
    """Parses an answer. A list may also be in YAML's brackets."""
    if kind == _TEXT or answer == LEARNED:
        return answer
    if kind == _LIST and not answer.startswith("["):
        return [part.strip() for part in answer.split(",")]
    if kind == _SIZE and (found := _PICTURE_SIZE.fullmatch(answer)):
        return [int(side) for side in found.groups()]
    return parse_value(answer)


def _at(document: Document, path: Path) -> Any:
    value: Any = document
    for key in path:
        value = value.get(key)
    return value


def _with(settings: Settings, draft: Drafted, path: Path, value: Any) -> Drafted:
    """The draft with a value at a path, and its consequences: a family's terms, the gaps of a column's type."""
    if path == ("family",):
        return with_family(settings, draft, value)
    if path[0] == "columns" and path[2:] == ("type",):
        path, value = path[:-1], {"type": value, **dict.fromkeys(_GAPS_OF.get(value, ()))}
    contract = _replaced(draft.contract, path, value)
    return replace(draft, contract=contract | {"generate": generate_of(contract["columns"])})


def _replaced(document: Document, path: Path, value: Any) -> Document:
    first, *rest = path
    return document | {first: _replaced(document[first], tuple(rest), value) if rest else value}
