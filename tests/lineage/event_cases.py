"""OpenLineage events, as other producers and we ourselves send them."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from sqlalchemy import create_engine, text

from dpsynth_platform.lineage.naming import DatasetName

_MINUTES = itertools.count()
OWN = "dpsynth"
TEAM = "team"


def name(text: str) -> DatasetName:
    """`s3://lake/reviews` and the like, in a namespace of the tests' own."""
    return DatasetName("s3://lake", text)


def dataset(text: str, version: str = "", **facets: Any) -> dict[str, Any]:
    """A dataset of an event; facets by name, and its version."""
    if version:
        facets["version"] = {"datasetVersion": version}
    return {"namespace": "s3://lake", "name": text, "facets": facets}


def model(text: str, version: str = "", **facets: Any) -> dict[str, Any]:
    return dataset(text, version, datasetType={"datasetType": "MODEL"}, **facets)


def event(
    kind: str = "COMPLETE",
    inputs: list[Any] = [],  # noqa: B006 - never changed
    outputs: list[Any] = [],  # noqa: B006
    *,
    run: str | None = None,
    job: str = "train",
    namespace: str = TEAM,
    time: str | None = None,
    **run_facets: Any,
) -> dict[str, Any]:
    """A run event; strings among its datasets are names."""
    return {
        "eventType": kind,
        "eventTime": time or f"2026-03-01T00:{next(_MINUTES) % 60:02}:00Z",
        "producer": "https://example.org/producer",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": run or str(uuid.uuid4()), "facets": run_facets},
        "job": {"namespace": namespace, "name": job},
        "inputs": [dataset(item) if isinstance(item, str) else item for item in inputs],
        "outputs": [dataset(item) if isinstance(item, str) else item for item in outputs],
    }


def own(kind: str = "COMPLETE", *args: Any, **more: Any) -> dict[str, Any]:
    """An event of our platform."""
    return event(kind, *args, namespace=OWN, **more)


def lease_ends(url: str) -> None:
    """As if the lease of a killed process had run out."""
    with create_engine(url).begin() as connection:
        connection.execute(text("UPDATE lineage_lease SET until = '2000-01-01'"))
