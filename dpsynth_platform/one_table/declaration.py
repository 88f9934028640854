"""What is public about a table: the schema file, what it leaves open, and the contract that it amounts to.

What belongs here: reading a schema file, refusing columns of which nothing is declared with a file to fill in, and
putting columns and options together to the `DataContract` that generators plan from. What does not: domains that are
taken from the data (`assumed`), and what a column's declaration means (`contracts`).

What is not declared is not looked up. The names and types of columns are part of a table's schema and public; a boolean
column needs nothing else, since its values follow from its type. A CSV file has names only: its values tell of types,
and are not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.contracts.columns import BooleanColumn, CategoricalColumn, Column, IdentifierColumn, TextColumn
from dpsynth_platform.contracts.constraints import MOST_CONSTRAINTS, Constraint, check_quoted, read_constraints
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.drafting.templates import TEMPLATES, template
from dpsynth_platform.foundation.errors import ContractError, SchemaMissing, SourceError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.sources.table_files import Source
from dpsynth_platform.synth.planning import check_constraints

DATASET = "table"
FAMILY = "table"
"""The one account of such a ledger; everybody in its tables is charged with everything."""
ROW = "row"
"""Base of the name of the column that tells rows apart, where each is a unit of its own."""

_OPTIONS = {
    "privacy.guarantee.epsilon": "--epsilon",
    "privacy.guarantee.delta": "--delta",
    "guarantee.epsilon": "--epsilon",
    "guarantee.delta": "--delta",
    "privacy.max_contributions": "--contributions",
    "privacy.weighting": "--weighting",
    "privacy.owner_columns": "--owners",
    "privacy.expected_units": "--expected-units",
    "privacy.accept_weak_guarantee": "--accept-weak-guarantee",
    "accept_weak_guarantee": "--accept-weak-guarantee",
    "accept_weak_guarantee: <reason> (printed in the dossier)": "--accept-weak-guarantee REASON (in the statement)",
    "1/expected_units": "1/n",
    "(expected_units: ": "(n: --expected-units ",
    "accepted: auto, which is": "accepted: no --delta, which makes it",
    "generate.method": "--method",
    "generate.rows": "--rows",
    "generate.time_limit": "--time-limit",
    "generate.constraints": "constraints",
}


class SchemaFile(BaseModel):
    """A file with `columns:`, each as in a contract, and perhaps `constraints:`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    columns: dict[str, Column] = Field(min_length=1)
    constraints: list[Constraint] = Field(default_factory=list, max_length=MOST_CONSTRAINTS)


@dataclass(frozen=True)
class Declared:
    """What is declared of a table, by the names in its file."""

    columns: dict[str, Column]
    constraints: tuple[Constraint, ...]


def read_declared(schema: Path | None, constraints: Path | None) -> Declared:
    """What a schema file and a file of constraints declare; the latter's take the place of the former's.

    Raises:
        ContractError: a line for each fault.
    """
    columns: dict[str, Column] = {}
    found: Sequence[Constraint] = ()
    texts: set[str] = set()
    if schema is not None:
        document = read_yaml(schema)
        read = validated(SchemaFile, document, str(schema))
        columns, found = dict(read.columns), read.constraints
        texts = {name for name, column in columns.items() if isinstance(column, CategoricalColumn)}
        check_quoted(document, texts, str(schema))
    return Declared(columns, tuple(found if constraints is None else read_constraints(constraints, texts)))


def undeclared(source: Source, declared: Mapping[str, Column], owners: str | None) -> list[str]:
    """Columns of which more must be known than their type.

    Raises:
        SourceError: a column is declared, or named as the owners', that the table does not have.
    """
    named = (*declared, *([] if owners is None else [owners]))
    strangers = [name for name in named if name not in source.found]
    open_ = [name for name in source.schema.names if name not in declared and _known(source, name, owners) is None]
    if strangers:
        raise SourceError(
            f"{source.path}: there is no column {', '.join(map(repr, strangers))}; accepted: {', '.join(source.found)}"
        )
    if owners is not None and owners not in source.schema.names:
        raise SourceError(f"{source.path}: --owners {owners!r} is declared ignore: true; accepted: another column")
    return open_


def refuse_undeclared(source: Source, names: list[str]) -> SchemaMissing:
    """What to say of columns of which nothing is declared: their names, types that a file has, one to fill in."""
    if source.format == "csv":
        found, types = ", ".join(names), dict.fromkeys(names, "type: ")
        # Of each type the first template: what decimal numbers have beside others is no other type.
        kinds = "; ".join(reversed({words.partition(",")[0]: words for _, words in reversed(TEMPLATES)}.values()))
        untyped = f"# A CSV file says no types, and its values are not asked. Accepted: {kinds}.\n"
    else:
        own = {name: plain_type(source.schema.field(name).type) for name in names}
        found, types = ", ".join(f"{name} ({own[name]})" for name in names), {n: template(t) for n, t in own.items()}
        untyped = ""
    lines = [f"  {_key(name)}: {{{types[name]}}}" for name in names]
    return SchemaMissing(
        f"{source.path}: nothing is declared of: {found}. What values a column can have must be known beforehand, and "
        "is not read off the data. Accepted: --learn-values: then the values of text columns are learned; or "
        "--assume-public-domain: then domains are read off the data, which the guarantee does not cover; or a file for "
        "--schema, filled in with what is public:",
        f"{untyped}"
        "# Numbers outside of min and max are clamped, values that are not listed count as missing.\n"
        "# values: learned, in place of a list: those that many rows have are learned, with a part of the budget.\n"
        "# {type: text} leaves a column empty, {ignore: true} leaves it out, {type: identifier} makes fresh ids.\n"
        "# nullable: true lets values miss; without it, rows are drawn like those that lack none.\n"
        "columns:\n" + "\n".join(lines),
    )


def learned_columns(source: Source, names: list[str]) -> dict[str, Column]:
    """Declarations of those of the columns that hold text: their values are learned. In CSV files all of them are."""
    fields = [source.schema.field(name) for name in names]
    return {
        item.name: CategoricalColumn(type="categorical", values="learned", nullable=item.nullable)
        for item, plain in zip(fields, map(plain_type, (item.type for item in fields)), strict=True)
        if pa.types.is_string(plain) or pa.types.is_large_string(plain)
    }


def complete(source: Source, declared: Mapping[str, Column], owners: str | None) -> dict[str, Column]:
    """All columns in the table's order, by a contract's names; what its type or its part tells of one is added.

    Args:
        declared: of every column that `undeclared` names.
    """
    columns = {}
    for name in source.schema.names:
        column = declared.get(name) or _known(source, name, owners)
        if column is None:
            raise refuse_undeclared(source, [name])
        columns[source.names[name]] = column
    return columns


def row_column(source: Source) -> str:
    """A name for the column that tells rows apart, which no column of the table has."""
    taken = {name.casefold() for name in source.names.values()}
    return next(name for number in range(len(taken) + 1) if (name := f"{ROW}{number or ''}") not in taken)


def contract_of(columns: Mapping[str, Column], privacy: Mapping[str, Any], **others: Any) -> DataContract:
    """The contract that these columns and options amount to.

    Args:
        privacy: as in a contract, with its defaults.
        others: further parts, such as `generate`.

    Raises:
        ContractError: one line for each fault.
    """
    document = {
        "dataset": DATASET,
        "description": "One table, outside of the asset line.",
        "owners": ["whoever ran it"],
        "source": {"uri": DATASET, "key": list(privacy["owner_columns"])},
        "family": FAMILY,
        "privacy": {"namespace": FAMILY, **privacy},
        "columns": {name: column.model_dump() for name, column in columns.items()},
        "release": {"uri": "synthetic", "approvals": 0},
    } | others
    contract = parse_contract(document, where=DATASET, variables={})
    check_constraints(contract, DATASET)
    return contract


@contextmanager
def in_options() -> Iterator[None]:
    """Names what an error inside says of a contract's keys by the options that they come from."""
    caught: type[ContractError | SourceError]
    try:
        yield
        return
    except (ContractError, SourceError) as error:
        caught, problem = type(error), str(error)
    pattern = "|".join(map(re.escape, sorted(_OPTIONS, key=len, reverse=True)))
    # There is no contract whose name a line could begin with.
    plain = re.sub(f"^{DATASET}: (source: )?", "", problem, flags=re.MULTILINE)
    raise caught(re.sub(pattern, lambda match: _OPTIONS[match.group()], plain))


def scrubbed_contract(contract: DataContract) -> DataContract:
    """The contract as the preparation of rows needs it: text never leaves the table, so nobody looks into it."""
    (owner,) = contract.privacy.owner_columns
    kept: dict[str, Column] = {
        name: IdentifierColumn(type="identifier") if name == owner else column
        for name, column in contract.columns.items()
        if name == owner or not isinstance(column, TextColumn)
    }
    return contract.model_copy(update={"columns": kept})


def _known(source: Source, name: str, owners: str | None) -> Column | None:
    """What a column is without a declaration, or None."""
    if name == owners:
        return IdentifierColumn(type="identifier")
    item = source.schema.field(name)
    if pa.types.is_boolean(plain_type(item.type)) and source.format != "csv":
        return BooleanColumn(type="boolean", nullable=item.nullable)
    return None


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_\-]*", name) else repr(name)
