"""The factory that turns one contract into one line of assets.

What belongs here: the policies of all steps: storage without an IO manager, no retries, lineage around each attempt,
safe errors, metadata for the asset page. What does not: what a step does (its own module).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

import resources as res
from assets import audit, bounded, canaries, clearance, model, quality, raw, released, scrubbed, synthetic
from assets.guard import Caught, Interruptions, guarded, log_if_possible
from assets.process import live_with_run
from assets.shown import console_page, declared_columns, metadata_value
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.periods import CADENCES
from dpsynth_platform.foundation.addresses import dataset_page
from dpsynth_platform.foundation.people import REQUESTED_BY_TAG, recorded_name
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.storage import AUDITED, Place
from dpsynth_platform.operations.step import Outcome, Step, StepContext

if TYPE_CHECKING:
    from dpsynth_platform.lineage.emitter import Delivery
    from dpsynth_platform.lineage.runs import StepRun

_MODULES = (raw, scrubbed, canaries, clearance, bounded, model, synthetic, audit, quality, released)
LINE: tuple[Step, ...] = tuple(module.STEP for module in _MODULES)
"""The steps of a dataset whose released model is audited."""
WITH_AUDIT_MODEL: tuple[Step, ...] = (
    *LINE[: LINE.index(model.STEP)],
    model.AUDITED_STEP,
    replace(model.STEP, upstream=("clearance", "bounded"), after=(AUDITED,)),
    synthetic.STEP,
    replace(audit.STEP, upstream=(*audit.STEP.upstream, AUDITED)),
    *LINE[LINE.index(quality.STEP) :],
)
"""The steps of a dataset with a second model for the audit: the released model reads no canary."""


FEDERATED: tuple[Step, ...] = (
    raw.FEDERATED_STEP,
    canaries.STEP,
    replace(clearance.STEP, upstream=("raw",)),
    model.FEDERATED_STEP,
    synthetic.STEP,
    audit.STEP,
    replace(released.STEP, upstream=("clearance", "synthetic", "audit")),
)
"""The steps of a dataset whose rows stay with participants."""


def line_of(contract: DataContract) -> tuple[Step, ...]:
    """The steps of a dataset, in order."""
    if contract.source.federation is not None:
        return FEDERATED
    return WITH_AUDIT_MODEL if contract.separate_audit_model else LINE


class SpendAgainConfig(dg.Config):
    """The explicit order for a second spend.

    Attributes:
        spend_again: id of the started ledger entry whose mechanism failed, or of the entry that paid for the period in
            another run. That spend is given up as lost, and one more is permitted. A repeated run names the same id,
            which is then already replaced. The steps `raw` and `clearance` read it.
    """

    spend_again: str = ""


def build_line(contract: DataContract, family: FamilyBudget, user: str, console: str = "") -> list[dg.AssetsDefinition]:
    """The assets of one dataset, in order; group = dataset, key = `<dataset>/<step>`.

    Args:
        user: the runner of runs without the tag `REQUESTED_BY_TAG`.
        console: the console's address, for links to it; empty: there is none.
    """
    return [_asset(step, contract, family, user, console) for step in line_of(contract)]


def shown_owners(contract: DataContract) -> list[str]:
    """The contract's owners as Dagster accepts them: anything but a usual address is the name of a team."""
    usual = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}|team:.+")
    return [owner if usual.fullmatch(owner) else f"team:{owner}" for owner in contract.owners if owner.strip()]


def partitions_of(contract: DataContract) -> dg.TimeWindowPartitionsDefinition | None:
    """A partition for each period of a contract with a cadence, under the period's name."""
    release = contract.release
    if release.cadence is None:
        return None
    cadence = CADENCES[release.cadence]
    return dg.TimeWindowPartitionsDefinition(
        cron_schedule=cadence.cron, fmt=cadence.format, start=str(release.start), timezone=release.time_zone
    )


def _asset(step: Step, contract: DataContract, family: FamilyBudget, user: str, console: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=[contract.dataset, step.name],
        deps=_upstream(step, contract),
        group_name=contract.dataset,
        owners=shown_owners(contract),
        description=step.description,
        kinds=set(step.kinds),
        tags={"dpsynth/zone": step.zone, "dpsynth/family": contract.family}
        | ({"dpsynth/demo": "true"} if contract.demo else {}),
        metadata={"dagster/column_schema": declared_columns(step, contract), "zone": step.zone}
        | ({"console": dg.MetadataValue.url(console + dataset_page(contract.dataset))} if console else {}),
        code_version=step.code_version,
        partitions_def=partitions_of(contract),
        pool=step.pool,
        io_manager_key="release_io_manager" if step.name == "released" else "line_io_manager",
        op_tags={"dagster/max_retries": "0"},
    )
    def compute(
        context: dg.AssetExecutionContext,
        config: SpendAgainConfig,
        storage: dg.ResourceParam[res.StorageResource],
        vault: dg.ResourceParam[res.VaultResource],
        ledger: dg.ResourceParam[res.LedgerResource],
        lineage: dg.ResourceParam[res.LineageResource],
        sql: dg.ResourceParam[res.ComputeResource],
        accelerator: dg.ResourceParam[res.AcceleratorResource],
        federation: dg.ResourceParam[res.FederationResource],
    ) -> dg.MaterializeResult[None]:
        store = storage.open()
        logs = logs_of(store.root)
        live_with_run(logs)
        from dpsynth_platform.operations.step_lineage import finished_run, step_run

        place = Place(contract.dataset, context.partition_key if context.has_partition_key else None)
        emitter, warn = lineage.open(), log_if_possible(context.log.warning)
        run = step_run(context, step, contract, place, store)

        def body() -> "tuple[Outcome, StepRun]":
            storage.check()
            outcome = step.body(
                StepContext(
                    contract=contract,
                    family=family,
                    place=place,
                    storage=store,
                    ledger=ledger.open(),
                    graph=ledger.graph(),
                    vault=vault.open(),
                    sql=sql.choice(contract.dataset),
                    run_worker=accelerator.runner(context),
                    check_worker=partial(accelerator.check, contract.dataset),
                    relay=partial(federation.choice, contract.dataset),
                    device=accelerator.device,
                    emitter=emitter,
                    run=run,
                    line={item.name: item.upstream for item in line_of(contract)},
                    runner=recorded_name(
                        context.run.tags.get(REQUESTED_BY_TAG, user),  # anyone who starts a run can write any tag
                        f"run tag {REQUESTED_BY_TAG}",
                    ),
                    spend_again=config.spend_again,
                    progress=log_if_possible(context.log.info),
                )
            )
            return outcome, finished_run(run, step, place, store, outcome)

        with Interruptions() as interruptions:
            _warn(warn, emitter.start(run))
            done = guarded(body, logs, interruptions)
            if isinstance(done, Caught):
                _warn(warn, emitter.abort(run) if done.interrupted else emitter.fail(run, done.safe))
                raise done.failure()
            outcome, finished = done
            _warn(warn, emitter.complete(finished))
        links = {"console": console_page(console, step, place, outcome)} if console else {}
        return _result(outcome, declared_columns(step, contract), links)

    return compute


def _upstream(step: Step, contract: DataContract) -> list[dg.AssetKey]:
    """The steps before, and before the first one the asset that makes the source, if the contract names it."""
    if step.name == "raw" and contract.source.asset is not None:
        return [dg.AssetKey(contract.source.asset)]
    return [dg.AssetKey([contract.dataset, before]) for before in (*step.upstream, *step.after)]


def _result(
    outcome: Outcome, declared: dg.TableSchema, links: Mapping[str, dg.UrlMetadataValue]
) -> dg.MaterializeResult[None]:
    columns = declared
    if outcome.schema is not None:
        meanings = {column.name: column.description for column in declared.columns}
        columns = dg.TableSchema(
            [dg.TableColumn(item.name, str(item.type), meanings.get(item.name)) for item in outcome.schema]
        )
    shown = {name: metadata_value(value) for name, value in outcome.metadata.items()}
    return dg.MaterializeResult(
        metadata={
            **_row_count(outcome),
            "dagster/column_schema": columns,
            "reused": outcome.reused,
            **shown,
            **links,
        },
        data_version=dg.DataVersion(outcome.record.content_hash[:32]),
    )


def _row_count(outcome: Outcome) -> dict[str, int | str]:
    """Of a table alone."""
    if outcome.schema is None:
        return {}
    return {"row count": "restricted"} if outcome.rows is None else {"dagster/row_count": outcome.rows}


def _warn(warn: Callable[[str], None], delivery: "Delivery") -> None:
    """Reports a lineage event that was not delivered, which never fails the run."""
    for warning in delivery.warnings:
        warn(warning)
