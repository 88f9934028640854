"""Families, contracts and lines of the tests of clearance, and asking for its verdict."""

from __future__ import annotations

from typing import Any

from dp_accounting import ComposedDpEvent, GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from event_cases import TEAM, dataset, event, model, own
from ledger_cases import family, people

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.lineage.clearance import Clearance, clear
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.privacy.events import GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee

DELTA = 1e-6
SIGMA = 8.0
BUDGETS = {
    "clinic": family("clinic", mode="per-owner", epsilon=8.0),
    "archive": family("archive", mode="per-owner", epsilon=8.0),
    "shops": family("shops", mode="per-owner", namespace="customer"),
    "rows": family("rows", mode="per-owner", unit="example"),
}


def cost(place: str, *, unit: str = "user", sigma: float = SIGMA, plan: str = "") -> CostRequest:
    return CostRequest.of(
        GaussianCountsEvent(sigma, "add-or-remove", 1),
        dataset=place,
        period=None,
        guarantee=Guarantee(5.0, DELTA, unit, "add-or-remove", 1),
        plan_digest=(plan or place).ljust(64, "0")[:64],
        runner="runner",
    )


def independent(number: int) -> float:
    composed = ComposedDpEvent([GaussianDpEvent(SIGMA)] * number)
    return float(PLDAccountant(value_discretization_interval=1e-4).compose(composed).get_epsilon(number * DELTA))


def contract_of(
    dataset: str = "visits", *, family: str = "clinic", policy: str = "compose", base_model: str | None = None
) -> DataContract:
    document: dict[str, Any] = {
        "dataset": dataset,
        "description": "Visits.",
        "owners": ["clinic@example.org"],
        "source": {"uri": f"s3://lake/{dataset}", "key": ["patient"]},
        "family": family,
        "privacy": {
            "unit": "user",
            "owner_columns": ["patient"],
            "namespace": "person",
            "max_contributions": 1,
            "guarantee": {"epsilon": 5.0},
            "expected_units": 1000,
            "on_overlap": policy,
        },
        "columns": {"patient": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 120}},
        "generate": {"method": "independent", "rows": 100},
        "release": {"uri": f"s3://lake/public/{dataset}"},
    }
    if base_model is not None:
        document["generate"]["base_model"] = base_model
    return parse_contract(document, where="test", variables={})


def spend(ledger: Ledger, budget: str, place: str, who: Any = None, *, policy: Any = "compose", **more: Any) -> Entry:
    keys = ledger.account(budget).key_ids
    unit = BUDGETS[budget].unit
    asked = cost(place, unit=unit)
    who = people(1, 2) if who is None else who
    entry = ledger.reserve(budget, f"run-{place}", asked, who, policy, key_ids=keys, **more)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "a" * 64)


def guarantee(entry: Entry) -> dict[str, Any]:
    paid = entry.request.guarantee
    return {
        "dpsynth_guarantee": {
            "epsilon": paid.epsilon,
            "delta": paid.delta,
            "unit": paid.unit,
            "adjacency": paid.adjacency,
            "ledgerEntry": entry.entry_id,
        }
    }


def guarded(text: str) -> dict[str, Any]:
    return dataset(text, tags={"tags": [{"key": "zone", "value": "restricted"}]})


def line(store: LineageStore, place: str, entry: Entry, *, source: str = "", bases: tuple[str, ...] = ()) -> None:
    """What a run of ours leaves: source -> rows -> model (paid by the entry) -> release."""
    table = dataset(source or place, dpsynth_privacyUnit={"unit": "user"})
    paid = guarantee(entry)
    for item in (
        own("COMPLETE", [table], [guarded(f"{place}/rows")], job=f"{place}.bounded"),
        own("COMPLETE", [guarded(f"{place}/rows"), *map(model, bases)], [model(f"{place}/model", **paid)]),
        own("COMPLETE", [guarded(f"{place}/rows"), f"{place}/model"], [guarded(f"{place}/quality")]),
        own(
            "COMPLETE",
            [f"{place}/model", f"{place}/quality"],
            [dataset(f"{place}/release", **paid)],
            job=f"{place}.released",
        ),
    ):
        assert store.record(item).new


def reported(store: LineageStore, *events: dict[str, Any]) -> None:
    for item in events:
        assert store.record(item, origin="ingested", source=TEAM).new


def trained(model_name: str, *inputs: Any, **facets: Any) -> dict[str, Any]:
    return event("COMPLETE", list(inputs), [model(model_name, **facets)])


def verdict(ledger: Ledger, store: LineageStore, contract: DataContract, **more: Any) -> Clearance:
    if "request" not in more and "entry_id" not in more:
        more["request"] = cost(contract.dataset)
    return clear(ledger, store, contract, BUDGETS[contract.family], **more)
