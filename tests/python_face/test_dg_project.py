"""A project made, checked and run by Dagster's own command `dg`, each step a real process."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from deployment import FAMILY
from line_cases import SMALL, small_table

from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.reviewing.decisions import approve

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("dagster_dg_cli") is None, reason="`dg` is not installed (requirements/dg.lock)"
    ),
]

ASSETS = """
import os
from pathlib import Path

import dagster as dg
import pandas as pd

HOME = Path(os.environ["DPSYNTH_HOME"])

@dg.asset(key=["warehouse", "people"])
def people() -> None:
    (HOME / "extract.parquet").rename(HOME / "people.parquet")

@dg.asset(ins={"released": dg.AssetIn(key=["people", "released"])})
def regions(released: pd.DataFrame) -> None:
    released.groupby("region").size().to_csv(HOME / "regions.csv")
"""

EXECUTOR = """
import dagster as dg

@dg.definitions
def forked() -> dg.Definitions:
    preloading = {"preload_modules": ["dpsynth_platform.operations.preloading"]}
    return dg.Definitions(executor=dg.multiprocess_executor.configured({"start_method": {"forkserver": preloading}}))
"""
"""Of the guide: what all steps import is imported once. Dagster's own executor imports it for each step."""

Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs `dg`, or `create-dagster`, in the project, if that is there, without a fault; gives what it said."""
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    (tmp_path / "home").mkdir()
    project = tmp_path / "shop"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DPSYNTH_")} | {
        "DAGSTER_HOME": str(tmp_path / "dagster"),
        "DPSYNTH_HOME": str(tmp_path / "home"),
        "DPSYNTH_USER": "runner",
        "DPSYNTH_DEVICE": "cpu",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(project / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }

    def ran(*arguments: str, program: str = "dagster_dg_cli") -> str:
        done = subprocess.run(
            [sys.executable, "-c", f"from {program}.cli import main; main()", *arguments],
            cwd=project if project.exists() else tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return ran


def test_dg_makes_checks_and_runs_a_project(command: Command, tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "shop"
    command("project", "--no-uv-sync", "shop", program="create_dagster")
    pq.write_table(small_table(), home / "extract.parquet")
    component = "dpsynth.dagster.SyntheticTables"
    assert component in command("list", "components")

    # The draft is no contract yet: the project loads, and says so.
    command("scaffold", "defs", component, "synthetic", "--table", str(home / "extract.parquet"))
    drafted = project / "deploy" / "contracts" / "extract.yaml"
    assert set(yaml.safe_load(drafted.read_text())["columns"]) == set(small_table().column_names)
    command("check", "defs")
    drafted.unlink()

    contract = copy.deepcopy(SMALL)
    contract["source"] |= {
        "uri": "${DPSYNTH_HOME}/people.parquet",
        "format": "parquet",
        "asset": ["warehouse", "people"],
    }
    (project / "deploy" / "contracts" / "people.yaml").write_text(yaml.safe_dump(contract, sort_keys=False))
    (project / "deploy" / "families" / "tests.yaml").write_text(yaml.safe_dump(FAMILY, sort_keys=False))
    (project / "src" / "shop" / "defs" / "assets.py").write_text(ASSETS)
    command("check", "defs")
    listed = command("list", "defs", "--json")
    assert '"people/released"' in listed and '"warehouse/people"' in listed and '"people_candidate"' in listed

    command("launch", "--assets", "key:warehouse/people")
    executor = project / "src" / "shop" / "defs" / "executor.py"
    executor.write_text(EXECUTOR)
    command("launch", "--job", "people_candidate")
    executor.unlink()  # the last step takes place under Dagster's own
    settings = Settings.from_environment({"DPSYNTH_HOME": str(home), "DPSYNTH_DEPLOY": str(project / "deploy")})
    approve(settings, Place("people"), "reviewer", "")
    command("launch", "--assets", "key:people/released or key:regions")
    assert (home / "regions.csv").read_text().startswith("region,")
