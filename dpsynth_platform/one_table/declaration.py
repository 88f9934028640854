"""The public declarations of a table: its schema file, undeclared columns, and the resulting contract.

What belongs here: reading a schema file, refusing undeclared columns with a draft to fill in, and making the
`DataContract` of columns and options. What does not: domains from the data (`assumed`), and the meaning of declarations
(`contracts`).

Undeclared facts are never read from the data. A table's public schema has names and types; a CSV file has no types.
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

from dpsynth_platform.compute.plain_types import is_text, plain_type
from dpsynth_platform.contracts.base import key_path
from dpsynth_platform.contracts.columns import (
    BooleanColumn,
    CategoricalColumn,
    Column,
    IdentifierColumn,
    ImageColumn,
)
from dpsynth_platform.contracts.constraints import MOST_CONSTRAINTS, Constraint, check_quoted, read_constraints
from dpsynth_platform.contracts.image_generation import ImageGeneration
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.contracts.text_generation import TextGeneration, Training
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.drafting.templates import (
    CLAMPED,
    NULLABLE,
    draft_lines,
    in_words,
    listed_names,
    untyped_note,
)
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, SchemaMissing, SourceError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.sources.table_files import Source
from dpsynth_platform.synth.undeployed import DATASET

ROW = "row"
"""Base name of the column of row ids, where each row is its own unit."""

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
    "generate.base_model": "--base-model",
    "generate.rows": "--rows",
    "generate.public": "--public",
    "generate.public.uri": "--public",
    "generate.public.why": "--public-why",
    "two columns of the contract's names": "two modelled columns, under the names that the private table has",
    "generate.time_limit": "--time-limit",
    "generate.tune": "--tune",
    "accepted: each, or the values of all columns declared": "accepted: runs: each, or no --learn-values",
    "generate.constraints": "constraints",
    "generate.text.column": "--text",
    "generate.text.given": "--condition",
    "generate.text": "text",
    "generate: max_tokens": "text.max_tokens",
    "generate.training": "training",
    "generate.image": "image",
    "description: ": "--about: ",
}


class SchemaFile(BaseModel):
    """A file with `columns:` as in a contract.

    `text`, `training` and `scrub` are for a table with a text to write, and `image` for pictures in a federated run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    columns: dict[str, Column] = Field(min_length=1)
    constraints: list[Constraint] = Field(default_factory=list, max_length=MOST_CONSTRAINTS)
    text: TextGeneration | None = Field(
        default=None, description="As a contract's `generate.text`; for a text to write."
    )
    training: Training | None = Field(default=None, description="As a contract's `generate.training`, likewise.")
    scrub: Scrub | None = Field(default=None, description="As a contract's `scrub`, likewise.")
    image: ImageGeneration | None = Field(
        default=None, description="As a contract's `generate.image`; for pictures in a federated run."
    )


@dataclass(frozen=True)
class Declared:
    """The declarations of a table, by the names in its file."""

    columns: dict[str, Column]
    constraints: tuple[Constraint, ...]
    text: TextGeneration | None = None
    training: Training | None = None
    scrub: Scrub | None = None
    image: ImageGeneration | None = None

    @property
    def pictures(self) -> bool:
        """Whether a column of pictures is declared."""
        return any(isinstance(column, ImageColumn) for column in self.columns.values())


def read_declared(
    schema: Path | Mapping[str, Any] | None, constraints: Path | None, *, pictures: bool = False
) -> Declared:
    """The declarations in a schema file or a mapping like one, with constraints of a separate file if there is one.

    Args:
        pictures: whether columns of them are accepted, as in a federated run.

    Raises:
        ContractError: they are invalid.
    """
    columns: dict[str, Column] = {}
    found: Sequence[Constraint] = ()
    texts: set[str] = set()
    read = None
    if schema is not None:
        document, where = (read_yaml(schema), str(schema)) if isinstance(schema, Path) else (schema, "schema")
        read = validated(SchemaFile, document, where)
        columns, found = dict(read.columns), read.constraints
        for name, column in columns.items():
            if isinstance(column, ImageColumn) and not pictures:
                raise ContractError(
                    f"{where}: {key_path('columns', name)}: type image, but pictures of one table are made by the "
                    "line only, which scrubs, audits and shows them to a reviewer; accepted: ignore: true, which "
                    "leaves the column out; or a contract (dpsynth contract init) and dpsynth run"
                )
        if read.image is not None and not pictures:
            raise ContractError(f"{where}: image: here no pictures are made; accepted: in a federated run")
        texts = {name for name, column in columns.items() if isinstance(column, CategoricalColumn)}
        check_quoted(document, texts, where)
    kept = tuple(found if constraints is None else read_constraints(constraints, texts))
    if read is None:
        return Declared(columns, kept)
    return Declared(columns, kept, read.text, read.training, read.scrub, read.image)


def undeclared(source: Source, declared: Mapping[str, Column], owners: str | None) -> list[str]:
    """Columns that need a declaration and have none. Raises `SourceError` for unknown columns."""
    named = (*declared, *([] if owners is None else [owners]))
    unknown = [name for name in named if name not in source.found]
    open_ = [name for name in source.schema.names if name not in declared and _known(source, name, owners) is None]
    if unknown:
        raise SourceError(
            f"{source.path}: there is no column {', '.join(map(repr, unknown))}; accepted: {listed_names(source.found)}"
        )
    if owners is not None and owners not in source.schema.names:
        raise SourceError(f"{source.path}: --owners {owners!r} is declared ignore: true; accepted: another column")
    return open_


def refuse_undeclared(source: Source, names: list[str], *, text: bool = False) -> SchemaMissing:
    """The error for undeclared columns: their names, their types if the file has any, and a draft to fill in.

    Args:
        text: whether a text is written, which has no --learn-values.
    """
    learned = "" if text else "--learn-values, which learns the values of text columns; or "
    return SchemaMissing(
        f"{source.path}: nothing is declared of: {in_words(source, names)}. The possible values of a column must be "
        f"known beforehand, and are not read from the data. Accepted: {learned}--assume-public-domain, which reads "
        "domains from the data without a guarantee; or --schema with this file, filled in with public facts:",
        f"{untyped_note() if source.format == 'csv' else ''}{CLAMPED}"
        "# values: learned, instead of a list: learns frequent values with a part of the budget.\n"
        "# {type: text} leaves a column empty, {ignore: true} leaves it out, {type: identifier} makes fresh ids.\n"
        f"{NULLABLE}columns:\n" + "\n".join(draft_lines(source, names, "  ")),
    )


def learned_columns(source: Source, names: list[str]) -> dict[str, Column]:
    """Declarations of text columns with learned values. In CSV files all columns are text."""
    return {
        item.name: CategoricalColumn(type="categorical", values="learned", nullable=item.nullable)
        for item in map(source.schema.field, names)
        if is_text(item.type)
    }


def complete(source: Source, declared: Mapping[str, Column], owners: str | None) -> dict[str, Column]:
    """All columns in the table's order, by the contract's names, with those that need no declaration."""
    columns = {}
    for name in source.schema.names:
        column = declared.get(name) or _known(source, name, owners)
        if column is None:
            raise refuse_undeclared(source, [name])
        columns[source.names[name]] = column
    return columns


def row_column(source: Source) -> str:
    """A name for the column of row ids that no column of the table has."""
    taken = {name.casefold() for name in source.names.values()}
    return next(name for number in range(len(taken) + 1) if (name := f"{ROW}{number or ''}") not in taken)


@contextmanager
def in_options(given: Mapping[str, str] | None = None) -> Iterator[None]:
    """Replaces a contract's keys in error messages by the options that they come from.

    Args:
        given: the table's names of columns, by the contract's.
    """
    caught: type[ContractError | SourceError | ConfigurationError]
    try:
        yield
        return
    except (ContractError, SourceError, ConfigurationError) as error:
        caught, problem = type(error), str(error)
    # Lines begin with the name of a contract that the user does not have.
    plain = re.sub(f"^{DATASET}: (source: )?", "", problem, flags=re.MULTILINE)
    plain = re.sub(r"columns\.([\w-]+)", lambda match: f"columns.{(given or {}).get(match[1], match[1])}", plain)
    raise caught(as_options(plain))


def as_options(problem: str) -> str:
    """A message with the options in place of the contract's keys that they come from."""
    pattern = "|".join(map(re.escape, sorted(_OPTIONS, key=len, reverse=True)))
    return re.sub(pattern, lambda match: _OPTIONS[match.group()], problem)


def _known(source: Source, name: str, owners: str | None) -> Column | None:
    """The declaration of a column that needs none, or None."""
    if name == owners:
        return IdentifierColumn(type="identifier")
    item = source.schema.field(name)
    if pa.types.is_boolean(plain_type(item.type)) and source.format != "csv":
        return BooleanColumn(type="boolean", nullable=item.nullable)
    return None
