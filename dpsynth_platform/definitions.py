"""The Dagster code location: assembly only.

What belongs here: turning contracts into assets, jobs, schedules and sensors, with the deployment's resources. What
does not: any rule of one step. It imports nothing heavy at load (a test checks it): the code server reloads often, and
each step's process loads this first.
"""

from __future__ import annotations

import dpsynth_platform.operations.starting_with_run  # noqa: F401 - its imports take place beside those below

# isort: split
from collections.abc import Collection, Mapping, Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

import resources as res
from assets.checks import build_checks
from assets.line import build_line, partitions_of
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import ContractDraft
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.operations.forking import PRELOADING
from dpsynth_platform.synth.planning import load_all, load_dataset
from sensors import build_sensors
from sensors.cadence import cadence_schedule


def build_definitions(
    settings: Settings, *, datasets: Collection[str] | None = None, embedded: bool = False, **overrides: object
) -> dg.Definitions:
    """All definitions of this deployment's contracts; `overrides` replaces resources by name.

    The sensor `contract_faults` reports invalid contract files, which are no drafts; everything else continues without
    them.

    Args:
        datasets: those whose lines are built; None: all.
        embedded: whether they are part of a code location that has an executor and an IO manager of its own.
    """
    loaded, faults = load_all(settings)
    chosen = [pair for pair in loaded if datasets is None or pair[0].dataset in datasets]
    invalid = [str(fault) for fault in faults if not isinstance(fault, ContractDraft)]
    return _assembled(settings, chosen, invalid, overrides, embedded=embedded)


def _assembled(
    settings: Settings,
    loaded: Sequence[tuple[DataContract, FamilyBudget]],
    faults: Sequence[str],
    overrides: Mapping[str, object],
    *,
    embedded: bool = False,
) -> dg.Definitions:
    contracts = [contract for contract, _ in loaded]
    candidates, releases = [], []
    for contract in contracts:
        key = dg.AssetKey([contract.dataset, "released"])
        released = dg.AssetSelection.assets(key)
        # Up to the candidate that a reviewer decides about: all steps and checks except `released`.
        others = dg.AssetSelection.groups(contract.dataset) - released - dg.AssetSelection.checks_for_assets(key)
        words = "from the source to a release candidate with audit and quality report."
        candidates.append(_job(contract, "candidate", others, words))
        releases.append(_job(contract, "release", released, "publishes the approved candidate."))
    return dg.Definitions(
        assets=[
            asset
            for contract, family in loaded
            for asset in build_line(contract, family, settings.user, settings.console_url)
        ],
        asset_checks=[check for contract, family in loaded for check in build_checks(contract, family)],
        jobs=[*candidates, *releases],
        schedules=[
            cadence_schedule(settings, contract, job)
            for contract, job in zip(contracts, candidates, strict=True)
            if contract.release.cadence is not None
        ],
        sensors=build_sensors(settings, contracts, candidates, releases, faults),
        resources=_resources(settings)
        | ({} if embedded else {"io_manager": res.RefusingIOManager()})
        | dict(overrides),
        executor=None
        if embedded
        else dg.multiprocess_executor.configured(
            {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": [PRELOADING]}}}
        ),
    )


def _job(
    contract: DataContract, kind: str, selection: dg.AssetSelection, description: str
) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        f"{contract.dataset}_{kind}",
        selection=selection,
        description=f"{contract.dataset}: {description}",
        partitions_def=partitions_of(contract),
    )


def job_named(name: str) -> dg.JobDefinition:
    """One job of this code location, for processes that know only its name. Builds no other."""
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
        "federation": res.FederationResource(configuration=str(settings.federation) if settings.federation else None),
        "accelerator": res.AcceleratorResource(
            logs=str(logs_of(settings.restricted)),
            device=settings.device,
            configuration=str(settings.worker) if settings.worker else None,
            hidden=(str(settings.vault), str(settings.ledger)),
        ),
        "line_io_manager": res.RefusingIOManager(),
        "release_io_manager": res.RefusingIOManager(),
    }


defs = build_definitions(Settings.from_environment())
