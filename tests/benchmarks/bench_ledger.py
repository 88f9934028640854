"""How long the ledger's decisions take. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_ledger.py                                   # small, under a minute
    python tests/benchmarks/bench_ledger.py --entries 10 1000 10000           # decisions without participants
    python tests/benchmarks/bench_ledger.py --owners 10000000 --releases 24   # needs 5 GB of disk and 3 GB of memory
    python tests/benchmarks/bench_ledger.py --url postgresql+psycopg://...    # an empty database, which it fills

Measured on SQLite, two cores and a local disk that nobody else used; the disk decides, for each decision waits until it
is durable there (on a busy disk all of it took six to sixteen times as long):

| | |
| --- | --- |
| decisions beside 1,000 entries, no participants | admit 1.1 ms, reserve 2.9 ms: 345 a second |
| ten million owners, 24 entries of half of them each: reserve for five million | 0.95 s |
| the same: reserve for all ten million | 1.6 s, most of it writing their 160 MB |
| the same: start for five million | 2.4 s |
| memory at the peak, storage at the end | 1.5 GB, 2.3 GB |

What belongs here: timing `admit`, `reserve`, `start` and `rotate_key` on a ledger as a deployment opens it, SQLite's
unless a URL says otherwise. What does not: asserting; the tests in `tests/ledger` hold what must hold at any speed.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from sqlalchemy import create_engine, make_url

from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.owners import Participants
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import rotated

KEY_IDS = ("inner", "outer")


def request(number: int, rho: float) -> CostRequest:
    """A Gaussian mechanism of zCDP cost `rho`."""
    return CostRequest.of(
        DiscreteGaussianCountsEvent(1 / math.sqrt(2 * rho), "add-or-remove", 1),
        dataset="bench",
        period=None,
        guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 1),
        plan_digest=hashlib.sha256(str(number).encode()).hexdigest(),
        runner="bench",
    )


@contextmanager
def open_ledger(given: str | None, mode: str) -> Iterator[tuple[Ledger, str]]:
    """A ledger with one account, named like its mode, that has room for all; and its URL."""
    with tempfile.TemporaryDirectory() as directory:
        url = given or f"sqlite:///{directory}/ledger.db"
        ledger = Ledger(url)
        cap = Cap(epsilon=100.0, delta=1e-5)
        ledger.open_account(
            FamilyBudget.model_validate(
                {"family": mode, "unit": "user", "namespace": "person", "mode": mode, "cap": cap.model_dump()}
            ),
            KEY_IDS,
        )
        yield ledger, url


def milliseconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def without_participants(sizes: list[int], given: str | None) -> None:
    """Decisions in `family` mode beside a growing number of entries."""
    print(f"{'entries':>8} {'admit ms':>9} {'reserve ms':>11} {'start ms':>9} {'decisions/s':>12} {'storage MB':>11}")
    with open_ledger(given, "family") as (ledger, url):
        filled = 0
        for size in sorted(sizes):
            for filled in range(filled + 1, size + 1):  # noqa: B020
                ledger.start(ledger.reserve("family", f"f{filled}", request(filled, 1e-4), None, "compose").entry_id)
            times: dict[str, list[float]] = {"admit": [], "reserve": [], "start": []}
            for turn in range(20):
                key, cost = f"probe-{size}-{turn}", request(turn, 1e-4)
                times["admit"].append(milliseconds(lambda cost=cost: ledger.admit("family", cost)))  # type: ignore[misc]
                times["reserve"].append(
                    milliseconds(lambda key=key, cost=cost: ledger.reserve("family", key, cost, None, "compose"))  # type: ignore[misc]
                )
                entry = ledger.entry_for_key(key)
                assert entry is not None
                times["start"].append(milliseconds(lambda entry=entry: ledger.start(entry.entry_id)))  # type: ignore[misc]
            middle = {name: statistics.median(values) for name, values in times.items()}
            print(
                f"{size:>8} {middle['admit']:>9.1f} {middle['reserve']:>11.1f} {middle['start']:>9.1f} "
                f"{1000 / middle['reserve']:>12.0f} {storage(url):>11.1f}",
                flush=True,
            )


def with_participants(owners: int, releases: int, given: str | None) -> None:
    """Decisions in `per-owner` mode about random halves of many owners."""
    print(f"\n{owners} owners, each in about half of {releases} releases")
    print(f"{'entry':>8} {'reserve s':>10} {'start s':>8} {'peak MB':>8} {'storage MB':>11}")
    random = np.random.default_rng()
    everybody: Participants = np.unique(np.frombuffer(random.bytes(16 * owners), dtype="S16"))
    with open_ledger(given, "per-owner") as (ledger, url):
        for number in range(1, releases + 1):
            who = everybody[random.random(len(everybody)) < 0.5]
            cost, key = request(number, 0.01), f"k{number}"
            reserving = milliseconds(lambda who=who, cost=cost, key=key: reserve(ledger, key, cost, who))  # type: ignore[misc]
            entry = ledger.entry_for_key(key)
            assert entry is not None
            starting = milliseconds(lambda entry=entry: ledger.start(entry.entry_id))  # type: ignore[misc]
            if number in {1, releases} or number % 6 == 0:
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(
                    f"{number:>8} {reserving / 1000:>10.2f} {starting / 1000:>8.2f} {peak:>8.0f} {storage(url):>11.0f}",
                    flush=True,
                )
        everyone = milliseconds(lambda: reserve(ledger, "all", request(0, 0.01), everybody))
        print(f"{'all':>8} {everyone / 1000:>10.2f}", flush=True)
        entry = ledger.entry_for_key("all")
        assert entry is not None
        ledger.void(entry.entry_id)
        rotating = milliseconds(
            lambda: ledger.rotate_key(
                "person", "rotated", lambda owners: rotated(owners, bytes(32)), by="bench", reason="bench"
            )
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"keys rotated in {rotating / 1000:.1f} s, peak {peak:.0f} MB, storage {storage(url):.0f} MB")


def reserve(ledger: Ledger, key: str, cost: CostRequest, who: Participants) -> None:
    """One decision with participants."""
    ledger.reserve("per-owner", key, cost, who, "compose", key_ids=KEY_IDS)


def storage(url: str) -> float:
    """What the database takes, in MB."""
    place = make_url(url)
    if place.get_backend_name() == "sqlite":
        return sum(path.stat().st_size for path in Path(str(place.database)).parent.iterdir()) / 1e6
    engine = create_engine(url)
    with engine.connect() as connection:
        size = float(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    engine.dispose()
    return size / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, nargs="*", default=[10, 1000], help="0 entries: skip that table")
    parser.add_argument("--owners", type=int, default=200_000, help="0: skip that table")
    parser.add_argument("--releases", type=int, default=12)
    parser.add_argument("--url", help="SQLAlchemy URL of an empty database; default: a temporary SQLite file")
    chosen = parser.parse_args()
    if chosen.entries:
        without_participants(chosen.entries, chosen.url)
    if chosen.owners:
        with_participants(chosen.owners, chosen.releases, chosen.url)
