"""How things look on an asset page: column schemas, tables, pictures.

What belongs here: turning values of ours into Dagster metadata. What does not: computing them.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation import addresses
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations.step import Outcome, Step

_OF_CANDIDATES = ("synthetic", "audit", "quality")


def picture(svg: str) -> dg.MarkdownMetadataValue:
    """A static picture inside a markdown panel; no script, no request."""
    encoded = base64.b64encode(svg.encode()).decode()
    return dg.MetadataValue.md(f"![plot](data:image/svg+xml;base64,{encoded})")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dg.MarkdownMetadataValue:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return dg.MetadataValue.md("\n".join("| " + " | ".join(line) + " |" for line in lines))


def actual_columns(schema: pa.Schema) -> dg.TableSchema:
    """Column names and types of a table that was written."""
    return dg.TableSchema([dg.TableColumn(item.name, str(item.type)) for item in schema])


def declared_columns(step: Step, contract: DataContract) -> dg.TableSchema:
    """Columns that a step's output will have, as far as the contract tells; a record's fields with their meaning."""
    if step.fields:
        return dg.TableSchema([dg.TableColumn(name, kind, meaning) for name, kind, meaning in step.fields])
    return dg.TableSchema([dg.TableColumn(name, column.type) for name, column in contract.columns.items()])


def console_page(console: str, step: Step, place: Place, outcome: Outcome) -> dg.UrlMetadataValue:
    """Where the console at an address shows what a step made: a release, a candidate's evidence, else the dataset."""
    if outcome.published is not None:
        page = addresses.release_page(outcome.published.release_id)
    elif step.name in _OF_CANDIDATES:
        page = addresses.candidate_page(place.dataset, place.period)
    else:
        page = addresses.dataset_page(place.dataset)
    return dg.MetadataValue.url(console + page)


def metadata_value(value: Any) -> Any:
    """A value of a step's metadata as Dagster takes it."""
    if isinstance(value, Mapping) or (isinstance(value, list) and value and isinstance(value[0], Mapping)):
        return dg.MetadataValue.json(value)
    return value
