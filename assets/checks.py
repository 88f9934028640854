"""Asset checks: verdicts on stored outputs, for display in the UI.

What belongs here: what to check and to show. What does not: gates. A `blocking` check gates only inside one run; the
gate is the step `released`, which re-reads its evidence.
"""

from collections.abc import Callable
from functools import partial

import dagster as dg

import resources as res
from assets.guard import Caught, guarded
from assets.quality import NUMBERS, report_for_operator, where_shown
from assets.shown import numbers
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.lineage.clearance import clear
from dpsynth_platform.release.evidence import audit_report, clearance_of


def build_checks(contract: DataContract, family: FamilyBudget) -> list[dg.AssetChecksDefinition]:
    """The current clearance, the audit's verdict, the quality report and the ledger's integrity, of one dataset."""
    return [
        *(() if contract.source.federation is not None else (_of_quality(contract, family),)),
        _check(
            contract,
            "clearance",
            "lineage_clearance",
            "Since the clearance, nothing new is known about earlier releases that the mechanism adds to.",
            partial(_clearance_now, family),
        ),
        _check(
            contract,
            "audit",
            "audit_verdict",
            "The audit neither refutes the guarantee nor lacks the power to do so.",
            partial(_audited, contract),
        ),
        _check(
            contract,
            "model",
            "ledger_chain",
            "The ledger's hash chain is valid and agrees with its entries.",
            _verified,
        ),
    ]


def _of_quality(contract: DataContract, family: FamilyBudget) -> dg.AssetChecksDefinition:
    return _check(
        contract,
        "quality",
        "quality_report",
        "The quality report is of the current rows and compares all that the contract asks for. At most a warning, "
        "which stops nothing: no automatic decision reads a comparison with real rows.",
        partial(_compared, family),
    )


def _check(
    contract: DataContract,
    step: str,
    name: str,
    description: str,
    look: Callable[[Storage, Place, res.LedgerResource], dg.AssetCheckResult],
) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=dg.AssetKey([contract.dataset, step]), name=name, description=description)
    def check(
        context: dg.AssetCheckExecutionContext,
        storage: dg.ResourceParam[res.StorageResource],
        ledger: dg.ResourceParam[res.LedgerResource],
    ) -> dg.AssetCheckResult:
        store = storage.open()
        place = Place(contract.dataset, context.partition_key if context.has_partition_key else None)
        done = guarded(partial(look, store, place, ledger), logs_of(store.root))
        if isinstance(done, Caught):
            raise done.failure()
        return done

    return check


def _clearance_now(
    family: FamilyBudget, store: Storage, place: Place, ledger: res.LedgerResource
) -> dg.AssetCheckResult:
    record = store.require(place, "clearance")
    sealed = DataContract.model_validate(store.require(place, "raw").facts["contract"])
    before = clearance_of(place, record)
    now = clear(ledger.open(), ledger.graph(), sealed, family, entry_id=record.facts["entry_id"])
    new = now.new_findings(before)
    return dg.AssetCheckResult(
        passed=now.decision != "refuse" and not new,
        metadata={
            "verdict": now.decision,
            "in words": "\n\n".join(now.words),
            "found since": [item.words for item in new],
        },
    )


def _audited(contract: DataContract, store: Storage, place: Place, ledger: res.LedgerResource) -> dg.AssetCheckResult:
    report = audit_report(place, store.require(place, "audit"))
    accepted = report["verdict"] == "inconclusive" and contract.audit.accept_inconclusive
    return dg.AssetCheckResult(
        passed=report["verdict"] == "pass",
        severity=dg.AssetCheckSeverity.WARN if accepted else dg.AssetCheckSeverity.ERROR,
        description=f"{report['summary']} Accepted: {accepted}" if accepted else report["summary"],
        metadata={
            name: report[name]
            for name in ("verdict", "epsilon_lower_bound", "highest_bound", "threshold")
            if name in report
        }
        | ({"accepted because": accepted} if accepted else {}),
    )


def _compared(family: FamilyBudget, store: Storage, place: Place, ledger: res.LedgerResource) -> dg.AssetCheckResult:
    """Reads the stored report alone. Where owners are silently left out, the result depends on no row."""
    from dpsynth_platform.quality.completeness import missing_comparisons

    raw = store.require(place, "raw")
    sealed = DataContract.model_validate(raw.facts["contract"])
    record, synthetic = (store.require(place, step, run_key=raw.run_key) for step in ("quality", "synthetic"))
    result = partial(dg.AssetCheckResult, severity=dg.AssetCheckSeverity.WARN)
    if record.inputs["synthetic"] != synthetic.content_hash:
        return result(passed=False, description=f"The report is of earlier rows; materialize {place.label}/quality.")
    report = report_for_operator(record, sealed, family)
    if report is None:
        return result(passed=True, description=where_shown(place))
    missing = missing_comparisons(sealed, report)
    return result(
        passed=not missing,
        description="\n\n".join(["Not compared:", *missing]) if missing else "Compares all that the contract asks for.",
        metadata={**numbers(report, NUMBERS), "restricted": report["notice"]},
    )


def _verified(store: Storage, place: Place, ledger: res.LedgerResource) -> dg.AssetCheckResult:
    report = ledger.open().verify()
    return dg.AssetCheckResult(passed=report.ok, metadata={"events": report.events, "problems": list(report.problems)})
