"""A clinic's deployment with a monthly dataset, whose ledger and Dagster's records the tests write themselves."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import yaml
from dagster._daemon.types import DaemonHeartbeat

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings, embedded_ledger
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.operations.running import open_instance
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee

NOW = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)
REASON = "rows of Ann Lee look odd"


def deployment(root: Path, *, demo: bool = False, **release: Any) -> Settings:
    """Contract and family of the demonstration, as if it were none."""
    documents = {
        path: yaml.safe_load((PACKAGE_ROOT / "deploy" / path).read_text(encoding="utf-8"))
        for path in ("contracts/visits.yaml", "families/clinic-patients.yaml")
    }
    documents["contracts/visits.yaml"]["demo"] = demo
    documents["contracts/visits.yaml"]["release"] |= release
    for path, document in documents.items():
        (root / "deploy" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "deploy" / path).write_text(yaml.safe_dump(document, sort_keys=False))
    (root / "deploy" / "dagster.yaml").write_bytes((PACKAGE_ROOT / "deploy" / "dagster.yaml").read_bytes())
    home = root / "home"
    home.mkdir(exist_ok=True)
    return Settings(home=home, deploy=root / "deploy", ledger_url=embedded_ledger(home / "ledger"), user="runner")


def ledger_of(settings: Settings) -> Ledger:
    """The ledger with the family's account."""
    ledger = Ledger(settings.ledger_url)
    if not ledger.accounts():
        cap = {"epsilon": 6.0, "delta": 1e-3}
        family = FamilyBudget(family="clinic-patients", unit="user", namespace="patient", mode="family", cap=cap)
        ledger.open_account(family, ("k1", "k2"))
    return ledger


def asked(period: str, scale: float = 40.0) -> CostRequest:
    event = DiscreteGaussianCountsEvent(scale, "add-or-remove", 1)
    guarantee = Guarantee(1.0, 1e-6, "user", "add-or-remove", 1)
    return CostRequest.of(
        event, dataset="visits", period=period, guarantee=guarantee, plan_digest="9" * 64, runner="Ada"
    )


def digest_of(period: str) -> str:
    return period.replace("-", "").ljust(64, "c")


def candidate(settings: Settings, period: str) -> str:
    """A candidate that waits; returns its entry's id."""
    ledger = ledger_of(settings)
    entry = ledger.reserve("clinic-patients", f"key {period}", asked(period), None, "compose").entry_id
    ledger.start(entry)
    ledger.complete(entry, "5" * 64)
    ledger.record("candidate", digest_of(period), {"entry": entry})
    return entry


def released(settings: Settings, period: str, entry: str) -> None:
    """Approves and releases a candidate."""
    ledger, digest = ledger_of(settings), digest_of(period)
    ledger.approve(digest, by="Grace", entry_id=entry, reason=REASON)
    ledger.release(f"visits-{period}-0123456789abcdef", candidate=digest, entry_id=entry, check=list)


def beat(settings: Settings, at: dt.datetime) -> None:
    """A sign of Dagster's daemon."""
    with open_instance(settings) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(at.timestamp(), "SCHEDULER", "one", None))
