"""The options for the dialect of a CSV file, which several commands have.

What belongs here: these options. What does not: what they mean (`sources.dialect`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpsynth_platform.sources.dialect import Dialect

_PANEL = "CSV files"


def _option(*names: str, help: str) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=_PANEL)


@dataclass(frozen=True)
class CsvDialect:
    """The options by the names of `Dialect`, with the prefix `csv_`."""

    csv_separator: Annotated[
        str | None, _option(help="The separator of fields, such as ';', or tab; default: a comma.")
    ] = None
    csv_quote: Annotated[str, _option(help="The quote around fields; '' for none.")] = '"'
    csv_decimal: Annotated[str, _option(help="The decimal mark, '.' or ','.")] = "."
    csv_encoding: Annotated[str, _option(help="The encoding, such as cp1252.")] = "utf-8"
    csv_skip_blanks: Annotated[
        bool | None,
        _option("--csv-skip-blanks/--csv-keep-blanks", help="Whether blanks around fields are removed."),
    ] = None
    csv_header: Annotated[
        bool,
        _option(
            "--csv-header",
            help="The first line contains the names of the columns; needed where no other option names one of them.",
        ),
    ] = False

    def as_dialect(self) -> Dialect:
        """The dialect. Raises `ContractError` if it is impossible."""
        from dpsynth_platform.sources.dialect import Dialect

        return Dialect(**{name.removeprefix("csv_"): value for name, value in vars(self).items()})
