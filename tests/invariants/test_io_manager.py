"""Invariant: no value of the data is pickled under the Dagster home, whatever an asset returns or asks for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.settings import Settings
from resources import RefusingIOManager

MARK = "Zaphodina Quillmarker"


@dg.asset
def returns_rows() -> list[str]:
    return [MARK]


@dg.asset(ins={"rows": dg.AssetIn(key="elsewhere")})
def asks_for_rows(rows: Any) -> dg.MaterializeResult:
    raise AssertionError("it was handed something")


@dg.asset
def returns_nothing() -> None:
    pass


@dg.asset
def materializes() -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"dagster/row_count": 1})


def run(asset: dg.AssetsDefinition, home: Path) -> tuple[bool, str]:
    """Whether it succeeded, and the event log; with Dagster's default file storage behind it."""
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        result = dg.materialize(
            [asset, dg.SourceAsset("elsewhere")],
            instance=instance,
            resources={"io_manager": RefusingIOManager()},
            raise_on_error=False,
        )
        return result.success, str(instance.all_logs(result.run_id))


@pytest.mark.parametrize(
    ("asset", "words"),
    [
        (returns_rows, "returned a value of type list; steps store explicitly"),
        (asks_for_rows, "steps read what other steps stored through the storage resource"),
    ],
)
def test_a_value_is_refused_and_not_kept(tmp_path: Path, asset: dg.AssetsDefinition, words: str) -> None:
    success, log = run(asset, tmp_path)
    assert not success
    assert words in log
    assert MARK not in log
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert MARK.encode() not in content
            assert pickle.dumps([MARK]) not in content


@pytest.mark.parametrize("asset", [returns_nothing, materializes])
def test_what_the_steps_return_is_no_value(tmp_path: Path, asset: dg.AssetsDefinition) -> None:
    success, log = run(asset, tmp_path)
    assert success, log


def test_every_asset_of_the_code_location_uses_it(tmp_path: Path) -> None:
    settings = Settings.from_environment({"DPSYNTH_HOME": str(tmp_path), "DPSYNTH_USER": "tester"})
    definitions = build_definitions(settings)
    managers = ("io_manager", "line_io_manager", "release_io_manager")
    assert all(isinstance(definitions.resources[name], RefusingIOManager) for name in managers)
    assets = list(definitions.assets)
    assert len(assets) >= 20
    for asset in assets:
        assert isinstance(asset, dg.AssetsDefinition)
        for key in asset.keys:
            assert asset.get_io_manager_key_for_asset_key(key) in managers
        assert asset.op.output_defs[0].dagster_type.is_nothing, asset.key
        assert not [item for item in asset.op.input_defs if not item.dagster_type.is_nothing], asset.key
