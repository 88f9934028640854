"""Asset checks: what a reader of the UI sees at once.

What belongs here: verdicts on outputs as they lie in storage, for display. What does not: gates. A `blocking` check
gates only inside one run, so the gate is `released` itself, which re-reads its evidence.
"""

import dagster as dg

import resources as res
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.release.evidence import audit_report
from dpsynth_platform.storage import Place


def build_checks(contract: DataContract) -> list[dg.AssetChecksDefinition]:
    """The audit's verdict and the ledger's integrity, as checks of one dataset."""
    return [_audit_passed(contract), _ledger_verifies(contract)]


def _audit_passed(contract: DataContract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dg.AssetKey([contract.dataset, "audit"]),
        name="audit_verdict",
        description="The audit neither refutes the guarantee nor lacks the power to do so.",
    )
    def check(
        context: dg.AssetCheckExecutionContext, storage: dg.ResourceParam[res.StorageResource]
    ) -> dg.AssetCheckResult:
        place = Place(contract.dataset, context.partition_key if context.has_partition_key else None)
        report = audit_report(place, storage.open().require(place, "audit"))
        return dg.AssetCheckResult(
            passed=report["verdict"] == "pass",
            metadata={"verdict": report["verdict"], "epsilon_lower_bound": report["epsilon_lower_bound"]},
        )

    return check


def _ledger_verifies(contract: DataContract) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dg.AssetKey([contract.dataset, "model"]),
        name="ledger_chain",
        description="The ledger's hash chain is whole and agrees with its entries.",
    )
    def check(ledger: dg.ResourceParam[res.LedgerResource]) -> dg.AssetCheckResult:
        report = ledger.open().verify()
        return dg.AssetCheckResult(
            passed=report.ok, metadata={"events": report.events, "problems": list(report.problems)}
        )

    return check
