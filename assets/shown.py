"""Metadata of asset pages: column schemas, tables, pictures, links.

What belongs here: turning values into Dagster metadata. What does not: computing them.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dpsynth_platform.contracts.columns import Column, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation import addresses
from dpsynth_platform.foundation.markdown import cell, plain
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations.step import Outcome, Step

_OF_CANDIDATES = ("synthetic", "audit", "quality")


def picture(svg: str, in_words: str = "plot") -> dg.MarkdownMetadataValue:
    """A static picture in markdown, without script or request."""
    encoded = base64.b64encode(svg.encode()).decode()
    return dg.MetadataValue.md(f"![{plain(in_words)}](data:image/svg+xml;base64,{encoded})")


def png(content: bytes, in_words: str) -> dg.MarkdownMetadataValue:
    """A picture of pixels in markdown, without request."""
    return dg.MetadataValue.md(f"![{plain(in_words)}](data:image/png;base64,{base64.b64encode(content).decode()})")


def together(*parts: str | dg.MarkdownMetadataValue) -> dg.MarkdownMetadataValue:
    """Paragraphs, tables and pictures below each other."""
    return dg.MetadataValue.md("\n\n".join(part if isinstance(part, str) else part.value or "" for part in parts))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dg.MarkdownMetadataValue:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *(map(cell, row) for row in rows)]
    return dg.MetadataValue.md("\n".join("| " + " | ".join(line) + " |" for line in lines))


def declared_columns(step: Step, contract: DataContract) -> dg.TableSchema:
    """Columns of a step's output according to the contract; the fields of a record with their meaning."""
    if step.fields:
        return dg.TableSchema([dg.TableColumn(name, kind, meaning) for name, kind, meaning in step.fields])
    return dg.TableSchema(
        [dg.TableColumn(name, column.type, _declared(column)) for name, column in contract.columns.items()]
    )


def _declared(column: Column) -> str | None:
    """What a contract declares of a column's values; public, as all of a contract is. None: nothing."""
    values, low, high = (getattr(column, name, None) for name in ("values", "min", "max"))
    found = (
        f"{len(values)} declared values" if isinstance(values, list) else None,
        f"{low} to {high}" if low is not None and high is not None else None,
        "may be missing" if column.nullable else None,
        f"identifiers: {column.pii}" if isinstance(column, TextColumn) else None,
    )
    return ", ".join(filter(None, found)) or None


def numbers(report: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, float]:
    """Numbers of a report, to four digits, by labels: Dagster plots them over time. What a report lacks is left out."""
    found = {}
    for label, path in paths.items():
        value: Any = report
        for key in path.split("."):
            value = (value or {}).get(key)
        if value is not None:
            found[label] = float(f"{value:.4g}")
    return found


def console_page(console: str, step: Step, place: Place, outcome: Outcome) -> dg.UrlMetadataValue:
    """The console's page of a step's output: a release, a candidate's evidence, or else the dataset."""
    if outcome.published is not None:
        page = addresses.release_page(outcome.published.release_id)
    elif step.name in _OF_CANDIDATES:
        page = addresses.candidate_page(place.dataset, place.period)
    else:
        page = addresses.dataset_page(place.dataset)
    return dg.MetadataValue.url(console + page)


def metadata_value(value: Any) -> Any:
    """A value as Dagster accepts it: mappings, and lists of them, as JSON."""
    if isinstance(value, Mapping) or (isinstance(value, list) and value and isinstance(value[0], Mapping)):
        return dg.MetadataValue.json(value)
    return value
