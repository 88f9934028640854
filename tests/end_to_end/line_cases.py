"""A deployment as small as it can be, runs of its line inside the test's process, and workers that stop where told.

What belongs here: what the tests of crashes, budgets, releases and periods share. What does not: assertions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
from deployment import CONTRACT, Deployment
from graph_cases import LineageGraph, graph_of
from inside import inside

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.people import REQUESTED_BY_TAG
from dpsynth_platform.foundation.storage import Place, Storage, steps_of, write_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.operations.running import failures_of
from dpsynth_platform.reviewing.decisions import approve

PEOPLE = Place("people")
STEPS = steps_of(separate_audit_model=False)
"""The steps of a line whose contract wants no second model for the audit."""
REGIONS = ["east", "north", "south", "west"]
NO_CHANCE = {"confidence": 0.999999, "accept_inconclusive": "a test of other things"}
"""Of an audit. What these tests show does not depend on the verdict: so few canaries can show nothing at such a
confidence. At the usual one an audit fails up to one correct mechanism in twenty, and these tests would with it."""
SMALL: dict[str, Any] = copy.deepcopy(CONTRACT) | {
    "columns": {
        "person": {"type": "identifier"},
        "visit": {"type": "identifier"},
        "region": {"type": "categorical", "values": REGIONS},
        "score": {"type": "integer", "min": 0, "max": 9},
        "outcome": {"type": "categorical", "values": ["no", "yes"]},
    },
    "generate": {"method": "mst", "rows": 200},
    "audit": {"canaries": 60, "max_epsilon_lower_bound": 1.0} | NO_CHANCE,
}


def small_table(rows: int = 1500, *, seed: int = 3, first_person: int = 0) -> pa.Table:
    """Fictional people with one or two visits each and three correlated columns."""
    random = np.random.default_rng(seed)
    region = random.integers(0, 4, rows)
    score = np.clip(2 * region + random.integers(0, 4, rows), 0, 9)
    return pa.table(
        {
            "person": pa.array([f"P{first_person + number * 2 // 3:05d}" for number in range(rows)]),
            "visit": pa.array(np.arange(rows), pa.int64()),
            "region": pa.array([REGIONS[number] for number in region]),
            "score": pa.array(score, pa.int64()),
            "outcome": pa.array(np.where(score + random.integers(-2, 3, rows) > 4, "yes", "no").tolist()),
        }
    )


def small_deployment(root: Path, **privacy: Any) -> Deployment:
    """A deployment with the small contract and its source."""
    deployment = Deployment(root, contract=copy.deepcopy(SMALL))
    deployment.contract["privacy"].update(privacy)
    return deployment.write().with_source(small_table())


def add_dataset(deployment: Deployment, name: str, table: pa.Table, **privacy: Any) -> None:
    """A second dataset of the same family, with a source of its own."""
    first, second = deployment.contract, copy.deepcopy(deployment.contract)
    second["dataset"] = name
    second["source"]["uri"] = f"${{DPSYNTH_HOME}}/sources/{name}"
    second["release"]["uri"] = f"${{DPSYNTH_HOME}}/public/{name}"
    second["privacy"].update(privacy)
    deployment.contract = second
    deployment.write()
    deployment.contract = first
    write_table(deployment.settings.home / "sources" / name, table.schema, table.to_batches())


def bases_of(deployment: Deployment, step: str) -> set[tuple[str, str]]:
    """Names and types of the inputs that a step's last complete event names as bases of its output."""
    ended = [
        item.payload
        for item in LineageStore(deployment.settings.ledger_url).events()
        if (item.kind, item.job_name) == ("COMPLETE", f"people.{step}")
    ]
    named = ended[-1]["outputs"][0]["facets"].get("dpsynth_baseModel", {"baseModels": []})["baseModels"]
    inputs = {item["name"]: item["facets"].get("datasetType", {}) for item in ended[-1]["inputs"]}
    return {(base["name"], inputs[base["name"]]["datasetType"]) for base in named}


@dataclass(frozen=True)
class Ran:
    """One run inside the test's process: its Dagster result and what its steps said."""

    result: dg.ExecuteInProcessResult
    said: dict[str, list[str]]
    """The sentences of each step that a person would see."""

    @property
    def success(self) -> bool:
        return self.result.success

    @property
    def failures(self) -> dict[str, str]:
        """Safe message of each failed step."""
        return dict(failures_of(self.result.all_events))

    @property
    def materializations(self) -> dict[str, dict[str, Any]]:
        """Metadata of each materialized step."""
        return {
            event.asset_key.path[-1]: {name: value.value for name, value in event.materialization.metadata.items()}
            for event in self.result.all_events
            if event.event_type_value == "ASSET_MATERIALIZATION"
        }


def run_here(
    deployment: Deployment,
    job: str = "people_candidate",
    *,
    instance: dg.DagsterInstance | None = None,
    period: str | None = None,
    spend_again: str = "",
    steps: Sequence[str] | None = None,
    user: str = "runner",
    **overrides: object,
) -> Ran:
    """Runs a job of the deployment in this process; a failing step does not raise."""
    dataset = job.rpartition("_")[0]
    heeding = [step for step in ("raw", "clearance") if spend_again and (steps is None or step in steps)]
    config = {"ops": {f"{dataset}__{step}": {"config": {"spend_again": spend_again}} for step in heeding}}
    definition = build_definitions(deployment.settings, **overrides).resolve_job_def(job)
    with dg.DagsterInstance.ephemeral() if instance is None else _kept(instance) as used:
        result = definition.execute_in_process(
            run_config=config,
            instance=used,
            partition_key=period,
            raise_on_error=False,
            tags={REQUESTED_BY_TAG: user},
            asset_selection=[dg.AssetKey([dataset, step]) for step in steps] if steps else None,
        )
        said: dict[str, list[str]] = {}
        for entry in used.all_logs(result.run_id):
            if entry.dagster_event is None and entry.step_key is not None:
                said.setdefault(entry.step_key.rpartition("__")[2], []).append(entry.user_message)
    return Ran(result, said)


def line_to_candidate(root: Path) -> Deployment:
    """The small deployment, whose line has run up to its candidate; the mechanism took place in this process."""
    deployment = small_deployment(root)
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    return deployment


@contextmanager
def _kept(instance: dg.DagsterInstance) -> Iterator[dg.DagsterInstance]:
    yield instance


def ledger_of(deployment: Deployment) -> Ledger:
    return Ledger(deployment.settings.ledger_url)


def storage_of(deployment: Deployment) -> Storage:
    return Storage(deployment.settings.restricted)


def lineage_of(deployment: Deployment) -> LineageGraph:
    return graph_of(LineageStore(deployment.settings.ledger_url))


def released(deployment: Deployment, *, by: str = "reviewer") -> Path:
    """Approves the present candidate and publishes it; returns the release's directory."""
    approve(deployment.settings, PEOPLE, by, "")
    ran = run_here(deployment, "people_release")
    assert ran.success, ran.failures
    return Path(storage_of(deployment).require(PEOPLE, "released").facts["path"])
