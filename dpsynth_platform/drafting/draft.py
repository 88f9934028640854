"""Drafts a contract from a table's schema: the names and types of its columns.

What belongs here: drafts of a contract and of its family's budget. What does not: the notes in them (`notes.yaml`),
filling gaps (`questions`), validating a contract (`contracts`, `synth.planning`), and any read of rows, ranges, counts
or categories, which would be an unpaid access to the data. Tables with the same schema have the same draft.

A gap is an empty key. `dpsynth contract check` names every gap.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.compute.plain_types import is_text, plain_type
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import draft_contract, read_family
from dpsynth_platform.contracts.source import Source as ContractSource
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.drafting.linked import DraftedTables, drafted_tables
from dpsynth_platform.drafting.pictures import (
    columns_of_folder,
    generate_of,
    looks_like_pictures,
    picture,
    with_whole_pictures,
)
from dpsynth_platform.drafting.templates import template
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, SourceError, file_problem, printable
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.foundation.yaml_files import dump_inline, parse_value, read_yaml
from dpsynth_platform.sources.database import columns_of
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.iceberg import open_iceberg
from dpsynth_platform.sources.image_folders import FILE_NAME
from dpsynth_platform.sources.packing import check_json_lines
from dpsynth_platform.sources.structs import flat_schema
from dpsynth_platform.sources.table_files import Source, check_exists, open_source

_LONGEST_NAME = 50
"""Longest name of a dataset; leaves room for the suffix of its family's name."""
_MOST_DECIMALS = 12
_HOME = "${DPSYNTH_HOME}"
INSTANCE = "dagster.yaml"
ADJACENCY = "add-or-remove"

_TEXTS = read_yaml(Path(__file__).with_name("notes.yaml"))

Document = dict[str, Any]


@dataclass(frozen=True)
class Drafted:
    """A draft of a contract.

    Attributes:
        contract: the content of its file; None stands for a gap.
        family: the existing family whose terms it has, or None.
        column_comments: the type of each column in the table.
        families: names of the existing families.
        cap: that of a new family; None: a gap.
        tables: the draft of several tables; None: of one.
    """

    contract: Document
    family: FamilyBudget | None
    column_comments: Mapping[str, str]
    families: tuple[str, ...]
    cap: Document | None = None
    tables: DraftedTables | None = None

    @property
    def budget(self) -> Document | None:
        """The content of a draft of the family's file; None where the family has a file."""
        if self.family is not None:
            return None
        privacy = self.contract["privacy"]
        return {
            "family": self.new_family,
            **{key: privacy.get(key, ADJACENCY) for key in ("unit", "adjacency", "namespace")},
            "mode": None if self.cap is None else "family",
            "cap": self.cap or {"epsilon": None, "delta": None},
        }

    def text(self) -> str:
        """The contract's file, with a note on each gap."""
        head = _TEXTS["contract" if self.tables is None else "contract_of_tables"]
        lines = _lines(self.contract, self.notes(), self.column_comments, tables=self.tables)
        return "\n".join((*_comment(head), *lines, ""))

    def family_text(self) -> str:
        """The file of the family's budget. Only where `budget` is not None."""
        return "\n".join((*_comment(_TEXTS["family"]), *_lines(self.budget or {}, _TEXTS["family_keys"], {}), ""))

    def gaps(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """The faults of the contract, a line for each gap, as in `dpsynth contract check`."""
        return draft_contract(self.contract, variables).faults

    def notes(self) -> dict[str, str]:
        """For each key what it means and where to find its value."""
        drafted = "" if self.family is not None else f"; drafted: {self.new_family}"
        new = f"A new family has a separate file, families/NAME.yaml{drafted}."
        families = f"Existing families: {', '.join(self.families)}. {new}" if self.families else new
        notes: dict[str, str] = _TEXTS["keys"]
        if self.tables is not None:
            notes = notes | {key: text.format(root=self.tables.root) for key, text in _TEXTS["keys_of_tables"].items()}
        return notes | {"family": notes["family"].format(families=families)}

    @property
    def new_family(self) -> str:
        """The name of a family without a file. Only where `family` is None."""
        return str(self.contract["family"] or f"{self.contract['dataset']}-owners")


def template_text(key: str) -> str:
    """A text of `notes.yaml` with places for values."""
    return str(_TEXTS[key])


def template_notes(key: str) -> Mapping[str, str]:
    """The notes of `notes.yaml` on the keys of a part."""
    return dict(_TEXTS[key])


def dataset_of(path: Path) -> str:
    """Derives a dataset's name from a file's."""
    plain = re.sub(r"[^a-z0-9_]+", "_", path.stem.lower()).strip("_")
    return (plain if re.match("[a-z]", plain) else f"table_{plain}".rstrip("_"))[:_LONGEST_NAME]


def drafted(
    settings: Settings, table: Path, dataset: str, family: str | None, dialect: Dialect | None = None
) -> Drafted:
    """Drafts a contract for a table. Reads only its schema, or the first line of a CSV file.

    Args:
        table: a Parquet file or a directory of them, a Delta table, or a CSV file.
        dataset: its name in the contract.
        dialect: of a CSV file; it confirms that the first line has the columns' names.

    Raises:
        SourceError: the table cannot be read, or it is a CSV file whose header is not confirmed.
        ContractError: a dialect is set for another format, or the family's name or file is invalid.
    """
    source = open_source(table, {}, dialect)
    untyped = "a CSV file has no types" if source.format == "csv" else ""
    place = {"uri": _uri(settings, source.path), **_format(source)}
    return _drafted(
        settings, place, dict(zip(source.schema.names, source.schema.types, strict=True)), dataset, family, untyped
    )


def drafted_linked(
    settings: Settings, path: Path, dataset: str, family: str | None, dialect: Dialect | None = None
) -> Drafted:
    """Drafts a contract for several tables: of a directory, or of a database file. Reads no row.

    Args:
        dialect: of CSV files; see `drafted`.

    Raises:
        SourceError: a table cannot be read, or the header of a CSV file is not confirmed.
        ContractError: the family's name or file is invalid.
    """
    dialect = dialect or Dialect()
    tables = drafted_tables(path, dialect, "privacy.owner_columns: [ROOT.COLUMN] above")
    declared = dialect.declared if tables.is_csv else {}
    whole = _document({"uri": _uri(settings, path), **({"csv": declared} if declared else {})}, dataset)
    of_one_table = ("owner_columns", "max_contributions", "adjacency")
    document: Document = {}
    for key, value in whole.items():
        if key == "generate":
            document["tables"] = parse_value("\n".join(tables.lines))
        document[key] = value
    document["privacy"] = {key: value for key, value in whole["privacy"].items() if key not in of_one_table}
    return _of_family(settings, Drafted(document, None, {}, _families(settings), tables=tables), family)


def drafted_json(settings: Settings, path: Path, columns: Sequence[str], dataset: str, family: str | None) -> Drafted:
    """Drafts a contract for JSON lines, whose keys the user declares: in the file, a key may be data. Reads nothing.

    Raises:
        SourceError: there is no such file, or it holds no lines by its first signs.
        ContractError: no columns are declared, or the family's name or file is invalid.
    """
    check_exists(path)
    if path.is_file():
        try:
            check_json_lines(path)
        except OSError as error:
            raise SourceError(f"{path}: {file_problem(error)}; accepted: a file that can be read") from None
    if not columns:
        raise ContractError(
            f"{path}: the keys of JSON lines are not read, since they may be data; accepted: --columns NAME,NAME, "
            "the keys that their description has"
        )
    place = {"uri": _uri(settings, path), "format": "json"}
    return _drafted(settings, place, dict.fromkeys(columns), dataset, family, "JSON lines have no types")


def drafted_database(settings: Settings, place: Document, dataset: str, family: str | None) -> Drafted:
    """Drafts a contract for a database's table or query; reads the names and types of columns, and no row.

    Args:
        place: `uri`, `table` or `query`, and `password_file` of the contract's source.

    Raises:
        SourceError: the database cannot be reached or does not answer as asked.
        ContractError: the place, or the family's name or file is invalid.
    """
    declared = {"format": "sql", **{key: value for key, value in place.items() if value is not None}}
    columns = columns_of(validated(ContractSource, declared | {"key": ["any"]}, "source"))
    return _drafted(settings, declared, columns, dataset, family, "the type is not known")


def drafted_pictures(settings: Settings, directory: Path, dataset: str, family: str | None) -> Drafted:
    """Drafts a contract for a directory of pictures; opens none, and reads the first line of `metadata.csv` only.

    Raises:
        SourceError: there is no such directory, or `metadata.csv` has no column `file_name`.
        ContractError: the family's name or file is invalid.
    """
    check_exists(directory)
    if not directory.is_dir():
        raise SourceError(f"{directory}: is no directory; accepted with format images: a directory of pictures")
    columns = columns_of_folder(directory)
    place = {"uri": _uri(settings, directory), "format": "images"}
    return _drafted(settings, place, dict.fromkeys(columns), dataset, family, "of the directory", columns)


def drafted_iceberg(settings: Settings, place: Document, dataset: str, family: str | None) -> Drafted:
    """Drafts a contract for an Iceberg table; reads its metadata, and of that the names and types of columns only.

    Args:
        place: `uri`, `table` and `catalog` of the contract's source; or `uri` alone, the path of a metadata file.

    Raises:
        SourceError: there is no readable table with rows.
        ContractError: the place, or the family's name or file is invalid.
    """
    declared = {"format": "iceberg", **{key: value for key, value in place.items() if value is not None}}
    if "table" not in declared:
        declared["uri"] = str(Path(declared["uri"]).resolve())
    found = open_iceberg(validated(ContractSource, declared | {"key": ["any"]}, "source"))
    schema = flat_schema(found.table.schema, ())
    if "table" not in declared:
        declared["uri"] = _uri(settings, Path(declared["uri"]))
    return _drafted(settings, declared, dict(zip(schema.names, schema.types, strict=True)), dataset, family, "")


def _drafted(
    settings: Settings,
    place: Document,
    columns: Mapping[str, pa.DataType | None],
    dataset: str,
    family: str | None,
    untyped: str,
    known: Mapping[str, Document] | None = None,
) -> Drafted:
    """The draft of a source and its columns.

    Args:
        columns: their types; None: not known.
        untyped: why types are not known, as a comment; empty: they are.
        known: declarations of columns that do not follow from a type.
    """
    whole = with_whole_pictures(columns)
    types = {name: None if place["format"] == "csv" else type_ for name, type_ in whole.items()}
    declared = {name: _column(type_, name) if name else {"ignore": True} for name, type_ in types.items()}
    declared |= dict(known or {})
    key = [FILE_NAME] if place["format"] == "images" else None
    document = _document({**place, "key": key}, dataset, declared)
    comments = {name: untyped if type_ is None else _column_comment(type_) for name, type_ in types.items()}
    return _of_family(settings, Drafted(document, None, comments, _families(settings)), family)


def _document(source: Document, dataset: str, columns: Document | None = None) -> Document:
    """The content of a draft's file; without columns, of linked tables."""
    return {
        "dataset": dataset,
        "description": None,
        "owners": None,
        "source": source,
        "family": None,
        "privacy": {
            "unit": None,
            "owner_columns": None,
            "namespace": None,
            "adjacency": ADJACENCY,
            "max_contributions": None,
            "guarantee": {"epsilon": None, "delta": "auto"},
            "expected_units": None,
            "on_overlap": "compose",
        },
        **({} if columns is None else {"columns": columns}),
        "generate": {"method": "auto"} if columns is None else generate_of(columns),
        "release": {"uri": f"{_HOME}/public/{dataset}", "approvals": 1},
    }


def _families(settings: Settings) -> tuple[str, ...]:
    return tuple(sorted(printable(path.stem) for path in settings.families.glob("*.yaml")))


def _of_family(settings: Settings, draft: Drafted, family: str | None) -> Drafted:
    return draft if family is None else with_family(settings, draft, family)


def with_family(settings: Settings, draft: Drafted, family: str) -> Drafted:
    """The draft with a family, and with its terms if it has a file.

    Raises:
        ContractError: the family's name or file is invalid.
    """
    document = draft.contract | {"family": family}
    named = replace(draft, contract=document, family=None)
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
    return replace(draft, contract=document | {"privacy": privacy}, family=found)


def write(settings: Settings, draft: Drafted, out: Path) -> Path | None:
    """Writes the contract's file and, where the family has none, a draft of that. Overwrites nothing.

    Returns:
        The file of the family's draft; None where the draft has the terms of an existing file.

    Raises:
        ConfigurationError: the contract's file exists or cannot be written.
    """
    _write_new(out, draft.text())
    budget = draft.budget
    if budget is None:
        return None
    family = settings.families / f"{budget['family']}.yaml"
    if not family.exists():
        _write_new(family, draft.family_text())
    return family


def is_ours(settings: Settings) -> bool:
    """Whether the deployment's directory is the user's: declared, or below the working directory.

    Otherwise it is that of an installed package, or of somebody's checkout.
    """
    return settings.deploy_is_declared or settings.deploy.is_relative_to(Path.cwd())


def add_instance(settings: Settings) -> Path | None:
    """Gives a new deployment the platform's dagster.yaml, without which nothing runs; None: it has one.

    Raises:
        ConfigurationError: it cannot be written.
    """
    file, usual = settings.deploy / INSTANCE, PACKAGE_ROOT / "deploy" / INSTANCE
    if file.exists() or not usual.is_file():
        return None
    _write_new(file, usual.read_text(encoding="utf-8"))
    return file


def check_free(out: Path) -> None:
    """Raises `ConfigurationError` if the file exists."""
    if out.exists():
        raise ConfigurationError(
            f"{out}: the file exists and is not overwritten; accepted: another --out, or to fill in that file"
        )


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


def _uri(settings: Settings, table: Path) -> str:
    """A table's place, relative to the deployment's directory where it lies there."""
    place = table.resolve()
    return f"{_HOME}/{place.relative_to(settings.home)}" if place.is_relative_to(settings.home) else str(place)


def _format(source: Source) -> Document:
    """The format of a table, and the dialect of a CSV file as far as it differs from the default."""
    declared = source.dialect.declared if source.format == "csv" else {}
    return {"format": source.format, **({"csv": declared} if declared else {})}


def _column(found: pa.DataType | None, name: str) -> Document:
    """A column's declaration by its type and name, with gaps for the rest; None: the type is not known."""
    if found is None:
        return {"type": None}
    if looks_like_pictures(name, found):
        return picture()
    type_ = plain_type(found)
    declaration = "type: " if is_text(type_) else template(type_)
    column: Document = parse_value(f"{{{declaration}}}")
    if "decimals" in column:
        column["decimals"] = min(max(type_.scale, 0), _MOST_DECIMALS)
    return column


def _column_comment(type_: pa.DataType) -> str:
    """A column's type. Omits encodings, which may reveal numbers of values."""
    plain = plain_type(type_)
    if pa.types.is_list(plain) or pa.types.is_large_list(plain):
        return "list"
    return "nested" if pa.types.is_nested(plain) else str(plain)


def _lines(
    document: Document,
    notes: Mapping[str, str],
    comments: Mapping[str, str],
    path: str = "",
    tables: DraftedTables | None = None,
) -> Iterator[str]:
    """A mapping in block style with comments; nested mappings without comments take one line."""
    indent = "  " * path.count(".")
    for key, value in document.items():
        below = f"{path}{key}"
        yield from _comment(notes.get(below, ""), indent)
        if below == "columns":
            yield f"{key}:"
            yield from (f"  # {line}" for line in _TEXTS["columns"].splitlines())
            yield from (f"  {_flow(name)}: {_flow(column)}  # {comments[name]}" for name, column in value.items())
        elif below == "tables" and tables is not None:
            yield from (*tables.notes, f"{key}:", *tables.lines)
        elif isinstance(value, dict) and any(note.startswith(f"{below}.") for note in notes):
            yield f"{indent}{key}:"
            yield from _lines(value, notes, comments, f"{below}.")
        else:
            yield f"{indent}{key}: {_flow(value)}".rstrip()


def _comment(text: str, indent: str = "") -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        text, 118, initial_indent=start, subsequent_indent=start, break_long_words=False, break_on_hyphens=False
    )


def _flow(value: Any) -> str:
    """YAML on one line; empty for a gap."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    return dump_inline(value)
