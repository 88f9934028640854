"""YAML as people write it: one reader with the scalars of YAML 1.2's core schema, within limits.

What belongs here: from a file to mappings, lists, texts, numbers, booleans and nulls, and what is wrong with it, with
its line. What does not: which keys a file may have (`contracts.validated`).

YAML 1.1 reads 01 as 1, 010 as 8, 12:30 as 750, NO as false and 2026-02-30 as an error. Here a plain scalar is a
number, boolean or null only where the core schema says so, and a text otherwise: NO, 12:30 and 2026-01-31 are texts.
Numbers that editions of YAML read differently (01, 0x1F, 0o17) are refused. A number keeps how it was written (`Whole`,
`Real`), so that `text_of` can refuse one that would lose something as a text.

Reading is bounded: the file's size, the depth, and the number of nodes when all aliases are expanded.
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
"""Of a file. A list of 10,000 values of 80 letters takes a tenth of it."""
MOST_DEPTH = 40
"""Levels of mappings and lists. A contract has ten."""
MOST_NODES = 1_000_000
"""Keys, values and collections, those behind an alias as often as it stands there."""
MOST_DIGITS = 300
"""Characters of a number. Longer ones exceed double precision, and from 4,300 on Python refuses them."""

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
# Underscores are YAML 1.1's, in numbers alone: contracts have them, and no text loses anything (`text_of`).
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]*")
_REAL = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]+|0x[0-9a-fA-F_]+|0o[0-7]+|0b[01_]+)")
_BREAKS = re.compile("[\x85\u2028\u2029]")
_HALF = re.compile("[\ud800-\udfff]")


_MERGE = object()


class Whole(int):
    """A whole number whose text is not its usual one, such as +1 or 1_000."""

    written: str


class Real(float):
    """A number with a point or exponent."""

    written: str


class _Fault(Exception):
    """What is wrong, and at which mark of the parser."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, None if mark is None else mark.line + 1


@dataclass
class _Node:
    """What was read, with aliases written out.

    Attributes:
        value: the scalar, mapping or list.
        nodes: how many keys and values it has, with itself.
        height: levels of mappings and lists, with itself; 0 for a scalar.
    """

    value: Any
    nodes: int = 1
    height: int = 0


@dataclass
class _Open(_Node):
    """A collection that is being read.

    Attributes:
        anchor: its name for aliases.
        keys: lines of the keys so far; None for a list.
        key: the key whose value comes next, once it was read.
        merged: mappings whose keys it has as well (`<<`, of YAML 1.1; contracts have them).
    """

    anchor: str | None = None
    keys: dict[Hashable, int] | None = None
    key: list[Any] = field(default_factory=list)
    merged: list[dict[Any, Any]] = field(default_factory=list)


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file.

    Raises:
        ContractError: with the file, the line where there is one, what is wrong and what is accepted.
    """
    document = _parsed(path, str(path))
    if not isinstance(document, dict):
        raise ContractError(f"{path}: accepted is a mapping of keys to values, found {_kind(document)}")
    return document


def parse_value(text: str) -> Any:
    """The value of a YAML text, as in an answer to a question. Raises `ContractError`."""
    return _read(text, "the answer")


def dump(document: Mapping[str, Any]) -> str:
    """YAML that `read_yaml` reads back as the same plain values."""
    return yaml.dump(dict(document), Dumper=_Dumper)


def dump_inline(value: Any) -> str:
    """A value as it stands inside of braces or brackets, on one line; numbers as they were written."""
    if isinstance(value, Whole | Real):
        return value.written
    # As the only item of a list, a value is quoted as it must be inside of braces. Line breaks of Unicode are escaped.
    for unicode in (True, False):
        text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, allow_unicode=unicode, width=float("inf"))
        if not _BREAKS.search(text):
            break
    return text.strip()[1:-1]


def text_of(value: Any) -> str:
    """A declared value as a text: texts as they are, whole numbers in their one usual form.

    Raises:
        ValueError: anything else, which as a text might differ from what was written.
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
    """A value without how it was written, where it is a number."""
    return int(value) if isinstance(value, Whole) else float(value) if isinstance(value, Real) else value


def _parsed(path: Path, where: str) -> Any:
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        # A link that leads nowhere is listed with the others.
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
    except (ValueError, RecursionError, MemoryError) as error:  # of the parser itself, on odd characters
        line, problem = None, f"not valid YAML ({type(error).__name__})"
    raise ContractError(f"{where}{'' if line is None else f', line {line}'}: {problem}")


def _document(text: str) -> Any:
    """The first document's value, None where there is none. Reads events, so that depth costs no stack."""
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
        """A scalar, an alias, or the beginning of a collection."""
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
        """The end of a collection."""
        done = self._open.pop()
        if done.merged:  # keys stand in PyYAML's order, since that of columns is part of a plan; own values win
            own, done.value = done.value, {}
            for part in (*reversed(done.merged), own):
                done.value.update(part)
        if done.anchor is not None:
            self._anchored[done.anchor] = done
        self._put(done, event)

    def _alias(self, event: Any) -> _Node:
        if any(part.anchor == event.anchor for part in self._open):
            raise _Fault(f"the alias *{event.anchor} stands inside of what it names; accepted: none", event.start_mark)
        if event.anchor not in self._anchored:
            raise _Fault(f"the alias *{event.anchor} names nothing before it", event.start_mark)
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
                f"not valid YAML: key {event.value!r} stands twice, first in line {keys[value]}; accepted: once",
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
            f"{text[:MOST_DIGITS]} is read differently by editions of YAML; accepted: '{text[:MOST_DIGITS]}' in quotes "
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
    """What a document or value is, in YAML's words."""
    kinds = ((dict, "a mapping"), (list, "a list"), (str, "a text"), (bool, "a boolean"), (int | float, "a number"))
    return next((words for kind, words in kinds if isinstance(value, kind)), "nothing")


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `read_yaml` would not take for texts; PyYAML's own dumper goes by YAML 1.1."""


for _pattern in (_NULL, _BOOLEAN, _OTHER_BASE, _NOT_FINITE, _WHOLE, _REAL):
    _Dumper.add_implicit_resolver("tag:dpsynth,2026:no-text", re.compile(rf"(?:{_pattern.pattern})\Z"), None)
_Dumper.add_representer(Whole, lambda dumper, value: dumper.represent_int(int(value)))
_Dumper.add_representer(Real, lambda dumper, value: dumper.represent_float(float(value)))
