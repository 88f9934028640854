"""A line among the assets of another project: its source is one of them, and its release is an input of another."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox
from deployment import FAMILY
from line_cases import SMALL, small_table

from dpsynth.dagster import SyntheticTables
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.reviewing.decisions import approve

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROJECT = """
import os
import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SEEN = {}

@dg.asset(key=["warehouse", "people"])
def people() -> None:
    pq.write_table(SEEN["rows"], os.environ["DPSYNTH_HOME"] + "/people.parquet")

@dg.asset(ins={"released": dg.AssetIn(key=["people", "released"])})
def regions(released: pd.DataFrame) -> pd.DataFrame:
    SEEN["regions"] = released.groupby("region").size().reset_index()
    return SEEN["regions"]

@dg.asset(ins={"released": dg.AssetIn(key=["people", "released"])})
def as_arrow(released: pa.Table) -> int:
    SEEN["arrow"] = released
    return released.num_rows

@dg.asset(ins={"bounded": dg.AssetIn(key=["people", "bounded"])})
def forbidden(bounded) -> None:
    SEEN["forbidden"] = bounded
"""


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_USER", "runner")
    monkeypatch.setenv("DPSYNTH_DEVICE", "cpu")
    for name in ("DPSYNTH_DEPLOY", "DPSYNTH_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    contract = copy.deepcopy(SMALL)
    contract["source"] |= {
        "uri": "${DPSYNTH_HOME}/people.parquet",
        "format": "parquet",
        "asset": ["warehouse", "people"],
    }
    for name, document in (("contracts/people", contract), ("families/tests", FAMILY)):
        path = tmp_path / "deploy" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document, sort_keys=False))
    return tmp_path / "deploy"


def test_a_line_stands_among_the_assets_of_a_project(deploy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_defs_folder_sandbox() as sandbox:
        place = sandbox.scaffold_component(component_cls=SyntheticTables, defs_path="synthetic")
        (place / "defs.yaml").write_text(
            yaml.safe_dump({"type": "dpsynth.dagster.SyntheticTables", "attributes": {"deploy": str(deploy)}})
        )
        (sandbox.defs_folder_path / "assets.py").write_text(PROJECT)
        with sandbox.build_all_defs() as definitions:
            run_the_project(definitions, deploy)


def run_the_project(definitions: dg.Definitions, deploy: Path) -> None:
    import sys

    # Attributes of other modules may load packages when they are asked for.
    (project,) = [
        module for module in list(sys.modules.values()) if {"SEEN", "regions"} <= getattr(module, "__dict__", {}).keys()
    ]
    seen: dict[str, Any] = project.SEEN
    seen["rows"] = small_table()
    graph = definitions.resolve_asset_graph()
    raw = dg.AssetKey(["people", "raw"])
    assert graph.get(raw).parent_keys == {dg.AssetKey(["warehouse", "people"])}
    assert {"people_candidate", "people_release"} <= {job.name for job in definitions.resolve_all_job_defs()}
    job = definitions.resolve_implicit_global_asset_job_def()
    instance = dg.DagsterInstance.ephemeral()

    def run(*keys: list[str]) -> dg.ExecuteInProcessResult:
        selection = [dg.AssetKey(key) for key in keys]
        return job.execute_in_process(instance=instance, asset_selection=selection, raise_on_error=False)

    assert run(["warehouse", "people"]).success
    line = [["people", name] for name in ("raw", "scrubbed", "canaries", "clearance", "bounded", "model", "synthetic")]
    assert run(*line, ["people", "audit"], ["people", "quality"]).success
    settings = Settings.from_environment({"DPSYNTH_HOME": str(deploy.parent / "home"), "DPSYNTH_DEPLOY": str(deploy)})
    assert not run(["regions"]).success, "nothing is released yet"
    approve(settings, Place("people"), "reviewer", "")
    assert run(["people", "released"], ["regions"], ["as_arrow"]).success
    assert isinstance(seen["regions"], pd.DataFrame) and len(seen["regions"]) <= 4
    assert isinstance(seen["arrow"], pa.Table) and seen["arrow"].num_rows == 200
    assert not run(["forbidden"]).success and "forbidden" not in seen

    # A release whose table was changed is not loaded.
    (part, *_) = (deploy.parent / "home" / "public" / "people").rglob("data/*.parquet")
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-1])
    assert not run(["regions"]).success


def test_the_asset_of_a_source_changes_no_run(tmp_path: Path) -> None:
    without = DataContract.model_validate(SMALL)
    named = copy.deepcopy(SMALL)
    named["source"]["asset"] = ["warehouse", "people"]
    contract = DataContract.model_validate(named)
    assert contract.mechanism_snapshot() == without.mechanism_snapshot()
    assert contract.digest() != without.digest()
    assert "asset" not in without.snapshot()["source"]


def test_a_scaffold_drafts_a_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    pq.write_table(small_table(), tmp_path / "visits.parquet")
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.project_root / ".gitignore").write_text("*.pyc")
        place = sandbox.scaffold_component(
            component_cls=SyntheticTables,
            defs_path="synthetic",
            scaffold_params={"table": str(tmp_path / "visits.parquet")},
        )
        assert (sandbox.project_root / ".gitignore").read_text() == "*.pyc\n.dpsynth/\n"
        written = yaml.safe_load((place / "defs.yaml").read_text())
        deploy = (place / written["attributes"]["deploy"]).resolve()
        assert deploy == (sandbox.project_root / "deploy").resolve()
        drafted = yaml.safe_load((deploy / "contracts" / "visits.yaml").read_text())
        assert drafted["source"] == {"uri": str(tmp_path / "visits.parquet"), "format": "parquet", "key": None}
        assert set(drafted["columns"]) == set(small_table().column_names)


def test_a_dataset_without_a_contract_is_refused(deploy: Path) -> None:
    with create_defs_folder_sandbox() as sandbox:
        place = sandbox.scaffold_component(component_cls=SyntheticTables, defs_path="synthetic")
        attributes = {"deploy": str(deploy), "datasets": ["peple"]}
        (place / "defs.yaml").write_text(
            yaml.safe_dump({"type": "dpsynth.dagster.SyntheticTables", "attributes": attributes})
        )
        with pytest.raises(Exception, match="Error while building definitions") as caught, sandbox.build_all_defs():
            pass
        cause = caught.value.__cause__ or caught.value.__context__
        assert f"datasets: 'peple' has no valid contract in {deploy / 'contracts'}; accepted: people" in str(cause)
