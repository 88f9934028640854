"""The published table, read with as little as possible: its Delta log by hand, its files by their Parquet footers.

What belongs here: what a release's table says of itself, for verification without a Delta library. What does not:
hashes, or tables with a history: a release is written by one commit and never changed, and whatever looks otherwise is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.foundation.redaction import reason_of

_COMMIT = "_delta_log/00000000000000000000.json"


@dataclass(frozen=True)
class TableFacts:
    """Rows and columns (name and Arrow type) of a table."""

    rows: int
    columns: tuple[tuple[str, str], ...]


def read_facts(data: Path, names: Collection[str]) -> TableFacts:
    """What a table says of itself.

    Args:
        data: its directory.
        names: relative names of all files in it.

    Raises:
        VerificationFailed: it is no Delta table of one commit, or its log names other files than those that are there.
    """
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    parts = set(names) - {_COMMIT}
    if _COMMIT not in names or parts != set(_added(data / _COMMIT)):
        raise VerificationFailed("the table's log does not name exactly the files that are there")
    try:
        footers = [pq.ParquetFile(data / name) for name in sorted(parts)]
        columns = {tuple((field.name, type_name(field.type)) for field in footer.schema_arrow) for footer in footers}
    except (ArrowException, OSError) as error:
        raise VerificationFailed(f"a file of the table is no Parquet file ({reason_of(error)})") from None
    if len(columns) != 1:
        raise VerificationFailed("the table's files do not have the same columns")
    return TableFacts(sum(footer.metadata.num_rows for footer in footers), *columns)


def type_name(arrow_type: Any) -> str:
    """An Arrow type in words that do not depend on how a writer names the elements of lists."""
    return re.sub(r"list<\w+: ", "list<", str(arrow_type))


def _added(commit: Path) -> list[str]:
    """Names of the files that the one commit adds; it may do nothing else."""
    try:
        actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
        kinds = {kind for action in actions for kind in action}
        names = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        plain = all(action["metaData"]["partitionColumns"] == [] for action in actions if "metaData" in action)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise VerificationFailed("the table's log cannot be read") from None
    inside = all(not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts for name in names)
    if not (
        plain and inside and {"add", "metaData", "protocol"} <= kinds <= {"add", "metaData", "protocol", "commitInfo"}
    ):
        raise VerificationFailed("the table's log does more than adding the files of one table beside it")
    return names
