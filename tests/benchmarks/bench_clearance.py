"""How long clearance takes. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_clearance.py                                 # 10,000 nodes, a million fingerprints
    python tests/benchmarks/bench_clearance.py --owners 10000000               # ten million; half a minute, 1 GB
    python tests/benchmarks/bench_clearance.py --entries 500 --nodes 100000

The graph is a chain of lines (table, rows, model, release), each model trained from a checkpoint that was trained on
the release before, so that the last checkpoint has everything upstream of it. The ledger's fingerprints are spread over
families of one namespace; a new run asks for as many people as an entry has on average, half of whom took part before.

Measured on SQLite and two cores that others used, too:

| nodes, fingerprints | clearance | overlaps for reviewers | reservation with `exclude` |
| --- | --- | --- | --- |
| 10,000, ten million | 0.58 s | 0.27 s | 0.40 s, of 500,000 people |
| 40,000, a million | 2.3 s | 0.03 s | 0.03 s, of 50,000 people |

So two seconds are enough for about 25,000 nodes upstream of one checkpoint. What matters of the ledger is how many
people the new run has and how many each family's standing holds, not how many entries there are.

What belongs here: timing `clear` and the reservation with `exclude` on a graph and a ledger as a deployment opens them.
What does not: asserting; `tests/lineage/test_clearance.py` holds what must hold at any speed.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.owners import Participants
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.lineage.clearance import clear
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.privacy.events import GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee

KEY_IDS = ("inner", "outer")
FAMILIES = 4
NODES_A_LINE = 6


def budget(number: int) -> FamilyBudget:
    """One of the families, with room for all."""
    return FamilyBudget(
        family=f"family-{number}",
        unit="user",
        namespace="person",
        mode="per-owner",
        cap=Cap(epsilon=100.0, delta=1e-5),
    )


def request(number: int) -> CostRequest:
    """A Gaussian mechanism; a few noise levels, as plans of the same contract are alike."""
    return CostRequest.of(
        GaussianCountsEvent(40.0 + number % 5, "add-or-remove", 1),
        dataset=f"dataset_{number}",
        period=None,
        guarantee=Guarantee(1.0, 1e-7, "user", "add-or-remove", 1),
        plan_digest=f"{number:064x}",
        runner="bench",
    )


def contract() -> DataContract:
    """The new run's; the checkpoint is the caller's."""
    return parse_contract(
        {
            "dataset": "new",
            "description": "A new dataset.",
            "owners": ["bench@example.org"],
            "source": {"uri": "s3://lake/new", "key": ["person"]},
            "family": "family-0",
            "privacy": {
                "unit": "user",
                "owner_columns": ["person"],
                "namespace": "person",
                "max_contributions": 1,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 1000,
            },
            "columns": {"person": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 120}},
            "generate": {"method": "independent", "rows": 100},
            "release": {"uri": "s3://lake/public/new"},
        },
        where="bench",
        variables={},
    )


def event(namespace: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """A completed run."""
    return {
        "eventType": "COMPLETE",
        "eventTime": "2026-01-01T00:00:00Z",
        "producer": "https://example.org/bench",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": str(uuid.uuid4()), "facets": {}},
        "job": {"namespace": namespace, "name": "bench"},
        "inputs": inputs,
        "outputs": outputs,
    }


def dataset(name: str, *, model: bool = False, entry: Entry | None = None) -> dict[str, Any]:
    """A dataset or a model, and what paid for it."""
    facets: dict[str, Any] = {"datasetType": {"datasetType": "MODEL"}} if model else {}
    if entry is not None:
        facets["dpsynth_guarantee"] = entry.request.guarantee.to_json() | {"ledgerEntry": entry.entry_id}
    return {"namespace": "s3://lake", "name": name, "facets": facets}


def fill(ledger: Ledger, store: LineageStore, entries: int, owners: int, nodes: int) -> Participants:
    """Entries over the families, and the chain of lines; returns people of whom half took part."""
    generator = np.random.default_rng(0)
    everybody = np.sort(np.frombuffer(generator.bytes(16 * owners), dtype="S16"))
    for number in range(FAMILIES):
        ledger.open_account(budget(number), KEY_IDS)
    size = owners // entries
    paid = []
    for number in range(entries):
        who = np.ascontiguousarray(everybody[number * size : (number + 1) * size])
        family = f"family-{number % FAMILIES}"
        entry = ledger.reserve(family, f"run-{number}", request(number), who, "compose", key_ids=KEY_IDS)
        ledger.start(entry.entry_id)
        paid.append(ledger.complete(entry.entry_id, "0" * 64))
    for number in range(nodes // NODES_A_LINE):
        entry = paid[number % entries]
        base = [dataset(f"checkpoint-{number - 1}", model=True)] if number else []
        made = dataset(f"model-{number}", model=True, entry=entry)
        release = dataset(f"release-{number}", entry=entry)
        for item in (
            event("dpsynth", [dataset(f"table-{number}")], [dataset(f"rows-{number}")]),
            event("dpsynth", [dataset(f"rows-{number}"), *base], [made]),
            event("dpsynth", [dataset(f"model-{number}", model=True)], [release]),
        ):
            store.record(item)
        inputs = [dataset(f"release-{number}"), dataset(f"web-{number}")]
        store.record(
            event("team", inputs, [dataset(f"checkpoint-{number}", model=True)]), origin="ingested", source="team"
        )
    strangers = np.frombuffer(generator.bytes(16 * (size // 2)), dtype="S16")
    return np.sort(np.concatenate([everybody[:: 2 * entries], strangers]))


def timed(name: str, work: Callable[[], Any]) -> Any:
    """Does something and prints how long it took."""
    start = time.perf_counter()
    found = work()
    print(f"| {name} | {time.perf_counter() - start:.2f} s |", flush=True)
    return found


def main() -> None:
    """Fills a ledger and a graph, and clears a run against them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--owners", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=20)
    parser.add_argument("--url", help="an empty database, which is filled; default: SQLite in a temporary directory")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = chosen.url or f"sqlite:///{directory}/ledger.db"
        ledger, store = Ledger(url), LineageStore(url)
        who = timed("filling", lambda: fill(ledger, store, chosen.entries, chosen.owners, chosen.nodes))
        last = f"s3://lake/checkpoint-{chosen.nodes // NODES_A_LINE - 1}"
        asked = request(chosen.entries)
        clear(ledger, store, contract(), budget(0), request=asked)  # imports
        found = timed(
            "clearance: the walk, the kin, the composition",
            lambda: clear(ledger, store, contract(), budget(0), request=asked, base_model=last),
        )
        timed("overlaps with each entry, for reviewers", lambda: ledger.overlaps(who, found.comparable))
        entry = timed(
            f"reservation with exclude, of {len(who):,} people",
            lambda: ledger.reserve("family-0", "new", asked, who, "exclude", key_ids=KEY_IDS, related=found.related),
        )
        left = len(ledger.participants(entry.entry_id))
        longest = max(len(item.path) for item in found.findings)
        print(f"\n{len(found.findings)} findings, the longest path {longest} steps;")
        print(f"{len(who) - left:,} of {len(who):,} people left out; {found.resulting}")
        print(f"memory at the peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
