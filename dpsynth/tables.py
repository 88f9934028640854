"""Synthetic tables that join, of several frames.

What belongs here: the result, and the arguments of `dpsynth.synthesize` for several tables. What does not: the steps
(`dpsynth_platform.linked_tables`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from dpsynth import frames
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.linked_tables import SyntheticTables, TablesOptions, synthesize_tables
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.database_files import plain_name

OWNER = "owner"
"""The option beside `keys`: the root's column that names the owner of a row."""


@dataclass(frozen=True)
class Tables:
    """Synthetic tables that join, and their guarantee.

    Attributes:
        directory: has the tables, their statement, and below `restricted` the models, keys and ledger.
        synthesis: paths, rows, guarantee, and the ledger entry that paid.
    """

    directory: Path
    synthesis: SyntheticTables
    _kinds: Mapping[str, frames.Kind] = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """What the result promises to one owner of rows; its text is one sentence."""
        return self.synthesis.guarantee

    def statement(self) -> str:
        """The privacy statement: whom it protects, what it covers and what not. In Markdown."""
        return self.synthesis.statement.read_text(encoding="utf-8")

    @cached_property
    def data(self) -> dict[str, Any]:
        """The tables by name: frames like the given ones."""
        import pyarrow.parquet as pq

        found = {}
        for name, kind in self._kinds.items():
            path = self.synthesis.synthetic / f"{name}.parquet"
            if not path.is_file():
                raise ConfigurationError(f'{path}: no frame is made of this format; accepted: format="parquet"')
            found[name] = kind.frame(pq.read_table(path))
        return found


def synthesize_frames(
    data: Mapping[str, Any],
    out: Path,
    keys: Mapping[str, Mapping[str, Any]] | None,
    columns: Mapping[str, Mapping[str, Any]] | None,
    report: Progress,
    options: Mapping[str, Any],
) -> Tables:
    """Synthetic tables of several frames; see `dpsynth.synthesize`."""
    for name in data:
        if name != plain_name(name):
            raise ContractError(
                f"data: a table is named {name!r}; accepted: letters, digits and single signs _, such as "
                f"{plain_name(name)!r}"
            )
    read = {name: frames.read(each) for name, each in data.items()}
    declared = {name: dict(each) for name, each in _mappings("keys", keys, '{"key": ["id"]}')}
    for name, each in _mappings("columns", columns, '{"age": {"type": "integer", "min": 0, "max": 110}}'):
        declared.setdefault(name, {})["columns"] = dict(each)
    chosen = _options(options, declared)
    made = synthesize_tables({name: table for name, (table, _) in read.items()}, out, chosen, progress=report)
    released = {place.stem for place in made.synthetic.iterdir()}
    return Tables(out, made, {name: kind for name, (_, kind) in read.items() if name in released})


def _mappings(
    argument: str, given: Mapping[str, Mapping[str, Any]] | None, example: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The declarations of each table. Raises `ContractError` if one is no mapping."""
    for name, each in (given or {}).items():
        if not isinstance(each, Mapping):
            raise ContractError(f"{argument}.{name}: a {type(each).__name__}; accepted: a mapping such as {example}")
        yield name, each


def _options(options: Mapping[str, Any], declared: Mapping[str, Any]) -> TablesOptions:
    known = [item.name for item in fields(TablesOptions)]
    given = dict(options)
    schema: dict[str, Any] = {OWNER: given.pop(OWNER)} if OWNER in given else {}
    if schema and not declared:
        raise ContractError(f"{OWNER}: without keys; accepted: in the schema, beside `tables`")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ContractError(
                f"{name}: unknown option of several tables{hint}; accepted: {', '.join((*known, OWNER))}"
            )
    if declared and given.get("schema") is not None:
        raise ContractError("schema: beside keys or columns; accepted: one of them")
    if declared:
        given["schema"] = schema | {"tables": dict(declared)}
    if "epsilon" not in given:
        raise ContractError("epsilon: missing; accepted: a number above 0; up to 1 is strong")
    return TablesOptions(**given)
