"""One contract in, one line of assets out.

What belongs here: the factory and the policies that hold for every step alike: storage without an IO manager, no
retries, lineage around each attempt, safe errors, metadata that a reader of the asset page can rely on. What does not:
what a step does (its own module).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

import resources as res
from assets import audit, audited, bounded, canaries, clearance, model, quality, raw, released, scrubbed, synthetic
from assets.guard import Caught, guarded, said_if_possible
from assets.process import live_with_run
from assets.shown import actual_columns, console_page, declared_columns, metadata_value
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.addresses import dataset_page
from dpsynth_platform.foundation.people import REQUESTED_BY_TAG, recorded_name
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations.step import Outcome, Step, StepContext

if TYPE_CHECKING:
    from dpsynth_platform.lineage.emitter import Delivery
    from dpsynth_platform.lineage.runs import StepRun

LINE: tuple[Step, ...] = (
    raw.STEP,
    scrubbed.STEP,
    canaries.STEP,
    clearance.STEP,
    bounded.STEP,
    model.STEP,
    synthetic.STEP,
    audit.STEP,
    quality.STEP,
    released.STEP,
)
"""The steps of a dataset whose released model is the one that is audited."""
APART: tuple[Step, ...] = (
    *LINE[: LINE.index(model.STEP)],
    audited.STEP,
    replace(model.STEP, upstream=("clearance", "bounded"), after=(audited.STEP.name,)),
    synthetic.STEP,
    replace(audit.STEP, upstream=(*audit.STEP.upstream, audited.STEP.name)),
    *LINE[LINE.index(quality.STEP) :],
)
"""The steps of a dataset with a second model for the audit, so that the released one reads no canary."""


def line_of(contract: DataContract) -> tuple[Step, ...]:
    """The steps of a dataset, in order."""
    return APART if contract.separate_audit_model else LINE


class SpendAgainConfig(dg.Config):
    """The explicit word for a second spend.

    Attributes:
        spend_again: id of the started ledger entry whose mechanism failed, or of the entry that has paid for the
            period by another run. Naming it gives that spend up for lost and allows one more. Whoever repeats the run
            repeats the same word, which then names an entry already replaced. The steps `raw` and `clearance` heed it.
    """

    spend_again: str = ""


def build_line(contract: DataContract, family: FamilyBudget, user: str, console: str = "") -> list[dg.AssetsDefinition]:
    """The assets of one dataset, in order; group = dataset, key = `<dataset>/<step>`.

    Args:
        contract: of the dataset.
        family: its budget.
        user: who runs what no tag names anybody for.
        console: the console's address, for links to it; empty: there is none.
    """
    return [_asset(step, contract, family, user, console) for step in line_of(contract)]


def partitions_of(contract: DataContract) -> dg.MonthlyPartitionsDefinition | None:
    """Monthly partitions (`YYYY-MM`) for a contract with a cadence."""
    if contract.release.cadence is None:
        return None
    release = contract.release
    return dg.MonthlyPartitionsDefinition(start_date=str(release.start), fmt="%Y-%m", timezone=release.time_zone)


def _asset(step: Step, contract: DataContract, family: FamilyBudget, user: str, console: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=[contract.dataset, step.name],
        deps=[dg.AssetKey([contract.dataset, before]) for before in (*step.upstream, *step.after)],
        group_name=contract.dataset,
        owners=list(contract.owners),
        description=step.description,
        kinds=set(step.kinds),
        tags={"dpsynth/zone": step.zone, "dpsynth/family": contract.family}
        | ({"dpsynth/demo": "true"} if contract.demo else {}),
        metadata={"dagster/column_schema": declared_columns(step, contract), "zone": step.zone}
        | ({"console": dg.MetadataValue.url(console + dataset_page(contract.dataset))} if console else {}),
        code_version=step.code_version,
        partitions_def=partitions_of(contract),
        pool=step.pool,
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
    ) -> dg.MaterializeResult[None]:
        store = storage.open()
        logs = logs_of(store.root)
        live_with_run(logs)
        from dpsynth_platform.operations.step_lineage import finished_run, step_run

        place = Place(contract.dataset, context.partition_key if context.has_partition_key else None)
        emitter, say, warn = lineage.open(), said_if_possible(context.log.info), said_if_possible(context.log.warning)
        run = step_run(context, step, contract, place, store)
        _tell(warn, emitter.start(run))

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
                    device=accelerator.device,
                    run=run,
                    line={item.name: item.upstream for item in line_of(contract)},
                    runner=_runner(context.run.tags, user),
                    spend_again=config.spend_again,
                    progress=say,
                )
            )
            return outcome, finished_run(run, step, place, store, outcome)

        done = guarded(body, logs)
        if isinstance(done, Caught):
            _tell(warn, emitter.abort(run) if done.interrupted else emitter.fail(run, done.safe))
            raise done.failure()
        outcome, finished = done
        _tell(warn, emitter.complete(finished))
        links = {"console": console_page(console, step, place, outcome)} if console else {}
        return _result(outcome, declared_columns(step, contract), links)

    return compute


def _runner(tags: Mapping[str, str], user: str) -> str:
    """Who asked for the run: whom its tag names, else the deployment's user.

    Whoever can start a run can write any tag, and what it names goes into records, the ledger and messages.

    Raises:
        ConfigurationError: the tag is no name.
    """
    return recorded_name(tags.get(REQUESTED_BY_TAG, user), f"run tag {REQUESTED_BY_TAG}")


def _result(
    outcome: Outcome, declared: dg.TableSchema, links: Mapping[str, dg.UrlMetadataValue]
) -> dg.MaterializeResult[None]:
    columns = declared if outcome.schema is None else actual_columns(outcome.schema)
    shown = {name: metadata_value(value) for name, value in outcome.metadata.items()}
    return dg.MaterializeResult(
        metadata={
            **({"row count": "restricted"} if outcome.rows is None else {"dagster/row_count": outcome.rows}),
            "dagster/column_schema": columns,
            "reused": outcome.reused,
            **shown,
            **links,
        },
        data_version=dg.DataVersion(outcome.record.content_hash[:32]),
    )


def _tell(warn: Callable[[str], None], delivery: "Delivery") -> None:
    """A lineage event that did not arrive is told, and never fails the run."""
    for warning in delivery.warnings:
        warn(warning)
