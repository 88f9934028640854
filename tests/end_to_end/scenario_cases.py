"""Datasets of chosen people, and models that others trained on their releases.

What belongs here: what the scenarios of lineage (Ponomareva et al. 2026, section 7.7.1) and its adversaries share. What
does not: assertions.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import event_cases
import numpy as np
import pyarrow as pa
import pytest
import yaml
from deployment import FAMILY, Deployment
from inside import inside
from line_cases import REGIONS, SMALL, Ran, ledger_of, run_here, storage_of

from dpsynth_platform.foundation.storage import Place, Storage, write_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle.owner_keys import keys_in_use
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.lineage.naming import DatasetName, dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.scrub.fingerprints import fingerprint_hex, owner_fingerprint
from dpsynth_platform.secrets.vault import Vault

UP_TO_CLEARANCE = ("raw", "scrubbed", "clearance")
UP_TO_BOUNDED = ("raw", "scrubbed", "canaries", "clearance", "bounded")
UP_TO_MODEL = (*UP_TO_BOUNDED, "model")
UP_TO_AUDIT = (*UP_TO_MODEL, "synthetic", "audit")
TRAINERS = "team-search"
COLUMNS = 2
"""Modelled ones."""


@contextmanager
def base_models() -> Iterator[None]:
    """As if the method `independent` trained from a checkpoint: none of the methods that make tables does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpsynth_platform.contracts.cross_checks.BASE_MODEL_METHODS", ("independent",))
        yield


def name_of(person: int) -> str:
    """A person's id."""
    return f"P{person:05d}"


def records(people: Sequence[int], *, first_visit: int = 0, month: str | None = None) -> pa.Table:
    """One record for each person named, in their order; of equal length and content for as many people.

    Args:
        month: `YYYY-MM`, for datasets with a cadence.
    """
    number = np.arange(len(people))
    columns = {
        "person": pa.array([name_of(person) for person in people]),
        "visit": pa.array(number + first_visit, pa.int64()),
        "region": pa.array([REGIONS[item % 4] for item in number]),
        "outcome": pa.array(["no" if item % 3 else "yes" for item in number]),
    }
    if month is not None:
        day = dt.date.fromisoformat(f"{month}-15")
        columns["day"] = pa.array([day] * len(people), pa.date32())
    return pa.table(columns)


@dataclass(frozen=True)
class Made:
    """A release: its directory, its run's sealed plan in words as the asset page shows it, and who paid for it."""

    path: Path
    plan: Mapping[str, Any]
    entry: str

    @property
    def table(self) -> DatasetName:
        """Its name in the graph."""
        return dataset_name(self.path / "data")

    @property
    def dossier(self) -> dict[str, Any]:
        """Its public dossier."""
        content: dict[str, Any] = json.loads((self.path / "dossier.json").read_text(encoding="utf-8"))
        return content


@dataclass(frozen=True)
class Scene:
    """A deployment with several datasets and families."""

    root: Path

    @property
    def deployment(self) -> Deployment:
        return Deployment(self.root)

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.deployment)

    @property
    def storage(self) -> Storage:
        return storage_of(self.deployment)

    @property
    def store(self) -> LineageStore:
        return LineageStore(self.deployment.settings.ledger_url)

    def source(self, name: str) -> Path:
        """Where a dataset's table is."""
        return self.deployment.settings.home / "sources" / name

    def family(self, name: str, **terms: Any) -> str:
        """Declares a family: of users, of namespace `person`, with a large budget for each owner unless told."""
        document = copy.deepcopy(FAMILY) | {
            "family": name,
            "mode": "per-owner",
            "cap": {"epsilon": 9.0, "delta": 1.0e-4},
            "owner_normalization": [],
        }
        self._write("families", name, document | terms)
        return name

    def dataset(
        self,
        name: str,
        family: str,
        table: pa.Table | None = None,
        *,
        method: str = "independent",
        base_model: str | None = None,
        source: str = "",
        start: str | None = None,
        approvals: int = 0,
        **privacy: Any,
    ) -> None:
        """Declares a dataset, or declares it anew; its table is written where one is given.

        Args:
            source: the dataset whose table it reads, where that is another's.
            start: the first month, of a dataset with a cadence.
        """
        terms = yaml.safe_load(self._path("families", family).read_text())
        kept = copy.deepcopy(SMALL)
        kept["dataset"], kept["family"] = name, family
        kept["source"]["uri"] = f"${{DPSYNTH_HOME}}/sources/{source or name}"
        if terms["unit"] == "example":
            kept["source"]["key"] = privacy["owner_columns"]
        kept["release"] = {"uri": f"${{DPSYNTH_HOME}}/public/{name}", "approvals": approvals}
        kept["privacy"] |= {key: terms[key] for key in ("unit", "adjacency", "namespace")} | privacy
        kept["generate"] = {"method": method, "rows": 50} | ({"base_model": base_model} if base_model else {})
        del kept["columns"]["score"]
        if start is not None:
            kept["release"] |= {"cadence": "monthly", "start": start}
            kept["source"]["period_column"] = "day"
            kept["columns"]["day"] = {"type": "date", "min": "2025-01-01", "max": "2026-12-31"}
        self._write("contracts", name, kept)
        dagster = Path(__file__).parents[2] / "deploy" / "dagster.yaml"
        (self.root / "deploy" / "dagster.yaml").write_bytes(dagster.read_bytes())
        if table is not None:
            write_table(self.source(name), table.schema, table.to_batches())

    def months(self, name: str, visits: Mapping[str, Sequence[int]]) -> None:
        """Writes a dataset's table: who came in which month."""
        parts = [
            records(people, first_visit=1000 * index, month=month)
            for index, (month, people) in enumerate(visits.items())
        ]
        write_table(self.source(name), parts[0].schema, pa.concat_tables(parts).to_batches())

    def run(self, name: str, period: str | None = None, *, steps: Sequence[str] | None = None) -> Ran:
        """Runs a dataset's line up to its candidate, or some steps of it; the mechanism in this process."""
        return run_here(
            self.deployment, f"{name}_candidate", period=period, steps=steps, accelerator=inside(self.deployment)
        )

    def publish(self, name: str, period: str | None = None) -> Ran:
        """Runs the release of the present candidate."""
        return run_here(self.deployment, f"{name}_release", period=period)

    def release(self, name: str, period: str | None = None, *, publish: bool = True) -> Made:
        """Runs a dataset's line to its end, which must be well; a line that is not published ends with its model."""
        candidate = self.run(name, period, steps=UP_TO_AUDIT if publish else UP_TO_MODEL)
        assert candidate.success, candidate.failures
        path = Path()
        if publish:
            published = self.publish(name, period)
            assert published.success, published.failures
            path = Path(self.storage.require(Place(name, period), "released").facts["path"])
        shown = candidate.materializations
        return Made(path, shown["raw"]["plan in numbers"], shown["clearance"]["entry_id"])

    def cleared(self, name: str, period: str | None = None) -> Clearance:
        """What the run's clearance found."""
        return Clearance.from_json(self.storage.require(Place(name, period), "clearance").facts[CLEARANCE])

    def withdraw(self, name: str) -> None:
        """Voids the dataset's reservation, as if it had never been asked for."""
        self.ledger.void(self.storage.require(Place(name), "clearance").facts["entry_id"], by="runner")

    def participants(self, entry: str) -> set[str]:
        """Whom an entry names, as fingerprints."""
        return set(fingerprint_hex(self.ledger.participants(entry)))

    def fingerprints(self, family: str, owners: Iterable[str]) -> dict[str, str]:
        """Each owner's fingerprint, by owner."""
        keys = keys_in_use(Vault(self.deployment.settings.vault), self.ledger.account(family))
        return {owner: owner_fingerprint(owner, keys) for owner in owners}

    def trained(self, product: str, *inputs: str | DatasetName, base: str = "", **more: Any) -> None:
        """Another team tells that it trained a model (`s3://models/...`) on some data, from another model of theirs."""
        read = [_dataset(dataset_name(item) if isinstance(item, str) else item) for item in inputs]
        read += [_model(base)] if base else []
        self.tell(event_cases.event("COMPLETE", read, [_model(product)], **more))

    def tell(self, event: dict[str, Any]) -> Any:
        """Takes in what another team tells."""
        return self.store.record(event, origin="ingested", source=TRAINERS)

    def _path(self, kind: str, name: str) -> Path:
        return self.root / "deploy" / kind / f"{name}.yaml"

    def _write(self, kind: str, name: str, document: dict[str, Any]) -> None:
        path = self._path(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document), encoding="utf-8")


def model(product: str) -> str:
    """The URI of a model that others trained."""
    return f"s3://models/{product}"


def _dataset(name: DatasetName) -> dict[str, Any]:
    return {"namespace": name.namespace, "name": name.name, "facets": {}}


def _model(product: str) -> dict[str, Any]:
    return _dataset(dataset_name(model(product))) | {"facets": {"datasetType": {"datasetType": "MODEL"}}}
