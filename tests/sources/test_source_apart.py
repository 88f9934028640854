"""Files of a source that lie among the platform's own: rows of another dataset, whose budget would not pay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from test_plain_files import READ, declared

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources import source

OTHERS = "restricted/other/rows.parquet"


def of_links(root: Path) -> dict[str, Any]:
    (root / "mine").mkdir()
    (root / "mine/rows.parquet").symlink_to(root / OTHERS)
    return {"format": "parquet", "uri": str(root / "mine")}


def of_a_delta_log(root: Path) -> dict[str, Any]:
    write_deltalake(str(root / "mine"), READ)
    log = root / "mine/_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"] |= {"path": f"../{OTHERS}", "size": (root / OTHERS).stat().st_size}
    log.write_text("\n".join(map(json.dumps, actions)))
    return {"format": "delta", "uri": str(root / "mine")}


def of_a_delta_table_with_links(root: Path) -> dict[str, Any]:
    write_deltalake(str(root / "mine"), READ)
    (data,) = (root / "mine").glob("*.parquet")
    data.unlink()
    data.symlink_to(root / OTHERS)
    return {"format": "delta", "uri": str(root / "mine")}


def of_an_iceberg_manifest(root: Path) -> dict[str, Any]:
    uri = f"sqlite:///{root / 'catalog.db'}"
    catalog = SqlCatalog("made", uri=uri, warehouse=str(root / "lake"))
    catalog.create_namespace("clinic")
    table = catalog.create_table("clinic.visits", READ.schema, properties={"format-version": "2"})
    table.add_files([str(root / OTHERS)])
    catalog.close()
    return {"format": "iceberg", "uri": uri, "catalog": "made", "table": "clinic.visits"}


PLACES = [of_links, of_a_delta_log, of_a_delta_table_with_links, of_an_iceberg_manifest]


@pytest.mark.parametrize("place", PLACES, ids=lambda made: made.__name__)
def test_no_file_is_among_the_platforms_own(place: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / OTHERS).parent.mkdir(parents=True)
    pq.write_table(READ, tmp_path / OTHERS)
    by = declared(place(tmp_path))
    for run in ({"register": True}, {"version": 1 if by.source.format == "iceberg" else 0}):
        with pytest.raises(SourceError, match="a data file lies among the platform's own files"):
            source.pin(by, tmp_path / "restricted", **run)
    elsewhere = source.pin(by, tmp_path / "another", register=True)
    assert sum(batch.num_rows for batch in source.batches(elsewhere, by, None)) == len(READ)
