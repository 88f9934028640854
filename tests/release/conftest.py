"""Shared by the release tests: a small contract, its evidence with a real audit report, and a published release."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measured_cases import MEASURED
from table_cases import one_table

from dpsynth_platform.audit import attacks, plots
from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.verdict import judge
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger.composition import Composition
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.clearance import Clearance, Finding
from dpsynth_platform.lineage.upstream import Upstream
from dpsynth_platform.privacy.events import GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import WORDS, PrivacyStatement, privacy_statement
from dpsynth_platform.release.commitments import NonceBook
from dpsynth_platform.release.dossier import Approval, Evidence, LineageStep, clearance_summary, software_versions
from dpsynth_platform.release.publish import Published, publish
from dpsynth_platform.release.target_files import SignedRelease

LINE = {
    "raw": (), "scrubbed": ("raw",), "canaries": (), "clearance": ("scrubbed",),
    "bounded": ("scrubbed", "canaries", "clearance"), "model": ("bounded",), "synthetic": ("model",),
    "audit": ("canaries", "model", "synthetic"), "released": ("synthetic", "audit"),
}  # fmt: skip
CLEARED = Clearance(
    decision="compose",
    policy="compose",
    reason="one other mechanism is known",
    findings=(
        Finding(
            kind="source",
            path=("file:/restricted/place/visits", "derived file:/restricted/place/other", "paid-by entry-0"),
            entry="entry-0",
            family="clinic-staff",
            place="shifts/2026-01",
            guarantee={"epsilon": 0.5, "delta": 1e-6, "unit": "user", "adjacency": "add-or-remove",
                       "max_contributions": 1},
        ),
    ),
    resulting=Composition(1.4, 8e-6, "pld", "user", "add-or-remove", 2),
    apart=(),
    base_model=("hub:models/clinic-base",),
    families=("clinic-staff",),
    caps=(5.0, 2e-5),
)  # fmt: skip
SCHEMA = pa.schema(
    [
        pa.field("patient_id", pa.string(), nullable=False),
        pa.field("visit_date", pa.date32(), nullable=False),
        pa.field("department", pa.string(), nullable=False),
        pa.field("insured", pa.bool_()),
        pa.field("minutes", pa.int32(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("remark", pa.string()),
    ]
)


@pytest.fixture(scope="session")
def contract() -> DataContract:
    return parse_contract(
        {
            "dataset": "visits",
            "description": "Visits to a small clinic; <b>made up</b> entirely.",
            "demo": True,
            "purpose": "Planning of staff.",
            "recipients": ["The clinic's planners"],
            "owners": ["clinic-data@example.org"],
            "source": {"uri": "/restricted/place/visits", "key": ["patient_id"]},
            "family": "clinic-patients",
            "privacy": {
                "unit": "user",
                "owner_columns": ["patient_id"],
                "namespace": "patient",
                "max_contributions": 2,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 48000,
            },
            "columns": {
                "patient_id": {"type": "identifier"},
                "visit_date": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
                "full_name": {"type": "text", "pii": "drop"},
                "department": {"type": "categorical", "values": ["general", "cardiology", "dermatology"]},
                "insured": {"type": "boolean", "nullable": True},
                "minutes": {"type": "integer", "min": 5, "max": 120, "bins": [10, 20, 30, 60]},
                "score": {"type": "float", "min": 0.0, "max": 1.0, "nullable": True},
                "remark": {"type": "text", "pii": "replace", "nullable": True},
            },
            "generate": {"rows": 400},
            "audit": {"canaries": 500},
            "release": {"uri": "/public/visits", "approvals": 1},
        },
        where="test",
        variables={},
    )


@pytest.fixture(scope="session")
def family() -> FamilyBudget:
    return FamilyBudget.model_validate(
        {
            "family": "clinic-patients",
            "unit": "user",
            "namespace": "patient",
            "mode": "family",
            "cap": {"epsilon": 4.0, "delta": 1e-5},
        }
    )


@pytest.fixture
def rows() -> list[pa.RecordBatch]:
    """Synthetic rows in two batches; the same each time."""
    random = np.random.default_rng(7)
    count = 400
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=int(day)) for day in random.integers(0, 365, count)]
    table = pa.table(
        [
            [f"S{index:07d}" for index in range(count)],
            days,
            random.choice(["general", "cardiology", "dermatology"], count, p=[0.6, 0.3, 0.1]),
            [None if item == 2 else bool(item) for item in random.integers(0, 3, count)],
            pa.array(random.integers(5, 121, count), pa.int32()),
            random.random(count),
            pa.nulls(count, pa.string()),
        ],
        schema=SCHEMA,
    )
    return table.to_batches(max_chunksize=250)


@pytest.fixture(scope="session")
def statement(contract: DataContract, family: FamilyBudget) -> PrivacyStatement:
    return privacy_statement(contract, family, GaussianCountsEvent(20.0, "add-or-remove", 2), WORDS["aim"])


@pytest.fixture
def evidence(contract: DataContract, family: FamilyBudget, statement: PrivacyStatement, tmp_path: Path) -> Evidence:
    random = np.random.default_rng(11)
    included = random.random(500) < 0.5
    scored = [Scored(attack, random.normal(size=500)) for attack in (attacks.LIKELIHOOD, attacks.MEASUREMENTS)]
    guarantee = Guarantee.target(contract)
    report = judge(contract, None, included, scored)
    dagster_run = "0d5c0b43-9b5c-4a55-9f0c-6b9b9a3d6c11"
    return Evidence(
        contract=contract,
        family=family,
        period=None,
        created_at="2026-11-20T07:00:00+00:00",
        guarantee=guarantee,
        accounting="pld",
        statement=statement.to_json(),
        plain_words=(
            "Whether or not any one person's records were in the source, what can be learned from this release about "
            "that person changes very little: no conclusion becomes more than 2.7 times as likely.",
            "The promise holds for everything that is ever done with the published rows, whatever else is known.",
        ),
        plan_digest="5e" * 32,
        method="aim",
        why_method="it keeps most",
        ledger_entry="entry-1",
        ledger_head=Head(17, "c0" * 32),
        clearance=clearance_summary(CLEARED),
        expected_errors={"expected_error_per_one_way_cell": 20.25},
        lineage=tuple(
            LineageStep(step, naming.job_name("visits", step), naming.run_id(dagster_run, f"visits/{step}"), inputs)
            for step, inputs in LINE.items()
        ),
        upstream=(
            Upstream("checkpoint", "hub", "models/clinic-base", "base", "model"),
            Upstream("release", "file", "/public/older/visits-1", "trained-on", "models/clinic-base", own=True),
        ),
        audit_report=report.to_json(),
        audit_plots={
            "Attacks": plots.roc_plot(scored, included),
            "Scores": plots.score_plot(scored[0], included),
        },
        approvals=(Approval("grace", "2026-11-20T06:59:00+00:00"),),
        commitments=NonceBook(tmp_path / "nonces").commit_all({"candidate": "ab" * 32, "model": "cd" * 32}),
        software=software_versions(),
        measured=MEASURED,
        budget={"this_release": 0.4, "earlier": 0.25, "left": 0.35, "mechanisms_before": 1},
    )


@pytest.fixture
def signing_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def released(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> Published:
    return publish(evidence, one_table(rows, SCHEMA), tmp_path / "public", signing_key, announce=lambda: None)


@pytest.fixture
def with_approvals(evidence: Evidence) -> Callable[..., Evidence]:
    return lambda **changes: replace(evidence, **changes)


@pytest.fixture
def of_month(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> Callable[..., SignedRelease]:
    """Publishes a month's release, which differs from others in its id and period."""

    def make(period: str | None, batches: list[pa.RecordBatch] = rows) -> SignedRelease:
        measured = evidence.measured if batches[0].schema == SCHEMA else None
        month = replace(evidence, period=period, measured=measured)
        made = publish(month, one_table(batches), tmp_path / "public", signing_key, announce=lambda: None)
        return SignedRelease.of(made, "visits", period)

    return make
