"""Graphs, rows and a plain reference for the tests of bounding."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dpsynth_platform.bounding.greedy import greedy
from dpsynth_platform.compute.engine import Engine

KEY = b"k" * 32
Owners = Mapping[str, Sequence[str]]
"""Each record's owners."""


def name(kind: str, number: int) -> str:
    """A record's or an owner's id as the scrubbed table has it: 32 hex digits."""
    return hashlib.sha256(f"{kind} {number}".encode()).hexdigest()[:32]


def graph(lists: Iterable[Iterable[int]]) -> dict[str, list[str]]:
    """Records 0, 1, ... with these owners."""
    return {name("record", number): [name("owner", who) for who in owners] for number, owners in enumerate(lists)}


def edges(owners: Owners, weights: Mapping[str, Any] | None = None) -> pa.Table:
    """The table that the rounds read."""
    pairs = [(record, owner) for record, who in owners.items() for owner in dict.fromkeys(who)]
    columns = {
        "_record": pa.array([record for record, _ in pairs], pa.string()),
        "_owner": pa.array([owner for _, owner in pairs], pa.string()),
    }
    if weights is not None:
        columns["_weight"] = pa.array([weights[record] for record, _ in pairs], pa.int64())
    return pa.table(columns)


def hashed(record: str, key: bytes = KEY) -> str:
    """The keyed hash that orders records."""
    return hashlib.sha256((key.hex() + record).encode()).hexdigest()


def ordered(owners: Owners, order: str, weights: Mapping[str, Any] | None = None) -> list[str]:
    """The records in an order, made without SQL; null weights come last."""
    ranks = {
        "random": lambda record: 0,
        "fewest-owners-first": lambda record: len(set(owners[record])),
        "weight": lambda record: (weights[record] is None, -(weights[record] or 0)),  # type: ignore[index]
    }
    return sorted(owners, key=lambda record: (ranks[order](record), hashed(record)))


def greedy_kept(owners: Owners, in_order: Sequence[str], b: int) -> set[str]:
    """What the sequential greedy keeps."""
    room = {owner: b for who in owners.values() for owner in who}
    kept = greedy((sorted(set(owners[record])) for record in in_order), room)  # type: ignore[arg-type, misc]
    return {record for record, stays in zip(in_order, kept, strict=True) if stays}


def kept_by(engine: Engine, owners: Owners) -> set[str]:
    """What the rounds left, once the table `dropped` is made."""
    dropped = [
        record for batch in engine.stream("SELECT _record FROM dropped") for record in batch["_record"].to_pylist()
    ]
    assert len(dropped) == len(set(dropped))
    return set(owners) - set(dropped)


def check_maximal(owners: Owners, kept: set[str], b: int) -> None:
    """No owner is above b, and every record that left has an owner with b others."""
    records = Counter(owner for record in kept for owner in set(owners[record]))
    assert max(records.values(), default=0) <= b
    for record in owners.keys() - kept:
        assert any(records[owner] == b for owner in owners[record])


graphs = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=30).map(graph)
