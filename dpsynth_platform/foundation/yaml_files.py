"""A YAML reader with the scalars of YAML 1.2's core schema, within limits.

What belongs here: reading a file into plain values, and its faults with their lines. What does not: which keys a file
may have (`contracts.validation`).

YAML 1.1 reads 01 as 1, 010 as 8, 12:30 as 750, NO as false and 2026-02-30 as an error. Here a plain scalar is a
number, boolean or null by the core schema only, and otherwise a text: NO, 12:30 and 2026-01-31 are texts. Numbers that
versions of YAML read differently (01, 0x1F, 0o17) are refused. A number keeps its spelling (`Whole`, `Real`), so that
`text_of` can refuse one that is not canonical.

Limits apply to the file's size, the depth, and the number of nodes after expanding aliases.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dpsynth_platform.foundation.errors import ContractError, file_problem
from dpsynth_platform.foundation.regular_files import read_regular

MOST_BYTES = 2**23
"""Of a file; a list of 10,000 values of 80 letters takes a tenth."""
MOST_DEPTH = 40
"""Levels of mappings and lists; a contract has ten."""
MOST_NODES = 1_000_000
"""Keys, values and collections, with all aliases expanded."""
MOST_DIGITS = 300
"""Characters of a number; longer ones exceed double precision."""

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
# Underscores in numbers are from YAML 1.1: contracts have them, and `text_of` refuses them as texts.
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]*")
_REAL = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]+|0x[0-9a-fA-F_]+|0o[0-7]+|0b[01_]+)")
_BREAKS = re.compile("[\x85\u2028\u2029]")
_HALF = re.compile("[\ud800-\udfff]")


_MERGE = object()


class Whole(int):
    """A whole number in a non-canonical spelling, such as +1 or 1_000."""

    written: str


class Real(float):
    """A number with a point or exponent."""

    written: str


class _Fault(Exception):
    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, None if mark is None else mark.line + 1


@dataclass
class _Node:
    """A value with expanded aliases; `nodes` and `height` include the node itself, and a scalar has height 0."""

    value: Any
    nodes: int = 1
    height: int = 0


@dataclass
class _Open(_Node):
    """A collection that is being read.

    Attributes:
        anchor: its name for aliases.
        keys: lines of the keys so far; None for a list.
        key: the key whose value comes next.
        merged: mappings under `<<` (YAML 1.1; contracts have them).
    """

    anchor: str | None = None
    keys: dict[Hashable, int] | None = None
    key: list[Any] = field(default_factory=list)
    merged: list[dict[Any, Any]] = field(default_factory=list)


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file.

    Raises:
        ContractError: with the file, the line, what is wrong and what is accepted.
    """
    document = _parsed(path, str(path))
    if not isinstance(document, dict):
        raise ContractError(f"{path}: {_kind(document)}; accepted: a mapping of keys to values")
    return document


def parse_value(text: str) -> Any:
    """The value of a YAML text, such as the answer to a question. Raises `ContractError`."""
    return _read(text, "the answer")


def dump(document: Mapping[str, Any]) -> str:
    """YAML that `read_yaml` reads back as the same plain values."""
    return yaml.dump(dict(document), Dumper=_Dumper)


def dump_inline(value: Any) -> str:
    """A value on one line, as inside of braces or brackets; numbers in their spelling."""
    if isinstance(value, Whole | Real):
        return value.written
    # A list's only item is quoted like a value inside of braces. Line breaks of Unicode need escapes.
    for unicode in (True, False):
        text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, allow_unicode=unicode, width=float("inf"))
        if not _BREAKS.search(text):
            break
    return text.strip()[1:-1]


def text_of(value: Any) -> str:
    """A declared value as a text: texts, and whole numbers in canonical form.

    Raises:
        ValueError: another value, whose text might differ from its spelling.
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        shown = "null" if value is None else str(value).lower()
        raise ValueError(f"{shown} without quotes is no text; accepted: quote it, in the spelling of the data")
    if isinstance(value, int) and not isinstance(value, Whole):
        return str(value)
    if isinstance(value, int | float):
        written = getattr(value, "written", repr(value))
        raise ValueError(f"{written} without quotes is a number, not a text; accepted: quote it: '{written}'")
    raise ValueError(f"{_kind(value)}; accepted: texts or whole numbers")


def plain_number(value: Any) -> Any:
    """A number without its spelling; other values unchanged."""
    return int(value) if isinstance(value, Whole) else float(value) if isinstance(value, Real) else value


def _parsed(path: Path, where: str) -> Any:
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        problem = "a link to a file that does not exist" if path.is_symlink() else "no such file"
    except UnicodeDecodeError:
        problem = "cannot be read as UTF-8 text; accepted: a text file in UTF-8"
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {file_problem(error)}"
    else:
        return _read(text, where)
    raise ContractError(f"{where}: {problem}")


def _read(text: str, where: str) -> Any:
    try:
        return _document(text)
    except _Fault as fault:
        line, problem = fault.line, fault.problem
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, problem = (
            mark.line + 1 if mark else None,
            f"not valid YAML: {getattr(error, 'problem', None) or 'syntax'}",
        )
        if problem.endswith("cannot start any token"):
            problem += "; accepted: spaces instead of tabs, and quotes around a value that begins with @, ` or %"
    except (ValueError, RecursionError, MemoryError) as error:  # of the parser, on odd characters
        line, problem = None, f"not valid YAML ({type(error).__name__})"
    raise ContractError(f"{where}{'' if line is None else f', line {line}'}: {problem}")


def _document(text: str) -> Any:
    """The only document's value, or None. Reads events, so that depth costs no stack."""
    reader = _Reader()
    documents = 0
    for event in yaml.parse(text, Loader=_PARSER):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _Fault("a second document; accepted: one", event.start_mark)
        elif isinstance(event, yaml.NodeEvent):
            reader.take(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            reader.close(event)
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: Any = None
        self._open: list[_Open] = []
        self._anchored: dict[str, _Node] = {}
        self._nodes = 0

    def take(self, event: Any) -> None:
        """Reads a scalar, an alias, or the start of a collection."""
        if isinstance(event, yaml.AliasEvent):
            self._add(self._alias(event), event)
            return
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise _Fault(f"the tag {tag!r}; accepted: none (quote what is a text)", event.start_mark)
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(_scalar(event))
            if event.anchor is not None:
                self._anchored[event.anchor] = node
            self._add(node, event)
            return
        self._check(_Node(None, height=1), event)
        mapping = isinstance(event, yaml.MappingStartEvent)
        made: Any = {} if mapping else []
        self._open.append(_Open(made, height=1, anchor=event.anchor, keys={} if mapping else None))

    def close(self, event: Any) -> None:
        """Reads the end of a collection."""
        done = self._open.pop()
        if done.merged:  # PyYAML's order of keys, since plans hold that of columns; own values win
            own, done.value = done.value, {}
            for part in (*reversed(done.merged), own):
                done.value.update(part)
        if done.anchor is not None:
            self._anchored[done.anchor] = done
        self._put(done, event)

    def _alias(self, event: Any) -> _Node:
        if any(part.anchor == event.anchor for part in self._open):
            raise _Fault(f"the alias *{event.anchor} is inside of its own anchor; accepted: none", event.start_mark)
        if event.anchor not in self._anchored:
            raise _Fault(f"the alias *{event.anchor} has no anchor before it", event.start_mark)
        return self._anchored[event.anchor]

    def _check(self, node: _Node, event: Any) -> None:
        self._nodes += node.nodes
        if self._nodes > MOST_NODES:
            raise _Fault(
                f"more than {MOST_NODES:,} keys and values, with aliases written out; accepted: fewer", event.start_mark
            )
        if len(self._open) + node.height > MOST_DEPTH:
            raise _Fault(f"more than {MOST_DEPTH} levels deep; accepted: fewer", event.start_mark)

    def _add(self, node: _Node, event: Any) -> None:
        self._check(node, event)
        self._put(node, event)

    def _put(self, node: _Node, event: Any) -> None:
        value = node.value
        if not self._open:
            self.found = value
            return
        into = self._open[-1]
        into.nodes += node.nodes
        into.height = max(into.height, node.height + 1)
        if into.keys is None:
            into.value.append(value)
        elif into.key:
            key = into.key.pop()
            if key is _MERGE:
                into.merged += self._merged(value, event)
            else:
                into.value[key] = value
        else:
            merging = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key = _MERGE if merging else value
            self._check_key(into.keys, key, event)
            into.key.append(key)

    @staticmethod
    def _merged(value: Any, event: Any) -> list[dict[Any, Any]]:
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise _Fault("a merge (<<) of something else; accepted: mappings", event.start_mark)
        return parts

    @staticmethod
    def _check_key(keys: dict[Hashable, int], value: Any, event: Any) -> None:
        if isinstance(value, dict | list):
            raise _Fault(f"{_kind(value)} as a key; accepted: a text", event.start_mark)
        line = event.start_mark.line + 1
        if value in keys:
            raise _Fault(
                f"not valid YAML: duplicate key {event.value!r}, first in line {keys[value]}; accepted: once",
                event.start_mark,
            )
        keys[value] = line


def _scalar(event: Any) -> Any:
    text: str = event.value
    if _HALF.search(text):
        raise _Fault("half of a character (\\uD800 to \\uDFFF); accepted: whole ones", event.start_mark)
    if not event.implicit[0]:  # quoted, or a block
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOLEAN.fullmatch(text):
        return text.lower() == "true"
    if _OTHER_BASE.fullmatch(text):
        raise _Fault(
            f"{text[:MOST_DIGITS]} is read differently by versions of YAML; accepted: '{text[:MOST_DIGITS]}' in quotes "
            "for a text, or a decimal number without zeros before it",
            event.start_mark,
        )
    if _NOT_FINITE.fullmatch(text):
        raise _Fault(f"{text} is no finite number; accepted: a number, or quotes for a text", event.start_mark)
    whole = _WHOLE.fullmatch(text) is not None
    return _number(text, whole, event) if whole or _REAL.fullmatch(text) else text


def _number(text: str, whole: bool, event: Any) -> int | float:
    if len(text) > MOST_DIGITS:
        raise _Fault(
            f"a number of {len(text):,} characters; accepted: up to {MOST_DIGITS}, or quotes for a text",
            event.start_mark,
        )
    digits = text.replace("_", "")
    found: Whole | Real
    if whole:
        if str(int(digits)) == text:
            return int(digits)
        found = Whole(digits)
    else:
        found = Real(digits)
        if not math.isfinite(found):
            raise _Fault(f"{text} is no finite number; accepted: a smaller one, or quotes for a text", event.start_mark)
    found.written = text
    return found


def _kind(value: Any) -> str:
    kinds = ((dict, "a mapping"), (list, "a list"), (str, "a text"), (bool, "a boolean"), (int | float, "a number"))
    return next((words for kind, words in kinds if isinstance(value, kind)), "nothing")


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `read_yaml` would not read as texts; PyYAML's dumper follows YAML 1.1."""


for _pattern in (_NULL, _BOOLEAN, _OTHER_BASE, _NOT_FINITE, _WHOLE, _REAL):
    _Dumper.add_implicit_resolver("tag:dpsynth,2026:no-text", re.compile(rf"(?:{_pattern.pattern})\Z"), None)
_Dumper.add_representer(Whole, lambda dumper, value: dumper.represent_int(int(value)))
_Dumper.add_representer(Real, lambda dumper, value: dumper.represent_float(float(value)))
