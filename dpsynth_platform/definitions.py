"""The Dagster code location: assembly only.

What belongs here: contracts turned into assets, jobs, schedules and sensors, with the deployment's resources. What does
not: any rule of one step. Nothing heavy is imported at load (a test holds it): the code server reloads often, and every
step runs in a process that loads this first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

import resources as res
from assets.checks import build_checks
from assets.line import build_line, partitions_of
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.operations.forking import PRELOADING
from dpsynth_platform.synth.planning import load_all, load_dataset
from sensors import build_sensors
from sensors.monthly import monthly_schedule


def build_definitions(settings: Settings, **overrides: object) -> dg.Definitions:
    """Everything that this deployment's contracts declare; `overrides` replaces resources by name, for tests.

    Bad contract files are the sensor `contract_faults`'s to tell, also where there are no others: retention goes on.
    """
    loaded, faults = load_all(settings)
    return _assembled(settings, loaded, faults, overrides)


def _assembled(
    settings: Settings,
    loaded: Sequence[tuple[DataContract, FamilyBudget]],
    faults: Sequence[str],
    overrides: Mapping[str, object],
) -> dg.Definitions:
    contracts = [contract for contract, _ in loaded]
    candidates = [candidate_job(contract) for contract in contracts]
    releases = [release_job(contract) for contract in contracts]
    return dg.Definitions(
        assets=[
            asset
            for contract, family in loaded
            for asset in build_line(contract, family, settings.user, settings.console_url)
        ],
        asset_checks=[check for contract, family in loaded for check in build_checks(contract, family)],
        jobs=[*candidates, *releases],
        schedules=[
            monthly_schedule(settings, contract, job)
            for contract, job in zip(contracts, candidates, strict=True)
            if contract.release.cadence is not None
        ],
        sensors=build_sensors(settings, contracts, candidates, releases, faults),
        resources=_resources(settings) | dict(overrides),
        executor=dg.multiprocess_executor.configured(
            {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": [PRELOADING]}}}
        ),
    )


def candidate_job(contract: DataContract) -> UnresolvedAssetJobDefinition:
    """Everything up to what a reviewer decides on: all steps but `released`."""
    whole = dg.AssetSelection.groups(contract.dataset)
    released = dg.AssetSelection.assets(dg.AssetKey([contract.dataset, "released"]))
    return dg.define_asset_job(
        f"{contract.dataset}_candidate",
        selection=whole - released - dg.AssetSelection.checks_for_assets(dg.AssetKey([contract.dataset, "released"])),
        description=f"{contract.dataset}: from the source to a release candidate with audit and quality report.",
        partitions_def=partitions_of(contract),
    )


def release_job(contract: DataContract) -> UnresolvedAssetJobDefinition:
    """Publication of an approved candidate."""
    return dg.define_asset_job(
        f"{contract.dataset}_release",
        selection=dg.AssetSelection.assets(dg.AssetKey([contract.dataset, "released"])),
        description=f"{contract.dataset}: publishes the approved candidate.",
        partitions_def=partitions_of(contract),
    )


def job_named(name: str) -> dg.JobDefinition:
    """One job of this code location, for processes that are told its name only, as each step's is. Builds no other."""
    settings = Settings.from_environment()
    return _assembled(settings, [load_dataset(settings, name.rpartition("_")[0])], (), {}).resolve_job_def(name)


def _resources(settings: Settings) -> dict[str, object]:
    return {
        "storage": res.StorageResource(
            restricted=str(settings.restricted),
            places=settings.sensitive_places,
            encrypted=settings.require_encrypted,
        ),
        "vault": res.VaultResource(directory=str(settings.vault)),
        "ledger": res.LedgerResource(url=settings.ledger_url),
        "lineage": res.LineageResource(url=settings.ledger_url, directory=str(settings.lineage_file.parent)),
        "sql": res.ComputeResource(configuration=str(settings.compute) if settings.compute else None),
        "accelerator": res.AcceleratorResource(
            logs=str(logs_of(settings.restricted)),
            device=settings.device,
            configuration=str(settings.worker) if settings.worker else None,
            hidden=(str(settings.vault), str(settings.ledger)),
        ),
        "io_manager": res.RefusingIOManager(),
    }


defs = build_definitions(Settings.from_environment())
