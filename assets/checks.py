"""Asset checks: what a reader of the UI sees at once.

What belongs here: verdicts on outputs as they lie in storage, for display. What does not: gates. A `blocking` check
gates only inside one run, so the gate is `released` itself, which re-reads its evidence.
"""

from functools import partial

import dagster as dg

import resources as res
from assets.guard import guarded, passed
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.lineage.clearance import clear
from dpsynth_platform.release.evidence import audit_report, clearance_of


def build_checks(contract: DataContract, family: FamilyBudget) -> list[dg.AssetChecksDefinition]:
    """The clearance as it would be now, the audit's verdict and the ledger's integrity, as checks of one dataset."""
    return [_lineage_cleared(contract, family), _audit_passed(contract), _ledger_verifies(contract)]


def _lineage_cleared(contract: DataContract, family: FamilyBudget) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dg.AssetKey([contract.dataset, "clearance"]),
        name="lineage_clearance",
        description="Nothing is known by now of what the mechanism adds to that its clearance did not know.",
    )
    def check(
        context: dg.AssetCheckExecutionContext,
        storage: dg.ResourceParam[res.StorageResource],
        ledger: dg.ResourceParam[res.LedgerResource],
    ) -> dg.AssetCheckResult:
        store = storage.open()
        look = partial(_clearance_now, store, _place(contract, context), family, ledger)
        return passed(guarded(look, logs_of(store.root)))

    return check


def _clearance_now(
    store: Storage, place: Place, family: FamilyBudget, ledger: res.LedgerResource
) -> dg.AssetCheckResult:
    record = store.require(place, "clearance")
    sealed = DataContract.model_validate(store.require(place, "raw").facts["contract"])
    before = clearance_of(place, record)
    now = clear(ledger.open(), ledger.graph(), sealed, family, entry_id=record.facts["entry_id"])
    news = now.news(before)
    return dg.AssetCheckResult(
        passed=now.decision != "refuse" and not news,
        metadata={
            "verdict": now.decision,
            "in words": "\n\n".join(now.words),
            "found since": [item.words for item in news],
        },
    )


def _audit_passed(contract: DataContract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dg.AssetKey([contract.dataset, "audit"]),
        name="audit_verdict",
        description="The audit neither refutes the guarantee nor lacks the power to do so.",
    )
    def check(
        context: dg.AssetCheckExecutionContext, storage: dg.ResourceParam[res.StorageResource]
    ) -> dg.AssetCheckResult:
        store = storage.open()
        return passed(guarded(partial(_audited, store, _place(contract, context)), logs_of(store.root)))

    return check


def _audited(store: Storage, place: Place) -> dg.AssetCheckResult:
    report = audit_report(place, store.require(place, "audit"))
    return dg.AssetCheckResult(
        passed=report["verdict"] == "pass",
        metadata={"verdict": report["verdict"], "epsilon_lower_bound": report["epsilon_lower_bound"]},
    )


def _ledger_verifies(contract: DataContract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dg.AssetKey([contract.dataset, "model"]),
        name="ledger_chain",
        description="The ledger's hash chain is whole and agrees with its entries.",
    )
    def check(
        storage: dg.ResourceParam[res.StorageResource], ledger: dg.ResourceParam[res.LedgerResource]
    ) -> dg.AssetCheckResult:
        return passed(guarded(partial(_verified, ledger), logs_of(storage.open().root)))

    return check


def _verified(ledger: res.LedgerResource) -> dg.AssetCheckResult:
    report = ledger.open().verify()
    return dg.AssetCheckResult(passed=report.ok, metadata={"events": report.events, "problems": list(report.problems)})


def _place(contract: DataContract, context: dg.AssetCheckExecutionContext) -> Place:
    return Place(contract.dataset, context.partition_key if context.has_partition_key else None)
