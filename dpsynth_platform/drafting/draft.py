"""A contract's draft, from what is public about a table: the names and types of its columns.

What belongs here: a draft of a contract and one of its family's budget, with a gap wherever somebody must know better,
and words on where that is to be known from. What does not: filling gaps (`draft_questions`), judging a contract
(`contracts`, `planning`), and any look at a row, a range, a count or a category of the table, which would be an access
that nobody has paid for. So nothing is read here but a table's schema: two tables with the same columns have the same
draft.

A gap is an empty key. `dpsynth contract check` names every one of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import draft_contract, read_family
from dpsynth_platform.drafting.templates import template
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, file_problem, printable
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.yaml_files import dump_inline, parse_value
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.table_files import Source, open_source

_LONGEST_NAME = 50
"""Of a dataset, so that its family's may be made of it."""
_MOST_DECIMALS = 12
_HOME = "${DPSYNTH_HOME}"

_HEAD = """\
# A draft, made from the names and types of the table's columns alone: no value in it was looked at.
# Keys that are empty are for somebody who knows the answer from elsewhere than from these data; a look at them would
# be an access that no guarantee covers. `dpsynth contract check` names every one that is still open."""
_NOTES = {
    "description": "What a row is, in a sentence that every dossier will show.",
    "owners": "People to ask about the data, as [name@example.org]; not the people in the data.",
    "source": (
        "A run reads a Delta table, so that it can pin a version. docs/guides/contracts.md says how to make one of a "
        "Parquet or CSV file."
    ),
    "source.key": (
        "The columns that tell a record from others of the same owner, as [visit_number]. The table's documentation or "
        "its primary key says so."
    ),
    "family": (
        "All datasets about the same people share one budget, whoever holds them: ask who else has data about them. {}"
    ),
    "privacy.unit": (
        "user: a person with all their records. group: a household, a school, a device that several share. example: a "
        "single record, where nobody stands in two."
    ),
    "privacy.owner_columns": "The columns that say whose a record is, as [customer_id].",
    "privacy.namespace": (
        "A word for the kind of id in there, such as customer or email: the same in all datasets where the same id is "
        "the same person."
    ),
    "privacy.adjacency": "fixed-graph where a record has several owners (several columns, or a column of lists).",
    "privacy.max_contributions": (
        "How many records of one owner are used at most. By what the release is for, or by a private median: `dpsynth "
        "bound learn`. Few mean less noise. Not by a count."
    ),
    "privacy.guarantee": (
        "What one release may cost. Up to 1 is strong, up to 10 reasonable. A matter of policy, and of the cap of the "
        "family; `dpsynth plan` says what noise it means."
    ),
    "privacy.expected_units": (
        "About how many owners there are, as the public knows it: a published figure, a census, a capacity. Round it. "
        "Never a count of this table."
    ),
    "privacy.on_overlap": "compose, exclude or block: what becomes of those who took part in an earlier release.",
    "columns": "",
    "generate": (
        "auto chooses a method by public facts, and says which and why. To have a text written by a language model: "
        "text: {column: NAME}. A table of ids and a text alone needs that, and rows: a number."
    ),
    "release": "For a release each month: cadence: monthly, start: YYYY-MM, and source.period_column.",
}
_COLUMN_NOTES = (
    "min, max: what a value may be by its definition (the form, the code book, the unit, the law); others are clamped.",
    "type of a text: categorical, with values: [...] from a code book or a standard, or values: learned (paid for);",
    "  text, with pii: drop, mask, hash or replace, where somebody wrote freely, or a name, address or number stands;",
    "  identifier, for ids, which come out made anew; time, for texts such as 07:30.",
    "A whole number may be a code, too (categorical, with values), or an id (identifier).",
    "ignore: true leaves a column out, as one of lists, structs or bytes, which no type reads. Lists of owners' ids",
    "  are of type identifier, with fixed-graph.",
    "nullable: true where values may miss; without, rows are drawn like those that lack none.",
)
_FAMILY_HEAD = """\
# A draft of the budget of all datasets about the same people. It is for whoever answers for them, and not for whoever
# wants a release: the first run seals it, and a larger cap needs two people (docs/guides/reviewing.md). If another
# family is about these people already, name that one in the contract and delete this file."""
_FAMILY_NOTES = {
    "unit": "As in the contract, and so for adjacency and namespace.",
    "mode": (
        "per-owner: each owner pays for what they took part in, and is left out in silence once it is spent. family: "
        "every release is charged to everybody, and one beyond the cap is refused."
    ),
    "cap": (
        "What all releases together may ever cost one owner. A matter of policy: epsilon up to 1 is strong, up to 10 "
        "reasonable; delta well below one in the number of owners. Not less than one release of the contract."
    ),
}

Document = dict[str, Any]


@dataclass(frozen=True)
class Drafted:
    """A draft of a contract.

    Attributes:
        contract: what its file holds; None stands for a gap.
        family: the family whose file is there and whose terms it has; None: there is none yet.
        beside: for each column its type in the table, and its name where a contract cannot have it.
        known: names of the families that there are, for whoever has to choose.
    """

    contract: Document
    family: FamilyBudget | None
    beside: Mapping[str, str]
    known: tuple[str, ...]

    @property
    def budget(self) -> Document | None:
        """What a draft of the family's file holds; None where the family has one."""
        if self.family is not None:
            return None
        privacy = self.contract["privacy"]
        return {
            "family": self._new_family,
            **{key: privacy[key] for key in ("unit", "adjacency", "namespace")},
            "mode": None,
            "cap": {"epsilon": None, "delta": None},
        }

    def text(self) -> str:
        """The contract's file, with a word on each gap."""
        return "\n".join((_HEAD, *_lines(self.contract, self.notes(), self.beside))) + "\n"

    def family_text(self) -> str:
        """The file of the family's budget. Only where `budget` is not None."""
        return "\n".join((_FAMILY_HEAD, *_lines(self.budget or {}, _FAMILY_NOTES, {}))) + "\n"

    def gaps(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """What is wrong with the contract as it is, a line for each gap, as `dpsynth contract check` says it."""
        return draft_contract(self.contract, variables).faults

    def notes(self) -> dict[str, str]:
        """What is to be known of each key, and where from."""
        drafted = "" if self.family is not None else f"; drafted: {self._new_family}"
        new = f"A new one has a file of its own, families/NAME.yaml{drafted}."
        families = f"Known here: {', '.join(self.known)}. {new}" if self.known else new
        return _NOTES | {"family": _NOTES["family"].format(families)}

    @property
    def _new_family(self) -> str:
        """The name of a family that has no file yet. Only where `family` is None."""
        return str(self.contract["family"] or new_family(self.contract["dataset"]))


@dataclass(frozen=True)
class Written:
    """Files that a draft was written to; `family` is None where the family has one already."""

    contract: Path
    family: Path | None


def dataset_of(path: Path) -> str:
    """A dataset's name, made of a file's."""
    plain = re.sub(r"[^a-z0-9_]+", "_", path.stem.lower()).strip("_")
    return (plain if re.match("[a-z]", plain) else f"table_{plain}".rstrip("_"))[:_LONGEST_NAME]


def new_family(dataset: str) -> str:
    """The name that a new family has in a draft, unless somebody names one."""
    return f"{dataset}-owners"


def drafted(settings: Settings, table: Path, dataset: str, family: str | None, *, csv_header: bool = False) -> Drafted:
    """The draft for a table. Of the table, its schema is read; of a CSV file, its first line.

    Args:
        settings: the deployment whose families there are.
        table: a Parquet file or a directory of them, a Delta table, or a CSV file.
        dataset: what the contract calls it.
        family: which family it is of, where that is known.
        csv_header: the word that a CSV file's first line holds the columns' names: its file cannot tell.

    Raises:
        SourceError: there is no table that can be read, or nobody says that a CSV file has a header.
        ContractError: `csv_header` is for no CSV file, no family can have that name, or its file is unsound.
    """
    source = open_source(table, {}, Dialect(header=csv_header))
    document: Document = {
        "dataset": dataset,
        "description": None,
        "owners": None,
        "source": {"uri": _uri(settings, source, dataset), "format": "delta", "key": None},
        "family": None,
        "privacy": {
            "unit": None,
            "owner_columns": None,
            "namespace": None,
            "adjacency": "add-or-remove",
            "max_contributions": None,
            "guarantee": {"epsilon": None, "delta": "auto"},
            "expected_units": None,
            "on_overlap": "compose",
        },
        "columns": {source.names[item.name]: _column(source, item) for item in source.schema},
        "generate": {"method": "auto"},
        "release": {"uri": f"{_HOME}/public/{dataset}", "approvals": 1},
    }
    beside = {source.names[item.name]: _beside(source, item) for item in source.schema}
    known = tuple(sorted(printable(path.stem) for path in settings.families.glob("*.yaml")))
    empty = Drafted(document, None, beside, known)
    return empty if family is None else of_family(settings, empty, family)


def of_family(settings: Settings, draft: Drafted, family: str) -> Drafted:
    """The draft with a family, and with its terms where its file is there.

    Raises:
        ContractError: no family can have that name, or its file is unsound.
    """
    document = draft.contract | {"family": family}
    named = Drafted(document, None, draft.beside, draft.known)
    wrong = [fault for fault in named.gaps(settings.variables) if fault.startswith("family:")]
    if wrong:
        raise ContractError(wrong[0])
    path = settings.families / f"{family}.yaml"
    if not os.path.lexists(path):
        return named
    found = read_family(path)
    terms = {"unit": found.unit, "namespace": found.namespace, "adjacency": found.adjacency}
    privacy = {key: terms.get(key, value) for key, value in draft.contract["privacy"].items()}
    if found.owner_normalization:
        privacy["owner_normalization"] = list(found.owner_normalization)
    return Drafted(document | {"privacy": privacy}, found, draft.beside, draft.known)


def write(settings: Settings, draft: Drafted, out: Path) -> Written:
    """Writes the contract's file and, where the family has none, a draft of that. Nothing is ever overwritten.

    Raises:
        ConfigurationError: a file of the contract's name is there, or cannot be written.
    """
    _write_new(out, draft.text())
    budget = draft.budget
    if budget is None:
        return Written(out, None)
    beside = settings.families / f"{budget['family']}.yaml"
    if not beside.exists():
        _write_new(beside, draft.family_text())
    return Written(out, beside)


def check_free(out: Path) -> None:
    """Refuses a place where a file is. Raises `ConfigurationError`."""
    if out.exists():
        raise ConfigurationError(f"--out {out}: there is a file already, which is left as it is; accepted: a new name")


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        check_free(path)
        raise
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {file_problem(error)}") from None


def _uri(settings: Settings, source: Source, dataset: str) -> str:
    """Where a run will read: a Delta table where it lies, anything else where sources of a deployment do."""
    if source.format != "delta":
        return f"{_HOME}/sources/{dataset}"
    place = source.path.resolve()
    return f"{_HOME}/{place.relative_to(settings.home)}" if place.is_relative_to(settings.home) else str(place)


def _column(source: Source, item: pa.Field) -> Document:
    """What a column's type tells, with gaps for the rest. A CSV file has none."""
    type_ = plain_type(item.type)
    words = "type: " if source.format == "csv" or _is_text(type_) else template(type_)
    column: Document = parse_value(f"{{{words}}}")
    if pa.types.is_decimal(type_):
        column["decimals"] = min(max(type_.scale, 0), _MOST_DECIMALS)
    return column


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _beside(source: Source, item: pa.Field) -> str:
    """A column's type, and its name where it must have another. How values are encoded may tell how many there are."""
    plain = plain_type(item.type)
    of_file = str(plain) if not pa.types.is_nested(plain) else "list" if _is_list(plain) else "nested"
    type_ = "a CSV file says no types" if source.format == "csv" else of_file
    name = source.names[item.name]
    return type_ if name == item.name else f"{type_}; {item.name!r} in the file: give it this name in the Delta table"


def _lines(document: Document, notes: Mapping[str, str], beside: Mapping[str, str], path: str = "") -> Iterator[str]:
    """A mapping in block style, with comments; one whose keys have none is a line."""
    indent = "  " * path.count(".")
    for key, value in document.items():
        below = f"{path}{key}"
        yield from _comment(notes.get(below, ""), indent)
        if below == "columns":
            yield f"{key}:"
            yield from (f"  # {line}" for line in _COLUMN_NOTES)
            yield from (f"  {_flow(name)}: {_flow(column)}  # {beside[name]}" for name, column in value.items())
        elif isinstance(value, dict) and any(note.startswith(f"{below}.") for note in notes):
            yield f"{indent}{key}:"
            yield from _lines(value, notes, beside, f"{below}.")
        else:
            yield f"{indent}{key}: {_flow(value)}".rstrip()


def _comment(words: str, indent: str, width: int = 118) -> Iterator[str]:
    line = ""
    for word in words.split():
        if line and len(indent) + len(line) + len(word) + 3 > width:
            yield f"{indent}# {line}"
            line = ""
        line = f"{line} {word}".strip()
    if line:
        yield f"{indent}# {line}"


def _flow(value: Any) -> str:
    """YAML on one line; nothing for a gap."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    return dump_inline(value)
